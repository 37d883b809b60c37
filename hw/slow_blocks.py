"""Rounding, SwiGLU, blocks and decoding, one number at a time: what `slow` makes the operations of the seam from.

By `numerics.oracle` and Python alone; silu and its derivative in 120 decimal digits. Rows are lists of floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import torch
from torch import Tensor

import numerics as nm
from numerics import ops, oracle
from numerics.oracle import dequantize_mx, dequantize_nvfp4, float32, mul32

from .cases import Outputs

Row = list[float]
Matrix = list[Row]
Field = Callable[[int, int], int]  # (group, place in it) -> random field


# Rounding to BF16, SwiGLU.


def bfloat16(value: float | Fraction) -> float:
    """The BF16 number nearest to a value, ties to even: `oracle.float32` with 8 significant bits."""
    if value == 0 or not math.isfinite(value):
        return float(value)
    exact = Fraction(value)
    exponent = math.frexp(exact)[1] - 1 if isinstance(value, float) else _exponent(exact)
    quantum = Fraction(2) ** (max(exponent, -126) - 7)
    rounded = round(abs(exact) / quantum) * quantum
    return math.copysign(math.inf if rounded >= 2**128 else float(rounded), exact)


def _exponent(value: Fraction) -> int:
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    return exponent - (size < Fraction(2) ** exponent)


def silu(x: float) -> float:
    """Correctly rounded to BF16. Beyond 200 it is x, below -200 less than half of the least BF16 number."""
    if math.isnan(x) or x == 0 or x > 200:
        return x
    if x < -200:
        return -0.0
    with localcontext() as context:
        context.prec = 120
        return bfloat16(Fraction(Decimal(x) / (1 + (-Decimal(x)).exp())))


def silu_slope(x: float) -> float:
    """The derivative of silu, correctly rounded to FP32."""
    if math.isnan(x) or abs(x) > 200:
        return x if math.isnan(x) else 1.0 if x > 0 else -0.0
    with localcontext() as context:
        context.prec = 120
        sigmoid = 1 / (1 + (-Decimal(x)).exp())
        return float32(Fraction(sigmoid * (1 + Decimal(x) * (1 - sigmoid))))


# Blocks.


def _places(length: int, block: int, groups: tuple[int, ...] | None) -> list[tuple[int, int, int]]:
    """(group, first, end) of each block."""
    found = []
    for group, (start, end) in enumerate(pairwise(groups or (0, length))):
        found += [(group, first, min(first + block, end)) for first in range(start, end, block)]
    return found


def _block(fmt: nm.BlockFormat, xs: Row, outer: float, amax: float, fields: list[int] | None) -> tuple[int, list[int]]:
    """Scale and codes of one block, padded with zeros to its full length. amax: of the outer scale's scope."""
    assert fmt.scale is not None
    padded = xs + [0.0] * (fmt.block - len(xs))
    if not all(map(math.isfinite, xs)):
        return fmt.scale.nan_code or 0, [fmt.element.max_code] * len(xs)
    if fmt.rule.name == "four_over_six":
        scale, codes, _ = oracle.four_over_six_block(padded, outer)
    elif fmt.rule.name == "nvfp4":
        scale, codes = oracle.nvfp4_block(padded, amax)
    else:
        words = None if fields is None else fields + [0] * (fmt.block - len(xs))
        scale, codes = oracle.mx_block(padded, fmt.element, words)
    return scale, codes[: len(xs)]


def amax_of(lines: Matrix, fmt: nm.BlockFormat) -> float:
    """Largest magnitude of the blocks without NaN and Inf."""
    blocks = [line[i:j] for line in lines for _, i, j in _places(len(line), fmt.block, None)]
    return max((max(map(abs, b)) for b in blocks if all(map(math.isfinite, b))), default=0.0)


def quantized(
    lines: Matrix, cast: ops.Cast, amaxes: Row, groups: tuple[int, ...] | None, fields: Sequence[Field | None]
) -> tuple[list[list[int]], list[list[int]], Row]:
    """Codes, scales and outers of lines, each cut into blocks. amaxes: of each line's outer scope."""
    fmt, codes, scales, outers = cast.fmt, [], [], []
    assert fmt is not None
    for line, amax, field in zip(lines, amaxes, fields, strict=True):
        outer = oracle.outer_scale(amax, fmt.rule.outer_max(fmt.element) or 1.0) if cast.outer else 1.0
        line_codes, line_scales = [], []
        for group, i, j in _places(len(line), fmt.block, groups):
            start = (groups or (0,))[group]
            words = None if field is None else [field(group, place - start) for place in range(i, j)]
            scale, block = _block(fmt, line[i:j], outer, amax, words)
            line_scales.append(scale)
            line_codes += block
        codes, scales, outers = [*codes, line_codes], [*scales, line_scales], [*outers, outer]
    return codes, scales, outers


def turned(lines: list, width: int) -> list:
    """Rows to columns, also where there are no rows."""
    return [list(column) for column in zip(*lines, strict=True)] if lines else [[] for _ in range(width)]


def as_bytes(codes: list[list[int]]) -> Tensor:
    return torch.tensor(codes, dtype=torch.uint8)


def bf16(x: Matrix) -> Tensor:
    return torch.tensor([[bfloat16(v) for v in row] for row in x], dtype=torch.float64).to(torch.bfloat16)


def along_features(name: str, x: Matrix, cast: ops.Cast, fields: Sequence[Field | None] | None = None) -> Outputs:
    """An operand with blocks along its rows; an outer scale, if any, for each row."""
    if cast.fmt is None:
        return {name: bf16(x)}
    amaxes = [amax_of([row], cast.fmt) for row in x]
    codes, scales, outers = quantized(x, cast, amaxes, None, fields or [None] * len(x))
    found = {f"{name}.codes": as_bytes(codes), f"{name}.scales": as_bytes(scales)}
    return found | ({f"{name}.outer": torch.tensor(outers)[:, None]} if cast.outer else {})


def along_rows(
    name: str, x: Matrix, cast: ops.Cast, groups: tuple[int, ...] | None, random: nm.Random | None, first: int = 0
) -> Outputs:
    """An operand with blocks along its columns, group by group. first: expert of the first group."""
    if cast.fmt is None:
        return {name: bf16(x)}
    columns = turned(x, 0)
    bits = cast.fmt.element.bits
    drawn = random is not None and cast.rounding is nm.Rounding.STOCHASTIC
    fields = [_field(random, line, bits, first) if drawn and random else None for line in range(len(columns))]
    codes, scales, _ = quantized(columns, cast, [0.0] * len(columns), groups, fields)
    return {f"{name}.codes": as_bytes(turned(codes, 0)), f"{name}.scales": as_bytes(turned(scales, 0))}


def _field(random: nm.Random, line: int, bits: int, first: int) -> Field:
    low, high = random.counter
    return lambda group, place: oracle.random_field(random.key, (low, high + first + group), line, place, bits)


def decoded(q: ops.Operand, e: int | None = None, outer: bool = True) -> Matrix:
    """The rows of a matrix, or of expert `e`'s, with or without outer scales."""
    if isinstance(q, Tensor):
        return (q if e is None else q[e]).to(torch.float64).tolist()
    codes, scales = (t.tolist() if e is None else t[e].tolist() for t in (q.codes, q.scales))
    rows, columns = len(codes), q.shape[-1]
    factors = [[1.0] * columns for _ in range(rows)]
    if outer and q.outer is not None:
        factors = (q.outer if e is None else q.outer[min(e, len(q.outer) - 1)]).expand(rows, columns).tolist()
    features = q.axis == len(q.shape) - 1
    block_of = [0] * q.shape[q.axis]
    for number, (_, i, j) in enumerate(_places(q.shape[q.axis], q.fmt.block, q.groups)):
        block_of[i:j] = [number] * (j - i)

    def value(r: int, c: int) -> float:
        scale = scales[r][block_of[c]] if features else scales[block_of[r]][c]
        if q.fmt.scale == nm.E4M3:
            return dequantize_nvfp4(codes[r][c], scale, factors[r][c])
        return dequantize_mx(codes[r][c], scale, q.fmt.element, factors[r][c])

    return [[value(r, c) for c in range(columns)] for r in range(rows)]


def outer_of(q: ops.Operand, at: int) -> float | None:
    """The outer scale of a row, or of an expert."""
    if isinstance(q, Tensor) or q.outer is None:
        return None
    return float(q.outer.flatten()[min(at, q.outer.numel() - 1)])


def dot(a: Row, b: Row) -> float:
    """Exact, rounded once; with NaN or Inf what IEEE arithmetic gives in any order."""
    if all(map(math.isfinite, (*a, *b))):
        return oracle.exact_dot(a, b)
    return sum(x * y for x, y in zip(a, b, strict=True))


def scaled(total: float, a: float | None, b: float | None) -> float:
    if a is None and b is None:
        return total
    return mul32(total, mul32(1.0 if a is None else a, 1.0 if b is None else b))
