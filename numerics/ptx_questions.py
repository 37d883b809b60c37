"""What no public source settles about NVIDIA's `cvt` instructions: one table, which `numerics.ptx` reads at every call.

An entry says which bits are open, what the emulator assumes, which other readings are possible, and who says what. Each
reading named here is implemented, so a measurement corrects the emulator by changing one word, the `assumption`; every
form that the question touches follows. `assumed` is the only way the arithmetic reads the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """One open question.

    Args:
        asks: which bits are open.
        forms: regular expression; the question touches the instructions that it matches from their start.
        assumption: the reading that the emulator follows.
        alternatives: the other readings that it can follow.
        source: who says what.
    """

    asks: str
    forms: str
    assumption: str
    alternatives: tuple[str, ...]
    source: str

    def touches(self, instruction: str) -> bool:
        """Whether bits of `instruction`, such as "cvt.rn.satfinite.s2f6x2.f32", depend on the answer."""
        return re.match(self.forms, instruction) is not None


OPEN_QUESTIONS: dict[str, Question] = {
    "s2f6 negative saturation": Question(
        asks="the code of a number below -127/64: -128/64 (0x80) or the negated largest number, -127/64 (0x81)",
        forms=r"cvt\.r[nz]\..*\.s2f6x2\.b?f(16x2|32)",
        assumption="0x80",
        alternatives=("0x81",),
        source="PTX ISA 9.1 says 'sign-preserved MAX_NORM', which two's complement does not settle; not measured",
    ),
    "s2f6 NaN scale": Question(
        asks="what a scale byte of 0xFF divides by: NaN, so that the result is 0x7F, or 2^128",
        forms=r"cvt\.r[nz]\..*scaled.*\.s2f6x2\.b?f(16x2|32)",
        assumption="NaN",
        alternatives=("2^128",),
        source="UE8M0's 0xFF is NaN (PTX ISA 5.2.3) and NaN becomes +MAX_NORM (9.7.9.22); the pair is not measured",
    ),
    "s2f6 subnormal operand": Question(
        asks="whether a subnormal float32 or bfloat16 operand is kept or becomes zero before the scaled division",
        forms=r"cvt\.r[nz]\..*scaled.*\.s2f6x2\.b?f(16x2|32)",
        assumption="kept",
        alternatives=("flushed",),
        source="PTX ISA 9.4 flushes under .scaled::n1 and is silent about .scaled::n2; not measured",
    ),
    "6-bit random bits": Question(
        asks="whether operands a and e of e2m3x4 and e3m2x4 read their 16 random bits reversed, as with 8-bit elements",
        forms=r"cvt\.rs\..*\.(e2m3|e3m2)x4\.f32",
        assumption="reversed",
        alternatives=("straight",),
        source="reversal was measured with e4m3x4, e5m2x4 and e2m1x4 only; the storage is 8-bit here too",
    ),
    "rs NaN sign": Question(
        asks="whether a NaN with its sign bit set becomes 0x7F or 0xFF in e4m3x4 and e5m2x4",
        forms=r"cvt\.rs\.satfinite\.(e4m3|e5m2)x4\.f32",
        assumption="dropped",
        alternatives=("kept",),
        source="flashinfer's software path keeps the sign; a PTX interpreter tested on B200, and cvt.rn, drop it",
    ),
    "f16x2 spare random bits": Question(
        asks="what rbits[31:29] and rbits[15:13] do if they are not 0: nothing, or they add units to the result",
        forms=r"cvt\.rs\..*f16x2\.f32(?<!bf16x2\.f32)",
        assumption="ignored",
        alternatives=("added",),
        source="PTX ISA 8.7: 'with 3 MSBs are 0'; runs on hardware kept to that",
    ),
    "rs overflow": Question(
        asks="whether rounding beyond the largest number without .satfinite gives infinity or that number",
        forms=r"cvt\.rs\.(relu\.)?b?f16x2\.f32",
        assumption="infinity",
        alternatives=("largest",),
        source="the carry into the exponent gives infinity; only the .satfinite forms were measured",
    ),
    "NaN of a scaled product": Question(
        asks="the payload of NaN where a number is multiplied by a scale and .relu does not ask for the canonical NaN",
        forms=r"cvt\.rn\.(satfinite\.)?scaled.*\.bf16x2\.",
        assumption="0x7FFF",
        alternatives=("0x7FC0",),
        source="runs on GB10 pinned 0x7FFF with .relu, and only that it is a NaN without",
    ),
    "underflow of a scaled product": Question(
        asks="whether e4m3 and e5m2 times a scale are rounded below bfloat16's normal numbers, or become zero there",
        forms=r"cvt\.rn\..*scaled.*\.bf16x2\.(e4m3|e5m2)x2",
        assumption="rounded",
        alternatives=("flushed",),
        source="runs on GB10 kept the subnormal products of 4- and 6-bit codes, which are exact; none with 8-bit codes",
    ),
}


def assumed(name: str) -> str:
    """The reading in force of one entry of OPEN_QUESTIONS."""
    return OPEN_QUESTIONS[name].assumption
