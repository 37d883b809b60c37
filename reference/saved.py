"""What a layer keeps for its backward: operands as codes, 4-bit ones two to a byte, and how much that is.

Of a BF16 operand's 16 bits a value, NVFP4 keeps 4.5, and 32 a row where each has an outer scale; MXFP8 keeps 8.25.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from numerics import BlockTensor

from .ranks import local

Make = Callable[[list[Tensor]], BlockTensor]


def save(ctx: Any, operands: list[Any], tensors: list[Tensor]) -> list[tuple[int, Make | None]]:
    """Put every tensor in autograd's hands; returns for each operand how many they are and what makes it of them."""
    flat: list[Tensor] = []
    described: list[tuple[int, Make | None]] = []
    for q in operands:
        parts, make = q.stored() if isinstance(q, BlockTensor) else ([q], None)
        described.append((len(parts), make))
        flat += parts
    ctx.save_for_backward(*flat, *tensors)
    return described


def restore(ctx: Any) -> tuple[list[Any], list[Tensor]]:
    """The operands and the tensors that `save` was given."""
    saved = list(ctx.saved_tensors)
    operands = []
    for count, make in ctx.operands:
        parts, saved = saved[:count], saved[count:]
        operands.append(parts[0] if make is None else make(parts))
    return operands, saved


@contextmanager
def counting(model: nn.Module) -> Iterator[list[int]]:
    """A list whose sum is the bytes that autograd keeps of what is computed inside: every storage once, the model's
    parameters left out."""
    seen = {local(p).untyped_storage().data_ptr() for p in model.parameters()}
    kept: list[Tensor] = []  # so that no storage is freed, and another one put in its place, while they are counted
    sizes: list[int] = []

    def count(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            kept.append(t)
            sizes.append(storage.nbytes())
        return t

    with torch.autograd.graph.saved_tensors_hooks(count, lambda t: t):
        yield sizes


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The inputs (T, D), BF16, of every layer's experts in a forward inside: `layer 0`, `layer 1`, .."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        return lambda _, args: kept.update({name: args[0].detach().flatten(0, -2).contiguous()})

    layers: Any = getattr(model, "layers", [])
    experts = [(i, layer.moe) for i, layer in enumerate(layers) if hasattr(layer.moe, "w13")]
    hooks = [moe.register_forward_pre_hook(keep(f"layer {i}")) for i, moe in experts]
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()
