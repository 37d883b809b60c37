"""The training loop: AdamW over grains, evaluated, logged, and resumable bit for bit.

One step draws `batch` sequences and cuts them into grains. Each grain goes through the model alone, with the random
bits that Draw(seed, step, grain) names, and gradients are summed in grain order:

    loss = sum_g (grain / batch) * (ce_g + balance_g)
    lr   = peak * step / warmup, then peak * (r + (1 - r) * (1 + cos(pi * progress)) / 2), r = min_lr_ratio
    g    = gradient * min(1, clip / ||gradient||), one norm over all weights
    AdamW (Loshchilov and Hutter, arXiv 1711.05101), decay only on weights of two or more dimensions, all in FP32

Steps count from 1. Everything random is a function of (seed, step), so a checkpoint holds the weights, the state of the
optimizer and the step, and nothing else. Exact: equal configuration, corpus, versions and device give equal bits,
killed and resumed or not; threads are pinned and torch's deterministic algorithms are on while the loop runs.

A run folder holds config.json (what decides the bits), meta.json (versions, corpus, device, commit), log.jsonl (one
line per step) and the last two checkpoints. Rerunning the same configuration in its folder continues it.

Shapes: B sequences, S tokens per sequence.
"""

import contextlib
import dataclasses
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import tyro
from torch import nn
from tqdm import tqdm

from . import checkpoint
from .config import TrainConfig, check
from .data import Corpus, batch, heldout_batch, load_corpus, require_sequences
from .expert import Draw
from .model import Losses, Transformer
from .monitor import Log, TrainingStopped, open_run, read_log, record_environment, require_finite
from .optimizer import adamw, learning_rate
from .presets import preset
from .recipe import ExpertRecipe, Recipe, switched
from .saved import counting

__all__ = ["Result", "TrainConfig", "TrainingStopped", "check", "learning_rate", "main", "train"]

_NOT_IDENTITY = ("out", "progress")  # fields that do not change a bit of the run


@dataclass(frozen=True)
class Result:
    """What a finished run measured.

    Attributes:
        steps: optimizer steps.
        train_losses: cross entropy of each step's batch, nats per token.
        heldout_losses: (step, held-out cross entropy in nats per token) of each evaluation.
        heldout_ce: held-out cross entropy after the last step, nats per token.
        bits_per_byte: the same in bits; a token is a byte.
        median_step_seconds: of a step without evaluation and checkpoint.
        folder: the run folder.
        resumed_from: the step that this call continued from: 0 for a new run, `steps` if it was finished already.
        saved_bytes: that autograd kept of a grain for its backward, parameters left out; None if no step was taken.
    """

    steps: int
    train_losses: tuple[float, ...]
    heldout_losses: tuple[tuple[int, float], ...]
    heldout_ce: float
    bits_per_byte: float
    median_step_seconds: float
    folder: Path
    resumed_from: int
    saved_bytes: int | None = None


def main(argv: list[str], ops: ModuleType) -> int:
    """Run `fourbit train` with `argv`; return the exit code 0, or raise as `train` does."""
    config = tyro.cli(TrainConfig, args=argv, prog="fourbit train")
    result = train(config, ops)
    done = f"was finished already: {result.steps}" if result.resumed_from == result.steps else f"done: {result.steps}"
    print(
        f"{config.preset} in {result.folder} {done} steps, held-out {result.heldout_ce:.4f} nats "
        f"({result.bits_per_byte:.4f} bits) per byte, {result.median_step_seconds:.3f} s a step"
        + ("" if result.saved_bytes is None else f", {result.saved_bytes / 1e6:.2f} MB saved for a grain's backward")
    )
    return 0


def train(config: TrainConfig, ops: ModuleType, on_progress: Callable[[dict[str, Any]], None] | None = None) -> Result:
    """Train, or resume, the run that `config` describes.

    Args:
        config: the run.
        ops: the operations of the expert path, `numerics.ops` or a module with its functions.
        on_progress: called after each step with that step's log record.

    Returns:
        The result of the finished run.

    Raises:
        ValueError: a bad argument, corpus or run folder; nothing was written.
        TrainingStopped: a NaN or an infinity; the checkpoints before it are kept.
        OSError: the disk refuses.
    """
    check(config)
    recipe, later = preset(config.preset), _later(config)
    corpus = load_corpus(config.data)
    require_sequences(corpus.train, "training part", 1, config.model.sequence, corpus.description)
    require_sequences(corpus.heldout, "held-out part", config.eval_sequences, config.model.sequence, corpus.description)
    with _pinned(config.threads):
        model = _build(config, recipe, ops)
        identity = _identity(config, ops)
        with open_run(config.out, identity) as log:
            run = _Run(config, identity, corpus, model, adamw(model, config), log, later)
            start = run.resume()
            hidden = {"auto": None, "show": False, "hide": True}[config.progress]
            with tqdm(total=config.steps, initial=start, desc=config.preset, unit="step", disable=hidden) as bar:
                for step in range(start + 1, config.steps + 1):
                    record = run.advance(step)
                    bar.set_postfix(loss=f"{record['loss']:.3f}", refresh=False)
                    bar.update()
                    if on_progress is not None:
                        on_progress(record)
    return _result(config.out, start, *run.saved)


def _later(config: TrainConfig) -> tuple[ExpertRecipe, ...] | None:
    """Each layer's recipe after the switch; None without one. Raises ValueError as `preset`, for halves that contradict
    each other and for widths that do not fit."""
    if config.switch_at is None:
        return None
    first, second, depth = preset(config.preset), preset(config.switch_to), config.model.depth
    found = tuple(switched(first.layer(i, depth), second.layer(i, depth), config.switch_pass) for i in range(depth))
    config.model.check_widths(second, found)
    return found


def _build(config: TrainConfig, recipe: Recipe, ops: ModuleType) -> nn.Module:
    try:
        model = Transformer(config.model, recipe, ops, config.seed, recompute_glu=config.recompute_glu)
        return model.to(config.device)
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "memory" in str(error):
            raise ValueError(f"model {config.model} does not fit into memory; use smaller sizes") from error
        raise


@dataclass(frozen=True)
class _Run:
    """A run in progress. `later`: recipes of the layers after the switch. `saved`: bytes that the first grain kept for
    its backward, once they are known."""

    config: TrainConfig
    identity: dict[str, Any]
    corpus: Corpus
    model: nn.Module
    optimizer: torch.optim.AdamW
    log: Log
    later: tuple[ExpertRecipe, ...] | None = None
    saved: list[int] = field(default_factory=list)

    def resume(self) -> int:
        """Load the newest checkpoint, cut the log back to it, and return its step; 0 without one."""
        config, corpus, start = self.config, self.corpus, 0
        if path := checkpoint.latest(config.out):
            tensors, meta = checkpoint.load(path)
            if meta["corpus"] != corpus.digest:
                raise ValueError(
                    f"data {config.data!r} has changed since {path} was written (sha256 was "
                    f"{meta['corpus'][:12]}, is {corpus.digest[:12]}); restore it, or use another out"
                )
            checkpoint.restore_training_state(tensors, self.model, self.optimizer)
            start = meta["step"]
        self.log.cut(start)
        if start < config.steps:
            about = {
                "digest": corpus.digest,
                "description": corpus.description,
                "bytes_train": len(corpus.train),
                "bytes_heldout": len(corpus.heldout),
                "files_train": corpus.files_train,
                "files_heldout": corpus.files_heldout,
            }
            record_environment(
                config.out,
                config.device,
                {"preset": config.preset, "seed": config.seed, "threads": config.threads, "corpus": about},
                start,
            )
        return start

    def advance(self, step: int) -> dict[str, Any]:
        """Take one step; evaluate, log and save what is due after it. Returns the log record."""
        config, last = self.config, step == self.config.steps
        if self.later is not None and config.switch_at is not None and step > config.switch_at * config.steps:
            self.model.follow(self.later)
        record = self._update(step)
        if last or step % config.eval_every == 0:
            ce = self._evaluate()
            require_finite(config.out, step, "held-out loss", ce)
            record |= {"heldout_ce": ce, "heldout_bits_per_byte": ce / math.log(2)}
        self.log.append(record)
        if last or step % config.checkpoint_every == 0:
            self._save(step)
        return record

    def _update(self, step: int) -> dict[str, Any]:
        config, began = self.config, time.perf_counter()
        tokens_BS, targets_BS = batch(self.corpus.train, config.seed, step, config.batch, config.model.sequence)
        share = config.grain / config.batch
        loss = balance = 0.0
        self.optimizer.zero_grad(set_to_none=True)
        for grain, (tokens, targets) in enumerate(_grains(config, tokens_BS, targets_BS)):
            losses = self._forward(tokens, targets, Draw(config.seed, step, grain))
            # Before the backward, which promises nothing about a NaN.
            require_finite(config.out, step, "loss", losses.total.item())
            (losses.total * share).backward()
            loss += losses.ce.item() * share
            balance += losses.balance.item() * share
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip).item()
        require_finite(config.out, step, "gradient norm", norm)
        lr = learning_rate(config, step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        return {
            "step": step,
            "loss": loss,
            "balance": balance,
            "lr": lr,
            "grad_norm": norm,
            "tokens": step * config.batch * config.model.sequence,
            "seconds": time.perf_counter() - began,
        }

    def _forward(self, tokens: torch.Tensor, targets: torch.Tensor, draw: Draw) -> Losses:
        """The losses of a grain; of the first one, what it keeps for the backward is counted."""
        if self.saved:
            return self.model(tokens, targets, draw)
        with counting(self.model) as sizes:
            losses: Losses = self.model(tokens, targets, draw)
        self.saved.append(sum(sizes))
        return losses

    def _evaluate(self) -> float:
        """Return the held-out cross entropy, nats per token, grain by grain as in training."""
        config = self.config
        tokens_BS, targets_BS = heldout_batch(self.corpus.heldout, config.eval_sequences, config.model.sequence)
        self.model.eval()
        with torch.no_grad():
            # Step -1 names no training step: evaluation shares no random bits with one.
            losses = [
                self.model(tokens, targets, Draw(config.seed, -1, grain)).ce.item()
                for grain, (tokens, targets) in enumerate(_grains(config, tokens_BS, targets_BS))
            ]
        self.model.train()
        return math.fsum(losses) / len(losses)

    def _save(self, step: int) -> None:
        """Write the checkpoint of `step`, then delete the ones that it supersedes."""
        folder = self.config.out
        tensors = checkpoint.training_state(self.model, self.optimizer)
        for name, tensor in tensors.items():
            require_finite(folder, step, f"sum of magnitudes of {name}", tensor.double().abs().sum().item())
        self.log.sync()  # the log must never be behind a checkpoint
        meta = {"step": step, "corpus": self.corpus.digest, "config": self.identity}
        checkpoint.save(checkpoint.checkpoint_path(folder, step), tensors, meta)
        checkpoint.prune(folder)


def _grains(
    config: TrainConfig, tokens_BS: torch.Tensor, targets_BS: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield the grains of a batch, in order, on the device: (grain, S) each."""
    for tokens, targets in zip(tokens_BS.split(config.grain), targets_BS.split(config.grain), strict=True):
        yield tokens.to(config.device), targets.to(config.device)


def _result(folder: Path, start: int, saved: int | None = None) -> Result:
    records = read_log(folder / "log.jsonl")
    try:
        return Result(
            steps=len(records),
            train_losses=tuple(record["loss"] for record in records),
            heldout_losses=tuple(
                (record["step"], record["heldout_ce"]) for record in records if "heldout_ce" in record
            ),
            heldout_ce=records[-1]["heldout_ce"],
            bits_per_byte=records[-1]["heldout_bits_per_byte"],
            median_step_seconds=statistics.median(record["seconds"] for record in records),
            folder=folder,
            resumed_from=start,
            saved_bytes=saved,
        )
    except KeyError as error:
        log = str(folder / "log.jsonl")
        raise ValueError(f"log {log!r} is damaged: a line lacks {error}; start again in another run folder") from None


def _identity(config: TrainConfig, ops: ModuleType) -> dict[str, Any]:
    """Return what decides the run's bits, as JSON: the fields of the configuration and the name of the operations."""
    fields = dataclasses.asdict(config).items()
    return {"ops": ops.__name__} | {name: value for name, value in fields if name not in _NOT_IDENTITY}


@contextlib.contextmanager
def _pinned(threads: int) -> Iterator[None]:
    """Pin what bits depend on in torch, and give it back afterwards."""
    before = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    # cuBLAS is deterministic only with a fixed workspace, and reads this when CUDA is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_num_threads(before)
        if workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
