"""The dense part of a model sharded over ranks by FSDP2, and gradients summed by its own reduction.

`fully_shard` cuts every parameter along its first axis over the ranks of one replica, fsdp * ep of them, and repeats it
dp times; a layer's weights are gathered before it runs and dropped after. Gradients arrive as sums over all ranks, in
the order that the backend takes, in FP32: runs are equal only on the same ranks, and not even there on a GPU where the
backend chooses anew. With ep > 1 a rank's experts stay as they are, and their gradients are summed over the ranks that
hold the same ones. AdamW runs on the shards, and its state is theirs.

    norm = sqrt(sum of squares of all shards of a replica, and of the experts of one ep group), in float64
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.profiler import record_function
from torch.utils import _pytree

from .clip import squares
from .collectives import Traffic
from .model import Losses
from .ordered import PHASE, replicas
from .ranks import Ranks, local
from .waiting import waiting

_BUCKET = 1 << 24  # values of experts' gradients that are summed at once


def shard(model: nn.Module, apart: Iterable[nn.Parameter], ranks: Ranks) -> None:
    """Shard every layer of `model`, and what is outside them, over the ranks; collective.

    Args:
        model: a `Transformer` on the ranks' device, equal on all of them but for `apart`.
        apart: parameters that are left alone: experts of which this rank has its own.
    """
    if Losses not in _pytree.SUPPORTED_NODES:
        # torch 2.11 looks for a module's outputs in trees that it knows, and without them frees weights too early
        _pytree.register_pytree_node(Losses, lambda x: ([x.ce, x.balance], None), lambda parts, _: Losses(*parts))
    left, inner = set(apart), ranks.fsdp * ranks.ep
    shape, names = ((ranks.dp, inner), ("dp", "shard")) if ranks.dp > 1 else ((inner,), ("shard",))
    mesh = init_device_mesh(ranks.mesh.device_type, shape, mesh_dim_names=names)
    for module in [*model.layers, model]:
        # the root too, whose weights an evaluation would leave gathered
        fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=left)
        assert isinstance(module, FSDPModule)
        module.set_force_sum_reduction_for_comms(True)  # gloo has no other
        module.set_gradient_divide_factor(1.0)  # losses are shares of the batch's mean already
        module.set_custom_all_gather(_CountedGather(ranks.traffic))  # type: ignore[arg-type]
        module.set_custom_reduce_scatter(_CountedScatter(ranks.traffic, ranks.dp))  # type: ignore[arg-type]


class _Allocating:
    """Where FSDP puts what is sent and what comes."""

    def __init__(self, traffic: Traffic, repeats: int = 1) -> None:
        self._traffic, self._repeats = traffic, repeats

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _CountedGather(_Allocating):
    """FSDP's own all-gather of weights, with its bytes counted."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        self._traffic.sent("weights", output_tensor.nbytes, input_tensor.nbytes)
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # the name of torch 2.13, and before
        with record_function("fourbit::weights"):
            return gather(output_tensor, input_tensor, group=group, async_op=async_op)


class _CountedScatter(_Allocating):
    """FSDP's own reduce-scatter of gradients, which it adds over `repeats` replicas afterwards; bytes of both."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        self._traffic.sent(PHASE, input_tensor.nbytes, output_tensor.nbytes)
        if self._repeats > 1:
            self._traffic.sent(PHASE, output_tensor.nbytes)
        scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        with record_function(f"fourbit::{PHASE}"):
            return scatter(output_tensor, input_tensor, group=group, op=op, async_op=async_op)


class ShardedGradients:
    """The gradients of a model that `shard` has cut: FSDP sums those of its parameters, this the rest.

    Args: apart: as `shard` was given them.
    """

    def __init__(self, model: nn.Module, apart: Iterable[nn.Parameter], ranks: Ranks) -> None:
        self._ranks, self._apart = ranks, list(apart)
        self._dense = [p for p in model.parameters() if isinstance(p, DTensor)]
        self._replicas = replicas(ranks) if self._apart and ranks.world > ranks.ep else None

    def add(self) -> None:
        """After a backward: nothing; FSDP has added what came."""

    def end(self) -> None:
        """After the last backward of a step: every gradient is the sum over all ranks."""
        if self._replicas is None:
            return
        gradients = [p.grad for p in self._apart if p.grad is not None]
        with waiting("sums of experts' gradients"):
            for bucket in _buckets(gradients):
                flat = torch.cat([g.flatten() for g in bucket])
                self._ranks.traffic.sent(PHASE, flat.nbytes)
                dist.all_reduce(flat, group=self._replicas)
                for g, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                    g.copy_(part.view_as(g))

    def clip(self, most: float) -> float:
        """Scale all gradients down so that their norm is at most `most`; returns the norm before. Every rank has the
        same one."""
        own = [_squares([local(p.grad) for p in part if p.grad is not None]) for part in (self._dense, self._apart)]
        found = self._ranks.gather(own)
        replica, experts = self._ranks.fsdp * self._ranks.ep, self._ranks.ep
        total = [dense for dense, _ in found[:replica]] + [apart for _, apart in found[:experts]]
        norm = math.sqrt(math.fsum(total))
        scale = most / (norm + 1e-6)  # as torch's clip_grad_norm_
        if scale < 1:
            for p in (*self._dense, *self._apart):
                if p.grad is not None:
                    local(p.grad).mul_(scale)
        return norm


def _squares(gradients: list[Tensor]) -> float:
    return math.fsum(squares(gradients))


def _buckets(tensors: list[Tensor]) -> list[list[Tensor]]:
    """Neighbours together, up to `_BUCKET` values."""
    found: list[list[Tensor]] = [[]]
    for tensor in tensors:
        if found[-1] and sum(t.numel() for t in found[-1]) + tensor.numel() > _BUCKET:
            found.append([])
        found[-1].append(tensor)
    return [bucket for bucket in found if bucket]
