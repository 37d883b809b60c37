"""What the explorer says under its picture, and two tables: HTML whose numbers come from `numerics.anatomy`."""

from __future__ import annotations

import math

import numerics as nm
from numerics import anatomy
from numerics.exact_text import exact
from numerics.markup import Html, chip, code, joined, mathematical, table
from numerics.show import ROUNDING_HEAD, code_rows, rounding_rows, value_rows

from . import bits_data
from .bits_data import State
from .bits_draw import short, title

_HUES = {"sign": "sign", "exponent": "exponent", "integer": "exponent", "mantissa": "mantissa", "fraction": "mantissa"}
_TWO = Html("<sub>2</sub>")


def readout(state: State) -> Html:
    """The formula with the bits filled in, neighbours, what rounds to the code, and the number's error."""
    fmt = state.fmt
    facts = dict(code_rows(fmt, state.code, state.rounding))
    rows = [("bits", chips(fmt, state.code)), ("value", filled(fmt, state.code))]
    rows += [(name, mathematical(text)) for name, text in facts.items() if name not in ("bits", "value")]
    if len(state.chances) > 1:
        rows += [("chances", _chances(state)), ("mean", _mean(state))]
    elif state.chances:
        rows += [(name, mathematical(text)) for name, text in value_rows(fmt, state.value, state.code)]
        rows += [("tie", mathematical(_tie(state)))] if _tie(state) else []
    if state.remark:
        rows.append(("text", state.remark))
    return table(rows, caption=mathematical(title(state)))


def chips(fmt: nm.Format, number: int) -> Html:
    """The bits of a code, each field on its colour, and the fields' names."""
    fields = zip(fmt.fields, anatomy.bit_fields(fmt, number), strict=True)
    return joined((joined([chip(bits, _HUES[name]), f" {name}"]) for (name, _), bits in fields), ", ")


def filled(fmt: nm.Format, number: int) -> Html:
    """The formula with the bits of a code in their places, then with numbers; of a special, why it is one."""
    words = mathematical(dict(code_rows(fmt, number))["value"])
    if not math.isfinite(fmt.value(number)):
        return words
    bits = {
        name: chip(field, _HUES[name])
        for (name, _), field in zip(fmt.fields, anatomy.bit_fields(fmt, number), strict=True)
    }
    if fmt.kind == "fixed":
        both = joined([bits[name] for name in ("integer", "fraction") if name in bits], ".")
        return joined([both, _TWO, " in two's complement = ", words])
    biased = Html(f" \N{MINUS SIGN} {fmt.bias}")
    if fmt.kind == "exponent":
        return joined(["2", _raised(bits["exponent"], _TWO, biased), " = ", words])
    subnormal = anatomy.split(fmt, number)[1] == 0
    sign = joined(["(\N{MINUS SIGN}1)", _raised(bits["sign"]), " \N{MULTIPLICATION SIGN} "]) if fmt.signed else Html("")
    power = _raised(Html("1"), biased) if subnormal else _raised(bits["exponent"], _TWO, biased)
    leading = "0" if subnormal else "1"
    significand = joined([f"{leading}.", bits["mantissa"], _TWO]) if "mantissa" in bits else leading
    why = joined([" (exponent ", bits["exponent"], ": subnormal)"]) if subnormal else ""
    return joined([sign, "2", power, " \N{MULTIPLICATION SIGN} ", significand, why, " = ", words])


def _raised(*parts: str) -> Html:
    return joined([Html("<sup>"), *parts, Html("</sup>")])


def _chances(state: State) -> Html:
    fmt = state.fmt
    each = (f"{exact(fmt.value(c))} ({fmt.hex(c)}) with probability {round(p * 65536)}/65536" for c, p in state.chances)
    return mathematical(", ".join(each))


def _mean(state: State) -> Html:
    """The expected result, exact in float64, and how far it is from the number."""
    mean = sum(p * state.fmt.value(c) for c, p in state.chances)
    gap = mean - state.value
    return mathematical(
        f"{mean:.9g}, " + (f"{gap:+.3g} off: 16 random bits tell no more" if gap else "the number itself")
    )


def _tie(state: State) -> str:
    """Which two values the number is halfway between, if it is."""
    fmt, near = (
        state.fmt,
        anatomy.interval(state.fmt, state.code, state.rounding) if math.isfinite(state.result) else None,
    )
    nearest = state.rounding in (nm.Rounding.NEAREST_EVEN, nm.Rounding.NEAREST_AWAY)
    if near is None or not nearest or state.value == state.result or state.value not in (near.low, near.high):
        return ""
    other = anatomy.neighbours(fmt, state.code)[int(state.value == near.high)]
    return "" if other is None else f"halfway between {exact(state.result)} and {exact(fmt.value(other))}"


def rounding_table(fmt: nm.Format, value: float) -> Html:
    """What a number becomes under every rounding."""
    rows = [(name, code(hex), *map(mathematical, numbers)) for name, hex, *numbers in rounding_rows(fmt, value)]
    return table(rows, f"{short(value)} in {fmt.name}", ROUNDING_HEAD)


def policy_table() -> Html:
    """What awkward numbers become in formats of every kind, rounded to nearest even."""
    formats = (nm.E2M1, nm.E4M3, nm.E5M2, nm.UE4M3, nm.E8M0, nm.S2F6)
    rows = []
    for text in bits_data.AWKWARD:
        states = [bits_data.from_text(fmt, text) for fmt in formats]
        rows.append([mathematical(text), *(mathematical(short(state.result)) for state in states)])
    return table(rows, "Numbers that do not fit", ("number", *(fmt.name for fmt in formats)))
