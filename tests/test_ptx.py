"""NVIDIA's `cvt` instructions by name.

Contract: `nm.ptx` gives the bits of every form of PTX ISA 9.4 "cvt" between float32, float16, bfloat16 and the 4-, 6-
and 8-bit types. Oracles: tables of PTX ISA and of NVIDIA's header emulation, written out; published read-outs of the
random bits on B200; a scalar model of the instruction in this file on top of `numerics.oracle` (rationals), with its
own integer rule for `.rs` to float16 and bfloat16. Exhaustive over packed sources of 16 bits and over 16-bit inputs;
sampled with every special value for float32. Bitwise. tests/test_host_headers.py runs NVIDIA's headers themselves.
"""

import dataclasses
import inspect
import itertools
import math

import numpy as np
import pytest
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


# ---- every form ------------------------------------------------------------------------------------------------------


def grammar() -> set[str]:
    """The forms of PTX ISA 9.4, "cvt", by its syntax lines; .pzo, .scaled::n1 and ue5m3 left out."""

    def forms(rounding: str, optional: str, types: list[str]) -> set[str]:
        choices = [("", f".{q}") for q in optional.split()]
        return {f"cvt.{rounding}{''.join(q)}.{t}" for q in itertools.product(*choices) for t in types}

    down = [f"{d}x2.{s}" for d in NARROW for s in ("f32", "f16x2", "bf16x2")]
    to_s2f6 = ["s2f6x2.f32", "s2f6x2.bf16x2"]
    to_ue8m0 = ["ue8m0x2.f32", "ue8m0x2.bf16x2"]
    scale = "scaled::n2::ue8m0"
    found = forms("rn", "relu", [f"f16x2.{s}x2" for s in NARROW])
    found |= forms("rn", f"satfinite relu {scale}", [f"bf16x2.{s}x2" for s in (*NARROW, "s2f6")])
    found |= forms("rs.satfinite", "relu", [f"{d}x4.f32" for d in NARROW])
    found |= forms("rs", "satfinite relu", ["f16x2.f32", "bf16x2.f32"])
    found |= {"cvt.rn.bf16x2.ue8m0x2"}
    for rounding in ("rn", "rz"):
        found |= forms(rounding + ".satfinite", "relu", down)
        found |= forms(rounding + ".satfinite", f"relu {scale}", to_s2f6)
    for rounding in ("rz", "rp"):
        found |= forms(rounding, "satfinite", to_ue8m0)
    return found


def test_every_form_of_the_grammar_has_its_function_and_no_other():
    assert set(INSTRUCTIONS) == grammar()
    assert len(INSTRUCTIONS) == 161


@pytest.mark.parametrize("instruction", sorted(grammar()))
def test_random_operands_equal_the_scalar_model(instruction: str):
    n = 400
    operands, extra = inputs(instruction, n)
    ours = INSTRUCTIONS[instruction](*operands, **extra)
    rows = zip(*(operand.tolist() for operand in operands), strict=True)
    words = [dict(zip(extra, row, strict=True)) for row in zip(*(t.tolist() for t in extra.values()), strict=True)]
    theirs = [model(instruction, list(row), **word) for row, word in zip(rows, words or [{}] * n, strict=True)]
    assert ours.tolist() == theirs
    name, count = elements(instruction.split(".")[-2])
    assert ours.dtype == {8: torch.uint8, 16: torch.uint16, 32: torch.uint32}[FIELD[name] * count]


@pytest.mark.parametrize("instruction", sorted(grammar()))
def test_signature_and_manual(instruction: str):
    """The operands of the instruction by its names; a page that says where the bits lie and what it takes to run it."""
    function = INSTRUCTIONS[instruction]
    names = list(inspect.signature(function).parameters)
    *_, destination, source = instruction.split(".")
    wanted = ["a"] if source != "f32" else ["a", "b", "e", "f"][: elements(destination)[1]]
    assert names == wanted + ["scale"] * ("scaled" in instruction) + ["rbits"] * (".rs." in instruction)
    assert function is getattr(ptx, function.__name__) and function.__module__ == "numerics.ptx"
    page = inspect.getdoc(function)
    assert page.startswith(instruction + " d, ") and "PTX ISA" in page and "sm_" in page and "Raises:" in page
    for name, question in ptx.OPEN_QUESTIONS.items():
        assert (name in page) == question.touches(instruction)


@pytest.mark.parametrize(
    ("instruction", "version", "target"),
    [
        ("cvt.rn.satfinite.e4m3x2.f32", "7.8", "sm_89"),
        ("cvt.rn.satfinite.relu.e5m2x2.f16x2", "7.8", "sm_90"),
        ("cvt.rn.satfinite.e4m3x2.bf16x2", "9.1", "sm_100f"),
        ("cvt.rn.satfinite.e2m1x2.f32", "8.6", "sm_100a"),
        ("cvt.rn.satfinite.e2m3x2.f16x2", "9.1", "sm_110f"),
        ("cvt.rn.satfinite.e3m2x2.bf16x2", "9.1", "sm_120f"),
        ("cvt.rz.satfinite.e4m3x2.f32", "9.4", "sm_107f"),
        ("cvt.rz.satfinite.s2f6x2.f32", "9.4", "sm_107a"),
        ("cvt.rn.f16x2.e4m3x2", "7.8", "sm_89"),
        ("cvt.rn.relu.f16x2.e3m2x2", "8.6", "sm_120a"),
        ("cvt.rn.bf16x2.e5m2x2", "9.2", "sm_100f"),
        ("cvt.rn.satfinite.relu.scaled::n2::ue8m0.bf16x2.e2m1x2", "9.2", "sm_120f"),
        ("cvt.rs.satfinite.e2m1x4.f32", "8.7", "sm_103a"),
        ("cvt.rs.bf16x2.f32", "8.7", "sm_100a"),
        ("cvt.rn.satfinite.s2f6x2.bf16x2", "9.1", "sm_121a"),
        ("cvt.rn.bf16x2.s2f6x2", "9.1", "sm_103a"),
        ("cvt.rp.satfinite.ue8m0x2.f32", "8.6", "sm_110a"),
        ("cvt.rn.bf16x2.ue8m0x2", "8.6", "sm_100f"),
    ],
)
def test_version_and_targets(instruction: str, version: str, target: str):
    page = inspect.getdoc(INSTRUCTIONS[instruction])
    assert f"\nPTX ISA {version}; " in page and target in page


# ---- down, to nearest even -------------------------------------------------------------------------------------------

TABLE = {  # by NVIDIA's headers: zero, infinity, NaN, largest, twice that, half the least subnormal, one ulp more
    "e4m3": [0x00, 0x7E, 0x7F, 0x7E, 0x7E, 0x00, 0x01],
    "e5m2": [0x00, 0x7B, 0x7F, 0x7B, 0x7B, 0x00, 0x01],
    "e2m3": [0x00, 0x1F, 0x1F, 0x1F, 0x1F, 0x00, 0x01],
    "e3m2": [0x00, 0x1F, 0x1F, 0x1F, 0x1F, 0x00, 0x01],
    "e2m1": [0x0, 0x7, 0x7, 0x7, 0x7, 0x0, 0x1],
}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0, "e2m3": 7.5, "e3m2": 28.0, "e2m1": 6.0}
LEAST = {"e4m3": 2.0**-9, "e5m2": 2.0**-16, "e2m3": 0.125, "e3m2": 0.0625, "e2m1": 0.5}


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_specials(name: str, sign: int, relu: str):
    """The sign is kept but that of NaN; relu makes every negative number, -0 and -infinity too, +0, and leaves NaN."""
    top, tie = LARGEST[name], LEAST[name] / 2
    numbers = [0.0, INF, NAN, top, 2 * top, tie, tie * (1 + 2.0**-23)]
    minus = {"e2m1": 8, "e2m3": 0x20, "e3m2": 0x20}.get(name, 0x80)
    for number, code in zip(numbers, TABLE[name], strict=True):
        x = math.copysign(number, sign)
        flips = sign < 0 and not math.isnan(number)
        nearest, truncated = code, 0 if number < LEAST[name] else code
        if flips:
            nearest, truncated = (0, 0) if relu else (nearest | minus, truncated | minus)
        assert call(f"cvt.rn.satfinite{relu}.{name}x2.f32", x, x) == nearest * (1 + (1 << FIELD[name])), x
        word = call(f"cvt.rs.satfinite{relu}.{name}x4.f32", x, x, x, x, rbits=0)
        assert unpack(word, f"{name}x4") == [truncated] * 4, x


def test_no_saturation_threshold():
    """A tie beyond the largest number saturates like everything beyond: 464 in e4m3 and 61440 in e5m2."""
    assert call("cvt.rn.satfinite.e4m3x2.f32", 464.0, -465.0) == 0x7EFE
    assert call("cvt.rn.satfinite.e5m2x2.f32", 61440.0, -61440.0) == 0x7BFB
    assert call("cvt.rz.satfinite.e4m3x2.f32", 447.9, -1e9) == 0x7DFE


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("rounding", ["rn", "rz"])
@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_all_halves_equal_the_float32_form(name: str, relu: str, rounding: str, half: str):
    """All 65,536 inputs in each half of the word, against the form that takes the same numbers as float32."""
    word = torch.arange(1 << 16)
    other = (word * 40503 + 1) % (1 << 16)  # an odd multiplier: a permutation
    dtype = torch.float16 if half == "f16" else torch.bfloat16
    a, b = (half.to(torch.uint16).view(dtype).float() for half in (word, other))
    stem = f"cvt.{rounding}.satfinite{relu}.{name}x2"
    assert torch.equal(INSTRUCTIONS[f"{stem}.{half}x2"](word << 16 | other), INSTRUCTIONS[f"{stem}.f32"](a, b))


# ---- packing ---------------------------------------------------------------------------------------------------------


def test_packing_order():
    """a uppermost; 6-bit codes in bytes with two upper bits 0; the upper half of a word goes to the upper field."""
    assert call("cvt.rn.satfinite.e2m1x2.f32", 6.0, 0.5) == 0x71
    assert call("cvt.rn.satfinite.e4m3x2.f32", 1.0, 2.0) == 0x3840
    assert call("cvt.rn.satfinite.e2m3x2.f32", -7.5, 0.125) == 0x3F01
    assert call("cvt.rn.satfinite.e3m2x2.f32", -28.0, 28.0) == 0x3F1F
    assert call("cvt.rn.satfinite.e2m1x2.f16x2", 0x3C00_4600) == 0x27  # 1, 6
    assert call("cvt.rn.satfinite.e4m3x2.bf16x2", 0x3F80_4000) == 0x3840
    assert call("cvt.rn.satfinite.s2f6x2.f32", 1.0, -1.0) == 0x40C0
    assert call("cvt.rn.satfinite.s2f6x2.bf16x2", 0x3F80_BF80) == 0x40C0
    assert call("cvt.rz.satfinite.ue8m0x2.f32", 1.0, 2.0) == 0x7F80
    assert call("cvt.rs.satfinite.e2m1x4.f32", 0.5, 1.0, 1.5, -2.0, rbits=0xFFFFFFFF) == 0x123C
    assert call("cvt.rs.satfinite.e4m3x4.f32", 1.0, 2.0, 4.0, -8.0, rbits=0xFFFFFFFF) == 0x384048D0
    assert call("cvt.rs.satfinite.e2m3x4.f32", -7.5, 1.0, 2.0, -0.125, rbits=0) == 0x3F081021
    assert call("cvt.rs.f16x2.f32", 1.0, -2.0, rbits=0x1FFF1FFF) == 0x3C00C000
    assert call("cvt.rs.bf16x2.f32", 1.0, -2.0, rbits=0xFFFFFFFF) == 0x3F80C000
    assert call("cvt.rn.f16x2.e2m1x2", 0x27) == 0x3C00_4600
    assert call("cvt.rn.bf16x2.e4m3x2", 0x3840) == 0x3F80_4000
    assert call("cvt.rn.bf16x2.ue8m0x2", 0x7F80) == 0x3F80_4000


def test_views_agree_with_words():
    """Neighbours in memory: the even one is the lower half; a result's lowest byte comes first."""
    halves = torch.tensor([6.0, 1.0], dtype=torch.float16)
    assert ptx.cvt_rn_satfinite_e2m1x2_f16x2(halves.view(torch.int32)).tolist() == [0x27]
    words = ptx.cvt_rn_satfinite_e4m3x2_f16x2(halves.view(torch.int32))
    assert torch.equal(words.view(torch.uint8), nm.encode(halves, nm.E4M3))


# ---- random bits -----------------------------------------------------------------------------------------------------

VECTORS = [  # rbits, then the fields of a, b, e, f in 8-bit and in 4-bit elements; read out on a B200
    (0x12345678, (0x2C48, 0x1234, 0x1E6A, 0x5678), (0x6A48, 0x1256, 0x1E2C, 0x3478)),
    (1 << 31, (0x0001, 0x8000, 0, 0), (0x0001, 0x8000, 0, 0)),
    (1 << 8, (0, 0, 0x0080, 0x0100), (0x8000, 0x0001, 0, 0)),
]


@pytest.mark.parametrize(("rbits", "bytewise", "nibbles"), VECTORS)
@pytest.mark.parametrize("name", NARROW)
def test_random_field_of_each_operand(rbits: int, bytewise: tuple, nibbles: tuple, name: str):
    """1 + t 2^-16 of a unit rounds up iff t + field >= 2^16, so over all t the field is the count of round-ups."""
    fmt = FORMAT[name]
    x = 1 + torch.arange(1 << 16) * 2.0 ** -(16 + fmt.mantissa_bits)
    still = torch.ones_like(x)
    one = int(nm.encode(still[:1], fmt))
    for place, field in enumerate(nibbles if name == "e2m1" else bytewise):
        operands = [x if i == place else still for i in range(4)]
        words = INSTRUCTIONS[f"cvt.rs.satfinite.{name}x4.f32"](*operands, rbits).to(torch.int64)
        codes = words >> FIELD[name] * (3 - place) & (1 << FIELD[name]) - 1
        assert int((codes == one + 1).sum()) == field and int((codes == one).sum()) == (1 << 16) - field
        rest = words ^ codes << FIELD[name] * (3 - place)
        assert rest.unique().numel() == 1


@pytest.mark.parametrize(("name", "width"), [("f16", 13), ("bf16", 16)])
@pytest.mark.parametrize("rbits", [0x12345678, 0x1FFF0001, 0x00010000, 0x0ABC1DEF])
def test_random_field_of_each_half(name: str, width: int, rbits: int):
    """Straight, not reversed; 13 of 16 bits for float16."""
    fmt = FORMAT[name]
    x = 1 + torch.arange(1 << width) * 2.0 ** -(width + fmt.mantissa_bits)
    one = int(nm.encode(torch.ones(1), fmt).to(torch.int32))
    for shift in (16, 0):
        operands = [x if shift else torch.ones_like(x), torch.ones_like(x) if shift else x]
        words = INSTRUCTIONS[f"cvt.rs.{name}x2.f32"](*operands, rbits).to(torch.int64)
        ups = int(((words >> shift & 0xFFFF) == one + 1).sum())
        assert ups == (rbits >> shift) & (1 << width) - 1


@pytest.mark.parametrize("name", NARROW)
def test_stochastic_ends(name: str):
    """No random bits truncate, exact values never move, far too small ones vanish, the largest stays the largest."""
    stem = INSTRUCTIONS[f"cvt.rs.satfinite.{name}x4.f32"]
    truncating = INSTRUCTIONS[f"cvt.rz.satfinite.{name}x2.f32"]
    x = random_float32(5000, 3)
    ours = stem(x, x, x, x, 0).to(torch.int64)
    theirs = truncating(x, x).to(torch.int64)
    assert torch.equal(ours & (1 << 2 * FIELD[name]) - 1, theirs)
    exact = FORMAT[name].values()
    assert torch.equal(
        stem(exact, exact, exact, exact, 0xFFFFFFFF).to(torch.int64) & (1 << 2 * FIELD[name]) - 1,
        truncating(exact, exact).to(torch.int64),
    )
    # the field starts right below the least subnormal: 2^-17 of it is beyond the field's last bit
    tiny = torch.full((1,), LEAST[name] * 2.0**-17)
    assert int(stem(tiny, tiny, tiny, tiny, 0xFFFFFFFF).to(torch.int64)) == 0
    assert int(stem(2 * tiny, 2 * tiny, 2 * tiny, 2 * tiny, 0xFFFFFFFF).to(torch.int64)) > 0


def test_stochastic_halves_saturate_or_overflow():
    top = float.fromhex("0x1.fffffep127")
    assert call("cvt.rs.satfinite.f16x2.f32", 65505.0, -INF, rbits=0x1FFF1FFF) == 0x7BFFFBFF
    assert call("cvt.rs.f16x2.f32", 65505.0, -INF, rbits=0x1FFF1FFF) == 0x7C00FC00
    assert call("cvt.rs.f16x2.f32", 65505.0, 70000.0, rbits=0) == 0x7BFF7C00
    assert call("cvt.rs.satfinite.bf16x2.f32", top, -INF, rbits=0xFFFFFFFF) == 0x7F7FFF7F
    assert call("cvt.rs.bf16x2.f32", top, -INF, rbits=0xFFFFFFFF) == 0x7F80FF80
    assert call("cvt.rs.bf16x2.f32", top, NAN, rbits=0) == 0x7F7F7FFF
    assert call("cvt.rs.relu.bf16x2.f32", -0.0, -INF, rbits=0) == 0
    assert call("cvt.rs.satfinite.bf16x2.f32", 1e-45, -1e-45, rbits=0xFFFFFFFF) == 0x00018001  # subnormals take part


# ---- up --------------------------------------------------------------------------------------------------------------


def every_word(name: str) -> torch.Tensor:
    """All packed pairs of legal codes, int64: 65,536 for 8-bit types, 4,096 and 256 for the narrower ones."""
    code = torch.arange(1 << FORMAT[name].bits)
    return (code.view(-1, 1) << FIELD[name] | code).flatten()


def expected_halves(numbers: torch.Tensor, dtype: torch.dtype, relu: bool, satfinite: bool) -> torch.Tensor:
    """Codes of float64 numbers that `dtype` holds exactly, or that overflow, or NaN; torch's own cast does the rest."""
    nan = torch.isnan(numbers)
    numbers = numbers.clamp(min=0.0) + 0.0 if relu else numbers
    halves = numbers.to(dtype)
    if satfinite:
        halves = halves.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
    codes = halves.view(torch.uint16).to(torch.int64)
    return torch.where(nan, 0x7FFF, codes)


@pytest.mark.parametrize("name", [*NARROW, "s2f6", "ue8m0"])
def test_all_packed_words_go_up(name: str):
    """Every 16-bit word (8-bit in e2m1) through every unscaled form to float16 and bfloat16."""
    word = every_word(name)
    codes = [word >> FIELD[name], word & (1 << FIELD[name]) - 1]
    numbers = [nm.decode(code, FORMAT[name]).double() for code in codes]
    forms = [i for i in INSTRUCTIONS if i.endswith(f"f16x2.{name}x2") and "scaled" not in i]
    assert len(forms) == {"s2f6": 4, "ue8m0": 1}.get(name, 6)
    for instruction in forms:
        dtype = torch.bfloat16 if ".bf16x2." in instruction else torch.float16
        relu, satfinite = ".relu" in instruction, ".satfinite" in instruction
        upper, lower = (expected_halves(x, dtype, relu, satfinite) for x in numbers)
        assert torch.equal(INSTRUCTIONS[instruction](word), (upper << 16 | lower).to(torch.uint32)), instruction


@pytest.mark.parametrize("name", [*NARROW, "s2f6"])
@pytest.mark.parametrize("relu", ["", ".relu"])
@pytest.mark.parametrize("satfinite", ["", ".satfinite"])
def test_all_codes_times_all_scales(name: str, relu: str, satfinite: str):
    """Every code with every scale byte, in both fields. e4m3 and e5m2 products below bfloat16 round to nearest even."""
    code = torch.arange(1 << FORMAT[name].bits).view(-1, 1).expand(-1, 256).flatten()
    byte = torch.arange(256).repeat(1 << FORMAT[name].bits)
    power = torch.tensor([2.0 ** (b - 127) for b in range(255)] + [NAN], dtype=torch.float64)
    product = nm.decode(code, FORMAT[name]).double() * power[byte]
    wanted = expected_halves(product, torch.bfloat16, bool(relu), bool(satfinite))
    function = INSTRUCTIONS[f"cvt.rn{satfinite}{relu}.scaled::n2::ue8m0.bf16x2.{name}x2"]
    one = int(nm.encode(torch.ones(1), FORMAT[name]))
    upper = function(code << FIELD[name] | one, byte << 8 | 0x80)
    lower = function(one << FIELD[name] | code, 0x8000 | byte)
    assert torch.equal(upper, (wanted << 16 | 0x4000).to(torch.uint32))
    assert torch.equal(lower, (wanted | 0x4000 << 16).to(torch.uint32))


def test_up_specials():
    """NaN is 0x7FFF whatever its sign, relu leaves it; -0 stays unless relu; infinity of e5m2 saturates if asked to."""
    assert call("cvt.rn.f16x2.e4m3x2", 0xFF80) == 0x7FFF8000
    assert call("cvt.rn.relu.f16x2.e4m3x2", 0xFF80) == 0x7FFF0000
    assert call("cvt.rn.f16x2.e5m2x2", 0x7CFC) == 0x7C00FC00
    assert call("cvt.rn.relu.f16x2.e5m2x2", 0x7DFC) == 0x7FFF0000
    assert call("cvt.rn.bf16x2.e5m2x2", 0x7CFC) == 0x7F80FF80
    assert call("cvt.rn.satfinite.bf16x2.e5m2x2", 0x7CFC) == 0x7F7FFF7F
    assert call("cvt.rn.bf16x2.ue8m0x2", 0x00FF) == 0x00407FFF
    assert call("cvt.rn.bf16x2.ue8m0x2", 0x01FE) == 0x00807F00
    scaled = "cvt.rn{}.scaled::n2::ue8m0.bf16x2.e2m1x2"
    assert call(scaled.format(""), 0x7F, scale=0xFEFF) == 0x7F807FFF  # 6 x 2^127, -6 x NaN
    assert call(scaled.format(".satfinite"), 0x7F, scale=0xFEFE) == 0x7F7FFF7F
    assert call(scaled.format(""), 0x19, scale=0x0000) == 0x00208020  # 0.5 x 2^-127 is exact


def test_default_scale_is_one():
    word = every_word("s2f6")
    assert torch.equal(ptx.cvt_rn_scaled_n2_ue8m0_bf16x2_s2f6x2(word), ptx.cvt_rn_bf16x2_s2f6x2(word))
    x = random_float32(1000, 1)
    scaled = ptx.cvt_rn_satfinite_scaled_n2_ue8m0_s2f6x2_f32
    assert torch.equal(scaled(x, -x), ptx.cvt_rn_satfinite_s2f6x2_f32(x, -x))
    assert torch.equal(scaled(x, -x, 0x7F7F), scaled(x, -x))


# ---- s2f6 and ue8m0 --------------------------------------------------------------------------------------------------


def test_s2f6_down():
    down = "cvt.rn.satfinite{}.s2f6x2.f32"
    assert call(down.format(""), 1.984375, -2.0) == 0x7F80
    assert call(down.format(""), 9.0, NAN) == 0x7F7F
    assert call(down.format(""), INF, -INF) == 0x7F80
    assert call(down.format(""), 1 / 128, 3 / 128) == 0x0002  # ties to even
    assert call(down.format(""), -0.0, -1 / 64) == 0x00FF
    assert call(down.format(".relu"), -1.0, NAN) == 0x007F
    assert call("cvt.rz.satfinite.s2f6x2.f32", 1.99, -1 / 65) == 0x7F00
    scaled = down.format(".scaled::n2::ue8m0")
    assert call(scaled, 64.0, -32.0, scale=0x8580) == 0x4080  # 64/64, -32/2
    assert call(scaled, 1.0, 1.0, scale=0xFF7E) == 0x7F7F  # NaN; 1/0.5 saturates
    assert call(scaled, 2.0**-127, 2.0**127, scale=0x00FE) == 0x4040


def test_s2f6_reads_an_int8_back():
    """Scale bytes 0x85, 2^6, make the conversion the exact cast of an int8."""
    byte = torch.arange(256)
    words = ptx.cvt_rn_scaled_n2_ue8m0_bf16x2_s2f6x2(byte << 8 | byte, 0x8585)
    wanted = byte.to(torch.uint8).view(torch.int8).to(torch.bfloat16)
    assert torch.equal(words.view(torch.bfloat16).view(-1, 2), wanted.view(-1, 1).expand(-1, 2))


UE8M0 = [  # x; rz.satfinite, rz, rp.satfinite, rp
    (0.0, 0x00, 0x00, 0x00, 0x00),
    (1e-45, 0x00, 0x00, 0x00, 0x00),
    (2.0**-127, 0x00, 0x00, 0x00, 0x00),
    (1.5 * 2.0**-127, 0x00, 0x00, 0x01, 0x01),
    (2.0**-126, 0x01, 0x01, 0x01, 0x01),
    (1.0, 0x7F, 0x7F, 0x7F, 0x7F),
    (1 + 2.0**-23, 0x7F, 0x7F, 0x80, 0x80),
    (1.5, 0x7F, 0x7F, 0x80, 0x80),
    (2.0**127, 0xFE, 0xFE, 0xFE, 0xFE),
    (2.0**127 * (1 + 2**-23), 0xFE, 0xFE, 0xFE, 0xFF),
    (INF, 0xFE, 0xFF, 0xFE, 0xFF),
    (NAN, 0xFF, 0xFF, 0xFF, 0xFF),
]


@pytest.mark.parametrize("row", UE8M0, ids=lambda row: row[0])
@pytest.mark.parametrize("sign", [1, -1])
def test_ue8m0_table(row: tuple, sign: int):
    """NVIDIA's header emulation; the sign is ignored."""
    x = math.copysign(row[0], sign)
    for qualifiers, code in zip(("rz.satfinite", "rz", "rp.satfinite", "rp"), row[1:], strict=True):
        assert call(f"cvt.{qualifiers}.ue8m0x2.f32", x, 1.0) == code << 8 | 0x7F
        half = torch.tensor([x]).to(torch.bfloat16)
        if math.isnan(x) or float(half) == x:
            word = int(half.view(torch.uint16).to(torch.int64)) << 16 | 0x3F80
            assert call(f"cvt.{qualifiers}.ue8m0x2.bf16x2", word) == code << 8 | 0x7F


# ---- open questions --------------------------------------------------------------------------------------------------


def answered(monkeypatch: pytest.MonkeyPatch, name: str, reading: str) -> None:
    monkeypatch.setitem(ptx.OPEN_QUESTIONS, name, dataclasses.replace(ptx.OPEN_QUESTIONS[name], assumption=reading))


S2F6, TO_S2F6 = "cvt.rn.satfinite.s2f6x2.f32", "cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2."
UP = "cvt.rn.scaled::n2::ue8m0.bf16x2."
RS6, RS8, RS16 = "cvt.rs.satfinite.e2m3x4.f32", "cvt.rs.satfinite.e4m3x4.f32", "cvt.rs.f16x2.f32"
FOUR, NANS, TOPS = (1.0625, 1.0625, 1.0, 1.0), (-NAN, NAN, 1.0, 1.0), (2.0**127, 1.0)
ANSWERS = [  # question, other reading, instruction, operands, scale or rbits, result as assumed, under the other reading
    ("s2f6 negative saturation", "0x81", S2F6, (-9.0, -2.0), {}, 0x8080, 0x8181),
    ("s2f6 NaN scale", "2^128", TO_S2F6 + "f32", TOPS, {"scale": 0xFFFF}, 0x7F7F, 0x2000),
    ("s2f6 subnormal operand", "flushed", TO_S2F6 + "bf16x2", (0x00400080,), {"scale": 0x0001}, 0x4040, 0x0040),
    ("6-bit random bits", "straight", RS6, FOUR, {"rbits": 1 << 31}, 0x08090808, 0x09090808),
    ("rs NaN sign", "kept", RS8, NANS, {"rbits": 0}, 0x7F7F3838, 0xFF7F3838),
    ("f16x2 spare random bits", "added", RS16, (1.0, 65504.0), {"rbits": 0x60002000}, 0x3C007BFF, 0x3C037C00),
    ("rs overflow", "largest", "cvt.rs.bf16x2.f32", (INF, -1.0), {"rbits": 0}, 0x7F80BF80, 0x7F7FBF80),
    ("NaN of a scaled product", "0x7FC0", UP + "e2m1x2", (0x22,), {"scale": 0xFF7F}, 0x7FFF3F80, 0x7FC03F80),
    ("underflow of a scaled product", "flushed", UP + "e4m3x2", (0xB0B8,), {"scale": 0}, 0x80208040, 0x80008000),
]


@pytest.mark.parametrize(("name", "reading", "instruction", "operands", "extra", "ours", "theirs"), ANSWERS)
def test_an_answer_changes_the_bits(monkeypatch, name, reading, instruction, operands, extra, ours, theirs):
    assert call(instruction, *operands, **extra) == ours
    answered(monkeypatch, name, reading)
    assert call(instruction, *operands, **extra) == theirs


@pytest.mark.parametrize("name", ptx.OPEN_QUESTIONS)
def test_an_answer_changes_only_the_forms_it_touches(monkeypatch, name: str):
    """Every alternative reading moves some result of some form it names, and none of any other form."""
    question = ptx.OPEN_QUESTIONS[name]
    assert question.assumption not in question.alternatives and question.alternatives and question.source
    assert {case[0] for case in ANSWERS if case[1] in question.alternatives} >= {name}
    before = {i: INSTRUCTIONS[i](*(data := inputs(i, 2000))[0], **data[1]) for i in INSTRUCTIONS}
    for reading in question.alternatives:
        answered(monkeypatch, name, reading)
        moved = set()
        for instruction, old in before.items():
            operands, extra = inputs(instruction, 2000)
            if not torch.equal(INSTRUCTIONS[instruction](*operands, **extra), old):
                moved.add(instruction)
        touched = {i for i in INSTRUCTIONS if question.touches(i)}
        assert moved and moved <= touched


# ---- operands, errors ------------------------------------------------------------------------------------------------


def test_any_shape_and_device_layout():
    x = random_float32(24, 5).view(2, 3, 4)
    d = ptx.cvt_rn_satfinite_e4m3x2_f32(x, -x)
    assert d.shape == (2, 3, 4)
    assert torch.equal(ptx.cvt_rn_satfinite_e4m3x2_f32(x.mT, -x.mT), d.mT)
    assert ptx.cvt_rn_satfinite_e4m3x2_f32(x[:0], x[:0]).shape == (0, 3, 4)
    assert ptx.cvt_rs_satfinite_e2m1x4_f32(*[torch.tensor(1.0)] * 4, 0).shape == ()
    assert ptx.cvt_rn_bf16x2_e2m1x2(torch.zeros(0, dtype=torch.uint8)).shape == (0,)


def test_numpy_comes_back_as_numpy():
    x = random_float32(64, 6)
    ours = ptx.cvt_rn_satfinite_e2m1x2_f32(x.numpy(), -x.numpy())
    assert isinstance(ours, np.ndarray) and ours.dtype == np.uint8
    assert np.array_equal(ours, ptx.cvt_rn_satfinite_e2m1x2_f32(x, -x).numpy())


def test_word_types_are_one():
    """uint32, int32 as bits, int64; likewise 16 and 8 bits; an int serves every element."""
    word = torch.tensor([0xBF803F80, 0x00010203, 0xFFFFFFFF])
    d = ptx.cvt_rn_satfinite_e4m3x2_bf16x2(word)
    for dtype in (torch.uint32, torch.int32):
        assert torch.equal(ptx.cvt_rn_satfinite_e4m3x2_bf16x2(word.to(dtype)), d)
    word = torch.tensor([0xFF01, 0x3840])
    d = ptx.cvt_rn_f16x2_e4m3x2(word)
    for dtype in (torch.uint16, torch.int16, torch.int32, torch.uint32):
        assert torch.equal(ptx.cvt_rn_f16x2_e4m3x2(word.to(dtype)), d)
    word = torch.tensor([0xF1, 0x12])
    for dtype in (torch.uint8, torch.int8):
        assert torch.equal(ptx.cvt_rn_f16x2_e2m1x2(word.to(dtype)), ptx.cvt_rn_f16x2_e2m1x2(word))
    x = random_float32(10, 7)
    rbits = torch.full((10,), 0xDEADBEEF)
    quad = ptx.cvt_rs_satfinite_e2m1x4_f32
    assert torch.equal(quad(x, x, x, x, 0xDEADBEEF), quad(x, x, x, x, rbits))
    assert torch.equal(quad(x, x, x, x, rbits.to(torch.int32)), quad(x, x, x, x, rbits))


def test_input_is_left_alone():
    x, rbits = random_float32(256, 8), torch.randint(0, 1 << 32, (256,))
    word = rbits.clone()
    before = x.clone().view(torch.int32)
    ptx.cvt_rs_satfinite_relu_e4m3x4_f32(x, x, x, x, rbits)
    ptx.cvt_rs_f16x2_f32(x, x, rbits)
    ptx.cvt_rp_ue8m0x2_f32(x, x)
    assert torch.equal(x.view(torch.int32), before) and torch.equal(word, rbits)


def test_errors():
    x, word = torch.ones(3), torch.zeros(3, dtype=torch.int64)
    for wrong in (x.double(), x.half(), x.to(torch.bfloat16), word, [1.0, 1.0, 1.0], 1.0):
        with pytest.raises(TypeError, match=r"^a (has dtype|is a)"):
            ptx.cvt_rn_satfinite_e4m3x2_f32(wrong, x)
    with pytest.raises(TypeError, match=r"b has dtype torch.float64.*cvt.rn.satfinite.e4m3x2.f32 takes float32"):
        ptx.cvt_rn_satfinite_e4m3x2_f32(x, x.double())
    with pytest.raises(ValueError, match=r"f has shape \(2,\): a has \(3,\)"):
        ptx.cvt_rs_satfinite_e2m1x4_f32(x, x, x, x[:2], word)
    with pytest.raises(ValueError, match=r"rbits has shape \(1,\): a has \(3,\)"):
        ptx.cvt_rs_satfinite_e2m1x4_f32(x, x, x, x, word[:1])
    with pytest.raises(TypeError, match=r"rbits has dtype torch.float32"):
        ptx.cvt_rs_f16x2_f32(x, x, x)
    for bad in (-1, 1 << 32):
        with pytest.raises(ValueError, match=r"rbits reaches from .* 32-bit words, 0 to 4294967295"):
            ptx.cvt_rs_bf16x2_f32(x, x, bad)
    with pytest.raises(ValueError, match=r"scale reaches from 65536"):
        ptx.cvt_rn_satfinite_scaled_n2_ue8m0_s2f6x2_f32(x, x, 0x10000)
    with pytest.raises(ValueError, match=r"a reaches from 0 to 256: pass 8-bit words"):
        ptx.cvt_rn_f16x2_e2m1x2(torch.tensor([0, 256]))
    for bad in (0x4000, 0x0080):
        with pytest.raises(ValueError, match=r"a has bits above its (upper|lower) 6-bit code"):
            ptx.cvt_rn_f16x2_e2m3x2(torch.tensor([bad]))
    with pytest.raises(TypeError, match=r"a has dtype torch.float16: pass 32-bit words"):
        ptx.cvt_rn_satfinite_e4m3x2_f16x2(torch.ones(2, dtype=torch.float16))
    with pytest.raises(TypeError, match=r"rbits"):
        ptx.cvt_rs_bf16x2_f32(x, x)
