"""`fourbit demo`: one small mixture of experts under four recipes, and a page about it.

The four runs have equal initial weights and equal batches, so they differ in arithmetic alone. Two train at a time,
each on one thread. Then the requantization study runs. `out` holds

    report.html          the page, with everything inside
    table.csv            its table
    loss.svg, gap.svg    its curves, for print
    runs/PRESET/         the runs, see `reference.train`
    studies/             the study, see `study`

Interrupted and started again, the runs resume; finished ones are not repeated. Everything else is made anew.
"""

import dataclasses
import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import tyro

from reference.checkpoint import write_atomic
from reference.model import ModelConfig
from reference.progress import Progress
from reference.train import Result, TrainConfig

from . import demo_page, plots, requantization
from .interval import interval
from .parallel import train_all
from .study import run_study

STEPS = 500  # of each run: about three minutes in all on two cores
BASELINE = "bf16"
# slowest first: the last run to finish is then a short one, and the estimated time errs upward
_ORDER = tuple(reversed(demo_page.RECIPES))
_EVALUATIONS = 6


@dataclass(frozen=True)
class DemoConfig:
    """Train one small mixture of experts under four recipes and write a page about it; resumes when interrupted."""

    out: Path = Path("results/demo")
    """Folder of the page, the runs and the study."""
    steps: int = STEPS
    """Optimizer steps of each run."""
    seed: int = 0
    """Decides initial weights, batches and stochastic rounding."""
    data: str | None = None
    """Text file, folder or glob to train on; Python's own standard library if left out."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to train; never chosen for you."""
    ops: Literal["emulated", "triton", "blackwell-library"] = "emulated"
    """What computes the experts: the emulation; Triton kernels with the same bits, on a GPU; or these with the
    block-scaled products of torch, on a B200 or B300 (blackwell-library; never run)."""
    workers: int = 2
    """Runs that train at the same time, each on one core."""
    fast: bool = False
    """Run the study's fast version."""
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    """Dimensions of the model."""


def main(argv: list[str]) -> int:
    """Run `fourbit demo` with `argv`; return the exit code 0, or raise as `demo` does."""
    config = tyro.cli(DemoConfig, args=argv, prog="fourbit demo", config=(tyro.conf.FlagCreatePairsOff,))
    table = demo(config)
    print(demo_page.text_table(table, BASELINE))
    print(f"\nreport: {(config.out / 'report.html').resolve()}")
    return 0


def demo(config: DemoConfig) -> pd.DataFrame:
    """Train, study and write the page.

    Returns:
        One row per preset, see `tabulate`.

    Raises:
        ValueError: a bad argument, corpus or run folder. TrainingStopped: a NaN. OSError: the disk refuses.
    """
    if config.steps < 8:
        raise ValueError(f"steps={config.steps}: the table compares the last quarter of the steps; use 8 or more")
    if config.workers < 1:
        raise ValueError(f"workers={config.workers}: use 1 or more")
    results = train_presets(config)
    command = command_line(config)
    study = run_study(requantization.STUDY, config.out / "studies", config.fast, command)
    table = tabulate(results)
    write_atomic(config.out / "table.csv", table.to_csv(index=False, lineterminator="\n").encode())
    curves = demo_page.draw_losses(results), demo_page.draw_gaps(results, BASELINE)
    for name, figure in zip(("loss", "gap"), curves, strict=True):
        write_atomic(config.out / f"{name}.svg", plots.render(figure, "svg"))
    meta = json.loads((results[BASELINE].folder / "meta.json").read_bytes())
    facts = demo_page.Facts(command, config.steps, train_config(config, BASELINE), meta, BASELINE)
    write_atomic(config.out / "report.html", demo_page.page(facts, table, curves, study).encode())
    return table


def train_config(config: DemoConfig, preset: str) -> TrainConfig:
    """The run of one preset: everything but the recipe and the folder is the same for all."""
    return TrainConfig(
        out=config.out / "runs" / preset,
        preset=preset,
        data=config.data,
        steps=config.steps,
        warmup=min(20, config.steps // 4),
        eval_every=-(-config.steps // _EVALUATIONS),
        checkpoint_every=50,
        seed=config.seed,
        device=config.device,
        ops=config.ops,
        threads=1,
        progress="hide",
        model=config.model,
    )


def train_presets(config: DemoConfig) -> dict[str, Result]:
    """Train, or resume, all presets; results in the order of `demo_page.RECIPES`."""
    configs = [train_config(config, preset) for preset in _ORDER]
    done = dict.fromkeys(_ORDER, 0)
    with Progress(config.steps * len(configs), "training") as progress:

        def on_step(run: TrainConfig, record: dict[str, Any]) -> None:
            progress.skip(record["step"] - 1 - done[run.preset])  # steps of an earlier, interrupted call
            done[run.preset] = record["step"]
            progress.advance(1, f"{run.preset} step {record['step']} of {run.steps}, loss {record['loss']:.3f}")

        def on_end(run: TrainConfig, result: Result) -> None:
            progress.skip(result.steps - done[run.preset])
            done[run.preset] = result.steps

        results = dict(zip(_ORDER, train_all(configs, config.workers, on_step, on_end), strict=True))
    return {preset: results[preset] for preset in demo_page.RECIPES}


def tabulate(results: dict[str, Result]) -> pd.DataFrame:
    """One row per preset.

    Columns: preset; heldout_nats and heldout_bits after the last step, per byte; gap_nats, the difference to the
    baseline's heldout_nats; train_gap_nats and its half-width train_gap_half, the mean difference of training losses
    to the baseline's over the last quarter of the steps, which saw the same batches, with Student's 95 % interval over
    steps; step_seconds, the median.
    """
    base = results[BASELINE]
    last = max(2, base.steps // 4)
    rows = []
    for preset, result in results.items():
        pairs = zip(result.train_losses[-last:], base.train_losses[-last:], strict=True)
        gap = interval([own - other for own, other in pairs])
        rows.append(
            {
                "preset": preset,
                "heldout_nats": result.heldout_ce,
                "heldout_bits": result.heldout_ce / math.log(2),
                "gap_nats": result.heldout_ce - base.heldout_ce,
                "train_gap_nats": gap.mean,
                "train_gap_half": gap.half,
                "step_seconds": result.median_step_seconds,
            }
        )
    return pd.DataFrame(rows)


def command_line(config: DemoConfig) -> str:
    """The command that repeats `config`: steps and seed, and whatever differs from the defaults."""
    default = DemoConfig()
    words = ["fourbit", "demo", "--steps", str(config.steps), "--seed", str(config.seed)]
    pairs = [("", config, default), ("model.", config.model, default.model)]
    for prefix, own, usual in pairs:
        for field in dataclasses.fields(own):
            value = getattr(own, field.name)
            if value == getattr(usual, field.name) or field.name in ("steps", "seed", "model"):
                continue
            words += [f"--{prefix}{field.name}".replace("_", "-"), *([] if value is True else [str(value)])]
    return shlex.join(words)
