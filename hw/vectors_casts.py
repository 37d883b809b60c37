"""Golden vectors of single numbers: decode, cast, stochastic cast, and the conversion instructions with their packing.

Casts are tried at every breakpoint of a format and on every BF16 number. The random bits of stochastic casts stand on
both sides of the carry that decides, and those of the x4 instructions single out each bit of the random word.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

import numerics as nm
from numerics import Rounding

from .vectors_case import Case, all_bfloat16, bell, breakpoints, case, from_bits, wide, words

FLOATS = (nm.E2M1, nm.E2M3, nm.E3M2, nm.E4M3, nm.E5M2)
FORMATS = (*FLOATS, nm.S2F6, nm.E8M0)
MODES = {"nearest_even": "rn", "toward_zero": "rz"}
E8M0_MODES = ("rz", "rz.satfinite", "rp", "rp.satfinite")


def cases() -> list[Case]:
    """All of this module."""
    listed = [_decode(fmt) for fmt in FORMATS]
    listed += [_cast(fmt, mode, data) for fmt in (*FLOATS, nm.S2F6) for mode in MODES for data in _inputs(fmt)]
    listed += [_cast_e8m0(mode, data) for mode in E8M0_MODES for data in _inputs(nm.E8M0)]
    listed += [_stochastic(fmt) for fmt in FLOATS]
    return listed + _pairs() + [_four(fmt) for fmt in FLOATS] + [_scaled_s2f6(), *_scales()]


def layout(fmt: nm.Format) -> str:
    """A format in one sentence."""
    if fmt.kind == "fixed":
        return f"{fmt.name} is an 8-bit two's complement integer i of value i / 2^{fmt.mantissa_bits}, -2 to 127/64."
    if fmt.kind == "exponent":
        return "E8M0 is an 8-bit exponent e of value 2^(e - 127); 0xFF is NaN; there is no sign, zero or infinity."
    special = {
        "none": "no infinity, no NaN",
        "nan": "0x7F and 0xFF are NaN, no infinity",
        "ieee": "0x7C is infinity, 0x7D to 0x7F are NaN, likewise with the sign",
    }[fmt.specials]
    e, m = fmt.exponent_bits, fmt.mantissa_bits
    return (
        f"{fmt.name} has, from the top of its {fmt.bits} bits, a sign, an exponent E of {e} bits with bias {fmt.bias} "
        f"and a mantissa M of {m} bits: value 2^(E - {fmt.bias}) (1 + M / {1 << m}), or 2^{1 - fmt.bias} M / {1 << m} "
        f"where E = 0; {special}; largest {fmt.max:g}."
    )


def saturation(fmt: nm.Format) -> str:
    """What a cast makes of numbers beyond the range, NaN and zero."""
    if fmt.kind == "fixed":
        return (
            "Above 127/64 (infinity too): 0x7F. Below -2 (minus infinity too): 0x80; PTX says 'sign-preserved "
            "MAX_NORM', which could also mean 0x81: no public source settles it. NaN of either sign: 0x7F."
        )
    nan = f"0x{fmt.nan_code or 0:X} without a sign"
    if fmt.specials == "ieee":
        nan = "0x7F without a sign"
    if fmt.nan_code is None:
        nan = f"+{fmt.max:g} (0x{fmt.max_code:X})"
    return (
        f"Magnitudes beyond {fmt.max:g} after rounding, infinities too, become {fmt.max:g} with their sign. A NaN of "
        f"either sign becomes {nan}. Zeros, and what rounds to zero, keep their sign."
    )


def lowest(word: Tensor, fmt: nm.Format) -> Tensor:
    """The code in the lowest field of an instruction's result: what the element type's own rule gives."""
    return (word.to(torch.int64) & ((1 << fmt.bits) - 1)).to(torch.uint8)


def _inputs(fmt: nm.Format) -> dict[str, Tensor]:
    return {"breakpoints": breakpoints(fmt), "bfloat16": all_bfloat16()}


def _decode(fmt: nm.Format) -> Case:
    codes = torch.arange(1 << fmt.bits, dtype=torch.uint8)
    prose = f"Values of all codes, one code per byte. {layout(fmt)}"
    outputs = {"values": nm.decode(codes, fmt)}
    return case(f"decode/{fmt.name}", "decode", prose, {"format": fmt.name}, {"codes": codes}, outputs)


def _cast(fmt: nm.Format, mode: str, data: str) -> Case:
    x = _inputs(fmt)[data]
    how = {"nearest_even": "to the nearest value, ties to the even code", "toward_zero": "toward zero"}[mode]
    prose = f"""float32 to {fmt.name}, one code per byte, rounded once {how}. {saturation(fmt)} {layout(fmt)}
        This is PTX cvt.{MODES[mode]}.satfinite, element by element."""
    if data == "bfloat16":
        prose += " The input is every BF16 number, as float32."
    parameters = {"format": fmt.name, "rounding": mode, "saturate": True}
    word = nm.ptx.instructions()[f"cvt.{MODES[mode]}.satfinite.{fmt.name.lower()}x2.f32"](x, x)
    codes = {"codes": lowest(word, fmt)}
    return case(f"cast/{fmt.name}/{mode}/{data}", "cast", prose, parameters, {"x": x}, codes)


def _cast_e8m0(mode: str, data: str) -> Case:
    x = _inputs(nm.E8M0)[data]
    rounding, _, saturating = mode.partition(".")
    text = f"cvt.{mode}.ue8m0x2.f32"
    way = {"rz": "down to a power of two", "rp": "up to a power of two"}[rounding]
    beyond = {
        "rz": "Infinity becomes 0xFF.",
        "rp": "What exceeds 2^127, infinity too, becomes 0xFF.",
    }[rounding]
    if saturating:
        beyond = "What exceeds 2^127, infinity too, becomes 0xFE."
    prose = f"""The magnitude of float32, rounded {way}, as an E8M0 code: the sign is ignored. 2^-127 and less, zero
        too, become 0x00. {beyond} NaN becomes 0xFF. {layout(nm.E8M0)} This is PTX {text}, element by element."""
    word = nm.ptx.instructions()[text](x, x)
    codes = lowest(word, nm.E8M0)
    named = {"rz": "toward_zero", "rp": "toward_positive"}[rounding]
    parameters = {"format": "E8M0", "rounding": named, "saturate": bool(saturating)}
    name = f"cast/E8M0/{named}{'' if saturating else '_nonsaturating'}/{data}"
    return case(name, "cast", prose, parameters, {"x": x}, {"codes": codes})


STOCHASTIC = """n = (floor(|x| 2^(16 - q)) + r) >> 16, in integers: the 16 leading discarded bits plus the random bits
    r, the carry decides; lower discarded bits are ignored. q = max(exponent of |x|, {emin}) - {m} is the exponent of
    the last mantissa bit, |x| is first cut to {largest}, and the result is n 2^q with the sign of x, at most
    {largest}."""


def stochastic_rule(fmt: nm.Format) -> str:
    """The rounding of `cvt.rs` in words."""
    return STOCHASTIC.format(emin=fmt.min_exponent, m=fmt.mantissa_bits, largest=f"{fmt.max:g}")


def _stochastic(fmt: nm.Format) -> Case:
    """Each number with no random bits, with the last r that truncates, the first that carries, and an arbitrary one."""
    low, high = fmt.min_exponent - fmt.mantissa_bits - 18, math.frexp(fmt.max)[1]
    points = torch.cat((wide(600, 10 + fmt.bits, low, high), from_bits([0, -(1 << 31), 1, 0x7F800000, 0x7FC00000])))
    inside = points.abs().clamp(max=fmt.max).nan_to_num(fmt.max).to(torch.float64)
    below, above = (nm.round_to(inside, fmt, way) for way in (Rounding.TOWARD_ZERO, Rounding.TOWARD_POSITIVE))
    step = torch.where(above == below, 1.0, above - below)  # a power of two: what follows is exact
    leading = torch.floor((inside - below) / step * 65536).to(torch.int64)
    arbitrary = words(len(points), 30 + fmt.bits) >> 16
    bits = torch.stack((0 * leading, 65535 - leading, (65536 - leading).clamp(max=65535), arbitrary), -1)
    x, bits = points.repeat_interleave(4), bits.flatten()
    zero = torch.zeros_like(x)  # of the four operands, the last one takes its bits straight
    word = bits if fmt.bits > 4 else ((bits >> 8) << 16) | (bits & 0xFF)
    word = nm.ptx.instructions()[f"cvt.rs.satfinite.{fmt.name.lower()}x4.f32"](zero, zero, zero, x, word)
    codes = lowest(word, fmt)
    prose = f"""float32 to {fmt.name}, one code per byte, rounded stochastically with 16 random bits r per element.
        {stochastic_rule(fmt)} {saturation(fmt)} {layout(fmt)}"""
    inputs = {"x": x, "random_bits": bits.numpy().astype("uint16")}
    parameters = {"format": fmt.name, "rounding": "stochastic", "saturate": True}
    return case(f"cast/{fmt.name}/stochastic", "cast", prose, parameters, inputs, {"codes": codes})


# ---- instructions: packing and random words --------------------------------------------------------------------------


def open_points(text: str) -> str:
    """What no public source settles about an instruction, and the reading that the expected bits follow."""
    told = [
        f"Open: {question.asks}; here {question.assumption}."
        for question in nm.ptx.OPEN_QUESTIONS.values()
        if question.touches(text)
    ]
    return " ".join(told)


def _instruction(text: str, inputs: dict[str, Tensor], prose: str) -> Case:
    """`inputs` in the order of the instruction's operands."""
    word = nm.ptx.instructions()[text](*inputs.values())
    kept = {key: x.numpy().astype("uint32") if x.dtype == torch.int64 else x for key, x in inputs.items()}
    prose = f"{text} on every row of the operands; d is the result's register. {prose} {open_points(text)}"
    return case(f"instruction/{text}", "instruction", prose, {"instruction": text}, kept, {"d": word})


def _pairs() -> list[Case]:
    """x2 conversions: which operand lies where."""
    made = []
    for fmt in (*FLOATS, nm.S2F6):
        places = "d[7:4], b in d[3:0]" if fmt.bits == 4 else "d[15:8], b in d[7:0]"
        prose = f"Two float32 to {fmt.name}, nearest even, saturating; the code of a lies in {places}"
        prose += ", each in the low 6 bits of its byte." if fmt.bits == 6 else "."
        a = breakpoints(fmt)
        operands = {"a": a, "b": a.flip(0)}
        made.append(_instruction(f"cvt.rn.satfinite.{fmt.name.lower()}x2.f32", operands, prose))
    return made


def _four(fmt: nm.Format) -> Case:
    """x4 stochastic conversions. Single bits of the word against fractions of all ones above a bit read out which
    bit of the word reaches which place of which operand's field."""
    narrow = fmt.bits == 4
    single = [1 << i for i in range(32)]
    word = torch.tensor([w for w in single for _ in range(16)])
    fraction = (65536 - (1 << torch.arange(16))).to(torch.float32).repeat(32) * 2.0 ** -(16 + fmt.mantissa_bits)
    chosen = torch.tensor([0, 0xFFFFFFFF, 0x12345678, 0x9ABCDEF0, 0x00FF00FF, 0xFF00FF00])
    count = 256
    rbits = torch.cat((word, chosen.repeat_interleave(8), words(count, 50 + fmt.bits)))
    rest = count + 8 * len(chosen)
    operands = {
        name: torch.cat((base * (1 + fraction), bell((rest,), 60 + 8 * i + fmt.mantissa_bits)))
        for i, (name, base) in enumerate({"a": 1.0, "b": -1.0, "e": 2.0, "f": -2.0}.items())
    }
    split = (
        """H = {rbits[31:24], rbits[15:8]} serves a and b, L = {rbits[23:16], rbits[7:0]} serves e and f. Codes lie in
        d[15:12] (a), d[11:8] (b), d[7:4] (e), d[3:0] (f)."""
        if narrow
        else """H = rbits[31:16] serves a and b, L = rbits[15:0] serves e and f. Codes lie in d[31:24] (a), d[23:16]
        (b), d[15:8] (e), d[7:0] (f), 6-bit codes in the low bits of a byte."""
    )
    prose = f"""Four float32 to {fmt.name}, stochastic, saturating, from one random word. {split} b and f take their 16
        bits as they are, a and e with the order of the 16 bits reversed. {stochastic_rule(fmt)}"""
    return _instruction(f"cvt.rs.satfinite.{fmt.name.lower()}x4.f32", {**operands, "rbits": rbits}, prose)


def _scaled_s2f6() -> Case:
    a = torch.cat((breakpoints(nm.S2F6), wide(512, 70, -20, 20)))
    byte = torch.cat((torch.full((len(a) - 512,), 127), 107 + words(512, 71) % 41))
    scale = (byte << 8) | byte.flip(0)
    prose = """Two float32, divided by scales, to S2F6, nearest even, saturating. scale[15:8] is the E8M0 scale of a,
        scale[7:0] that of b; the code of a lies in d[15:8], that of b in d[7:0]."""
    operands = {"a": a, "b": a.flip(0), "scale": scale}
    return _instruction("cvt.rn.satfinite.scaled::n2::ue8m0.s2f6x2.f32", operands, prose)


def _scales() -> list[Case]:
    a = breakpoints(nm.E8M0)
    prose = "Two float32 magnitudes to E8M0, {}, saturating; the code of a lies in d[15:8], that of b in d[7:0]."
    return [
        _instruction(f"cvt.{mode}.satfinite.ue8m0x2.f32", {"a": a, "b": a.flip(0)}, prose.format(way))
        for mode, way in (("rz", "down"), ("rp", "up"))
    ]
