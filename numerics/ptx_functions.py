"""The function of an instruction form: its signature and its page of the manual.

`cvt` picks one of six templates by the operands of the instruction and writes the docstring from the form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

from torch import Tensor

from .formats import E8M0, FP16, S2F6
from .ptx_arithmetic import Packed
from .ptx_forms import Form, run
from .ptx_questions import OPEN_QUESTIONS

ONE = 0x7F7F  # two UE8M0 scales of 1: the default of PTX

_FAMILIES = "sm_100f, sm_110f, sm_120f and later chips of these families"
_BLACKWELL = "sm_100a, sm_110a (once sm_101a), sm_120a; from PTX ISA 8.8 " + _FAMILIES
# the first expression that matches an instruction gives its PTX ISA version and targets (PTX ISA 9.4, "cvt")
_SINCE = (
    (r"cvt\.rz\..*s2f6x2", "9.4", "sm_107a"),
    (r"cvt\.rz\..*\.e", "9.4", "sm_107f and later chips of the family"),
    (r"cvt\.rs", "8.7", "sm_100a, sm_103a; from PTX ISA 9.4 sm_107a"),
    (r".*s2f6x2", "9.1", "sm_100a, sm_103a, sm_110a, sm_120a, sm_121a; from PTX ISA 9.4 sm_107a"),
    (r".*ue8m0x2", "8.6", _BLACKWELL),
    (r".*\.bf16x2\.e", "9.2", _FAMILIES),
    (r".*\.e(4m3|5m2)x2\.bf16x2", "9.1", _FAMILIES),
    (r".*(e4m3|e5m2)x2", "7.8", "sm_90 and higher; from PTX ISA 8.1 sm_89"),
    (r".*\.e\dm\dx2\.b?f16x2", "9.1", _FAMILIES),
    (r".*(e2m1|e2m3|e3m2)x2", "8.6", _BLACKWELL),
)


def cvt(text: str) -> Callable[..., Tensor]:
    """The function of one instruction form; `text` is the instruction without its leading "cvt."."""
    form = Form("cvt." + text)
    if form.source is not None:
        function = _word_scaled(form) if form.scaled else _word_only(form)
    elif form.rounding == "rs":
        function = _four_random(form) if form.destination.count == 4 else _two_random(form)
    else:
        function = _two_scaled(form) if form.scaled else _two(form)
    function.__name__ = function.__qualname__ = re.sub(r"\W+", "_", form.text)
    function.__module__ = "numerics.ptx"
    function.__doc__ = page(form)
    return function


def _two(form: Form) -> Callable[..., Tensor]:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return cast(Tensor, run(form, (a, b)))

    return function


def _two_scaled(form: Form) -> Callable[..., Tensor]:
    def function(a: Tensor, b: Tensor, scale: Tensor | int = ONE) -> Tensor:
        return cast(Tensor, run(form, (a, b), scale))

    return function


def _word_only(form: Form) -> Callable[..., Tensor]:
    def function(a: Tensor) -> Tensor:
        return cast(Tensor, run(form, (a,)))

    return function


def _word_scaled(form: Form) -> Callable[..., Tensor]:
    def function(a: Tensor, scale: Tensor | int = ONE) -> Tensor:
        return cast(Tensor, run(form, (a,), scale))

    return function


def _two_random(form: Form) -> Callable[..., Tensor]:
    def function(a: Tensor, b: Tensor, rbits: Tensor | int) -> Tensor:
        return cast(Tensor, run(form, (a, b), rbits=rbits))

    return function


def _four_random(form: Form) -> Callable[..., Tensor]:
    def function(a: Tensor, b: Tensor, e: Tensor, f: Tensor, rbits: Tensor | int) -> Tensor:
        return cast(Tensor, run(form, (a, b, e, f), rbits=rbits))

    return function


# ---- manual pages ----------------------------------------------------------------------------------------------------

_ROUNDING_WORDS = {"rn": "to nearest even", "rz": "toward zero", "rp": "up", "rs": "stochastically by rbits"}
_RANDOM = {  # random bits of each element, by its field's width; float16 has a line of its own
    4: "H = {rbits[31:24], rbits[15:8]}, L = {rbits[23:16], rbits[7:0]}: a reversed H, b H, e reversed L, f L",
    8: "H = rbits[31:16], L = rbits[15:0]: a reversed H, b H, e reversed L, f L",
    16: "a rbits[31:16], b rbits[15:0]",
}


def page(form: Form) -> str:
    """Docstring of a form: meaning, packing, specials, operands, errors, availability, what is open."""
    names, d, source = form.operands, form.destination, form.source
    listed = f"{{{', '.join(names)}}}" if len(names) == 4 else ", ".join(names)
    extra = ["scale"] * form.scaled + ["rbits"] * (form.rounding == "rs")
    number = {2: "two", 4: "four"}[d.count]
    kind = f"packed {source.element}" if source else "float32"
    scaling = ("divided by" if d.fmt is S2F6 else "multiplied by") + " 2^(scale byte - 127); byte 0xFF is NaN"
    arguments = f"    {', '.join(names)}: " + (_words(source) if source else "float32 tensors of one shape.")
    if form.scaled:
        arguments += "\n    scale: the scale bytes, the upper element's uppermost, by default two ones (0x7F7F); "
        arguments += _words(Packed("ue8m0x2"), True)
    if form.rounding == "rs":
        arguments += "\n    rbits: the random bits; " + _words(None, True)
    version, targets = next((v, t) for expression, v, t in _SINCE if re.match(expression, form.text))
    touching = [name for name, question in OPEN_QUESTIONS.items() if question.touches(form.text)]
    strangers = " or ".join((["a"] if source else []) + extra)
    no_number = [] if source else ["an operand is not float32"]
    wrong = ", or ".join(no_number + [f"{strangers} is not integer"] * bool(strangers))
    return f"""{form.text} d, {", ".join([listed, *extra])};

Converts {number} {kind} numbers to {d.element}, rounded {_ROUNDING_WORDS[form.rounding]}.

{_packing(form)}{(chr(10) + "    " + scaling) * form.scaled}
    {_specials(form)}

Args:
{arguments}
    Torch tensors on one device, or numpy arrays.

Returns:
    d, uint{d.width}, the shape of a; numpy if a is.

Raises:
    TypeError: {wrong}.
    ValueError: shapes or devices differ; a word beyond its width{"; bits above a 6-bit code" * _has_padding(source)}.

PTX ISA {version}; {targets}.
Open, see OPEN_QUESTIONS: {", ".join(touching) or "nothing"}."""


def _has_padding(packed: Packed | None) -> bool:
    return packed is not None and packed.fmt.bits < packed.field


def _words(packed: Packed | None, alone: bool = False) -> str:
    width = packed.width if packed else 32
    text = f"{width}-bit words, the shape of a; integers in [0, 2^{width}), or int{width} as bits"
    return text + ("; an int serves all." if alone else ".")


def _packing(form: Form) -> str:
    """Where every element lies, and which random bits it gets."""

    def places(packed: Packed, word: str) -> list[str]:
        return [f"{word}[{shift + packed.fmt.bits - 1}:{shift}]" for shift in packed.shifts]

    sources = form.operands if form.source is None else places(form.source, "a")
    lines = [", ".join(f"{d} = {s}" for d, s in zip(places(form.destination, "d"), sources, strict=True))]
    if _has_padding(form.destination):
        lines[0] += "; the two bits above each are 0"
    if form.rounding == "rs" and form.destination.fmt is not FP16:
        lines.append("16 random bits: " + _RANDOM[form.destination.field])
    elif form.rounding == "rs":
        lines.append("13 random bits: a rbits[28:16], b rbits[12:0]; keep the other bits 0")
    return "\n".join("    " + line for line in lines)


def _specials(form: Form) -> str:
    """NaN, overflow and sign in one sentence each."""
    fmt = form.destination.fmt
    if fmt is E8M0:
        beyond = "to 2^127 (0xFE)" if form.satfinite else "to NaN (0xFF)"
        reach = "infinity" if form.rounding == "rz" else "what exceeds 2^127"
        return f"The sign is ignored; 2^-127 and less give 0x00, {reach} goes {beyond}, NaN to 0xFF."
    nan = "NaN stays, as " + ("0x7FFF" if fmt.bits == 16 else "0x7F")
    if fmt.nan_code is None:
        nan = f"NaN becomes +{fmt.max:g} (0x{fmt.max_code:X})"
    if form.satfinite:
        beyond = f"Beyond {fmt.max:g} lies {fmt.max:g} with the operand's sign, for infinities too"
        if fmt is S2F6:
            beyond = f"Beyond {fmt.max:g} lies {fmt.max:g}, below {fmt.min:g} lies {fmt.min:g}, for infinities too"
    else:
        beyond = "Overflow gives infinity"
    return f"{beyond}; {nan}" + ("; negative numbers and -0 become +0." if form.relu else ".")
