"""Contract: an expert layer whose experts live on two ranks gives each of them the bits of the whole layer: its output,
the gradients of its input, router and shared expert, and, grain by grain, those of the experts; for every recipe that
is not refused, under exact and the library's sums, however tokens are routed, and in waves.

Oracle: `MoE` with all experts in the same process, one grain after the other.
"""

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from numerics import hadamard_signs, ops
from numerics.hadamard import SIZES
from reference.collectives import Traffic
from reference.expert import Draw, Setting
from reference.moe import MoE
from reference.parallel_experts import place_experts, require_placeable
from reference.presets import PRESETS, preset
from reference.recipe import Recipe
from tests.rank_processes import ranks

D, F, E, K, S, RANKS = 128, 128, 4, 2, 24, 2
LAYER, STEP = 3, 7


def layer(sizes: dict[str, Any]) -> MoE:
    torch.manual_seed(1)
    made = MoE(D, E, K, F, F, **sizes)
    for p in made.parameters():
        torch.nn.init.normal_(p, std=D**-0.5)
    return made


def passed(moe: MoE, recipe: Recipe, accumulator: str, grain: int, tokens: int, recompute: bool) -> list[Tensor]:
    """Output, and gradients of the input and of what is dense, of one grain."""
    g = torch.Generator().manual_seed(100 + grain)
    x, out_g = (torch.randn(1, tokens, D, generator=g).to(torch.bfloat16) for _ in range(2))
    x[..., 0] = 8.0  # a router can choose by it
    x.requires_grad_()
    signs = {size: hadamard_signs(size, (1, 0)) for size in SIZES}
    setting = Setting(ops, recipe.experts, signs, LAYER, Draw(5, STEP, grain), accumulator, recipe.shared)
    setting = dataclasses.replace(setting, recompute_glu=recompute)
    out, balance = moe(x, setting)
    (out.to(torch.float32) * out_g).sum().add(balance).backward()
    dense = [p.grad for name, p in moe.named_parameters() if name not in ("w13", "w2")]
    found = [out.detach(), balance.detach(), x.grad, *dense]
    for name, p in moe.named_parameters():
        if name not in ("w13", "w2"):
            p.grad = None
    return found


def cases() -> Iterator[tuple[str, Recipe, str, dict[str, Any], dict[str, Any]]]:
    """Name, recipe, accumulator, how the layer is changed, what else is said."""
    for name in PRESETS:
        recipe = preset(name)
        try:
            require_placeable(name, recipe.experts)
        except ValueError:
            continue
        yield name, recipe, "library", {}, {}
    fourbit = preset("fourbit")
    yield "exact", fourbit, "exact", {}, {"waves": 2}
    yield "recomputed", fourbit, "library", {}, {"recompute": True}
    yield "shared under the recipe", dataclasses.replace(fourbit, shared=True), "library", {}, {}
    yield "one token", fourbit, "exact", {}, {"tokens": (1, 1)}
    yield "all to two experts of rank 1", fourbit, "exact", {}, {"to": (2, 3)}
    yield "all to one expert of each", fourbit, "library", {}, {"to": (0, 3), "waves": 2}
    yield "biased router, convolution", fourbit, "library", {"bias_speed": 0.01, "convolution": 3}, {}


def compared() -> dict[str, list[bool]]:
    """Case -> whether each tensor is the same."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    found = {}
    for name, recipe, accumulator, sizes, more in cases():
        whole, part = layer(sizes), layer(sizes)
        traffic = Traffic()
        for moe in (whole, part):
            for expert in more.get("to", ()):
                moe.router.data[expert, 0] = 4.0
        place_experts(part, dist.group.WORLD, True, more.get("waves", 1), traffic)
        tokens = more.get("tokens", (S, S))
        oracle = []
        for grain in range(RANKS):
            oracle.append(passed(whole, recipe, accumulator, grain, tokens[grain], False))
            oracle[-1] += [whole.w13.grad, whole.w2.grad]
            whole.w13.grad = whole.w2.grad = None
        own = passed(part, recipe, accumulator, rank, tokens[rank], more.get("recompute", False))
        same = [torch.equal(a, b) for a, b in zip(own, oracle[rank], strict=False)]
        for grain, pair in enumerate(part.placement.parts):
            pieces = [t[rank * E // RANKS :][: E // RANKS] for t in oracle[grain][-2:]]
            same += [torch.equal(a, b) for a, b in zip(pair, pieces, strict=True)]
        if "to" in more:  # tokens went where they should
            kept = sum(count.bytes_kept for phase, count in traffic.phases.items() if phase.startswith("dispatch"))
            sent = sum(count.bytes for phase, count in traffic.phases.items() if phase.startswith("dispatch"))
            same.append(kept * 2 == sent * sum(expert * RANKS // E == rank for expert in more["to"]))
        found[name] = same
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def found() -> list[dict[str, list[bool]]]:
    return [one.found for one in ranks(__file__, "compared", RANKS, seconds=200)]


@pytest.mark.parametrize("name", [name for name, *_ in cases()])
def test_each_rank_has_the_bits_of_the_whole_layer(found, name):
    for of_rank in found:
        assert len(of_rank[name]) >= 3 + 3 + 2 * RANKS and all(of_rank[name])
