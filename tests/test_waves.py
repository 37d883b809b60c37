"""Experts in waves.

Contract: outputs, gradients and bytes of a layer whose experts are on several ranks are the same for any number of
waves, and those of one process; every row is in one wave, and waves overlap. Oracle: `ExpertMLP` with all experts in
one process, grain by grain, bit for bit; a plan counted by hand.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from numerics import hadamard_signs, ops
from reference.collectives import Traffic
from reference.config import TrainConfig, check
from reference.expert import Draw, ExpertMLP, Setting, route
from reference.parallel_experts import ParallelExperts, Placement
from reference.presets import preset
from reference.waves import Wave, in_turn, plan
from tests.rank_processes import ranks

RANKS, EXPERTS, K, D, F = 2, 6, 2, 64, 32
WAVES = (1, 2, 3)
TOKENS = {"many": (24, 9), "one expert": (8, 8), "one token": (1, 1)}  # of each rank


def inputs(rank: int, tokens: int, load: str) -> tuple[torch.Tensor, ...]:
    """x, weights, the experts of tokens, and the gradient of the output, of one rank's grain."""
    made = torch.Generator().manual_seed(100 * rank + tokens)
    x = torch.randn(tokens, D, generator=made).to(torch.bfloat16)
    chosen = torch.rand(tokens, EXPERTS, generator=made).argsort(1)[:, :K].sort(1).values
    if load == "one expert":  # all rows to experts 4 and 5, of the last rank
        chosen = torch.tensor([[4, 5]]).expand(tokens, K).contiguous()
    return x, torch.rand(tokens, K, generator=made), chosen, torch.randn(tokens, D, generator=made).to(torch.bfloat16)


def masters() -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(7)
    shapes = (EXPERTS, 2 * F, D), (EXPERTS, D, F)
    return [torch.randn(*shape, generator=made) * 0.1 for shape in shapes]


def setting(name: str, grain: int) -> Setting:
    recipe = preset(name).experts
    return Setting(ops, recipe, {n: hadamard_signs(n, (1, 2)) for n in recipe.hadamard_sizes}, 0, Draw(3, 5, grain))


def results(function: Any, one: tuple[torch.Tensor, ...], w: list[torch.Tensor], *more: Any) -> list[torch.Tensor]:
    """Output, gradients of x and of the router's weights, and those of the experts' weights if autograd has them."""
    x, weights, chosen, g = one
    leaves = [t.clone().requires_grad_() for t in (x, weights, *w)]
    out = function.apply(*leaves, route(chosen, EXPERTS), *more)
    out.backward(g)
    return [out.detach(), *(t.grad for t in leaves if t.grad is not None)]


def looked() -> dict[str, dict[str, bool]]:
    """On one rank, of each load: whether everything has the bits of one process, for recipes and numbers of waves."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = {load: looked_at(load) for load in TOKENS}
    dist.destroy_process_group()
    return found


def looked_at(load: str) -> dict[str, bool]:
    rank, found, w = int(os.environ["RANK"]), {}, masters()
    grains = [inputs(r, tokens, load) for r, tokens in enumerate(TOKENS[load])]
    local = EXPERTS // RANKS
    for name in ("fourbit", "mxfp8", "bf16"):
        alone = [results(ExpertMLP, one, w, setting(name, r)) for r, one in enumerate(grains)]
        counted = []
        for waves in WAVES:
            placement = Placement(dist.group.WORLD, RANKS, rank, EXPERTS, [], waves, Traffic())
            own = [t[rank * local : (rank + 1) * local] for t in w]
            out, dx, d_weights = results(ParallelExperts, grains[rank], own, setting(name, rank), placement)
            same = [torch.equal(a, b) for a, b in zip((out, dx, d_weights), alone[rank][:3], strict=True)]
            for part, one in zip(placement.parts, alone, strict=True):  # of the grain of every rank
                same += [
                    torch.equal(a, b[rank * local : (rank + 1) * local]) for a, b in zip(part, one[3:], strict=True)
                ]
            found[f"{name} {waves}"] = all(same)
            counted.append({phase: count.bytes for phase, count in placement.traffic.phases.items()})
        found[f"{name} bytes"] = all(each == counted[0] for each in counted)
    return found


@pytest.fixture(scope="module")
def found() -> list[dict[str, dict[str, bool]]]:
    return [one.found for one in ranks(__file__, "looked", RANKS, seconds=300)]


@pytest.mark.parametrize("load", TOKENS)
def test_bits_do_not_depend_on_waves_or_ranks(found: list[dict[str, dict[str, bool]]], load: str) -> None:
    for of_rank in found:
        assert len(of_rank[load]) == 3 * (len(WAVES) + 1) and all(of_rank[load].values()), of_rank


def test_a_plan_has_every_row_once_in_runs_of_neighbouring_experts() -> None:
    """Two ranks with three experts each; this rank has 2, 0, 1 rows for those of the first, 3, 1, 0 for the others."""
    leaving, arriving = torch.tensor([[2, 0, 1], [3, 1, 0]]), torch.tensor([[2, 0, 1], [0, 4, 0]])
    one, two = plan(leaving, arriving, 2, None, Traffic())
    assert (one.experts, two.experts) == (slice(0, 1), slice(1, 3))
    assert (one.rows.tolist(), two.rows.tolist()) == ([0, 1, 3, 4, 5], [2, 6])
    assert (one.sends, two.sends) == ((2, 3), (1, 1))
    assert one.groups == ((0, 2), (0, 0)) and two.groups == ((0, 0, 1), (0, 4, 4))
    assert (one.arrives, two.arrives) == ([2, 0], [1, 4])
    with pytest.raises(ValueError, match="waves=4: a rank has 3 experts; use 1 to 3"):
        plan(leaving, arriving, 4, None, Traffic())


def test_the_next_wave_is_on_its_way_while_one_is_computed() -> None:
    """What each step does, in order, of three waves whose rows come back into their places."""
    told: list[str] = []

    class Told:
        def __init__(self, what: str, rows: torch.Tensor) -> None:
            self.what, self.rows = what, rows
            told.append(f"{what} starts")

        def wait(self) -> torch.Tensor:
            told.append(f"{self.what} arrives")
            return self.rows

    def compute(wave: Wave, rows: torch.Tensor) -> torch.Tensor:
        told.append(f"computes {wave.sends}")
        return rows + 1

    order = [[4, 0], [1], [3, 2]]
    waves = [Wave(None, Traffic(), slice(i, i + 1), torch.tensor(each), (i,), ()) for i, each in enumerate(order)]
    back = in_turn(
        waves,
        lambda wave: Told(f"dispatch {wave.sends[0]}", wave.rows[:, None].to(torch.uint8)),
        compute,
        lambda wave, rows: Told(f"combine {wave.sends[0]}", rows),
        "experts",
    )
    assert back.tolist() == [[1], [2], [3], [4], [5]]
    steps = ["dispatch 0 starts", "dispatch 1 starts", "dispatch 0 arrives", "computes (0,)", "combine 0 starts"]
    steps += ["dispatch 2 starts", "dispatch 1 arrives", "computes (1,)", "combine 1 starts"]
    steps += ["dispatch 2 arrives", "computes (2,)", "combine 2 starts"]
    assert told == steps + [f"combine {i} arrives" for i in range(3)]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"waves": 2}, "waves 2 cannot be used; rows travel where experts are shared out"),
        ({"waves": 3, "ep": 4}, "waves 3 cannot be used; a rank has 2 experts of a layer; use 1 to 2"),
        ({"waves": 0, "ep": 4}, "waves 0 cannot be used; a rank has 2 experts"),
    ],
)
def test_waves_that_cannot_be_are_refused(fields: dict[str, int], told: str, tmp_path: Path) -> None:
    config = TrainConfig(tmp_path / "run", batch=16, grain=1, **fields)
    with pytest.raises(ValueError, match=told):
        check(config)


def test_a_profiler_names_every_phase() -> None:
    """Of a pass whose experts are all here: where each exchange starts, where its rows are needed, and the products."""
    one, w = inputs(0, 8, "many"), masters()
    placement = Placement(None, 1, 0, EXPERTS, None, 2, Traffic())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        results(ParallelExperts, one, w, setting("fourbit", 0), placement)
    counts = {event.key: event.count for event in seen.key_averages() if event.key.startswith("fourbit::")}
    names = ["dispatch NVFP4_46", "combine MXS2F6", "gradient dispatch MXFP8", "gradient combine MXFP8"]
    steps = {f"fourbit::{name}": 2 for name in [*names, *(f"{name} wait" for name in names)]}
    assert counts == steps | {"fourbit::counts": 1, "fourbit::experts": 2, "fourbit::gradient experts": 2}
