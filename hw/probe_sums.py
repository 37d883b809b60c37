"""What a device does to the terms of a sum, found by products made for the question, and the row that does the same.

Places p, q, r are of one step, see `probe_order`; u = 2^-F is the last bit that alignment keeps, relative to the
largest exponent of the step; every number below is a product of two powers of two, or has the significand 1.5 or 2.25.

    F           the largest t for which +B, -B and B 2^-t leave B 2^-t; in steps of two places c is +B
    cut         +B, -B and +-0.75 u or +-0.28 u: what is left says toward zero, nearest, down or up
    normalized  the same F with 2.25 = 1.5 * 1.5 as B: an exponent that is the product's, not its factors', costs a bit
    output      sums of 2.25 that reach 2^j, and 2^-t, in the last step, since the next would cut the result to F bits:
                which survive gives the bits of the result; 0.75 and 0.25 of its last place, its rounding
    c           how many products the first sum with c has; whether c = 1.5 u beside +B, -B loses bits
    e_zero      2^-149 as a sum of products down to 2^-q, or c = 2^-q alone: what the floor of exponents makes of it
    NaN, Inf    the bits of a NaN; the sum of two largest products
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm
from numerics.accumulators import ACCUMULATORS, Accumulator

from .probe_order import Machine, Order, find_order, halves, products_with_c

TOWARD_ZERO, NEAREST = "toward zero", "nearest"
MORE = "or more"  # of fraction bits: what a step keeps is too little to show how many a result has
# what is left of +0.75, -0.75, +0.28 and -0.28 of a unit (0.25 of the output's)
_ROUNDINGS = {(0, 0, 0, 0): TOWARD_ZERO, (1, -1, 0, 0): NEAREST, (0, -1, 0, -1): "down", (1, 0, 1, 0): "up"}
Term = tuple[int, float, float]  # place, factor of a, factor of b


@dataclass(frozen=True)
class Found:
    """Parameters of one machine; None: not found, or not reachable. fraction_bits: F. cut: how aligned terms lose bits.
    output_bits: fraction bits of a result, `output` its rounding. c: "first, aligned", "first, rounded in turn",
    "last", "with the first N products", "not taken". e_zero: exponent of a zero. nan: the bits of a NaN. rows: names in
    ACCUMULATORS."""

    order: Order
    fraction_bits: int | None = None
    cut: str | None = None
    normalized: bool | None = None
    output_bits: int | None = None
    output: str | None = None
    products: str | None = None
    c: str = "not taken"
    e_zero: int | None = None
    nan: int | None = None
    overflow: float | None = None
    rows: tuple[str, ...] = ()


def find(machine: Machine, k: int = 128) -> Found:
    """All parameters, from contractions of length k: a multiple of 16 and of the machine's step, two steps or more."""
    order = find_order(machine, k, range(0, k, machine.numbers.spacing))
    if not order.steps and not order.exact:
        return Found(order, nan=_nan(machine, k))
    step = order.first if order.steps else tuple(range(0, k, machine.numbers.spacing))
    last = order.steps[-1] if order.steps and order.length != 1 else step
    with_c = machine.takes_c and not order.exact and products_with_c(machine, k, order) == order.length
    one_by_one = order.length == 1 or order.exact
    bits = None if one_by_one else _fraction_bits(machine, k, step, with_c)
    # c has no factors that an exponent could come from
    other = None if bits is None or len(step) < 3 else _fraction_bits(machine, k, step, with_c, normal=False)
    output_bits, output = result(machine, k, last, bits)
    found = Found(
        order,
        bits,
        None if bits is None else _cut(machine, k, step, with_c, bits),
        None if other is None else other != bits,
        output_bits,
        output,
        _products(machine, k, step),
        _start(machine, k, order, bits),
        _e_zero(machine, k, step, bits, output_bits),
        _nan(machine, k),
        _overflow(machine, k, step),
    )
    return Found(**{**vars(found), "rows": matching(found, machine.fmt)})


def matching(found: Found, fmt: nm.Format | nm.BlockFormat) -> tuple[str, ...]:
    """The rows of ACCUMULATORS that take a format and say what was found."""
    return tuple(name for name, row in ACCUMULATORS.items() if row.takes(fmt) and fits(found, row))


def fits(found: Found, row: Accumulator) -> bool:
    """Whether a row says what was found, as far as it was. Of the order only the steps count: what a library does with
    the sums of blocks is its own."""
    order = found.order
    rounding = NEAREST if row.rule in ("exact", "sequential") else TOWARD_ZERO
    if found.output_bits is None or row.rule == "library":
        return False
    if found.output == MORE and found.output_bits > row.output.mantissa_bits:
        return False
    if found.output != MORE and (found.output_bits, found.output) != (row.output.mantissa_bits, rounding):
        return False
    if row.rule == "exact":
        return order.exact
    if found.products == ("exact" if row.rule == "sequential" else "rounded"):
        return False
    if row.rule == "sequential":
        return order.length == 1 and order.block is None and order.contiguous
    length = 16 if row.rule == "halves" else row.length
    if order.length != length or found.fraction_bits != row.fraction_bits:
        return False
    if row.rule == "halves":
        if order.first[:4] != (0, 1, 4, 5) or order.block != 32:
            return False
    elif order.first != tuple(range(0, length or 0, order.first[1] - order.first[0])):
        return False
    if found.cut not in (None, TOWARD_ZERO) or found.normalized or found.c == "first, whole":
        return False
    return found.e_zero is None or found.e_zero == row.zero_exponent


def dots(machine: Machine, k: int, tests: Sequence[Sequence[Term]], c: Sequence[float] | None = None) -> Tensor:
    """One dot product per test: its terms at their places, zeros elsewhere; float64 (T,)."""
    a, b = torch.zeros(len(tests), k), torch.zeros(len(tests), k)
    for row, terms in enumerate(tests):
        for place, x, y in terms:
            a[row, place], b[row, place] = x, y
    return machine.dots(a, b, None if c is None else torch.tensor(c)).to(torch.float64)


def _term(place: int, exponent: int, significand: float = 1.0) -> Term:
    """A product significand 2^exponent; the significand is 1, 1.5 or, 1.5 twice, 2.25, and may be negative."""
    x, y = (float(t) for t in halves(exponent))
    sign, size = (-1.0 if significand < 0 else 1.0), abs(significand)
    return place, sign * x * (1.5 if size != 1.0 else 1.0), y * (1.5 if size == 2.25 else 1.0)


def _pair(machine: Machine, step: Sequence[int], with_c: bool, normal: bool = True) -> tuple[list[Term], float | None]:
    """+B and -B, as two products or, where a step has no three places, as c and a product; B = 2^high, or
    2.25 2^(high - 2)."""
    e, size = (machine.numbers.high, 1.0) if normal else (machine.numbers.high - 2, 2.25)
    if len(step) > 2:
        return [_term(step[0], e, size), _term(step[1], e, -size)], None
    return [_term(step[0], e, -size)], size * 2.0**e if with_c else None


def _beside(
    machine: Machine, k: int, step: Sequence[int], with_c: bool, sizes: Sequence[tuple[int, float]], normal: bool = True
) -> Tensor:
    """What +B, -B and a product (exponent, significand) leave, for each of `sizes`."""
    pair, c = _pair(machine, step, with_c, normal)
    place = step[min(2, len(step) - 1)]
    tests = [[*pair, _term(place, e, size)] for e, size in sizes]
    return dots(machine, k, tests, None if c is None else [c] * len(tests))


def _fraction_bits(machine: Machine, k: int, step: Sequence[int], with_c: bool, normal: bool = True) -> int | None:
    """F; None if even the smallest product is kept, or if there is no place for three terms."""
    if len(step) + with_c < 3:
        return None
    high = machine.numbers.high - (0 if normal else 2)
    spans = range(high - machine.numbers.low + 1)
    left = _beside(machine, k, step, with_c, [(high - t, 1.0) for t in spans], normal)
    kept = [t for t in spans if float(left[t]) == 2.0 ** (high - t)]
    return None if not kept or len(kept) == len(spans) else max(kept)


def _cut(machine: Machine, k: int, step: Sequence[int], with_c: bool, bits: int) -> str | None:
    unit = machine.numbers.high - bits
    if unit - 3 < machine.numbers.low:
        return None
    sizes = ((unit - 1, 1.5), (unit - 1, -1.5), (unit - 3, 2.25), (unit - 3, -2.25))
    left = _beside(machine, k, step, with_c, sizes) / 2.0**unit
    return _ROUNDINGS.get(tuple(left.tolist()), f"leaves {left.tolist()} of a unit")


# Results.


def _heads(step: Sequence[int], base: int) -> list[tuple[int, list[Term]]]:
    """Sums of which every product has the exponent `base` while the sum has base + j: (j, terms), with one place left
    for another."""
    room = [n for n in (1, 2, 4, 8) if n < len(step)]
    return [(0, [_term(step[0], base)])] + [
        (n.bit_length(), [_term(place, base, 2.25) for place in step[:n]]) for n in room
    ]


def _value(terms: Sequence[Term]) -> float:
    return sum(x * y for _, x, y in terms)


def result(machine: Machine, k: int, step: Sequence[int], bits: int | None) -> tuple[int | None, str | None]:
    """Fraction bits of a sum of products at the places of `step`, and its rounding; what alignment cuts, beyond `bits`,
    is left out. MORE as rounding: no bit was lost. (None, None): none kept."""
    base = machine.numbers.high - 2
    last = base - machine.numbers.low
    last = min(last, 48 if bits is None else bits)  # float64, in which results are judged, holds 52
    heads = _heads(step, base)
    tests = [(j + t, head, t) for j, head in heads for t in range(1, last + 1)]
    place = step[-1]
    left = dots(machine, k, [[*head, _term(place, base - t)] for _, head, t in tests])
    whole = [float(x) == _value(head) + 2.0 ** (base - t) for x, (_, head, t) in zip(left, tests, strict=True)]
    if not any(whole):
        return None, None
    found = max(bit for (bit, _, _), kept in zip(tests, whole, strict=True) if kept)
    if all(whole):
        return (None if bits is None else found), MORE
    # a head under whose last place two more bits fit
    fitting = [(j, head) for j, head in heads if found + 2 - j <= last]
    if not fitting:
        return found, None
    j, head = fitting[0]
    unit = base + j - found
    sizes = ((unit - 1, 1.5), (unit - 1, -1.5), (unit - 2, 1.0), (unit - 2, -1.0))
    sums = []
    for exponent, size in sizes:
        signed = head if size > 0 else [(at, -x, y) for at, x, y in head]
        sums.append([*signed, _term(place, exponent, size)])
    alone = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64) * _value(head)
    moved = (dots(machine, k, sums) - alone) / 2.0**unit
    return found, _ROUNDINGS.get(tuple(moved.tolist()), f"moves by {moved.tolist()} of a place")


def _products(machine: Machine, k: int, step: Sequence[int]) -> str | None:
    """Whether products are rounded before they are added; None where none can be."""
    if machine.numbers.precision < 12:
        return None
    places = step[:2] if len(step) > 1 else (step[0], step[0] + 1)
    left = dots(machine, k, [[(places[0], -(1 + 2.0**-11), 1.0), (places[1], 1 + 2.0**-12, 1 + 2.0**-12)]])
    return {2.0**-24: "exact", 0.0: "rounded"}.get(float(left[0]), f"leave {float(left[0]):g}")


def _start(machine: Machine, k: int, order: Order, bits: int | None) -> str:
    """How c takes part."""
    if not machine.takes_c:
        return "not taken"
    if order.exact:
        return "first"
    count, whole = products_with_c(machine, k, order), k
    if count == whole and order.length != whole:
        return "last"
    if order.length is None or count != order.length:
        return f"with the first {count} products"
    if bits is None:
        return "first, rounded in turn"
    unit, e = machine.numbers.high - bits, machine.numbers.high
    pair = [_term(order.first[0], e), _term(order.first[1], e, -1.0)]
    left = float(dots(machine, k, [pair], [1.5 * 2.0**unit])[0])
    return "first, aligned" if left == 2.0**unit else "first, whole" if left == 1.5 * 2.0**unit else "first, rounded"


# Edges.


def _e_zero(machine: Machine, k: int, step: Sequence[int], bits: int | None, output_bits: int | None) -> int | None:
    """From the last bit 2^-q that exponents of zeros leave to the least numbers: e_zero = F - q."""
    if bits is None:
        return None
    kept: list[int] = []
    if machine.numbers.deep:
        sums = {q: _least(step, q, machine.numbers.precision + 1) for q in range(150, 181)}
        sums = {q: terms for q, terms in sums.items() if len(terms) <= len(step)}
        left = dots(machine, k, list(sums.values()))
        kept = [q for q, x in zip(sums, left.tolist(), strict=True) if x == 2.0**-149]
        return bits - max(kept) if kept and max(kept) < max(sums) else None
    if machine.takes_c and output_bits is not None:
        exponents = range(127, 150)
        left = dots(machine, k, [[] for _ in exponents], [2.0**-q for q in exponents])
        kept = [q for q, x in zip(exponents, left.tolist(), strict=True) if x == 2.0**-q]
        # what the output cannot hold says nothing
        return bits - max(kept) if kept and max(kept) < min(149, 126 + output_bits) else None
    return None


def _least(step: Sequence[int], q: int, precision: int) -> list[Term]:
    """Products that add up to 2^-149, the least of them 2^-q: (2^n - 1) 2^-(149 + n), then halves of what is left."""
    n = min(q - 149, precision)
    factors = [(float(2**n - 1), -149 - n)] + [(1.0, -e) for e in range(150 + n, q + 1)] + [(1.0, -q)]
    made = []
    for place, (factor, exponent) in zip(range(len(factors)), factors, strict=True):
        x, y = (float(t) for t in halves(exponent))
        made.append((step[place] if place < len(step) else -1, factor * x, y))
    return made


def _nan(machine: Machine, k: int) -> int | None:
    """The bits of a NaN."""
    a, b = torch.zeros(1, k), torch.zeros(1, k)
    a[0, 0], b[0, 0] = torch.nan, 1.0
    found = machine.dots(a, b, None)
    return int(found.view(torch.int32)[0]) & 0xFFFFFFFF if bool(torch.isnan(found).all()) else None


def _overflow(machine: Machine, k: int, step: Sequence[int]) -> float | None:
    """What 2^127 + 2^127 is; None where products do not reach it."""
    if not machine.numbers.deep or len(step) < 2:
        return None
    return float(dots(machine, k, [[_term(step[0], 127), _term(step[1], 127)]])[0])
