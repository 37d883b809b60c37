"""A second opinion on NVIDIA's `cvt` instructions: one instruction on Python numbers, and operands to try it on.

`model` follows PTX ISA 9.7.9.22 one element at a time, on top of `numerics.oracle` (rationals), with an integer rule of
its own for `.rs` to float16 and bfloat16; it shares with `numerics.ptx` nothing but the formats.
"""

import math

import numpy as np
import torch

import numerics as nm
from numerics import oracle, ptx

INF, NAN = math.inf, math.nan
INSTRUCTIONS = ptx.instructions()
NARROW = ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2")
FORMAT = {"ue8m0": nm.E8M0, "s2f6": nm.S2F6, "bf16": nm.BF16} | {
    name: nm.FORMATS[name.upper()] for name in ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2")
}
FORMAT["f16"] = nm.FORMATS["FP16"]
FIELD = {name: 4 if name == "e2m1" else 16 if name in ("f16", "bf16") else 8 for name in FORMAT}
CANONICAL = {"e4m3": 0x7F, "e5m2": 0x7F, "ue8m0": 0xFF, "f16": 0x7FFF, "bf16": 0x7FFF, "e2m1": 7, "s2f6": 0x7F}
CANONICAL |= {"e2m3": 0x1F, "e3m2": 0x1F}


# ---- a scalar model of one instruction -------------------------------------------------------------------------------


def elements(packed: str) -> tuple[str, int]:
    """ "e4m3x2" -> ("e4m3", 2)."""
    name, count = packed.rsplit("x", 1)
    return name, int(count)


def unpack(word: int, packed: str) -> list[int]:
    """Codes of a word, the upper first."""
    name, count = elements(packed)
    return [word >> FIELD[name] * i & (1 << FIELD[name]) - 1 for i in reversed(range(count))]


def model(instruction: str, operands: list, scale: int = 0x7F7F, rbits: int = 0) -> int:
    """The result's bits of `instruction` on Python floats or one packed int."""
    _, rounding, *qualifiers, destination, source = instruction.split(".")
    name, count = elements(destination)
    values = operands
    if source != "f32":
        values = [FORMAT[elements(source)[0]].value(code) for code in unpack(operands[0], source)]
    if any(q.startswith("scaled") for q in qualifiers):
        values = [scaled(x, byte, name) for x, byte in zip(values, unpack(scale, "ue8m0x2"), strict=True)]
    if "relu" in qualifiers:
        values = [0.0 if math.copysign(1, x) < 0 and not math.isnan(x) else x for x in values]
    fields = [0] * count
    if name in ("f16", "bf16"):
        fields = [rbits >> 16, rbits & 0xFFFF]
    elif rounding == "rs":
        f, e, b, a = oracle.split_word(rbits, FIELD[name])
        fields = [a, b, e, f]
    codes = [code_of(x, name, rounding, "satfinite" in qualifiers, r) for x, r in zip(values, fields, strict=True)]
    return sum(code << FIELD[name] * i for i, code in enumerate(reversed(codes)))


def scaled(x: float, byte: int, destination: str) -> float:
    """x divided (to s2f6) or multiplied by 2^(byte - 127), exact in a Python float."""
    if byte == 0xFF:
        return NAN
    return math.ldexp(x, 127 - byte if destination == "s2f6" else byte - 127)


def code_of(x: float, name: str, rounding: str, satfinite: bool, field: int) -> int:
    """One element by the rules of PTX ISA 9.7.9.22."""
    fmt = FORMAT[name]
    if math.isnan(x):
        return CANONICAL[name]
    if name == "ue8m0":
        beyond = abs(x) == INF or (rounding == "rp" and abs(x) > 2.0**127)
        return 0xFF if beyond and not satfinite else oracle.nearest(abs(x), fmt, MODE[rounding])
    if name in ("f16", "bf16"):
        magnitude = {"rn": nearest_half, "rs": stochastic_half}[rounding](abs(x), name, field)
        magnitude = min(magnitude, fmt.max_code + (not satfinite))
        return magnitude | (0x8000 if math.copysign(1, x) < 0 else 0)
    return oracle.stochastic(x, fmt, field) if rounding == "rs" else oracle.nearest(x, fmt, MODE[rounding])


MODE = {"rn": "nearest_even", "rz": "toward_zero", "rp": "toward_positive"}


def nearest_half(size: float, name: str, field: int) -> int:
    """Magnitude code to nearest even in rationals; past the largest number, more than its code."""
    fmt = FORMAT[name]
    if size >= fmt.max * (1 + 2.0 ** -(fmt.mantissa_bits + 2)):  # products have too few bits to lie nearer
        return fmt.max_code + 1
    return oracle.nearest(size, fmt)


def stochastic_half(size: float, name: str, field: int) -> int:
    """Magnitude code of |x| by the carry of discarded plus random bits, in integers, unbounded above.

    bfloat16 on the raw pattern: (bits + field) >> 16. float16: keep sig >> s, and the carry of the leading 13 of the s
    discarded bits + 13 random ones, at bit 13; s grows by one for each exponent below float16's normal numbers.
    """
    if size == INF:
        return FORMAT[name].max_code + 1
    bits = int(np.float32(size).view(np.uint32))
    if name == "bf16":
        return bits + field >> 16
    exponent, sig = max(bits >> 23, 1) - 127, bits & 0x7FFFFF | (0x800000 if bits >> 23 else 0)
    s = 13 + max(-14 - exponent, 0)
    top = (sig & (1 << s) - 1) >> s - 13
    magnitude = (sig >> s) + (top + (field & 0x1FFF) >> 13)
    return magnitude + (max(exponent, -14) + 14 << 10)


# ---- inputs ----------------------------------------------------------------------------------------------------------

SPECIALS = [0.0, INF, NAN, 1.0, 6.0, 2.0**127, 1.5 * 2.0**127, 2.0**-127, 2.0**-126, 1.5 * 2.0**-127, 1e-45, 65504.0]
SPECIALS += [65519.0, 65520.0, 448.0, 464.0, 57344.0, 61440.0, 7.5, 28.0, 127 / 64, 2.0, 2.0**-10, 0.25, 2.0**-25]
SPECIALS += [
    float(np.float32(3.4e38)),
    float.fromhex("0x1.fffffep127"),
    float.fromhex("0x1.fep127"),
    2.0**-18,
    2.0**-34,
]


def random_float32(n: int, seed: int) -> torch.Tensor:
    """n numbers: all specials with both signs, then exponents over the narrow formats' ranges, then any pattern."""
    generator = torch.Generator().manual_seed(seed)
    bits = torch.randint(0, 1 << 32, (n,), generator=generator)
    near = (bits & 0x807FFFFF) | torch.randint(105, 145, (n,), generator=generator) << 23
    bits[: 3 * n // 4] = near[: 3 * n // 4]
    x = bits.to(torch.uint32).view(torch.float32)
    special = torch.tensor(SPECIALS)
    special = torch.cat((special, -special, torch.nextafter(special, torch.tensor(INF))))[:n]
    x[: len(special)] = special
    return x[torch.randperm(n, generator=generator)]


def random_words(n: int, packed: str, seed: int) -> torch.Tensor:
    """n packed words of legal codes, int64."""
    name, count = elements(packed)
    generator = torch.Generator().manual_seed(seed)
    words = torch.zeros(n, dtype=torch.int64)
    for _ in range(count):
        codes = torch.randint(0, 1 << FORMAT[name].bits, (n,), generator=generator)
        words = words << FIELD[name] | codes
    return words


def inputs(instruction: str, n: int, seed: int = 0) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Operands, and the scale or random bits that the instruction has."""
    *_, destination, source = instruction.split(".")
    count = elements(destination)[1]
    operands = [random_float32(n, seed + i) for i in range(count)]
    if source != "f32":
        operands = [random_words(n, source, seed)]
    extra = {}
    if "scaled" in instruction:
        scale = random_words(n, "ue8m0x2", seed + 9)
        scale[::4] = 0x7C7D + (scale[::4] & 0x0303)  # near 1, at either end, anywhere
        scale[1::4] &= 0x0303
        scale[2::4] |= 0xFCFC
        extra["scale"] = scale
    if ".rs." in instruction:
        extra["rbits"] = torch.randint(0, 1 << 32, (n,), generator=torch.Generator().manual_seed(seed + 8))
    return operands, extra


def call(instruction: str, *operands: float | int, **extra: int) -> int:
    """One instruction on scalars: floats as float32, ints as words."""
    tensors = [torch.tensor([x], dtype=torch.float32 if isinstance(x, float) else torch.int64) for x in operands]
    return int(INSTRUCTIONS[instruction](*tensors, **extra).to(torch.int64))
