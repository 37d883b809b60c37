"""Gradients of grains added in the order of grains, whichever ranks computed them: the bits of one process.

One process that passes grain after grain adds ((g_0 + g_1) + g_2) + .. in FP32. Here every rank computes one grain of a
pass, in rank order, and each value of the sum is added by one rank, in that order, from pieces that all send it
(all-to-all); after the last pass every rank gets every sum (all-gather). For W weights and N ranks a pass sends W / N
values to each of the others, and the end as many.

A parameter that all ranks hold has one gradient per rank and pass; experts, which only the ranks of a replica group
hold, one for every grain that visited them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.profiler import record_function

from .collectives import Traffic
from .parallel_experts import Placement, expert_parts
from .ranks import Ranks
from .waiting import waiting

PHASE = "gradient sums"


class OrderedSum:
    """The sum over passes, ranks of a group and grains of a rank, in that order, of flat vectors of `size` values.
    `traffic` counts what is sent."""

    def __init__(self, group: dist.ProcessGroup, size: int, device: torch.device, traffic: Traffic) -> None:
        self._group, self._ranks = group, dist.get_world_size(group)
        self._size, self._share = size, math.ceil(size / self._ranks)
        self._device, self._traffic = device, traffic
        self._total: Tensor | None = None

    def add(self, grains: Sequence[Tensor]) -> None:
        """Add this rank's grains of a pass, float32 (size,) each, as many on every rank."""
        sent = torch.zeros(len(grains), self._ranks * self._share, device=self._device)
        for row, grain in zip(sent, grains, strict=True):
            row[: self._size] = grain
        # [grains, ranks, share] -> what every rank shall add, together
        sent = sent.view(len(grains), self._ranks, self._share).transpose(0, 1).contiguous()
        pieces = sent
        if self._ranks > 1:
            pieces = torch.empty_like(sent)
            self._traffic.sent(PHASE, sent.nbytes, sent.nbytes // self._ranks)
            with waiting("gradients of a pass"), record_function(f"fourbit::{PHASE}"):
                dist.all_to_all_single(pieces, sent, group=self._group)
        for piece in pieces.flatten(0, 1):
            self._total = piece.clone() if self._total is None else self._total.add_(piece)

    def end(self) -> Tensor:
        """The sum, float32 (size,), on every rank; the next one begins."""
        assert self._total is not None, "a step has a grain"
        whole, self._total = self._total, None
        if self._ranks > 1:
            own, whole = whole, torch.empty(self._ranks * self._share, device=self._device)
            self._traffic.sent(PHASE, own.nbytes * self._ranks, own.nbytes)
            with waiting("sums of gradients"), record_function(f"fourbit::{PHASE}"):
                dist.all_gather(list(whole.chunk(self._ranks)), own, group=self._group)
        return whole[: self._size]


class OrderedGradients:
    """The gradients of a model whose dense part every rank holds, and whose experts may be parts (`place_experts`)."""

    def __init__(self, model: nn.Module, ranks: Ranks) -> None:
        self._experts = list(expert_parts(model).values())  # w13 and w2 of a layer, one after the other
        found = (getattr(module, "placement", None) for module in model.modules())
        self._placements: list[Placement] = [placement for placement in found if placement is not None]
        apart = {id(p) for p in self._experts}
        self._dense = [p for p in model.parameters() if id(p) not in apart]
        device = self._dense[0].device
        self._dense_sum = OrderedSum(dist.group.WORLD, sum(p.numel() for p in self._dense), device, ranks.traffic)
        size = sum(p.numel() for p in self._experts)
        self._expert_sum = OrderedSum(replicas(ranks), size, device, ranks.traffic) if self._experts else None

    def add(self) -> None:
        """After a backward: take the gradients of this rank's pass."""
        self._dense_sum.add([torch.cat([p.grad.flatten() for p in self._dense])])
        for p in self._dense:
            p.grad = None
        if self._expert_sum is not None:
            # a layer's backward comes in the reverse order of its forward; parts are per layer, so theirs is grains'
            by_layer = [[torch.cat([part.flatten() for part in pair]) for pair in x.parts] for x in self._placements]
            self._expert_sum.add([torch.cat(flat) for flat in zip(*by_layer, strict=True)])
            for placement in self._placements:
                placement.parts.clear()

    def end(self) -> None:
        """After the last backward of a step: put the sums where an optimizer finds gradients."""
        _spread(self._dense_sum.end(), self._dense)
        if self._expert_sum is not None:
            _spread(self._expert_sum.end(), self._experts)


def replicas(ranks: Ranks) -> dist.ProcessGroup:
    """The ranks that hold the same experts as this one, in rank order. All ranks call it."""
    groups = [dist.new_group(list(range(first, ranks.world, ranks.ep))) for first in range(ranks.ep)]
    found: dist.ProcessGroup = groups[ranks.index("ep")]
    return found


def _spread(flat: Tensor, parameters: list[nn.Parameter]) -> None:
    for p, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        p.grad = part.view(p.shape)
