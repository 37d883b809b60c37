"""`fourbit order`: which recipe loses how much, and whether the orders that sources claim hold.

Every recipe trains with every seed. The runs of one seed have equal initial weights and batches, so they differ in
arithmetic alone and are compared in pairs; seeds are independent, so intervals are Student's over seeds. Statistics are
in `loss_order_table`, claims with their sources in `loss_order_claims`, the runs' schedule in `campaign`, and reading
what they left in `loss_order_records`. `out` holds

    losses.csv        every loss: recipe, seed, step, loss, heldout_nats (empty where there was no evaluation)
    meta.json         command, model, corpus, versions, failed runs, finding
    recipes.csv       differences to the baseline; claims.csv: differences and verdicts
    table.md          finding and both tables
    order.svg, .png   the figure
    runs/             one folder for each run, see `reference.train`; with --runs elsewhere

Interrupted, or stopped by --minutes, the same command goes on where the checkpoints are. The tables are of the last
step that all runs have reached, so they can be made at any time: --table trains nothing, and needs the first two files
alone.
"""

import dataclasses
import math
import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import tyro

from hw.choose import operations
from reference.checkpoint import make_folder, write_atomic, write_json
from reference.log import environment
from reference.model import ModelConfig, Transformer
from reference.presets import preset
from reference.progress import Progress
from reference.train import TrainConfig, check, corpus_of, require_resumable

from . import loss_order_table as tables
from . import plots
from .campaign import advance_all, reached
from .loss_order_claims import BASELINE, CLAIMS, RECIPES
from .loss_order_records import chosen, collect, run_folder, stored

# widths that every recipe's blocks divide, the 128 of two of them included
_MODEL = ModelConfig(dim=256, expert_dim=128, shared_dim=128, sequence=256)


@dataclass(frozen=True)
class OrderConfig:
    """Train recipes with equal data and paired seeds, and judge which lose less; the same command resumes."""

    out: Path = Path("results/order")
    """Folder of the tables and the figure."""
    runs: Path | None = None
    """Folder of the runs, whose checkpoints take 24 bytes a parameter and run; OUT/runs if left out."""
    recipes: tuple[str, ...] = RECIPES
    """Recipes; bf16, which the others are compared with, must be among them."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds: initial weights, batches and stochastic rounding. Two or more; intervals are over them."""
    steps: int = 500
    """Optimizer steps of each run, to which the learning rate's schedule is laid out."""
    stage: int = 50
    """Steps from one evaluation and checkpoint of a run to the next; tables are of a step where one was."""
    minutes: float | None = None
    """Stop training so long after the start of this command, and write the tables of what all runs have reached."""
    table: bool = False
    """Train nothing: make tables and figure again from the runs, or else from losses.csv and meta.json."""
    data: str | None = None
    """Text file, folder or glob to train on; Python's own standard library if left out."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to train; never chosen for you."""
    ops: Literal["emulated", "triton", "blackwell-library"] = "emulated"
    """What computes the experts: the emulation; Triton kernels with the same bits, on a GPU; or these with the
    block-scaled products of torch, on a B200 or B300 (blackwell-library; never run)."""
    workers: int = 2
    """Runs that train at the same time, each on one core; a GPU serves 12 to 16."""
    batch: int = 16
    """Sequences a step."""
    grain: int = 16
    """Sequences that pass through the model together."""
    lr: float = 2e-3
    """Peak learning rate."""
    eval_sequences: int = 64
    """Held-out sequences per evaluation, the same ones each time."""
    model: ModelConfig = field(default_factory=lambda: _MODEL)
    """Dimensions of the model."""


def main(argv: list[str]) -> int:
    """Run `fourbit order` with `argv`. Returns 0, or 1 if a run failed; raises as `order` does."""
    config = tyro.cli(OrderConfig, args=argv, prog="fourbit order", config=(tyro.conf.FlagCreatePairsOff,))
    failed = order(config)
    print((config.out / "table.md").read_text("utf-8"))
    print(f"written to {config.out.resolve()}")
    for run, reason in failed.items():
        print(f"failed: {run}: {reason}", file=sys.stderr)
    return 1 if failed else 0


def order(config: OrderConfig) -> dict[str, str]:
    """Train, unless `config.table` says not to, and write tables and figure.

    Returns:
        Runs that failed, as "recipe, seed n", and why. Their recipes are left out of the tables.

    Raises:
        ValueError: a bad argument, corpus or folder, or no step that all runs have reached. OSError: the disk refuses.
    """
    if config.table:
        rows, meta = stored(config.out, _runs(config))
    else:
        rows, meta = _train(config)
    default = OrderConfig()
    recipes = chosen("recipes", meta, config.recipes, config.recipes == default.recipes)
    seeds = chosen("seeds", meta, config.seeds, config.seeds == default.seeds)
    if BASELINE not in recipes or len(set(seeds)) < max(2, len(seeds)):
        raise ValueError(
            f"recipes={recipes}, seeds={seeds}: tables need {BASELINE}, the baseline, and two or more different seeds"
        )
    failures = {run: reason for run, reason in meta["failed"].items() if run.split(",")[0] in recipes}
    left_out = {run.split(",")[0]: f"seed {run.split()[-1]} failed: {reason}" for run, reason in failures.items()}
    if BASELINE in left_out:
        raise ValueError(f"{BASELINE}, which all are compared with, {left_out[BASELINE]}; the same command tries again")
    measured = tables.measure(rows, [recipe for recipe in recipes if recipe not in left_out], seeds)
    _write(config, measured, meta, left_out)
    return failures


def train_config(config: OrderConfig, recipe: str, seed: int) -> TrainConfig:
    """One run: all of a seed's are the same but for the recipe and the folder."""
    return TrainConfig(
        out=run_folder(_runs(config), recipe, seed),
        preset=recipe,
        data=config.data,
        steps=config.steps,
        batch=config.batch,
        grain=config.grain,
        lr=config.lr,
        warmup=config.steps // 10,
        eval_every=config.stage,
        eval_sequences=config.eval_sequences,
        checkpoint_every=config.stage,
        seed=seed,
        device=config.device,
        ops=config.ops,
        threads=1,
        progress="hide",
        model=config.model,
    )


def command_line(config: OrderConfig) -> str:
    """The command that repeats `config`, but for where things lie: whatever differs from the defaults."""
    default, words = OrderConfig(), ["fourbit", "order"]
    for prefix, own, usual in (("", config, default), ("model.", config.model, default.model)):
        for name in (f.name for f in dataclasses.fields(own)):
            value = getattr(own, name)
            if value == getattr(usual, name) or name in ("out", "runs", "minutes", "table", "model"):
                continue
            told = value if isinstance(value, tuple) else (value,)
            words += [f"--{prefix}{name}".replace("_", "-"), *map(str, told)]
    return shlex.join(words)


def _runs(config: OrderConfig) -> Path:
    return config.out / "runs" if config.runs is None else config.runs


def _check(config: OrderConfig) -> None:
    """Raises ValueError for arguments that no run would take, before anything is written."""
    if len(set(config.seeds)) < max(2, len(config.seeds)):
        raise ValueError(f"seeds={config.seeds}: intervals need two or more different ones")
    if BASELINE not in config.recipes or len(set(config.recipes)) < max(2, len(config.recipes)):
        raise ValueError(f"recipes={config.recipes}: name {BASELINE}, the baseline, and others, each once")
    if config.stage < 4:
        raise ValueError(f"stage={config.stage}: tables compare the last quarter of the steps; use 4 or more")
    if config.steps < 4:
        raise ValueError(f"steps={config.steps}: tables compare the last quarter of the steps; use 4 or more")
    if config.minutes is not None and not config.minutes > 0:
        raise ValueError(f"minutes={config.minutes}: use a positive number, or --table to train nothing")
    if config.workers < 1:
        raise ValueError(f"workers={config.workers}: use 1 or more")
    for seed in config.seeds:
        check(train_config(config, BASELINE, seed))
    for recipe in config.recipes:
        config.model.check(preset(recipe))
        for run in (train_config(config, recipe, seed) for seed in config.seeds):
            if (run.out / "config.json").is_file():  # of another campaign, whose meta.json would be written over
                require_resumable(run, operations(run.ops, run.device))
    corpus_of(train_config(config, BASELINE, config.seeds[0]))


def _train(config: OrderConfig) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Train, or resume; write and return every loss, and what the campaign was."""
    began = time.monotonic()
    _check(config)
    for folder in (config.out, _runs(config)):
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{str(folder)!r} is a file; name a folder")
        make_folder(folder)
    model = Transformer(config.model, preset(BASELINE), operations(config.ops, config.device), 0)
    meta: dict[str, Any] = {
        "command": command_line(config),
        "recipes": list(config.recipes),
        "seeds": list(config.seeds),
        "steps": config.steps,
        "tokens_per_step": config.batch * config.model.sequence,
        "parameters": sum(p.numel() for p in model.parameters()),
        "model": dataclasses.asdict(config.model),
        "device": config.device,
        "workers": config.workers,
        "failed": {},
        "environment": environment(config.device),
    }
    write_json(config.out / "meta.json", meta)  # now, so that --table can read the runs of a campaign that was killed
    configs = [train_config(config, recipe, seed) for seed in config.seeds for recipe in config.recipes]
    deadline = math.inf if config.minutes is None else began + 60 * config.minutes
    failed = _advance(configs, config.workers, deadline)
    names = {run.out: f"{run.preset}, seed {run.seed}" for run in configs}
    meta |= {"failed": {names[out]: reason for out, reason in failed.items()}}
    meta |= {"seconds_of_last_call": round(time.monotonic() - began, 1)}
    return collect(config.out, _runs(config), meta), meta


def _advance(configs: list[TrainConfig], workers: int, deadline: float) -> dict[Path, str]:
    done = {run.out: reached(run.out) for run in configs}
    with Progress(sum(run.steps for run in configs), "training") as progress:
        progress.skip(sum(done.values()))

        def on_step(run: TrainConfig, record: dict[str, Any]) -> None:
            note = f"{run.preset}, seed {run.seed}, step {record['step']} of {run.steps}, loss {record['loss']:.3f}"
            progress.advance(1, note)

        outcome = advance_all(configs, workers, on_step, deadline)
    if not outcome.finished:
        print("the time is up; the same command goes on from the checkpoints", file=sys.stderr)
    return outcome.failed


def _write(config: OrderConfig, measured: tables.Measured, meta: dict[str, Any], left_out: dict[str, str]) -> None:
    finding = tables.finding(measured, CLAIMS)
    meta |= {"table_step": measured.step, "finding": finding}
    corpus = (meta.get("corpus") or {}).get("description", "unknown")
    about = (
        f"{meta['steps']} steps planned, of {meta['tokens_per_step']} bytes; {meta['parameters'] / 1e6:.1f} million "
        f"parameters; on {meta['device']}; corpus: {corpus}; made by `.venv/bin/{meta['command']}`."
    )
    text = f"{finding}\n\n{tables.markdown(measured, CLAIMS, left_out)}\n{about}\n"
    write_atomic(config.out / "table.md", text.encode())
    frames = {"recipes": tables.recipe_table(measured), "claims": tables.claim_table(measured, CLAIMS)}
    for name, frame in frames.items():
        write_atomic(config.out / f"{name}.csv", frame.to_csv(index=False, lineterminator="\n").encode())
    figure = tables.draw(measured, CLAIMS)
    for kind in ("svg", "png"):
        write_atomic(config.out / f"order.{kind}", plots.render(figure, kind))
    write_json(config.out / "meta.json", meta)
