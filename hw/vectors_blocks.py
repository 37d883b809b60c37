"""Golden vectors of block quantizers: NVFP4, four-over-six, MXFP8, MXS2F6, MXFP4, quantized and dequantized.

Every pattern of `vectors_data` with the format's own outer scale, then the other outer scopes, the other axis, and
groups of rows that blocks must not straddle. `prose` writes the contract that a case asks for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import numerics as nm
from numerics import Rounding

from .vectors_case import Case, bell, case, element_fields, powers, truncated
from .vectors_casts import stochastic_rule
from .vectors_data import close_choices, e4m3_patterns, e8m0_patterns, squared_error

GROUPS = (0, 20, 20, 57, 70)  # a ragged one, an empty one, two ragged ones

_AXES = """The codes are one per byte, in the shape of x. Blocks of {block} consecutive values along axis {axis} share
    a scale{groups}; the last block{each} may be short, as if padded with zeros, and no padding is stored. Arithmetic is
    float32, constants too, each operation rounded once to nearest even, in the order written, subnormals kept;
    divisions are true ones."""

_OUTER = {
    "tensor": "outer (one for the tensor) = max(amax / {limit}, 2^-128), amax the largest magnitude of x, {rest}",
    "row": "outer (one per row of axis 0) = max(amax / {limit}, 2^-128), amax the largest magnitude of the row, {rest}",
    "leading": "outer (one per index of axis 0) = max(amax / {limit}, 2^-128), amax its largest magnitude, {rest}",
    "given": "outer is given, and s_enc = min(1 / outer, FLT_MAX).",
    "none": "There is no outer scale: outer = s_enc = 1.",
}
_REST = """blocks with NaN or infinity left out; s_enc = min({limit} / amax, FLT_MAX); where amax = 0 both are 1."""

_RULES = {
    "nvfp4": """scale = E4M3(bmax * (s_enc * fl(1/6))), bmax the largest magnitude of the block, saturating at 448.
        code = E2M1(x * m) with m = min(1 / (scale * (1 / s_enc)), FLT_MAX). This is Transformer Engine's order since
        2.15. A scale of 0 stays 0, and then m = FLT_MAX.""",
    "four_over_six": """For M = 6 and M = 4: scale_M = E4M3(bmax / (outer * M)), bmax the largest magnitude of the
        block, code_M = E2M1(x / (scale_M * outer)), where that product is 0 a zero with the sign of x, and
        err_M = the sum over the block of ((value of code_M * scale_M) * outer - x)^2, added as a binary tree over
        adjacent pairs ((0+1)+(2+3))+..; padding counts as 0. M = 4 is taken if err_4 < err_6, strictly, else 6.""",
    "unbiased": """t = bmax / (outer * fl(6 * 16/17)), bmax the largest magnitude of the block; scale = E4M3(t), but
        rounded up where t < 2^-6; code = E2M1(x / (scale * outer)), where that product is 0 a zero with the sign of
        x.""",
    "rceil": """scale = the smallest power of two p, 2^-127 to 2^127, with p * {max} >= bmax, bmax the largest magnitude
        of the block, and 2^127 where none is; its code is the exponent + 127 (an all-zero block has code 0).
        code = {element}(x / p), exact before the rounding of the element.""",
}


def prose(
    fmt: nm.BlockFormat, scope: str, axis: int, groups: Any = None, rule: str | None = None, stochastic: bool = False
) -> str:
    """The contract of a quantization in words."""
    element, name = fmt.element, fmt.rule.name if rule is None else rule
    groups_text = "" if groups is None else ", and each group (rows between two offsets) starts a block"
    text = _AXES.format(block=fmt.block, axis=axis, groups=groups_text, each="" if groups is None else " of a group")
    if fmt.scale is nm.E4M3:
        limit = f"{nm.scales.RULES[name].outer_max(element):.9g}"
        text += " " + _OUTER[scope].format(limit=limit, rest=_REST.format(limit=limit))
    largest = "127/64" if element.kind == "fixed" else f"{element.max:g}"
    text += " " + _RULES[name].format(max=largest, element=element.name)
    text += f" {element.name} rounds {'stochastically' if stochastic else 'to nearest even'}, saturates at {largest} "
    text += "and -127/64." if element.kind == "fixed" else "and keeps the sign of x, of zeros too."
    if stochastic:
        text += " random_bits holds the 16 bits r of each element. " + stochastic_rule(element)
    nan, scale = (0x7F, "E4M3") if fmt.scale is nm.E4M3 else (0xFF, "E8M0")
    return (
        f"{text} A block with a NaN or an infinity has scale 0x{nan:X} and all codes 0x{element.max_code:X}. "
        f"The cases decode/{element.name} and decode/{scale} tell what codes mean."
    )


def parts(q: nm.BlockTensor) -> dict[str, Tensor]:
    """The stored parts of a block tensor."""
    stored = {"codes": q.codes, "scales": q.scales}
    return stored if q.outer is None else {**stored, "outer": q.outer}


def facts(fmt: nm.BlockFormat, scope: str, axis: int, **more: Any) -> dict[str, Any]:
    """Parameters of a block case."""
    return {
        "format": fmt.name,
        "element": fmt.element.name,
        "block": fmt.block,
        "scale": "FP32" if fmt.scale is None else fmt.scale.name,
        "outer": scope,
        "axis": axis,
        **more,
    }


def dequantize_case(name: str, q: nm.BlockTensor, scope: str) -> Case:
    """Back to float32: the products in their order."""
    text = f"""Values of stored codes, float32: (value of the {q.fmt.element.name} code * scale of its block)"""
    text += "" if q.outer is None else " * outer"
    text += ", in this order, each product rounded once, subnormals kept, and at most 2^128 - 2^104 in magnitude;"
    text += " a NaN scale gives NaN."
    parameters = facts(q.fmt, scope, q.axis, rule=q.rule, **_offsets(q.groups))
    return case(f"dequantize/{name}", "dequantize", text, parameters, parts(q), {"values": q.dequantize()})


def _offsets(groups: Any) -> dict[str, Any]:
    return {} if groups is None else {"groups": list(groups)}


def quantize_cases(
    fmt: nm.BlockFormat,
    pattern: str,
    x: Tensor,
    scope: str,
    axis: int = 1,
    groups: Any = None,
    outer: Tensor | None = None,
) -> list[Case]:
    """Quantize and dequantize; `outer` is the tensor of the scope "given"."""
    chosen = outer if scope == "given" else None if scope == "none" else scope
    q = nm.quantize(x, fmt, axis, chosen, groups=groups)
    parameters = facts(fmt, scope, axis, rule=q.rule, rounding="nearest_even", **_offsets(groups))
    inputs = {"x": x} if outer is None else {"x": x, "outer": outer}
    outputs = {name: part for name, part in parts(q).items() if outer is None or name != "outer"}
    text, name = prose(fmt, scope, axis, groups), f"{fmt.name}/{pattern}"
    made = case(f"quantize/{name}", "quantize", text, parameters, inputs, outputs)
    return [made, dequantize_case(name, q, scope)]


def cases() -> list[Case]:
    """All of this module."""
    listed = []
    for fmt in (nm.NVFP4, nm.NVFP4_46):
        limit = fmt.rule.outer_max(fmt.element)
        assert limit is not None  # these rules take an outer scale
        for pattern, x in e4m3_patterns(limit).items():
            listed += quantize_cases(fmt, pattern, x, "tensor")
        listed += _scopes(fmt)
    for fmt in (nm.MXFP8, nm.MXS2F6, nm.MXFP4):
        for pattern, x in e8m0_patterns(fmt.element).items():
            listed += quantize_cases(fmt, pattern, x, "none")
        listed += quantize_cases(fmt, "rows", bell((70, 20), 232), "none", axis=0)
        listed += quantize_cases(fmt, "groups", bell((70, 20), 233), "none", axis=0, groups=GROUPS)
    return [*listed, *_choices(), *_stochastic()]


def _scopes(fmt: nm.BlockFormat) -> list[Case]:
    """The outer scopes, the other axis and groups of a format with an outer scale."""
    rows = bell((6, 48), 230) * powers([0, -9, 20, 3, 3, 0])[:, None]
    rows[4] = 0.0
    experts = bell((3, 5, 40), 231) * powers([0, 7, -7])[:, None, None]
    small = torch.tensor([[2.0**-12]])  # scales of the largest blocks saturate at 448, then elements at 6
    return [
        *quantize_cases(fmt, "outer_row", rows, "row"),
        *quantize_cases(fmt, "outer_leading", experts, "leading", axis=2),
        *quantize_cases(fmt, "outer_none", bell((8, 48), 234) * 8, "none"),
        *quantize_cases(fmt, "saturation", bell((16, 32), 235), "given", outer=small),
        *quantize_cases(fmt, "rows", bell((70, 20), 232), "tensor", axis=0),
        *quantize_cases(fmt, "groups", bell((70, 20), 233), "tensor", axis=0, groups=GROUPS),
    ]


def _choices() -> list[Case]:
    """Four-over-six where it is close, where it ties, and the errors that it compares."""
    exact = torch.zeros(6, 16)
    # both choices without error: ties, 6
    exact[0, :4], exact[1, 5:8] = torch.tensor([6.0, 3.0, -1.5, 0.0]), torch.tensor([6.0, -12.0, 3.0])
    exact[2, :4] = torch.tensor([10.0, 20.0, 30.0, 40.0])  # 4, without error
    exact[3, :8] = torch.tensor([6.0, 5.0, 4.0, 3.0, 2.0, 1.0, 0.5, -6.0])
    exact[4, :2], exact[5, :3] = torch.tensor([448.0, -336.0]), torch.tensor([2.0**-9, 2.0**-8, 3 * 2.0**-9])
    one = torch.ones(1, 1)
    listed = []
    for pattern, x in (("close", close_choices(256)), ("exact", exact)):
        listed += quantize_cases(nm.NVFP4_46, f"choice_{pattern}", x, "given", outer=one)
        errors = {}
        for m in (6, 4):
            q = nm.quantize(x, nm.NVFP4_46, outer=one, rule=f"static_{m}")
            errors[f"error_{m}"] = squared_error(q, x)
        text = "The two errors that decide each block, err_6 and err_4. " + prose(nm.NVFP4_46, "given", 1)
        parameters = facts(nm.NVFP4_46, "given", 1, rule="four_over_six", rounding="nearest_even")
        name = f"four_over_six_errors/{pattern}"
        listed.append(case(name, "four_over_six_errors", text, parameters, {"x": x, "outer": one}, errors))
    return listed


def _stochastic() -> list[Case]:
    """Stochastic rounding along features: MXFP8, and NVFP4 under the rule that leaves it headroom; rows of experts."""
    listed, groups = [], (0, 3, 3, 8)
    usual = truncated(bell((8, 80), 236))
    small = usual * powers([0, -14, -15, -16, -17, -18, -20, -22])[:, None]  # seven rows of subnormal scales
    for fmt, rule, scope, pattern, x in (
        (nm.MXFP8, "rceil", "none", "stochastic", usual),
        (nm.NVFP4, "unbiased", "tensor", "stochastic", usual),
        (nm.NVFP4, "unbiased", "tensor", "stochastic_subnormal_scales", small),
    ):
        random = nm.Random((7, 11), (64 * 3 + 5, 12), rows=groups)
        chosen = None if scope == "none" else scope
        q = nm.quantize(x, fmt, outer=chosen, rule=rule, rounding=Rounding.STOCHASTIC, random=random)
        expert = torch.tensor([0, 0, 0, 2, 2, 2, 2, 2])[:, None]
        line = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4])[:, None]
        bits = element_fields(random, expert, line, torch.arange(80), fmt.element.bits)
        text = (
            prose(fmt, scope, 1, rule=rule, stochastic=True)
            + " "
            + RANDOM.format(
                split="e2m1" if fmt.element.bits == 4 else "8-bit",
                expert="group of the row (parameter rows)",
                line="index of the row in its group",
                axis="the row",
            )
        )
        parameters = facts(
            fmt, scope, 1, rule=rule, rounding="stochastic", key=[7, 11], counter=[197, 12], rows=list(groups)
        )
        inputs = {"x": x, "random_bits": bits}
        name = f"quantize/{fmt.name}/{pattern}"
        listed.append(case(name, "quantize", text, parameters, inputs, parts(q)))
    return listed


RANDOM = """The bits come from Philox-4x32-10 with the parameter key and counter (counter[0], counter[1] + expert,
    line, g): expert is the {expert}, line the {line}, g = p // 16 the group of 16 of the element's position p along
    {axis}, and the {split} split of the four words (cases random_bits/..) gives the 16 elements their bits."""
