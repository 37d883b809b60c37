"""Entries of Transformer Engine and of NVIDIA's paper, whose two-level recipe it implements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from . import dialects_nv as nv
from .dialects_casts import const, square
from .dialects_core import Blocks, Dialect, Outer, Prose, Steps
from .dialects_orders import (
    guarded_encode,
    inner_first,
    inverse_of_encode,
    te_order,
    te_order_256,
    the_amax,
)

NVFP4 = ("NVFP4",)
TILED = ("NVFP4", "NVFP4_2D")
_CORE = "NVIDIA/TransformerEngine {}, transformer_engine/common/cast/nvfp4/"
_REFERENCE = (
    "NVIDIA/TransformerEngine d0067d0, transformer_engine/pytorch/custom_recipes/reference_nvfp4.py, NVFP4QuantizerRef"
)
_AMAX = "the tensor's amax A itself; S_enc = min(2688 / A, FLT_MAX), 1 where A is infinite"
_UNDERFLOW = "0x00, also where the scale underflows: elements then saturate and decode to signed zeros"
_CAST = "ties to even, -0 becomes +0"
_HARDWARE = "hardware cast: ties to even, -0 kept, NaN 7"
_INF = "an infinity makes S_enc 1, its block's scale 448 and its own code 7"
_POISON = "a NaN makes every scale NaN, every code 0; " + _INF
_ROW_POISON = "a NaN makes every scale of its row NaN, every code 0; " + _INF
_PASSED_OVER = "amax passes over NaN, whose code is 7; " + _INF
_READ = "the kernel was read, not run"
_CAPPED = "x * min(1 / (s * (1 / S_enc)), FLT_MAX)"
_TE_DECODE = "q * ((s * A) * fl(1/2688))"


def plain(steps: Callable[[Blocks, Tensor], Steps]) -> Callable[[Blocks, Outer], Steps]:
    """Steps that depend on the stored outer alone."""
    return lambda blocks, outer: steps(blocks, outer.stored)


def _app_b(blocks: Blocks, outer: Outer) -> Steps:
    s_enc = const(outer.stored, 1.0) / outer.stored if outer.amax is None else guarded_encode(outer.amax)
    return nv.divide_first(blocks, s_enc)


def _transposing(blocks: Blocks, amax: Tensor) -> Steps:
    return nv.divide_first(blocks, guarded_encode(amax))


_FORMULA = "e4m3(b * (S_enc * fl(1/6)))"
TE = Dialect(
    "te",
    _REFERENCE + ", since 2.15 (#2555)",
    TILED,
    Prose(_AMAX, _FORMULA, _UNDERFLOW, f"{_CAPPED}, cast by comparisons: {_CAST}", _POISON, _TE_DECODE),
    plain(nv.te),
    te_order,
    "amax",
    the_amax,
)
TE_KERNEL = Dialect(
    "te_kernel",
    _CORE.format("d0067d0") + "core_nvfp4.cuh, compute_decoding_scaling_factor, since 2.15 (#2555)",
    TILED,
    Prose(_AMAX, _FORMULA, _UNDERFLOW, f"{_CAPPED}, {_HARDWARE}", _PASSED_OVER, _TE_DECODE, _READ),
    plain(nv.te_kernel),
    te_order,
    "amax",
    the_amax,
    nonfinite="skip",
)
TE_BEFORE = Dialect(
    "te_before_2_15",
    _CORE.format("before 2.15 (#2555)") + "quantize_nvfp4.cuh and core_nvfp4.cuh, quantization_SF",
    TILED,
    Prose(
        _AMAX,
        "e4m3((b * fl(1/6)) * S_enc)",
        "0x00; the multiplier is then infinite: zeros become NaN and code 7, the rest saturates (all decode to 0)",
        f"x * (S_enc / s), {_HARDWARE}",
        _PASSED_OVER,
        _TE_DECODE,
        _READ,
    ),
    plain(nv.te_old),
    te_order,
    "amax",
    the_amax,
    nonfinite="skip",
)
TE_BEFORE_TRANSPOSE = Dialect(
    "te_before_2_15_transpose",
    _CORE.format("before 2.15 (#2555)")
    + "quantize_transpose_nvfp4.cuh and core_nvfp4.cuh, quantization_and_transposition_SF",
    TILED,
    Prose(_AMAX, "e4m3((b / 6) * S_enc)", _UNDERFLOW, f"{_CAPPED}, {_HARDWARE}", _PASSED_OVER, _TE_DECODE, _READ),
    plain(_transposing),
    te_order,
    "amax",
    the_amax,
    nonfinite="skip",
)
APP_B = Dialect(
    "app_b",
    "arXiv 2509.25149, appendix B",
    TILED,
    Prose(
        "decode, s_dec = 1 / S_enc",
        "e4m3((b / 6) * S_enc)",
        "not stated in the paper; here as Transformer Engine's",
        f"{_CAPPED}, {_HARDWARE}",
        "not stated in the paper; here as Transformer Engine's kernels",
        "(q * s) * s_dec",
    ),
    _app_b,
    inner_first,
    "decode",
    inverse_of_encode,
    nonfinite="skip",
)


TE_ROW = replace(
    TE,
    name="te_row",
    source=_REFERENCE + ", row_scaled_nvfp4",
    formats=NVFP4,
    prose=replace(TE.prose, outer=_AMAX.replace("the tensor's amax", "each row's amax"), nonfinite=_ROW_POISON),
    rows=True,
)


def _four_over_six(name: str, bound: float, measure: Callable[[Tensor], Tensor], words: str, fast: bool) -> Dialect:
    outer_max, scored = 6 * bound, "q * s (FP16) with x * S_enc" if fast else f"((q * s) * A) / {6 * bound:g} with x"
    return Dialect(
        name,
        _REFERENCE
        + f", nvfp4_use_4over6{', nvfp4_4over6_err_use_fast_math' if fast else ''}; "
        + "common/cast/nvfp4/quantize_4over6_nvfp4.cuh",
        TILED,
        Prose(
            f"the tensor's amax A itself; S_enc = min({outer_max:g} / A, FLT_MAX)",
            f"e4m3(min(r, 448)) of r = (b / 6) * S_enc or r * 1.5, whichever has the smaller sum of {words}",
            _UNDERFLOW,
            f"{_CAPPED}, cast by comparisons: {_CAST}",
            _POISON,
            f"q * ((s * A) * fl(1/{outer_max:g})); the choice compares {scored}",
        ),
        plain(partial(nv.te_46_fast if fast else nv.te_46, bound=bound, measure=measure)),
        te_order_256 if bound == 256 else te_order,
        "amax",
        the_amax,
    )


_MAE = "errors, from the first value to the last"
_MSE = "squared errors, from the first value to the last"
FAMILY: tuple[Dialect, ...] = (
    TE,
    TE_KERNEL,
    TE_BEFORE,
    TE_BEFORE_TRANSPOSE,
    TE_ROW,
    APP_B,
    _four_over_six("te_46", 256.0, torch.abs, _MAE + " (the default, MAE)", False),
    _four_over_six("te_46_mse", 256.0, square, _MSE, False),
    _four_over_six("te_46_448", 448.0, torch.abs, _MAE, False),
    _four_over_six("te_46_mse_448", 448.0, square, _MSE, False),
    _four_over_six("te_46_fast", 256.0, torch.abs, _MAE, True),
)
