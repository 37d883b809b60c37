"""Golden vectors of saved operands and products: NVFP4 requantized to MXFP8 along the other axis, grouped products.

Products come twice: with sums that any FP32 order computes exactly, so that every kernel can be asked for their bits,
and with arbitrary data, where the expected result is the exact sum rounded once.
"""

from __future__ import annotations

from typing import Any

import torch

import numerics as nm
from numerics import Rounding

from .vectors_blocks import RANDOM, facts, parts, prose
from .vectors_case import Case, bell, case, element_fields, powers, words
from .vectors_random import grouped_rows

GROUPS = (0, 20, 20, 57, 70)
OUTER = {
    "keep": "The result's outer scale is that of the input, untouched: values means code * block scale alone.",
    "multiply": "values means (code * block scale) * outer, float32, rounded once each; the result has no outer scale.",
    "drop": "values means code * block scale alone; the result has no outer scale.",
}


def cases() -> list[Case]:
    """All of this module."""
    return [*_requantizations(), *_products()]


def _requantizations() -> list[Case]:
    rows = bell((70, 48), 240) * powers(torch.arange(70) % 7 - 3)[:, None]
    weights = bell((3, 40, 48), 241) * powers([0, 5, -5])[:, None, None]
    one = nm.quantize(rows, nm.NVFP4)
    by_row = nm.quantize(rows, nm.NVFP4_46, outer="row")
    by_expert = nm.quantize(weights, nm.NVFP4, outer="leading")
    random = nm.Random((21, 22), (64 * 7 + 3, 16))
    listed = []
    for name, q, outer, groups in (
        ("tensor_outer_keep", one, "keep", GROUPS),
        ("row_outer_multiply", by_row, "multiply", GROUPS),
        ("row_outer_drop", by_row, "drop", GROUPS),
        ("weight_keep", by_expert, "keep", None),
    ):
        listed.append(_requantize(name, q, outer, groups, None))
        listed.append(_requantize(name, q, outer, groups, random))
    return listed


def _requantize(name: str, q: nm.BlockTensor, outer: str, groups: Any, random: nm.Random | None) -> Case:
    axis, rounding = q.codes.ndim - 2, Rounding.NEAREST_EVEN if random is None else Rounding.STOCHASTIC
    new = nm.requantize(q, nm.MXFP8, axis, groups, outer, rounding, random)
    word = "nearest_even" if random is None else "stochastic"
    text = f"""NVFP4 codes, blocks of 16 along axis {q.axis}, quantized again to MXFP8 along axis {axis}: x is the
        values of the stored codes. {OUTER[outer]} {prose(nm.MXFP8, "none", axis, groups, None, random is not None)}"""
    more: dict[str, Any] = {"rule": "rceil", "rounding": word, "source": q.fmt.name, "source_outer": outer}
    inputs: dict[str, Any] = parts(q)
    if groups is not None:
        more["groups"] = list(groups)
    if random is not None:
        more |= {"key": list(random.key), "counter": list(random.counter)}
        inputs["random_bits"] = _fields(random, q.shape, groups)
        whose = "group of the row" if groups is not None else "index of axis 0"
        text += " " + RANDOM.format(
            split="8-bit", expert=whose, line="index of the last axis", axis=f"axis {axis}, from the start of the group"
        )
    outputs = {key: value for key, value in parts(new).items() if key != "outer"}
    return case(f"requantize/{name}/{word}", "requantize", text, facts(nm.MXFP8, "none", axis, **more), inputs, outputs)


def _fields(random: nm.Random, shape: torch.Size, groups: Any) -> Any:
    """The random bits of a requantization along axis -2."""
    if groups is not None:
        expert, position = grouped_rows(groups)
        return element_fields(random, expert[:, None], torch.arange(shape[1]), position[:, None], 8)
    experts, rows, columns = shape
    return element_fields(
        random, torch.arange(experts)[:, None, None], torch.arange(columns), torch.arange(rows)[:, None], 8
    )


# ---- products --------------------------------------------------------------------------------------------------------

_SUM = {
    "any_order": """Every partial sum is a float32 number, whatever the order: an FP32 accumulator must give these
        bits.""",
    "exact": """The sum is the exact sum of exact products, rounded once to float32 (nearest even); an FP32 accumulator
        will differ in last bits, which is no error of its own.""",
}
_ROWS = """y[t, n] = (sum over k of a[t, k] * b[e, n, k]) * fl(outer_a * outer_b): a (T, K), b (E, N, K), e the group of
    row t, group e being the rows groups[e] to groups[e + 1], which may be empty."""
_CONTRACTION = """y[e, m, n] = (sum of a[m, t] * b[n, t] over the t of group e) * fl(outer_a * outer_b): a (M, T), b
    (N, T), group e being groups[e] to groups[e + 1]; blocks start with their group, and an empty group gives zeros."""


def _products() -> list[Case]:
    groups, listed = (0, 5, 5, 6, 13), []
    for fmt in (nm.NVFP4, nm.MXFP8, nm.MXFP4):
        scope = fmt.outer  # one FP32 scale for the tensor, or none
        for kind in ("any_order", "exact"):
            b_scope = None if scope is None else "leading"
            q_a, q_b = _operand((13, 72), fmt, kind, scope, 250), _operand((4, 6, 72), fmt, kind, b_scope, 252)
            listed.append(_product(f"{fmt.name}/rows/{kind}", q_a, q_b, groups, _ROWS + " " + _SUM[kind]))
    for kind in ("any_order", "exact"):
        q_a, q_b = (_operand((n, 13), nm.MXFP8, kind, None, 254 + n, groups) for n in (5, 6))
        listed.append(_product(f"MXFP8/contraction/{kind}", q_a, q_b, groups, _CONTRACTION + " " + _SUM[kind]))
    return listed


def _operand(
    shape: tuple[int, ...], fmt: nm.BlockFormat, kind: str, scope: str | None, stream: int, groups: Any = None
) -> nm.BlockTensor:
    """Arbitrary numbers quantized; or, for sums exact in any order, random E2M1 values under scales of one or two bits:
    values are multiples of 1/8 up to 24, so 72 products and all their sums are multiples of 2^-6 below 2^16."""
    q = nm.quantize(bell(shape, stream), fmt, outer=scope, groups=groups)
    if kind == "exact":
        return q
    values = nm.decode((words(q.codes.numel(), stream) >> 28).to(torch.uint8), nm.E2M1).view(shape)
    some = torch.tensor([0.5, 0.75, 1.0, 1.5, 3.0, 1.0] if fmt.scale is nm.E4M3 else [0.5, 1.0, 2.0, 4.0])
    draw = words(q.scales.numel(), stream + 1) % len(some)
    scales = nm.encode(some[draw], nm.E4M3) if fmt.scale is nm.E4M3 else (126 + draw).to(torch.uint8)
    outer = None if q.outer is None else powers(torch.arange(len(q.outer)) % 3 - 1).view(q.outer.shape)
    codes = nm.encode(values, fmt.element)
    return nm.BlockTensor(codes, scales.view(q.scales.shape), outer, fmt, q.rule, q.axis, q.groups)


def _product(name: str, a: nm.BlockTensor, b: nm.BlockTensor, groups: tuple[int, ...], text: str) -> Case:
    y = nm.matmul(a, b, "exact", groups=groups)
    inputs = {f"{side}_{key}": value for side, q in (("a", a), ("b", b)) for key, value in parts(q).items()}
    text = f"""Grouped product of block-scaled operands, float32. {text} a and b stand for code * block scale, with
        blocks of {a.fmt.block} along the last axis; an operand without an outer scale has outer 1."""
    parameters = {
        "format": a.fmt.name,
        "element": a.fmt.element.name,
        "block": a.fmt.block,
        "scale": "E8M0" if a.fmt.scale is nm.E8M0 else "E4M3",
        "outer": a.outer is not None,
        "groups": list(groups),
    }
    return case(f"matmul/{name}", "matmul", text, parameters, inputs, {"y": y})
