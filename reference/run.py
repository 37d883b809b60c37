"""A training run in progress: resuming, one step after the other, evaluation and checkpoints."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn
from tqdm import tqdm

from . import checkpoint, checkpoint_folder
from .clip import clip
from .collectives import Traffic
from .config import TrainConfig
from .data import Corpus, batch, epoch_batch, heldout_batch
from .expert import Draw
from .guard import Guard
from .learning_rate import learning_rate
from .log import EVALUATION, Log, read_log, record_environment
from .model import Losses
from .monitor import Observer, Part, due, observing
from .oscillation import Oscillation
from .router import rebalance
from .saved import counting, recording
from .schedule import Schedule
from .stopping import require_finite

Pass = tuple[int, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Run:
    """A run in progress. `schedule`: which recipe layers follow. `guard`: which of them have been raised. `saved`:
    bytes that the first pass kept for its backward, once they are known."""

    config: TrainConfig
    identity: dict[str, Any]
    corpus: Corpus
    model: nn.Module
    optimizer: torch.optim.Optimizer
    log: Log
    schedule: Schedule
    guard: Guard
    observer: Observer = field(default_factory=Observer)
    saved: list[int] = field(default_factory=list)
    oscillation: Oscillation = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "oscillation", Oscillation(self.model, self.config.steps))

    def resume(self, command: str) -> int:
        """Load the newest checkpoint, cut the log back to it, and return its step; 0 without one. `command`: what runs
        it, for meta.json."""
        corpus, start = self.corpus, 0
        if path := self._latest():
            tensors, meta = self._load(path)
            if meta["corpus"] != corpus.digest:
                raise ValueError(
                    f"data {self.config.data!r} has changed since {path} was written (sha256 was "
                    f"{meta['corpus'][:12]}, is {corpus.digest[:12]}); restore it, or use another out"
                )
            checkpoint.restore_training_state(tensors, self.model, self.optimizer)
            self.oscillation.restore(tensors)
            start = meta["step"]
        self._enter(start, command)
        return start

    def _latest(self) -> Path | None:
        """The newest checkpoint."""
        return checkpoint.latest(self.config.out)

    def _load(self, path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What of a checkpoint belongs here, and what it says of itself."""
        return checkpoint_folder.load(path)

    def _enter(self, start: int, command: str) -> None:
        """Cut the log back to `start`, and note in meta.json what goes on from there."""
        config = self.config
        self.log.cut(start)
        self.guard.resume(read_log(config.out / "log.jsonl", "loss", evaluation=EVALUATION))
        if start < config.steps:
            about = {"preset": config.preset, "seed": config.seed, "threads": config.threads}
            record_environment(config.out, config.device, about | {"corpus": self.corpus.about()}, start, command)

    def advance(self, step: int) -> dict[str, Any]:
        """Take one step; evaluate, log and save what is due after it. Returns the log record."""
        config, last = self.config, step == self.config.steps
        recipes = self.schedule.at(step, self.guard.raised)
        if recipes is not self.schedule.start:
            self.model.follow(recipes)
        began, part = time.perf_counter(), due(step, config.monitor_every, config.steps)
        record = self._update(step, part)
        record |= self._monitor(step, part, record["loss"]) | {"seconds": time.perf_counter() - began}
        if last or step % config.eval_every == 0:
            ce, bytes_per_token = self._evaluate()
            require_finite(config.out, step, "held-out loss", ce)
            record |= {"heldout_ce": ce, "heldout_bits_per_byte": ce / math.log(2) / bytes_per_token}
        self.log.append(record)
        if config.saves(step):
            self.save(step)
        return record

    def _update(self, step: int, part: Part) -> dict[str, Any]:
        config = self.config
        draw = batch if config.order == "random" else epoch_batch
        tokens_BS, targets_BS = draw(self.corpus.train, config.seed, step, config.batch, config.model.sequence)
        loss = balance = 0.0
        self.optimizer.zero_grad(set_to_none=True)
        for grain, tokens, targets in self._passes(tokens_BS, targets_BS):
            share = len(tokens) / config.batch
            losses = self._forward(tokens, targets, Draw(config.seed, step, grain), part)
            for total, ce, extra in self._told(losses):
                # Before the backward, which promises nothing about a NaN.
                require_finite(config.out, step, "loss", total)
                loss += ce * share
                balance += extra * share
            (losses.total * share).backward()
            self._passed()
        norm = self._clip()
        require_finite(config.out, step, "gradient norm", norm)
        lr = learning_rate(config, step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        reset = self.oscillation.around(step, self.optimizer.step)
        self._rebalance()
        return {
            "step": step,
            "loss": loss,
            "balance": balance,
            "lr": lr,
            "grad_norm": norm,
            "tokens": step * config.batch * config.model.sequence,
        } | ({} if reset is None else {"weights_reset": reset})

    def _passes(self, tokens_BS: torch.Tensor, targets_BS: torch.Tensor) -> Iterator[Pass]:
        """What of a batch passes through the model here."""
        return passes(self.config, tokens_BS, targets_BS)

    def _told(self, losses: Losses) -> list[tuple[float, float, float]]:
        """(total, ce, balance) of what has just passed, in the order of grains."""
        return [(losses.total.item(), losses.ce.item(), losses.balance.item())]

    def _passed(self) -> None:
        """After each backward."""

    def _clip(self) -> float:
        """After the last backward: scale gradients whose norm is above `clip` down to it; the norm before."""
        if self.config.deterministic:
            return clip(self.model, self.config.clip)
        return nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip).item()

    def sent(self) -> Traffic | None:
        """What all ranks have sent since the run was opened; None for one process."""
        return None

    def _rebalance(self) -> None:
        """After the optimizer's step."""
        rebalance(self.model)

    def _monitor(self, step: int, part: Part, loss: float) -> dict[str, Any]:
        """What the log says about a step beyond its losses: their deviation, measures, and layers that it raised."""
        if not self.config.monitor_every:
            return {}
        found: dict[str, Any] = self.guard.deviation(step, loss)
        numbers = self.observer.end(step, self.config.monitor_every) if part == "measured" else {}
        raised = self.guard.judge(step, found, numbers)
        for reason in dict.fromkeys(entry["because"] for entry in raised):
            layers = ", ".join(str(entry["layer"]) for entry in raised if entry["because"] == reason)
            tqdm.write(f"step {step}: layer {layers} raised to {self.config.raise_to}: {reason}", file=sys.stderr)
        return found | ({"monitor": numbers} if numbers else {}) | ({"raised": raised} if raised else {})

    def _forward(self, tokens: torch.Tensor, targets: torch.Tensor, draw: Draw, part: Part) -> Losses:
        """The losses of a pass. A step's first grain is shown to the monitor if it is due; of this call's first pass,
        what it keeps for the backward is counted, and of the last step's first grain what its experts read is written,
        if that is asked for."""
        path = self.config.activations
        if path is not None and (draw.step, draw.grain) == (self.config.steps, 0):
            with recording(self.model) as kept, torch.no_grad():
                self.model(tokens[: self.config.grain], targets[: self.config.grain], draw)
            checkpoint.write_atomic(path, save(kept))
        grains, shown = len(tokens) // self.config.grain, part is not None and draw.grain == 0
        if shown:
            self.observer.begin(part == "measured")
        with contextlib.ExitStack() as stack:
            sizes = None if self.saved else stack.enter_context(counting(self.model))
            if shown:
                stack.enter_context(observing(self.model, self.observer))
            losses: Losses = self.model(tokens, targets, draw, grains)
        if sizes is not None:
            self.saved.append(sum(sizes))
        return losses

    def _evaluate(self) -> tuple[float, float]:
        """Return the held-out cross entropy, nats per token, grain by grain as in training, and bytes per token."""
        config = self.config
        tokens_BS, targets_BS = heldout_batch(self.corpus.heldout, config.eval_sequences, config.model.sequence)
        ce = heldout_loss(self.model, config, tokens_BS, targets_BS)
        return ce, self.corpus.bytes_per_token(targets_BS)

    def save(self, step: int) -> None:
        """Write the checkpoint of `step`, which has been taken last."""
        tensors = checkpoint.training_state(self.model, self.optimizer) | self.oscillation.state()
        for name, value in self._sums(tensors):
            require_finite(self.config.out, step, f"sum of magnitudes of {name}", value)
        self.log.sync()  # the log must never be behind a checkpoint
        self._write(step, tensors, {"step": step, "corpus": self.corpus.digest, "config": self.identity})
        self.observer.forget()  # a run resumed from here has not seen the weights before either

    def _sums(self, tensors: dict[str, torch.Tensor]) -> Iterator[tuple[str, float]]:
        """The sum of magnitudes of every tensor."""
        for name, tensor in tensors.items():
            yield name, tensor.double().abs().sum().item()

    def _write(self, step: int, tensors: dict[str, torch.Tensor], meta: dict[str, Any]) -> None:
        """The checkpoint itself; then delete the ones that it supersedes."""
        checkpoint.save(checkpoint.checkpoint_path(self.config.out, step), tensors, meta)
        checkpoint.prune(self.config.out, stable=self.config.stable_steps)


def heldout_loss(
    model: nn.Module,
    config: TrainConfig,
    tokens_BS: torch.Tensor,
    targets_BS: torch.Tensor,
    advance: Callable[[int], object] = lambda _: None,
) -> float:
    """The mean cross entropy of sequences (B, S), nats per token, grain by grain as in training. The model is left in
    the mode it was in. advance: called after each pass with the number of its sequences."""
    before, losses = model.training, []
    model.eval()
    with torch.no_grad():
        for grain, tokens, targets in passes(config, tokens_BS, targets_BS):
            # Step -1 names no training step: evaluation shares no random bits with one.
            draw = Draw(config.seed, -1, grain)
            losses.append(len(tokens) * model(tokens, targets, draw, len(tokens) // config.grain).ce.item())
            advance(len(tokens))
    model.train(before)
    return math.fsum(losses) / len(tokens_BS)


def passes(config: TrainConfig, tokens_BS: torch.Tensor, targets_BS: torch.Tensor) -> Iterator[Pass]:
    """Yield what passes through the model together, in order: the number of its first grain and (B, S) each on the
    device. Under `deterministic` that is one grain, so that no sum runs over two."""
    size = config.grain if config.deterministic else config.micro_batch or config.grain
    pieces = zip(tokens_BS.split(size), targets_BS.split(size), strict=True)
    for i, (tokens, targets) in enumerate(pieces):
        yield i * size // config.grain, tokens.to(config.device), targets.to(config.device)
