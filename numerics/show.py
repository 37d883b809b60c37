"""What `fourbit formats` and `fourbit show` print: tables of the formats, and one code taken apart.

Numbers are exact: a short decimal, else an odd integer times a power of two. The ends of the interval that rounds to a
code are midpoints, exact in float64, and whether an end belongs to it is asked of `encode` itself.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from fractions import Fraction

import torch

from .block_formats import BLOCK_FORMATS, BlockFormat
from .codes import encode
from .formats import FORMATS, Format


def formats_main(argv: list[str]) -> int:
    """`fourbit formats`: print the tables; return the exit code 0."""
    about = "Tables of the element formats and of the block formats."
    argparse.ArgumentParser(prog="fourbit formats", description=about).parse_args(argv)
    print(element_table(FORMATS.values()))
    print()
    print(block_table(BLOCK_FORMATS.values()))
    return 0


def show_main(argv: list[str]) -> int:
    """`fourbit show FORMAT CODE` or `fourbit show FORMAT --value NUMBER`; return the exit code 0.

    Raises:
        ValueError: an unknown format, a code that is not one of its codes, a value that is no number.
    """
    about = "Take one code of an element format apart, or encode a number and show what became of it."
    parser = argparse.ArgumentParser(prog="fourbit show", description=about)
    parser.add_argument("format", metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("code", metavar="CODE", nargs="?", help="0x6C, 0b1101100 or 108")
    parser.add_argument(
        "--value", metavar="NUMBER", help="5.4, 0x1.8p-3, nan, inf; write --value=-inf with an equals sign"
    )
    given = parser.parse_args(argv)
    fmt = _format(given.format)
    if (given.code is None) == (given.value is None):
        raise ValueError(f"CODE={given.code} and --value={given.value}: give one of them, such as 0x1 or --value 1.5")
    print(code_card(fmt, _code(given.code)) if given.value is None else value_card(fmt, _number(given.value)))
    return 0


def element_table(formats: Iterable[Format]) -> str:
    """One line per format: widths, range, number of finite values (-0 is not counted beside 0), specials."""
    head = ("format", "bits", "fields", "bias", "least", "max", "min normal", "min subnormal", "finite", "specials")
    rows = []
    for f in formats:
        numbers = map(exact, (f.min, f.max, f.min_normal, f.min_subnormal))
        rows.append((f.name, str(f.bits), _fields(f), str(f.bias), *numbers, str(_finite(f)), _specials(f)))
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
    value = fmt.value(code)
    rows = [*_parts(fmt, code), ("value", _formula(fmt, code))]
    if math.isfinite(value):
        rows += [("neighbours", _neighbours(fmt, code)), ("rounds here", _interval(fmt, code))]
    else:
        rows.append(("encode", _never(fmt, code)))
    return _card(f"{fmt.name} {_hex(fmt, code)} = {exact(value)}", rows)


def value_card(fmt: Format, value: float) -> str:
    """The code that `value` (a float64) becomes under nearest-even rounding, the error, and that code's card."""
    code = _encode(fmt, value)
    result = fmt.value(code)
    error = result - value
    if not math.isfinite(error):
        text = "infinite" if math.isinf(error) else "not a number"
    elif error:
        text = f"{error:+.6g}" + (f", {abs(error / value):.3%} of the number" if value else "")
    else:
        text = "none: the number is a value of the format"
    policy = _policy(fmt, value)
    rows = [("error", text), *([("policy", policy)] if policy else [])]
    first = _card(f"{value!r} in {fmt.name} becomes {_hex(fmt, code)} = {exact(result)}", rows)
    return f"{first}\n\n{code_card(fmt, code)}"


def exact(value: float) -> str:
    """`value` without rounding: a decimal of up to 9 digits, else m x 2^e with m odd."""
    short = f"{value:.9g}"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    if Fraction(short) == Fraction(value) and "e" not in short:
        return short
    numerator, denominator = value.as_integer_ratio()
    twos = (abs(numerator) & -abs(numerator)).bit_length() - 1
    exponent = twos - (denominator.bit_length() - 1)
    odd = numerator >> twos if numerator > 0 else -(-numerator >> twos)
    return {1: "", -1: "-"}.get(odd, f"{odd} x ") + f"2^{exponent}"


# ---- parts of a table ------------------------------------------------------------------------------------------------


def _fields(fmt: Format) -> str:
    if fmt.kind == "fixed":
        return f"i{fmt.bits - fmt.mantissa_bits} f{fmt.mantissa_bits}"
    if fmt.kind == "exponent":
        return f"e{fmt.exponent_bits}"
    return f"{'s1 ' if fmt.signed else ''}e{fmt.exponent_bits} m{fmt.mantissa_bits}"


def _finite(fmt: Format) -> int:
    if fmt.kind == "fixed":
        return 1 << fmt.bits
    return 2 * fmt.max_code + 1 if fmt.kind == "float" and fmt.signed else fmt.max_code + 1


def _specials(fmt: Format) -> str:
    if fmt.nan_code is None:
        return "none"
    nan = f"NaN {_hex(fmt, fmt.nan_code)}"
    return f"inf {_hex(fmt, fmt.max_code + 1)}, {nan}" if fmt.specials == "ieee" else nan


def _aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


# ---- parts of a card -------------------------------------------------------------------------------------------------


def _card(title: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join([title, *(f"  {name:<11}  {text}" for name, text in rows)])


def _hex(fmt: Format, code: int) -> str:
    return f"0x{code:0{-(-fmt.bits // 4)}X}"


def _encode(fmt: Format, value: float) -> int:
    return int(encode(torch.tensor(value, dtype=torch.float64), fmt))


def _split(fmt: Format, code: int) -> tuple[int, int, int]:
    """Sign, exponent and mantissa fields of a float format's code."""
    magnitude = code & ((1 << (fmt.exponent_bits + fmt.mantissa_bits)) - 1)
    exponent, mantissa = divmod(magnitude, 1 << fmt.mantissa_bits)
    return int(code != magnitude), exponent, mantissa


def _parts(fmt: Format, code: int) -> list[tuple[str, str]]:
    bits = f"{code:0{fmt.bits}b}"
    if fmt.kind == "exponent":
        return [("bits", f"{bits}  exponent")]
    if fmt.kind == "fixed":
        cut = fmt.bits - fmt.mantissa_bits
        point = f"{bits[:cut]}.{bits[cut:]}" if fmt.mantissa_bits else bits
        return [("bits", f"{point}  two's complement"), ("integer", str(_place(fmt, code)))]
    sign, exponent, mantissa = _split(fmt, code)
    signs = [str(sign)] if fmt.signed else []
    both = ((exponent, fmt.exponent_bits), (mantissa, fmt.mantissa_bits))
    fields = [*signs, *(f"{field:0{width}b}" for field, width in both if width)]
    names = ["sign"] * fmt.signed + ["exponent"] + ["mantissa"] * (fmt.mantissa_bits > 0)
    rows = [("bits", f"{' '.join(fields)}  {', '.join(names)}")]
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
        divided = f"{_place(fmt, code)} / 2^{fmt.mantissa_bits} = " if fmt.mantissa_bits else ""
        return divided + exact(value)
    if not math.isfinite(value):
        if fmt.kind == "exponent":
            return "the last code: NaN"
        if fmt.specials == "nan":
            return "all bits of exponent and mantissa set: NaN, of either sign" if fmt.signed else "all bits set: NaN"
        return f"exponent all ones, mantissa {'zero: infinity' if math.isinf(value) else 'not zero: NaN'}"
    if fmt.kind == "exponent":
        text = f"2^({code} - {fmt.bias})"
    else:
        sign, exponent, mantissa = _split(fmt, code)
        fraction = f"({1 if exponent else 0} + {mantissa}/{1 << fmt.mantissa_bits})"
        text = f"{f'(-1)^{sign} x ' if fmt.signed else ''}2^({max(exponent, 1)} - {fmt.bias}) x {fraction}"
    short = exact(value)
    return f"{text} = {short}" + (f", about {value:.6g}" if "^" in short else "")


def _never(fmt: Format, code: int) -> str:
    if math.isinf(fmt.value(code)):
        return f"never gives it: infinity saturates to {exact(fmt.max)}"
    assert fmt.nan_code is not None
    return "gives it for NaN" if code == fmt.nan_code else f"never gives it: NaN becomes {_hex(fmt, fmt.nan_code)}"


def _place(fmt: Format, code: int) -> int:
    """Place of a finite code on the number line, in codes from zero (or from the least value of an exponent format)."""
    if fmt.kind == "fixed":
        return code - ((code >> (fmt.bits - 1)) << fmt.bits)
    if fmt.kind == "float" and fmt.signed:
        magnitude = code & ((1 << (fmt.bits - 1)) - 1)
        return magnitude if code == magnitude else -magnitude
    return code


def _at(fmt: Format, place: int) -> int | None:
    """Inverse of `_place`; None beyond the largest finite values."""
    signed = fmt.kind == "fixed" or (fmt.kind == "float" and fmt.signed)
    least = -fmt.max_code - (fmt.kind == "fixed") if signed else 0
    if not least <= place <= fmt.max_code:
        return None
    if place >= 0:
        return place
    return place + (1 << fmt.bits) if fmt.kind == "fixed" else -place | (1 << (fmt.bits - 1))


def _neighbours(fmt: Format, code: int) -> str:
    below, above = (_at(fmt, _place(fmt, code) + step) for step in (-1, 1))
    named = [
        f"none {side}" if near is None else f"{exact(fmt.value(near))} ({_hex(fmt, near)}) {side}"
        for near, side in ((below, "below"), (above, "above"))
    ]
    return ", ".join(named)


def _interval(fmt: Format, code: int) -> str:
    """The numbers that nearest-even rounding takes to `code`."""
    value, place = fmt.value(code), _place(fmt, code)
    below, above = _at(fmt, place - 1), _at(fmt, place + 1)
    low = 0.0 if fmt.min >= 0 and below is None else -math.inf if below is None else (fmt.value(below) + value) / 2
    high = math.inf if above is None else (fmt.value(above) + value) / 2
    if value == 0 and fmt.kind == "float" and fmt.signed:  # each zero takes its own side
        low, high = (value, high) if code == 0 else (low, value)
    opening, closing = "[" if _encode(fmt, low) == code else "(", "]" if _encode(fmt, high) == code else ")"
    text = f"{opening}{exact(low)}, {exact(high)}{closing} by nearest even"
    return text + ("; negative numbers become NaN" if fmt.min >= 0 and below is None else "")


def _policy(fmt: Format, value: float) -> str:
    """Why `value` became what it became, where rounding alone does not say."""
    if math.isnan(value):
        return "NaN becomes the format's NaN" if fmt.nan_code is not None else "no NaN in this format: it becomes +max"
    if fmt.min >= 0 and value < 0:
        return "no negative numbers in this format: they become NaN"
    if fmt.kind == "exponent" and value < fmt.min:
        return f"no zero in this format, and nothing below {exact(fmt.min)}: it becomes that"
    if not fmt.min <= value <= fmt.max:
        return f"beyond the range {exact(fmt.min)} to {exact(fmt.max)}: it saturates"
    return ""


# ---- arguments -------------------------------------------------------------------------------------------------------


def _format(name: str) -> Format:
    if name.upper() in FORMATS:
        return FORMATS[name.upper()]
    if name.upper() in BLOCK_FORMATS:
        element = BLOCK_FORMATS[name.upper()].element.name
        raise ValueError(f"FORMAT={name!r} is a block format: `fourbit formats` has it; show its elements, {element}")
    raise ValueError(f"FORMAT={name!r} is unknown: use one of {', '.join(FORMATS)}")


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
