"""One linear layer y = x W^T + b under a recipe: the three products of one expert matrix that every token visits.

    x_q = cast(x)   w_q = cast(W)   y = bf16(x_q w_q^T) + b
    dgrad   dx = g_q w_q'      g cast along output features, w_q requantized along them
    wgrad   dW = g_q'^T x_q'   g and x_q requantized along tokens
    db      the sum of g over tokens, FP32

Of a recipe's fields `input`, `weight`, `grad`, `saved_weight`, `saved_input`, `originals` and the two Hadamard
transforms apply, as in `expert`; nothing travels here and nothing is hidden, so `hidden`, `combine_fmt`, `grad_wire`
do not. The product leaves the seam as a BF16 wire; the bias is added in FP32 and the sum rounded once to the dtype of
the output. Saved for the backward: the codes, scales and outers of x_q and w_q. Straight through every quantizer.

Shapes: T tokens, K input features, N output features.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .expert import Again, Role, Setting
from .recipe import ExpertRecipe
from .saved import restore, save


def blocks(recipe: ExpertRecipe) -> tuple[int, int]:
    """What input and output features must be multiples of: blocks, tiles and transforms along either."""
    both = [cast.fmt.tile for cast in (recipe.weight, recipe.saved_weight) if cast.fmt is not None]
    inputs = [cast.fmt.block for cast in (recipe.input, recipe.weight) if cast.fmt is not None]
    outputs = [cast.fmt.block for cast in (recipe.grad, recipe.saved_weight) if cast.fmt is not None]
    return math.lcm(1, *both, *inputs), math.lcm(1, *both, *outputs, recipe.dgrad_hadamard or 1)


class LinearUnder(torch.autograd.Function):
    """(x (T, K), weight (N, K), bias (N,) or None) -> y (T, N) of x's dtype; `setting` is data.

    Gradients have the dtypes of what they are of, each rounded once from FP32. Differentiable once.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, setting: Setting) -> Tensor:
        ops, recipe = setting.ops, setting.recipe
        groups = (0, len(x))
        x_q, w_q = ops.quantize_tokens(x, recipe.input), ops.quantize_tokens(weight[None], recipe.weight)
        y = ops.down_to_wire(x_q, w_q, groups, ops.Wire(None), setting.accumulator)  # [T, K] @ [1, K, N] -> [T, N]
        if bias is not None:
            y = y.to(torch.float32) + bias
        ctx.setting, ctx.groups = setting, groups
        ctx.dtypes = x.dtype, weight.dtype, None if bias is None else bias.dtype
        ctx.operands = save(ctx, [x_q, w_q], [x, weight] if recipe.originals else [])
        return y.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = grads
        with torch.autocast(g.device.type, enabled=False):  # a backward called inside autocast computes the same
            return _gradients(ctx, g.contiguous())


def _gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    setting, groups = ctx.setting, ctx.groups
    (x_q, w_q), originals = restore(ctx)
    saved = {Role.X: x_q, Role.W13: w_q}
    if setting.recipe.originals:
        x, weight = originals
        saved = {Role.X: x, Role.W13: weight[None]}
    x_type, w_type, b_type = ctx.dtypes
    dx = dw = db = None
    if any(ctx.needs_input_grad[:2]):
        again = Again(setting, groups, saved, g.device)
        dz, dz_tokens = again.along_features(g, Role.DZ), again.along_tokens(g, Role.DZ_TOKENS, Role.X)
        operands = dz, dz_tokens, again.weight(Role.W13, Role.DZ), again.input(Role.X, Role.DZ_TOKENS)
        # [T, N] @ [1, N, K] -> [T, K] and [N, T] @ [T, K] -> [1, N, K]
        dx, dw = setting.ops.grad_products(*operands, groups, setting.accumulator)
        dx, dw = dx.to(x_type), dw[0].to(w_type)
    if b_type is not None and ctx.needs_input_grad[2]:
        db = g.to(torch.float32).sum(0).to(b_type)
    needs_x, needs_w = ctx.needs_input_grad[:2]
    return dx if needs_x else None, dw if needs_w else None, db, None
