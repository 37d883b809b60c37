"""The demo's curves and its page. Words that judge are computed from the measurements."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from reference.train import Result, TrainConfig

from . import plots, report
from .interval import listed


@dataclass(frozen=True)
class Look:
    """How a recipe is drawn (colour, dash, marker) and what it is, in words."""

    color: str
    dash: str
    marker: str
    words: str


RECIPES = {
    "bf16": Look(plots.BLACK, "-", "o", "The baseline: all products and all travel in BF16."),
    "mxfp8": Look(
        plots.ORANGE,
        ":",
        "D",
        "The experts' products in MXFP8, 8-bit numbers with a power-of-two scale for 32 of them, and dispatch too.",
    ),
    "fourbit": Look(
        plots.BLUE,
        "-",
        "s",
        "After Thinking Machines Lab, End-to-End 4-Bit Training (2026): NVFP4 forward, MXFP8 backward from the saved "
        "NVFP4 numbers, rounded stochastically.",
    ),
    "fourbit_rn": Look(
        plots.VERMILION, "--", "^", "The same with nearest instead of stochastic rounding of the saved numbers."
    ),
}

_HEADER = ("recipe", "held-out, nats", "held-out, bits per byte", "gap, nats", "training gap, nats", "step, ms")

_ABOUT = (
    "fourbit is a numerics toolkit and a reference implementation for training mixture-of-experts language models "
    "end to end in 4 bits. The experts multiply in NVFP4, 4-bit numbers that share a scale in blocks of 16, and go "
    "backward in MXFP8, made from the saved 4-bit numbers by stochastic rounding; tokens travel to the experts in "
    "NVFP4 and come back in one byte per number after a Hadamard rotation. All of it is emulated here, bit for bit, on "
    "an ordinary processor: what you see is what the arithmetic does to a model, not how fast a chip would be."
)


@dataclass(frozen=True)
class Facts:
    """What the page tells besides measurements: the command, steps, one run's configuration and meta.json, and the
    preset that the others are compared with."""

    command: str
    steps: int
    run: TrainConfig
    meta: dict[str, Any]
    baseline: str


def draw_losses(results: dict[str, Result]) -> Figure:
    """Training loss, smoothed, and held-out loss against steps."""
    with plots.style():
        figure, (axes,) = plots.panels(1, plots.COLUMN, 2.7)
        top = []
        for preset, result in results.items():
            look = RECIPES[preset]
            smooth = plots.smooth(np.array(result.train_losses))
            axes.plot(np.arange(1, result.steps + 1), smooth, look.dash, color=look.color, lw=1.1)
            axes.plot(*zip(*result.heldout_losses, strict=True), look.marker, color=look.color, mfc="white", ms=4.5)
            axes.plot([], [], look.dash, marker=look.marker, color=look.color, mfc="white", label=preset)
            top.append(smooth[result.steps // 20])
        axes.set_ylim(top=max(top))  # the first steps, from 5.5 nats, would flatten all the rest
        axes.set_xlim(left=0)
        axes.set_title("Loss")
        axes.set_xlabel("step")
        axes.set_ylabel("nats per byte")
        figure.legend(loc="outside lower center", ncols=4, columnspacing=1.2, handlelength=2)
    return figure


def draw_gaps(results: dict[str, Result], baseline: str) -> Figure:
    """Difference to the baseline: training loss, smoothed, and held-out loss."""
    base = results[baseline]
    with plots.style():
        figure, (axes,) = plots.panels(1, plots.COLUMN, 2.7)
        axes.axhline(0, color=plots.BLACK, lw=0.8)
        for preset, result in results.items():
            if preset == baseline:
                continue
            look = RECIPES[preset]
            gap = np.array(result.train_losses) - np.array(base.train_losses)
            axes.plot(np.arange(1, result.steps + 1), plots.smooth(gap), look.dash, color=look.color, lw=1.1)
            pairs = zip(result.heldout_losses, base.heldout_losses, strict=True)
            points = [(step, own - other) for (step, own), (_, other) in pairs]
            axes.plot(*zip(*points, strict=True), look.marker, color=look.color, mfc="white", ms=4.5)
            axes.plot([], [], look.dash, marker=look.marker, color=look.color, mfc="white", label=preset)
        axes.set_xlim(left=0)
        axes.set_title(f"Gap to {baseline}")
        axes.set_xlabel("step")
        axes.set_ylabel("nats per byte")
        figure.legend(loc="outside lower center", ncols=4, columnspacing=1.2, handlelength=2)
    return figure


def cells(table: pd.DataFrame, baseline: str) -> list[tuple[str, ...]]:
    """The table's numbers as texts, under `_HEADER`."""
    rows = []
    for row in table.itertuples():
        gap, train_gap = f"{row.gap_nats:+.4f}", f"{row.train_gap_nats:+.4f} ± {row.train_gap_half:.4f}"
        gaps = ("-", "-") if row.preset == baseline else (gap, train_gap)
        losses = (f"{row.heldout_nats:.4f}", f"{row.heldout_bits:.4f}")
        rows.append((row.preset, *losses, *gaps, f"{1000 * row.step_seconds:.0f}"))
    return rows


def text_table(table: pd.DataFrame, baseline: str) -> str:
    """The table for a terminal."""
    rows = [_HEADER, *cells(table, baseline)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )


def page(facts: Facts, table: pd.DataFrame, curves: tuple[Figure, Figure], study: Path) -> str:
    """The whole page.

    Args:
        facts, table: what to report. curves: loss and gap. study: of the requantization study, two folders below the
            page's.
    """
    loss, gap = (plots.render(figure, "svg") for figure in curves)
    model = facts.run.model
    return report.page(
        "fourbit: one small model, four recipes",
        report.paragraph(_ABOUT),
        report.heading("The runs"),
        report.paragraph(
            f"A mixture-of-experts language model over bytes: {model.depth} layers of width {model.dim}, "
            f"{model.experts} experts of width {model.expert_dim}, of which {model.top_k} serve a token. It trains for "
            f"{facts.steps} steps of {facts.run.batch * model.sequence} tokens, with the same initial weights and "
            "batches under each recipe:"
        ),
        report.facts((name, look.words) for name, look in RECIPES.items()),
        report.table(
            _HEADER,
            cells(table, facts.baseline),
            f"Held-out loss after the last step, on {facts.run.eval_sequences * model.sequence} bytes of files that no "
            f"run trained on; gaps are to {facts.baseline}. Training gap: mean difference over the last quarter of the "
            f"steps, which saw the same batches, with a 95 % interval over steps. Step: median.",
        ),
        report.paragraph(_judge(table, facts.baseline)),
        report.row(
            report.figure(
                loss,
                "Loss against steps for each recipe",
                "Lines: training loss, running mean. Markers: held-out loss. The next figure has the differences.",
            ),
            report.figure(
                gap,
                f"Difference to {facts.baseline} against steps",
                "The same as differences to "
                f"{facts.baseline} at equal steps: above zero is worse than {facts.baseline}.",
            ),
        ),
        *report.study(study, study.parent.parent),
        report.heading("How to read this"),
        report.bullets(_notes(facts)),
        report.heading("Where it comes from"),
        report.facts(_origin(facts)),
        report.paragraph("The same again, in the folder of the clone:"),
        report.command(f".venv/bin/{facts.command}"),
    )


def _judge(table: pd.DataFrame, baseline: str) -> str:
    """What the table says, with its reach."""
    base = table[table.preset == baseline].iloc[0]
    others = table[table.preset != baseline]
    gaps = listed(
        f"{row.gap_nats:+.4f} nats ({100 * row.gap_nats / base.heldout_nats:+.2f} %) for {row.preset}"
        for row in others.itertuples()
    )
    clear = [row.preset for row in others.itertuples() if abs(row.train_gap_nats) > row.train_gap_half]
    told = f"zero is outside the interval for {listed(clear)}" if clear else "zero is inside every interval"
    return (
        f"{baseline} ends at {base.heldout_nats:.4f} nats per byte on held-out files; the others' gaps are {gaps}. Of "
        f"the training gaps, {told}. The intervals know the noise from step to step, not that of another seed, which "
        "was not run: read gaps as an order of magnitude, not as a ranking."
    )


def _notes(facts: Facts) -> list[str]:
    return [
        f"One seed ({facts.run.seed}), one small model, a short run. A gap of the size of its interval is noise, and "
        "what 4-bit training costs at scale cannot be read off this page.",
        "Only the experts' products and the travel of their tokens change with the recipe. Attention, router, shared "
        "expert, embeddings and head are the same BF16 in all, and in the 4-bit recipes the experts of the last sixth "
        "of the layers compute in MXFP8.",
        "Step times are those of emulation on this machine, with several runs at once, one thread each. They say how "
        "long the demo takes, nothing about hardware that has these formats.",
    ]


def _origin(facts: Facts) -> list[tuple[str, str]]:
    corpus, about = facts.meta["corpus"], facts.meta["environment"]
    megabytes = f"{corpus['bytes_train'] / 1e6:.1f} MB to train, {corpus['bytes_heldout'] / 1e6:.1f} MB held out"
    files = f"{corpus['files_train']} and {corpus['files_heldout']} files"
    return [
        ("corpus", f"{corpus['description']}: {megabytes} ({files})"),
        ("its sha256", corpus["digest"]),
        ("fourbit", report.version(about)),
        ("versions", f"Python {about['python']}, torch {about['torch']}, numpy {about['numpy']}"),
        ("machine", f"{about['device']}, {about['platform']}"),
    ]
