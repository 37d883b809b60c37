"""The training loop: AdamW or Muon over grains, evaluated, logged, and resumable bit for bit.

One step draws `batch` sequences and cuts them into grains. The experts see each grain alone, with the random bits that
Draw(seed, step, grain) names, however many of them pass through the model together (`micro_batch`): the experts' codes
do not depend on that. FP32 sums of the dense layers do; `deterministic` passes every grain alone, sums the experts'
products exactly (or as `products` says), and sums gradients in grain order:

    loss = sum_g (grain / batch) * (ce_g + balance_g)
    lr   = peak * step / warmup, then half a cosine, or stable and a decay: see `learning_rate`
    g    = gradient * min(1, clip / ||gradient||), one norm over all weights
    AdamW in FP32, decay only on weights of two or more dimensions; or Muon, or narrower moments: see `optimizer`

Steps count from 1. Everything random is a function of (seed, step), so a checkpoint holds the weights, the state of the
optimizer, the step, and what an open window of `oscillation` has measured; nothing else. Exact: equal configuration,
corpus, versions and device give equal bits, killed and resumed or not; threads are pinned and torch's deterministic
algorithms are on while the loop runs.

Processes that torchrun starts are ranks of one run, see `parallel_run`; under `deterministic` it has the bits of one.

A run folder holds config.json (what decides the bits), meta.json (versions, corpus, device, commit), log.jsonl (one
line per step) and the last two checkpoints. Rerunning the same configuration in its folder continues it.

Shapes: B sequences, S tokens per sequence.
"""

import contextlib
import dataclasses
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from .board import Board, require_tensorboard
from .collectives import Traffic
from .command_line import Arguments, command_of, exact, parse
from .config import THRESHOLDS, TrainConfig, check
from .data import Corpus, load_corpus, require_sequences, require_vocabulary
from .flags import named_flags
from .folder_tokens import require_tokens
from .guard import Guard, digest, reference_losses
from .interrupts import Interrupts, interruptible, saved
from .lengthen import lengthen
from .log import EVALUATION, open_run, read_log, require_run_folder
from .logbook import Logbook, require_wandb
from .model import Transformer
from .notice import notice_begin
from .optimizer import make_optimizer
from .parallel_run import ParallelRun, opened, parallel, place, speaks
from .pinned import pinned
from .presets import preset
from .pretrained import digest as pretrained_digest
from .pretrained import initialize
from .progress import of_steps
from .ranks import Ranks, end, leave, ranks_of
from .recipe import Recipe
from .run import Run
from .same import check_same
from .schedule import Schedule, schedule
from .sizes import stated
from .stopping import TrainingStopped, model_in_memory, step_in_memory
from .trial import require_products
from .watch import shared_fate

__all__ = ["Result", "TrainConfig", "TrainingStopped", "check", "main", "require_resumable", "train"]

# fields that do not change a bit of the run
_NOT_IDENTITY = (
    *("out", "progress", "activations", "monitor_every", "monitor_reference", "tensorboard", "wandb", "raise_to"),
    "ops",  # told by the module's own name
    "recompute",
    "init_from",  # counts by what is in it
    *("ep", "fsdp", "dp", "waves", "timeout"),
)
# fields that runs of earlier versions had at their defaults, without noting them
_LATER = (
    *("optimizer", "moments", "muon_momentum", "schedule", "decay_share", "decay_shape"),
    *("tokenizer", "end_token", "text_field", "order", "parity"),
)


_WAY = (
    "runs with schedule wsd can be lengthened; go on from the weights of this one by `fourbit export --to bf16` and "
    "init_from in another out"
)


@dataclass(frozen=True)
class Result:
    """What a finished run measured.

    Attributes:
        steps: optimizer steps.
        train_losses: cross entropy of each step's batch, nats per token.
        heldout_losses: (step, held-out cross entropy in nats per token) of each evaluation.
        heldout_ce: held-out cross entropy after the last step, nats per token.
        bits_per_byte: the same in bits per byte of the held-out text; the default's tokens are bytes.
        median_step_seconds: of a step without evaluation and checkpoint.
        folder: the run folder.
        resumed_from: the step that this call continued from: 0 for a new run, `steps` if it was finished already.
        saved_bytes: that autograd kept of the first pass (`micro_batch` sequences) for its backward, parameters left
            out; None if no step was taken.
        sent: what all ranks of this call have sent, by phase; None for one process.
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
    sent: Traffic | None = None


@named_flags(Arguments)
def main(argv: list[str], operations: Callable[[str, str], ModuleType]) -> int:
    """Run `fourbit train` with `argv`; return the exit code 0, or raise as `train` does.

    Args: operations: gives the module that `ops` and `device` of the command line name, or raises ValueError.
    """
    config = parse(argv)
    result = train(config, operations(config.ops, config.device), command=exact(argv))
    if not speaks():
        end(0)
    done = f"was finished already: {result.steps}" if result.resumed_from == result.steps else f"done: {result.steps}"
    print(
        f"{config.preset} in {result.folder} {done} steps, held-out {result.heldout_ce:.4f} nats "
        f"a token, {result.bits_per_byte:.4f} bits a byte, {result.median_step_seconds:.3f} s a step"
        + ("" if result.saved_bytes is None else f", {result.saved_bytes / 1e6:.2f} MB saved for a backward")
    )
    if result.sent is not None:
        print(result.sent.summary())
    end(0)
    return 0


def train(
    config: TrainConfig,
    ops: ModuleType,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
    command: str | None = None,
) -> Result:
    """Train, or resume, the run that `config` describes.

    Args:
        config: the run.
        ops: the operations of the expert path, `numerics.ops` or a module with its functions; `config.ops` names them
            for whoever chooses it.
        on_progress: called after each step with that step's log record.
        command: what the run folder says to run it by; one that gives `config` if left out.

    Returns:
        The result of the finished run.

    Raises:
        ValueError: a bad argument, corpus or run folder; nothing was written.
        TrainingStopped: a NaN, an infinity, or too little memory for a step; the checkpoints before it are kept.
        Interrupted: by Ctrl-C or SIGTERM; what was begun is saved, see `interrupts`.
        OSError: the disk refuses.
        SystemExit: on several ranks, instead of any of these: one of them has told it.
    """
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(shared_fate(config.timeout))
        if watch is not None:  # the watch prints errors itself, and torchrun starts commands
            stack.enter_context(named_flags(Arguments))
        interrupts = stack.enter_context(interruptible(config.out, watch is None))
        check(config)
        identity = identity_of(config, ops, None) if config.monitor_reference is None else {}
        # all fields: what decides no bit may decide who waits for whom
        ranks = ranks_of(config, dataclasses.asdict(config) | identity)
        if watch is not None:
            watch.start()
        try:
            return _train(config if ranks is None else parallel(config), ops, on_progress, command, ranks, interrupts)
        finally:
            leave()


def _train(
    config: TrainConfig,
    ops: ModuleType,
    on_progress: Callable[[dict[str, Any]], None] | None,
    command: str | None,
    ranks: Ranks | None,
    interrupts: Interrupts | None = None,
) -> Result:
    """See `train`."""
    recipe, layers = preset(config.preset), schedule(config)
    reference = None if config.monitor_reference is None else reference_losses(config.monitor_reference, config.out)
    if config.tensorboard is not None:
        require_tensorboard(config.tensorboard)
    if config.wandb is not None:
        require_wandb(config.wandb)
    require_tokens(config)
    corpus = corpus_of(config)
    if ranks is not None:
        check_same(ranks.gather({"data.sha256": corpus.digest[:12]}))
    with pinned(config.threads):
        model = _build(config, recipe, layers, ops)
        require_products(model, config, layers)
        identity = identity_of(config, ops, reference)
        if ranks is not None:
            place(model, config, layers, ranks)
        names = config.out, identity, partial(lengthen, config, way=_WAY)
        with open_run(*names) if ranks is None else opened(*names, ranks) as log:
            guard = Guard(config, layers, reference)
            parts = config, identity, corpus, model, make_optimizer(model, config), log, layers, guard
            run = Run(*parts) if ranks is None else ParallelRun(*parts, ranks=ranks)
            start = run.resume(command or command_of(config))
            if start == config.steps and config.activations is not None:
                raise ValueError(
                    f"activations {str(config.activations)!r} are recorded in the last step, which run "
                    f"{str(config.out)!r} has taken; use more steps, or another out"
                )
            if start < config.steps:
                _steps(run, start, interrupts or Interrupts(), on_progress)
        found = _result(config.out, start, *run.saved)
        return dataclasses.replace(found, sent=run.sent())


def corpus_of(config: TrainConfig) -> Corpus:
    """The corpus that `config` names. Raises ValueError as `load_corpus`, and for one that does not fit the run."""
    corpus = load_corpus(config.data, config.tokenizer, config.text_field, config.end_token)
    require_vocabulary(corpus, config.model.vocab)
    require_sequences(corpus.train, "training part", 1, config.model.sequence, corpus.description)
    require_sequences(corpus.heldout, "held-out part", config.eval_sequences, config.model.sequence, corpus.description)
    return corpus


def require_resumable(config: TrainConfig, ops: ModuleType) -> None:
    """Raises ValueError if `train` would not take up the folder of `config`, which has no `monitor_reference`."""
    require_run_folder(config.out, identity_of(config, ops, None))


def _steps(run: Run, start: int, interrupts: Interrupts, on_progress: Callable[[dict[str, Any]], None] | None) -> None:
    """Take the steps after `start`, with progress, for TensorBoard and for Weights & Biases."""
    config = run.config
    if speaks():
        notice_begin(config, start)
    with contextlib.ExitStack() as stack:
        watchers: list[Callable[[dict[str, Any]], None]] = [] if on_progress is None else [on_progress]
        if config.tensorboard is not None and speaks():
            watchers.insert(0, stack.enter_context(Board(config.tensorboard, start)).add)
        if config.wandb is not None and speaks():
            watchers.insert(0, stack.enter_context(Logbook(config.wandb, config.out, run.identity)).add)
        shown = config.progress if speaks() else "hide"
        progress = stack.enter_context(of_steps(config.steps, start, config.preset, shown))
        stack.enter_context(interrupts.steps())
        for step in range(start + 1, config.steps + 1):
            with step_in_memory(config.out, step):
                record = run.advance(step)
            progress.advance(1, f"step {step} of {config.steps}, loss={record['loss']:.3f}")
            for add in watchers:
                add(record)
            if interrupts.asked and step < config.steps:
                if not config.saves(step):
                    run.save(step)
                raise saved(step, config.steps, interrupts.asked)


def _build(config: TrainConfig, recipe: Recipe, layers: Schedule, ops: ModuleType) -> Transformer:
    with model_in_memory(config.model):
        model = Transformer(config.model, recipe, ops, config.seed, config.accumulator, config.recompute_glu)
        model.recompute_layers = config.recompute == "layers"
        if config.layer_presets:
            model.follow(layers.start)
        if config.init_from is not None:
            initialize(model, config.model, config.init_from)
        if config.parity:
            model.keep_parity()
        return model.to(config.device)


def _result(folder: Path, start: int, saved: int | None = None) -> Result:
    records = read_log(folder / "log.jsonl", "loss", "seconds", evaluation=EVALUATION)
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


def identity_of(config: TrainConfig, ops: ModuleType, reference: dict[int, float] | None) -> dict[str, Any]:
    """Return what decides the run's bits, as JSON: the fields of the configuration and the name of the operations.

    The monitor decides bits only where it raises layers, so a run without thresholds may be resumed with another
    interval or none. A reference counts by its losses, wherever it lies.
    """
    fields = {name: value for name, value in dataclasses.asdict(config).items() if name not in _NOT_IDENTITY}
    unset = [name for name in (*THRESHOLDS, "layer_presets", "products") if not fields[name]]
    unset += [name for name in _LATER if getattr(config, name) == getattr(TrainConfig, name)]
    fields["tokenizer"] = str(config.tokenizer)
    found = {"ops": ops.__name__} | {name: value for name, value in fields.items() if name not in unset}
    found["model"] = stated(config.model)
    if config.init_from is not None:
        found["init_from"] = pretrained_digest(config.init_from)
    if config.thresholds:
        found |= {"monitor_every": config.monitor_every, "raise_to": config.raise_to}
    if config.raise_loss is not None:
        found["monitor_reference"] = None if reference is None else digest(reference)
    return found
