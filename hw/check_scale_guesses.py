"""Faults of scales, as guesses that `check_proof` refutes or proves, from the simplest to the least simple.

A guess makes scale bytes of blocks: those of a dialect, rounded otherwise, out of place, with another outer scale
(`check_outer_guesses`), of x before a rotation, with other bytes for zeros, subnormals and what is too large, of
numbers that lost bits on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

import numerics as nm
from numerics.dialects_core import Blocks, Dialect, Outer
from numerics.dialects_layout import Layout, scale_values

from .check_case import UNLIKE
from .check_folded import Cut, Folded, Sample
from .check_laws import ScaleLaw, scale_name, scales_differ, steps_of
from .check_laws import scale_guess as guess
from .check_outer_guesses import outer_guesses, solved_outers
from .check_proof import Guess
from .check_roundings import POWERS, ROUNDINGS, by_value, cuts, flushed, inverse_cuts, overflowed
from .check_where import likely

Base = tuple[Dialect, Outer]
Mishap = Callable[[Tensor, Tensor], Iterable[tuple[str, Tensor]]]  # codes, and numbers before they were rounded
POSITIVE = tuple(
    w for w in ROUNDINGS if "-infinity" not in w and "away from zero, not" not in w and "ties toward +" not in w
)
DIVISORS = (1.0, 2.0, 4.0, 6.0, 7.0, 7.5, 28.0, 240.0, 256.0, 448.0, 57344.0, 127 / 64)
NONE = torch.zeros(0, dtype=torch.bool)
AXES = {-2: "block", -3: "row", -4: "expert"}


def rounded_guesses(s: Sample, bases: list[Base]) -> Iterator[Guess]:
    """Scales of dialects that were run with these outer scales, rounded otherwise."""
    for base in bases:
        yield from _rounded(s, *base)


def scale_guesses(s: Sample, bases: list[Base]) -> Iterator[Guess]:
    """What else may have gone wrong with them."""
    simple = (_moved, _maxima, outer_guesses, _before_rotation, _bytes, _shifted)
    for family in (*simple, _shortened, _divided, _inverses, _stale, solved_outers):
        for base in bases:
            yield from family(s, *base)


def _scales(g: Folded, d: Dialect, outer: Outer) -> Tensor:
    return steps_of(g, d, outer).scales


def _ratio(g: Folded, d: Dialect, outer: Outer) -> Tensor:
    return steps_of(g, d, outer).ratio


@cache
def natural(d: Dialect, element: nm.Format) -> str | None:
    """How a dialect rounds its scales to powers of two: "up", "down", or None for another way, or none."""
    largest = element.max * torch.arange(1.01, 1.99, 1 / 64).unsqueeze(-1) * 2.0 ** torch.arange(-3, 4)
    x = torch.zeros(*largest.shape, 2)
    x[..., 0] = largest
    one = torch.ones(1, 1)
    steps = d.steps(Blocks(x, largest.unsqueeze(-1), element, torch.float32), Outer(one, one))
    made = scale_values(steps.scales, d.scale_format)
    same = (
        how for how in ("up", "down") if torch.equal(scale_values(POWERS[how](steps.ratio, nm.E8M0), nm.E8M0), made)
    )
    return next(same, None)


def _powers(ratio: Tensor, how: str, fmt: nm.Format | None) -> Tensor:
    """Ratios rounded to powers of two, as the scales are stored."""
    codes = POWERS[how](ratio, nm.E8M0)
    return codes if fmt is not None else scale_values(codes, nm.E8M0)


def _rounded(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """The dialect's scales before rounding, rounded otherwise."""
    fmt = s.case.scale_format
    if fmt == nm.E4M3:
        for words in POSITIVE:
            fault, rounding = f"scales are rounded {words}", ROUNDINGS[words]
            yield guess(fault, lambda g, r=rounding: r(_ratio(g, d, outer), fmt), d, outer)
        return
    usual = natural(d, s.case.layout.element)
    for how in POWERS if usual is not None else ():
        if how != usual:
            fault = f"scales are rounded {how}, not {usual}"
            yield guess(fault, lambda g, h=how: _powers(_ratio(g, d, outer), h, fmt), d, outer)


def _moved(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """The scales of neighbours, or of the other half."""
    lead = s.whole.x.shape[:-1]
    for axis, what in AXES.items():
        extent = lead[axis + 1] if len(lead) >= -axis - 1 else 1
        ways = {step: f"stale or out of place: each is that of its {what} {-step:+d}" for step in (1, -1) if extent > 1}
        if extent > 2 and extent % 2 == 0:
            ways[extent // 2] = f"out of place: the two halves of the {what}s are exchanged"
        for step, words in ways.items():
            make = partial(_rolled, d=d, outer=outer, axis=axis, step=step)
            yield guess(f"scales are {words}", make, d, outer)


def _rolled(g: Folded, d: Dialect, outer: Outer, axis: int, step: int) -> Tensor:
    return g.rolled(lambda h: _scales(h, d, outer), axis, step)


def _maxima(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """Block maxima of other values than all magnitudes of the block."""
    half = s.x.shape[-1] // 2
    others: dict[str, Callable[[Tensor], Tensor]] = {
        "block maxima are those of x, not of their magnitudes": lambda x: x.amax(-1, keepdim=True),
        "block maxima are those of -x, not of their magnitudes": lambda x: -x.amin(-1, keepdim=True),
        "block maxima are those of the first half of each block": lambda x: x[..., :half].abs().amax(-1, keepdim=True),
        "block maxima are those of the second half of each block": lambda x: x[..., half:].abs().amax(-1, keepdim=True),
    }

    def make(g: Folded, amax: Callable[[Tensor], Tensor]) -> Tensor:
        blocks = g.blocks(d)
        return d.steps(replace(blocks, amax=amax(blocks.x).clamp(min=0)), g.fit(outer)).scales

    for fault, amax in others.items():
        yield guess(fault, partial(make, amax=amax), d, outer)


def _before_rotation(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """Maxima of x before the Hadamard transform, of the outer scale, of blocks, or of both."""
    before = s.whole.before
    if before is None:
        return
    unrotated = before.own(d)

    def make(g: Folded, outer: Outer) -> Tensor:
        amax = g.pick(before.blocks(d).amax)
        return d.steps(replace(g.blocks(d), amax=amax), g.fit(outer)).scales

    words = "of x before the Hadamard transform"
    if d.outer_of is not None:
        yield guess(f"the outer scale is that {words}", lambda g: _scales(g, d, unrotated), d, unrotated)
        yield guess(f"outer and block maxima are those {words}", lambda g: make(g, unrotated), d, unrotated)
    yield guess(f"block maxima are those {words}", lambda g: make(g, outer), d, outer)


def _bytes(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """Other bytes where the dialect's are subnormal, zero or too large; or copied by value."""
    fmt = s.case.scale_format
    if fmt is None:
        return
    kinds: list[tuple[str, Mishap]] = [
        ("subnormal scales are ", lambda c, q: flushed(c, fmt)),
        ("scales ", lambda c, q: overflowed(c, q, fmt)),
        ("scales are ", lambda c, q: by_value(c, fmt)),
    ]
    for start, kind in kinds:
        for words, _ in kind(s.scales[:0], s.x[:0]):
            yield guess(start + words, partial(_otherwise, d=d, outer=outer, kind=kind, words=words), d, outer)


def _otherwise(g: Folded, d: Dialect, outer: Outer, kind: Mishap, words: str) -> Tensor:
    """A dialect's scales after one of a kind of mishaps."""
    return dict(kind(_scales(g, d, outer), _ratio(g, d, outer)))[words]


def _shifted(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """One byte for all zeros, bounds, steps that all scales are off by, reciprocals."""
    fmt, given, mine = s.case.scale_format, s.scales, _scales(s, d, outer)
    yield guess("scales are stored as their reciprocals", lambda g: _reciprocals(g, d, outer), d, outer)
    if fmt is None or not given.numel():
        return
    zeros = given[mine == 0].unique()
    if len(zeros) == 1:
        fault = f"zero scales have the byte {int(zeros):#04x}; {d.name} has 0x00"
        yield guess(fault, lambda g: torch.where(_scales(g, d, outer) == 0, zeros, _scales(g, d, outer)), d, outer)
    low, high = s.whole.scales.min(), s.whole.scales.max()
    for bound, words, limit in ((low, "below", torch.maximum), (high, "above", torch.minimum)):
        fault = f"no scale is {words} {float(nm.decode(bound, fmt)):g}, byte {int(bound):#04x}"
        yield guess(fault, lambda g, b=bound, m=limit: m(_scales(g, d, outer), b), d, outer)
    step = int((given.to(torch.int32) - mine.to(torch.int32)).flatten().mode().values)
    factor = f", {2.0 ** (step >> fmt.mantissa_bits):g} times as much" * (step % (1 << fmt.mantissa_bits) == 0)
    fault = f"every scale byte is {step:+d} from that of {d.name}{factor}"
    yield guess(fault, lambda g: (_scales(g, d, outer).to(torch.int32) + step).to(torch.uint8), d, outer)


def _reciprocals(g: Folded, d: Dialect, outer: Outer) -> Tensor:
    """1 over what a dialect's scales are before they are rounded; of powers of two, over the scales."""
    fmt = g.case.scale_format
    if fmt == nm.E4M3:
        return nm.encode(1 / _ratio(g, d, outer), fmt)
    inverse = 1 / scale_values(_scales(g, d, outer), fmt)
    return inverse if fmt is None else nm.encode(inverse, fmt)


def _shortened(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """x, block maxima or scales that lost bits before they were rounded."""
    fmt, whole = s.case.scale_format, s.whole
    for name, cut in cuts(s.case.dtypes).items():
        x = whole.blocks(d).amax
        if not bool(torch.isfinite(cut(x)).all()):
            continue
        for o in (outer, whole.own(d, cut)):

            def maxima(g: Folded, o: Outer = o, cut: Cut = cut) -> Tensor:
                blocks = g.blocks(d)
                return d.steps(replace(blocks, amax=cut(blocks.amax)), g.fit(o)).scales

            yield guess(f"block maxima are rounded to {name} before scales are made of them", maxima, d, o)
            fault = f"x is rounded to {name} before it is quantized"
            yield guess(fault, lambda g, o=o, c=cut: steps_of(g, d, o, c).scales, d, o, cut)
        yield guess(
            f"scales are rounded twice: to {name} before {scale_name(fmt)}" if fmt else f"scales are rounded to {name}",
            lambda g, c=cut: _finished(c(_ratio(g, d, outer)), d, s.case.layout),
            d,
            outer,
        )


def _finished(ratio: Tensor, d: Dialect, layout: Layout) -> Tensor:
    """Ratios rounded as a dialect rounds them, where that is to nearest, up or down; else no scales at all."""
    if layout.scale == nm.E4M3:
        return nm.encode(ratio, nm.E4M3)
    usual = natural(d, layout.element)
    if usual is not None:
        return _powers(ratio, usual, layout.scale)
    return ratio.to(torch.float32) if layout.scale is None else torch.full_like(ratio, 255, dtype=torch.uint8)


def _inverses(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """Block maxima that were multiplied by a reciprocal of few bits."""
    largest, one = s.case.layout.element.max, torch.ones(1)
    for name, cut in inverse_cuts(s.case.dtypes).items():
        limit = cut(one / largest)
        ways: dict[str, Callable[[Tensor, Tensor], Tensor]] = {f"{largest:g}": lambda b, e, c=limit: (b * c) * e}
        if d.outer_of is not None:
            ways |= {
                f"{largest:g} times the outer scale": lambda b, e, c=cut: b * c(e * (1 / torch.tensor(largest))),
                "the outer scale": lambda b, e, c=cut: (b / largest) * c(e),
            }
        encode = one / ScaleLaw(d, outer, NONE).factor
        for what, ratio in ways.items():
            fault = f"the reciprocal of {what} is rounded to {name}, then block maxima are multiplied by it"
            yield guess(fault, partial(_of_maxima, d=d, encode=encode, ratio=ratio), d, outer)


def _of_maxima(g: Folded, d: Dialect, encode: Tensor, ratio: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Scales of a ratio of block maxima and the reciprocal of the outer scale."""
    return _finished(ratio(g.blocks(d).amax, g.pick(encode)), d, g.case.layout)


def _divided(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """Powers of two of maxima that were divided by the largest value of another format."""
    fmt, largest = s.case.scale_format, s.case.layout.element.max
    if fmt != nm.E8M0 or natural(d, s.case.layout.element) != "up" or s.case.error > UNLIKE:
        return  # codes that are unlike x may be of another format
    for divisor in DIVISORS:
        for how in ("up", "down", "to nearest", "to nearest in log2"):
            if divisor != largest:
                fault = f"block maxima are divided by {divisor:g}, not by {largest:g}, and scales are rounded {how}"
                yield guess(fault, lambda g, c=divisor, r=POWERS[how]: r(g.blocks(d).amax / c, fmt), d, outer)


def _stale(s: Sample, d: Dialect, outer: Outer) -> Iterator[Guess]:
    """Short blocks whose scales are larger than their values': of what stood behind them."""
    short = ~s.whole.real.all(-1, keepdim=True)
    if not bool(short.any()) or bool(short.all()):
        return
    count = int(scales_differ(s.whole, _scales(s.whole, d, outer)).sum())
    if not likely(float(short.float().mean()), count):
        return
    words = "stale padding: scales of the short last blocks alone are wrong, as if they held more than their values"

    def make(g: Folded) -> Tensor:
        mine = _scales(g, d, outer)
        return torch.where(g.pick(short) & (g.scales > mine), g.scales, mine)

    yield guess(words, make, d, outer)
