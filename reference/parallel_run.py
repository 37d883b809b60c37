"""A training run on several ranks: each passes its own grains, and rank 0 writes the log and what is shown.

In pass p rank r of N takes grain p N + r of the batch; without `deterministic` r takes the piece p N + r, of as many
grains as `micro_batch` says. Losses of a pass are told to all before its backward, and added in the order of grains.

    deterministic    the dense part is on every rank, gradients are added in the order of grains: see `ordered`
    else             the dense part and its optimizer's state are sharded, gradients are FSDP's sums: see `fsdp`

With ep > 1 a rank has its experts alone: see `parallel_experts`. Evaluations take grain after grain in either case.
Checkpoints of several ranks are folders, see `checkpoint_folder`; any number of ranks goes on from them, if all of them
see the run folder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from . import checkpoint
from .clip import clip
from .collectives import Count, Traffic
from .config import TrainConfig
from .data import heldout_batch
from .expert import Draw
from .log import open_run
from .model import Losses
from .monitor import Part
from .ordered import OrderedGradients
from .parallel_experts import expert_parts, place_experts, require_placeable
from .ranks import Ranks, local, world_size
from .router import Bias, rebalance
from .run import Pass, Run, passes
from .schedule import Schedule


class Unwritten:
    """The log of a rank that does not write."""

    def cut(self, *_: Any) -> None:
        """Nothing."""

    append = sync = cut


def speaks() -> bool:
    """Whether this process writes for all of them: rank 0, or the only one there is."""
    return world_size() is None or os.environ["RANK"] == "0"


def parallel(config: TrainConfig) -> TrainConfig:
    """`config` for several ranks, without a monitor; rank 0 tells so."""
    if config.monitor_every and speaks():
        print("several ranks: the monitor is off, since the experts of a layer are not at one place", file=sys.stderr)
    return dataclasses.replace(config, monitor_every=0)


def place(model: nn.Module, config: TrainConfig, layers: Schedule, ranks: Ranks) -> None:
    """Leave in `model` what this rank keeps. Raises ValueError for recipes that need a layer's experts at one place."""
    for recipe in {*layers.start, *(layers.later or ())}:
        if ranks.ep > 1:
            require_placeable(config.preset, recipe)
        elif is_sharded(config, ranks) and recipe.osci_reset is not None:
            raise ValueError(
                f"preset {config.preset!r} resets weights that oscillate, of which a rank has pieces of rows here; use "
                "deterministic, or ep above 1, which leaves experts whole"
            )
    place_experts(model, ranks.group("ep"), not is_sharded(config, ranks), config.waves, ranks.traffic)
    if is_sharded(config, ranks):
        from . import fsdp

        fsdp.shard(model, expert_parts(model).values(), ranks)


def is_sharded(config: TrainConfig, ranks: Ranks) -> bool:
    """Whether the dense part is sharded, and gradients are summed in the order that the backend takes."""
    return ranks.world > 1 and not config.deterministic


@contextlib.contextmanager
def opened(folder: Path, identity: dict[str, Any], lengthen: Callable[[int], None], ranks: Ranks) -> Iterator[Any]:
    """The run's log, of rank 0; the others' writes nothing."""
    with contextlib.ExitStack() as stack:
        log: Any = Unwritten()
        with ranks.together("opening the run"):
            if ranks.first:
                log = stack.enter_context(open_run(folder, identity, lengthen))
        yield log


@dataclass(frozen=True)
class ParallelRun(Run):
    """A run of which this process is one of the ranks."""

    ranks: Ranks = field(kw_only=True)
    gradients: Any = field(init=False)  # `ordered.OrderedGradients` or `fsdp.ShardedGradients`
    traffic: Traffic = field(default_factory=Traffic)  # of all ranks, in the steps so far
    between: Traffic = field(default_factory=Traffic)  # of this rank, between steps: evaluations, checkpoints

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "gradients", self._summing())
        object.__setattr__(self, "oscillation", replace(self.oscillation, everywhere=self._added))

    def _summing(self) -> Any:
        if not is_sharded(self.config, self.ranks):
            return OrderedGradients(self.model, self.ranks)
        from . import fsdp

        return fsdp.ShardedGradients(self.model, expert_parts(self.model).values(), self.ranks)

    def _enter(self, start: int, command: str) -> None:
        with self.ranks.together("opening the log"):
            if self.ranks.first:
                super()._enter(start, command)

    def _added(self, own: list[int]) -> list[int]:
        """Numbers of every rank, added."""
        return [sum(numbers) for numbers in zip(*self.ranks.gather(own), strict=True)]

    def _latest(self) -> Path | None:
        name, *_ = self.ranks.gather(str(super()._latest() or "") if self.ranks.first else "")
        return Path(name) if name else None

    def _load(self, path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        from . import sharded_checkpoint  # late: one process does not need it

        return sharded_checkpoint.load(path, self.ranks, self._layouts())

    def _layouts(self) -> dict[str, Any]:
        from . import sharded_checkpoint

        return sharded_checkpoint.layouts(self.model, self.ranks, dict.fromkeys(expert_parts(self.model), 0))

    def _sums(self, tensors: dict[str, Tensor]) -> Iterator[tuple[str, float]]:
        told = self.ranks.gather(
            [pair for pair in super()._sums({k: local(t) for k, t in tensors.items()}) if not math.isfinite(pair[1])]
        )
        return ((name, value) for part in told for name, value in part)

    def _write(self, step: int, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        if self.ranks.world == 1:
            return super()._write(step, tensors, meta)
        from . import sharded_checkpoint

        path = checkpoint.folder_path(self.config.out, step)
        sharded_checkpoint.save(path, tensors, meta, self.ranks, self._layouts())
        with self.ranks.together("deleting a checkpoint"):
            if self.ranks.first:
                checkpoint.prune(self.config.out, stable=self.config.stable_steps)

    def _passes(self, tokens_BS: Tensor, targets_BS: Tensor) -> Iterator[Pass]:
        for number, one in enumerate(passes(self.config, tokens_BS, targets_BS)):
            if number % self.ranks.world == self.ranks.rank:
                yield one

    def _told(self, losses: Losses) -> list[tuple[float, float, float]]:
        return [(total, ce, extra) for total, ce, extra in self.ranks.gather(super()._told(losses)[0])]

    def _passed(self) -> None:
        self.gradients.add()

    def _clip(self) -> float:
        self.gradients.end()
        if is_sharded(self.config, self.ranks):
            return float(self.gradients.clip(self.config.clip))
        return clip(self.model, self.config.clip, self._of_group)

    def _of_group(self, own: list[float]) -> list[float]:
        """Of all experts, from those of the ranks that hold them together."""
        if self.ranks.ep == 1:
            return own
        found = [torch.empty(len(own), dtype=torch.float64) for _ in range(self.ranks.ep)]
        self.ranks.traffic.sent("norms", 8 * len(own) * self.ranks.ep, 8 * len(own))
        dist.all_gather(found, torch.tensor(own, dtype=torch.float64), group=self.ranks.group("ep"))
        return torch.cat(found).tolist()

    def _monitor(self, step: int, part: Part, loss: float) -> dict[str, Any]:
        """And what all ranks have sent in this step's passes."""
        found = self._gathered(self.ranks.traffic.take())
        self.traffic.add(found.phases)
        wires = found.wires()
        return super()._monitor(step, part, loss) | ({"wires": wires} if wires else {})

    def _update(self, step: int, part: Part) -> dict[str, Any]:
        self.between.add(self.ranks.traffic.take())
        return super()._update(step, part)

    def sent(self) -> Traffic | None:
        self.between.add(self.ranks.traffic.take())
        whole = self._gathered(self.between.take())
        whole.add(self.traffic.phases)
        return whole

    def _gathered(self, own: dict[str, Count]) -> Traffic:
        """Of all ranks."""
        found = Traffic()
        for record in self.ranks.gather({phase: asdict(count) for phase, count in own.items()}):
            found.add({phase: Count(**numbers) for phase, numbers in record.items()})
        return found

    def _rebalance(self) -> None:
        for module in self.model.modules():
            if isinstance(module, Bias):
                self.ranks.traffic.sent("router loads", module.load.nbytes)
                dist.all_reduce(module.load)  # integers: exact in any order
        rebalance(self.model)

    def _evaluate(self) -> tuple[float, float]:
        config, ranks = self.config, self.ranks
        tokens_BS, targets_BS = heldout_batch(self.corpus.heldout, config.eval_sequences, config.model.sequence)
        grains = list(zip(tokens_BS.split(config.grain), targets_BS.split(config.grain), strict=True))
        own: list[float] = []
        self.model.eval()
        with torch.no_grad():
            for first in range(0, len(grains), ranks.world):
                # what is beyond the last grain passes for the others' sake, whose experts wait for it
                number = min(first + ranks.rank, len(grains) - 1)
                tokens, targets = (t.to(config.device) for t in grains[number])
                ce = self.model(tokens, targets, Draw(config.seed, -1, number)).ce.item()
                own += [len(tokens) * ce] if first + ranks.rank < len(grains) else []
        self.model.train()
        losses = [loss for part in ranks.gather(own) for loss in part]
        return math.fsum(losses) / len(tokens_BS), self.corpus.bytes_per_token(targets_BS)
