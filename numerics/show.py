"""What `fourbit formats` and `fourbit show` print: tables of the formats, one code taken apart, one number rounded.

Numbers are exact: a short decimal, else an odd integer times a power of two. `code_rows`, `value_rows` and
`rounding_rows` are the facts of a card as text, for other pages; `anatomy` computes what they say.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable

from .anatomy import bit_fields, interval, neighbours, outcomes, place, policy, special, split
from .block_formats import BLOCK_FORMATS, BlockFormat
from .exact_text import exact, readable
from .formats import FORMATS, Format, format_named
from .rounding import Rounding


def formats_main(argv: list[str]) -> int:
    """`fourbit formats`: print the tables; return the exit code 0."""
    about = "Tables of the element formats and of the block formats."
    argparse.ArgumentParser(prog="fourbit formats", description=about).parse_args(argv)
    print(element_table(FORMATS.values()))
    print()
    print(block_table(BLOCK_FORMATS.values()))
    return 0


def show_main(argv: list[str]) -> int:
    """`fourbit show FORMAT [CODE | --value NUMBER]`; return the exit code 0.

    Raises:
        ValueError: an unknown format, a code that is not one of its codes, a value that is no number.
    """
    about = "Print a format, one of its codes taken apart, or what a number becomes under every rounding."
    parser = argparse.ArgumentParser(prog="fourbit show", description=about)
    own = "or one of your own: E3M2FN, E3M4, UE5M3FN, E5M0FNU, INT6, S3F4"
    parser.add_argument("format", metavar="FORMAT", help=f"{', '.join(FORMATS)}; {own}")
    parser.add_argument("code", metavar="CODE", nargs="?", help="0x6C, 0b1101100 or 108")
    parser.add_argument(
        "--value", metavar="NUMBER", help="5.4, 0x1.8p-3, nan, inf; write --value=-inf with an equals sign"
    )
    given = parser.parse_args(argv)
    fmt = _format(given.format)
    if given.code is not None and given.value is not None:
        raise ValueError(f"CODE={given.code} and --value={given.value}: give one of them")
    if given.code is not None:
        print(code_card(fmt, _code(given.code)))
    elif given.value is not None:
        print(value_card(fmt, _number(given.value)))
    else:
        print(element_table([fmt]))
        print(f"value of a code: {fmt.formula}")
    return 0


def element_table(formats: Iterable[Format]) -> str:
    """One line per format: widths, range, number of finite values (-0 is not counted beside 0), specials."""
    head = ("format", "bits", "fields", "bias", "least", "max", "min normal", "min subnormal", "finite", "specials")
    rows = []
    for f in formats:
        numbers = map(exact, (f.min, f.max, f.min_normal, f.min_subnormal))
        specials = f.special_codes or "none"
        rows.append((f.name, str(f.bits), _fields(f), str(f.bias), *numbers, str(f.count), specials))
    legend = "s sign, e exponent, m mantissa; i integer and f fraction of a two's complement number"
    return f"{_aligned([head, *rows])}\n{legend}"


def block_table(formats: Iterable[BlockFormat]) -> str:
    """One line per block format: bits per value without the outer scale, element, block length, scale and its rule."""
    head = ("block format", "bits per value", "element", "block", "scale", "rule", "outer scale")
    rows = []
    for f in formats:
        element = f.element.name if f.alternative is None else f"{f.element.name} or {f.alternative.name}"
        block = str(f.block) if f.tile == 1 else f"{f.tile} x {f.block}"
        scale = "FP32" if f.scale is None else f.scale.name
        rows.append((f.name, f"{f.bits_per_value:.6g}", element, block, scale, f.rule.name, f.outer or "none"))
    return _aligned([head, *rows])


def code_card(fmt: Format, code: int) -> str:
    """The fields of `code`, the formula with its numbers, neighbours, what rounds to it. Errors as `Format.value`."""
    return _card(f"{fmt.name} {fmt.hex(code)} = {exact(fmt.value(code))}", code_rows(fmt, code))


def code_rows(fmt: Format, code: int, rounding: Rounding = Rounding.NEAREST_EVEN) -> list[tuple[str, str]]:
    """Name and text of each fact about a code. Errors as `Format.value`."""
    rows = [*_parts(fmt, code), ("value", _formula(fmt, code))]
    if math.isfinite(fmt.value(code)):
        return [*rows, ("neighbours", _neighbours(fmt, code)), ("rounds here", _interval(fmt, code, rounding))]
    return [*rows, ("encode", _never(fmt, code))]


def value_card(fmt: Format, value: float) -> str:
    """What `value` (a float64) becomes: nearest-even code and error, every rounding, and that code's card."""
    (code,) = outcomes(fmt, value)
    title = f"{value!r} in {fmt.name} becomes {fmt.hex(code)} = {exact(fmt.value(code))}"
    every = _aligned([ROUNDING_HEAD, *rounding_rows(fmt, value)])
    return f"{_card(title, value_rows(fmt, value, code))}\n\n{every}\n\n{code_card(fmt, code)}"


ROUNDING_HEAD = ("rounding", "code", "value", "error")


def rounding_rows(fmt: Format, value: float) -> list[tuple[str, str, str, str]]:
    """What `value` (a float64) becomes under every rounding: a row for each result, columns `ROUNDING_HEAD`.

    Stochastic rounding (16 random bits) has two results where `value` lies between two values of the format; their
    probabilities are exact, multiples of 2^-16.
    """
    rows = []
    for rule in Rounding:
        for code, chance in outcomes(fmt, value, rule).items():
            name = rule.value if chance == 1 else f"{rule.value}, {chance:.2%} of draws"
            rows.append((name, fmt.hex(code), exact(fmt.value(code)), f"{fmt.value(code) - value:+.4g}"))
    return rows


def value_rows(fmt: Format, value: float, code: int) -> list[tuple[str, str]]:
    """Name and text of each fact about the rounding of `value` to `code`."""
    error = fmt.value(code) - value
    if not math.isfinite(error):
        text = "infinite" if math.isinf(error) else "not a number"
    elif error:
        text = f"{error:+.6g}" + (f", {abs(error / value):.3%} of the number" if value else "")
    else:
        text = "none: the number is a value of the format"
    why = policy(fmt, value)
    return [("error", text), *([("policy", why)] if why else [])]


# ---- parts of a table ------------------------------------------------------------------------------------------------


def _fields(fmt: Format) -> str:
    if fmt.kind == "fixed":
        return f"i{fmt.bits - fmt.mantissa_bits} f{fmt.mantissa_bits}"
    if fmt.kind == "exponent":
        return f"e{fmt.exponent_bits}"
    return f"{'s1 ' if fmt.signed else ''}e{fmt.exponent_bits} m{fmt.mantissa_bits}"


def _aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


# ---- parts of a card -------------------------------------------------------------------------------------------------


def _card(title: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join([title, *(f"  {name:<11}  {text}" for name, text in rows)])


def _parts(fmt: Format, code: int) -> list[tuple[str, str]]:
    if fmt.kind == "exponent":
        return [("bits", f"{code:0{fmt.bits}b}  exponent")]
    if fmt.kind == "fixed":
        return [("bits", f"{'.'.join(bit_fields(fmt, code))}  two's complement"), ("integer", str(place(fmt, code)))]
    _, exponent, mantissa = split(fmt, code)
    names = ", ".join(name for name, _ in fmt.fields)
    rows = [("bits", f"{' '.join(bit_fields(fmt, code))}  {names}")]
    if not math.isfinite(fmt.value(code)):
        return rows
    power = f"{max(exponent, 1)} - bias {fmt.bias} = {max(exponent, 1) - fmt.bias}"
    leading, steps = int(exponent > 0), 1 << fmt.mantissa_bits
    rows.append(("exponent", power if exponent else f"0, subnormal: {power}"))
    return [*rows, ("mantissa", f"{leading} + {mantissa}/{steps} = {exact(leading + mantissa / steps)}")]


def _formula(fmt: Format, code: int) -> str:
    """The formula of the format's kind with the numbers of `code`; of a special, why it is one."""
    value = fmt.value(code)
    if fmt.kind == "fixed":
        divided = f"{place(fmt, code)} / 2^{fmt.mantissa_bits} = " if fmt.mantissa_bits else ""
        return divided + exact(value)
    if not math.isfinite(value):
        return special(fmt, code)
    if fmt.kind == "exponent":
        text = f"2^({code} - {fmt.bias})"
    else:
        sign, exponent, mantissa = split(fmt, code)
        fraction = f"({1 if exponent else 0} + {mantissa}/{1 << fmt.mantissa_bits})"
        text = f"{f'(-1)^{sign} x ' if fmt.signed else ''}2^({max(exponent, 1)} - {fmt.bias}) x {fraction}"
    return f"{text} = {readable(value)}"


def _never(fmt: Format, code: int) -> str:
    if math.isinf(fmt.value(code)):
        return f"never gives it: infinity saturates to {exact(fmt.max)}"
    assert fmt.nan_code is not None
    return "gives it for NaN" if code == fmt.nan_code else f"never gives it: NaN becomes {fmt.hex(fmt.nan_code)}"


def _neighbours(fmt: Format, code: int) -> str:
    named = [
        f"none {side}" if near is None else f"{exact(fmt.value(near))} ({fmt.hex(near)}) {side}"
        for near, side in zip(neighbours(fmt, code), ("below", "above"), strict=True)
    ]
    return ", ".join(named)


_BY = {
    Rounding.NEAREST_EVEN: "by nearest even",
    Rounding.NEAREST_AWAY: "by nearest, ties away from zero",
    Rounding.TOWARD_ZERO: "toward zero",
    Rounding.TOWARD_POSITIVE: "toward +infinity",
    Rounding.TOWARD_NEGATIVE: "toward -infinity",
    Rounding.STOCHASTIC: "may, by chance",
}


def _interval(fmt: Format, code: int, rounding: Rounding) -> str:
    """The numbers that `rounding` takes to `code`."""
    text = f"{interval(fmt, code, rounding)} {_BY[rounding]}"
    ends = fmt.min >= 0 and neighbours(fmt, code)[0] is None and fmt.nan_code is not None
    return text + ("; negative numbers become NaN" if ends else "")


# ---- arguments -------------------------------------------------------------------------------------------------------


def _format(name: str) -> Format:
    if name.upper() in BLOCK_FORMATS:
        element = BLOCK_FORMATS[name.upper()].element.name
        raise ValueError(f"FORMAT={name!r} is a block format: `fourbit formats` has it; show its elements, {element}")
    return format_named(name)


def _code(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError(f"CODE={text!r} is no integer: write 0x6C, 0b1101100 or 108") from None


def _number(text: str) -> float:
    try:
        return float.fromhex(text) if "0x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        raise ValueError(f"--value={text!r} is no float64: write 5.4, 0x1.8p-3, nan or inf") from None
