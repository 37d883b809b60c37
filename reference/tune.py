"""What fine-tuning and reinforcement learning share: where they start, their run folders, and their loop.

Both go on from a run of `fourbit train`, or from one another: the FP32 masters of its newest checkpoint, its sizes, its
tokens and, unless another `preset` is named, its recipe. AdamW begins anew. A tuned run's folder is a run folder:
`fourbit generate`, `eval` and another stage read it as any other. Its config.json has, besides what `fourbit train`
writes, an object `tuned` with what else decides its bits; the same command continues it, bit for bit.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol

import torch
from torch import nn

from . import checkpoint
from .alphabet import alphabet_of
from .clip import clip
from .config import TrainConfig, check
from .examples import Codec
from .interrupts import Interrupts, saved
from .learning_rate import learning_rate
from .lengthen import lengthen
from .load import TUNED, load_run
from .log import Log, open_run, read_log, record_environment
from .model import ModelConfig, Transformer
from .notice import notice_begin
from .optimizer import make_optimizer
from .oscillation import Oscillation
from .pinned import pinned
from .presets import preset
from .progress import of_steps
from .router import rebalance
from .schedule import schedule
from .stopping import require_finite
from .train import identity_of


@dataclass(frozen=True)
class TuneConfig:
    """What every stage after pretraining has."""

    out: Path
    """Run folder; made if missing, resumed if it holds this run."""
    init: Path | None = None
    """Run folder to go on from: the newest weights there, with their sizes, tokens and recipe."""
    preset: str | None = None
    """Recipe of number formats; that of `init` if left out, or fourbit without one."""
    steps: int = 250
    """Steps of the whole run."""
    grain: int = 4
    """Sequences that pass through the model together."""
    deterministic: bool = False
    """Exact sums in the experts' products; slower."""
    parity: bool = False
    """Forms of every operation whose bits depend on a token's own sequence alone: what a sampler computes is then what
    the trainer computes, bit for bit; several times slower."""
    ops: Literal["emulated", "triton"] = "emulated"
    """What computes the experts: the emulation; or Triton kernels with the same bits, on a GPU."""
    lr: float = 1e-3
    """Peak learning rate."""
    warmup: int = 10
    """Steps of linear warm-up; shortened to the steps that there are."""
    min_lr_ratio: float = 0.1
    """Final learning rate as a share of the peak, at the end of half a cosine."""
    weight_decay: float = 0.1
    """AdamW's decay, on weights of two or more dimensions."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.95
    """AdamW's decay of the second moment."""
    clip: float = 1.0
    """Largest global norm of the gradient."""
    eval_every: int = 50
    """Steps between held-out evaluations; the last step is always evaluated."""
    checkpoint_every: int = 50
    """Steps between checkpoints; the last step always has one."""
    seed: int = 0
    """Decides what is drawn, and stochastic rounding."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to compute; never chosen for you."""
    threads: int = 1
    """CPU threads; FP32 sums depend on them."""
    progress: Literal["auto", "show", "hide"] = "auto"
    """Progress: auto is a bar on a terminal, else a line after a twentieth of the steps or 50."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Dimensions of the model, without `init`."""


@dataclass(frozen=True, eq=False)
class Start:
    """Where a stage begins.

    Attributes:
        config: the run as `fourbit train` would describe it; `data` and tokens are those of pretraining.
        model: in training mode, with the weights that it begins with.
        codec: of its tokens.
        corpus: sha256 of what it was pretrained on, None without `init`.
        about: what it began with, for config.json.
    """

    config: TrainConfig
    model: Transformer
    codec: Codec
    corpus: str | None
    about: dict[str, Any]


class Stage(Protocol):
    """What is done in a step, and how it is judged. Numbers for the log, which must be functions of the step."""

    def advance(self, step: int) -> dict[str, Any]: ...

    def evaluate(self, step: int) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Tuned:
    """A finished run. `records`: its log, one a step; `resumed_from`: the step that this call continued from."""

    folder: Path
    records: list[dict[str, Any]]
    resumed_from: int


def begin(config: TuneConfig, ops: ModuleType, batch: int) -> Start:
    """Make the model with the weights that a stage begins with.

    Args: batch: sequences a step, at most.

    Raises:
        ValueError: a bad argument, or no run at `init`.
    """
    base = TrainConfig(config.out, config.preset or "fourbit", model=config.model)
    loaded = None
    if config.init is not None:
        if config.model != ModelConfig():
            raise ValueError("model has sizes, and so has the run at init; leave one of the two out")
        loaded = load_run(config.init, ops, config.device)
        base = loaded.config
    run = dataclasses.replace(
        TrainConfig(config.out, monitor_every=0),
        **{name: getattr(base, name) for name in ("data", "tokenizer", "end_token", "text_field", "model")},
        preset=config.preset or base.preset,
        layer_presets=base.layer_presets if config.preset is None else {},
        batch=batch,
        eval_sequences=config.grain,
        **{name: getattr(config, name) for name in _SAME},
    )
    check(run)
    model = Transformer(run.model, preset(run.preset), ops, run.seed, run.accumulator)
    model.follow(schedule(run).start)
    if run.parity:
        model.keep_parity()
    about: dict[str, Any] = {"init": None}
    if loaded is not None:
        weights = loaded.model.state_dict()
        model.load_state_dict(weights)
        digest = checkpoint.digest_of({name: tensor.cpu().contiguous() for name, tensor in weights.items()})
        about = {"init": {"step": loaded.step, "weights": digest}}
    codec = Codec(alphabet_of(run, tuned=True))
    if codec.alphabet.size > run.model.vocab:
        raise ValueError(f"model.vocab {run.model.vocab} cannot hold {codec.alphabet.size} tokens; use as many or more")
    return Start(run, model.to(run.device), codec, None if loaded is None else loaded.corpus, about)


# of what decides a tuned run's bits; 1: filler was given to the experts, and held out were places, not contents;
# 2: of a chat, the system's words counted as what is asked
_RULES = 3

_SAME = (
    *(
        "steps",
        "grain",
        "deterministic",
        "parity",
        "ops",
        "lr",
        "warmup",
        "min_lr_ratio",
        "weight_decay",
        "beta1",
        "beta2",
    ),
    *("clip", "eval_every", "checkpoint_every", "seed", "device", "threads", "progress"),
)


@dataclass(frozen=True)
class Tuning:
    """A stage in progress: its start, optimizer and log."""

    start: Start
    identity: dict[str, Any]
    data: dict[str, Any]
    log: Log
    optimizer: torch.optim.Optimizer
    oscillation: Oscillation

    def resume(self, command: str | None) -> int:
        """Load the newest checkpoint, cut the log back to it, and return its step; 0 without one."""
        config, done = self.start.config, 0
        if path := checkpoint.latest(config.out):
            tensors, meta = checkpoint.load(path)
            checkpoint.restore_training_state(tensors, self.start.model, self.optimizer)
            self.oscillation.restore(tensors)
            done = meta["step"]
        self.log.cut(done)
        if done < config.steps:
            about = {"preset": config.preset, "seed": config.seed, "threads": config.threads, "corpus": self.data}
            record_environment(config.out, config.device, about, done, command)
        return done

    def update(self, step: int, number: int | None = None) -> dict[str, float]:
        """Take an optimizer step with the gradients that are there. number: of the optimizer step, if not `step`."""
        config, model = self.start.config, self.start.model
        norm = clip(model, config.clip) if config.deterministic else _clip(model, config.clip)
        require_finite(config.out, step, "gradient norm", norm)
        lr = learning_rate(config, step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.oscillation.around(step if number is None else number, self.optimizer.step)
        rebalance(model)
        self.optimizer.zero_grad(set_to_none=True)
        return {"lr": lr, "grad_norm": norm}

    def save(self, step: int) -> None:
        """Write the checkpoint of `step`, then delete the ones that it supersedes."""
        folder = self.start.config.out
        tensors = checkpoint.training_state(self.start.model, self.optimizer) | self.oscillation.state()
        self.log.sync()  # the log must never be behind a checkpoint
        # the corpus of pretraining, by which held-out loss is still judged
        meta = {"step": step, "corpus": self.start.corpus or self.data["digest"], "config": self.identity}
        checkpoint.save(checkpoint.checkpoint_path(folder, step), tensors, meta)
        checkpoint.prune(folder)


def _clip(model: nn.Module, most: float) -> float:
    norm: float = nn.utils.clip_grad_norm_(model.parameters(), most).item()
    return norm


def tune(
    start: Start,
    tuned: dict[str, Any],
    data: dict[str, Any],
    make: Callable[[Tuning], Stage],
    interrupts: Interrupts,
    command: str | None = None,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
    updates: int = 1,
) -> Tuned:
    """Run a stage to its end, or resume it.

    Args:
        start: from `begin`.
        tuned: what decides its bits besides `start.config`, a JSON object.
        data: "digest" and "description" of what it learns from.
        make: makes the stage.
        interrupts: of this call.
        command: what runs it, for meta.json.
        on_progress: called after each step with its log record.
        updates: optimizer steps of a step.

    Raises:
        ValueError: the run folder holds something else. TrainingStopped: a NaN. OSError: the disk refuses.
    """
    config, model = start.config, start.model
    _require_rules(config.out)
    tuned = {"rules": _RULES} | tuned | start.about | {"data": data["digest"]}
    identity = identity_of(config, model.ops, None) | {TUNED: tuned}
    data = data | {"vocab": start.codec.alphabet.size}
    way = f"go on from it in another folder: fourbit {tuned['stage']} --init {config.out} --out ANOTHER"
    longer = partial(lengthen, config, way=way)
    with pinned(config.threads), open_run(config.out, identity, longer) as log:
        oscillation = Oscillation(model, config.steps * updates)
        tuning = Tuning(start, identity, data, log, make_optimizer(model, config), oscillation)
        done = tuning.resume(command)
        if done < config.steps:
            _steps(tuning, make(tuning), done, interrupts, on_progress)
    return Tuned(config.out, read_log(config.out / "log.jsonl"), done)


def _require_rules(folder: Path) -> None:
    """Raises ValueError for a run that an earlier version began, whose steps this one would not take."""
    path = folder / "config.json"
    stored = checkpoint.read_json(path).get(TUNED) if path.is_file() else None
    if isinstance(stored, dict) and stored.get("rules", 1) != _RULES:
        raise ValueError(
            f"out {str(folder)!r} holds a run of an earlier version of fourbit, which gave filler to the experts, or "
            "held out other examples; go on with that version, which meta.json names, or use another out"
        )


def _steps(
    tuning: Tuning,
    stage: Stage,
    done: int,
    interrupts: Interrupts,
    on_progress: Callable[[dict[str, Any]], None] | None,
) -> None:
    config = tuning.start.config
    notice_begin(config, done)
    with of_steps(config.steps, done, tuning.identity[TUNED]["stage"], config.progress) as progress, interrupts.steps():
        for step in range(done + 1, config.steps + 1):
            began, last = time.perf_counter(), step == config.steps
            record = {"step": step} | stage.advance(step)
            record["seconds"] = time.perf_counter() - began
            if last or step % config.eval_every == 0:
                record |= stage.evaluate(step)
            tuning.log.append(record)
            if (asked := interrupts.asked) or last or step % config.checkpoint_every == 0:
                tuning.save(step)
            name = "reward" if "reward" in record else "loss"
            progress.advance(1, f"step {step} of {config.steps}, {name}={record[name]:.3f}")
            if on_progress is not None:
                on_progress(record)
            if asked and not last:
                raise saved(step, config.steps, asked)
