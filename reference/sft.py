"""`fourbit sft`: supervised fine-tuning on prompts and completions, or chats.

    loss = sum_g (sum over learned tokens of g of -log p(token) / learned tokens of the step
                  + balance_g * tokens of g / tokens of the step)

over the grains g of a step: every completion token of a batch counts the same, wherever it lies. Examples are packed
into sequences (`packing`), in which none sees another; filler is no token here, and no expert is given it. A step takes
`batch` of these rows, in the order of `order`, every row once an epoch.

Exact: rows and batches are functions of the data, seed and step; see `tune` for the rest. Shapes: B rows, S positions,
V vocabulary.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from .examples import Example, load_examples
from .expert import Draw
from .flags import named_flags
from .interrupts import interruptible
from .notice import notice
from .order import epoch_windows
from .packing import IGNORED, Rows, pack
from .stopping import require_finite
from .tune import TuneConfig, Tuned, Tuning, begin, tune

PROGRAM = "fourbit sft"


@dataclass(frozen=True)
class SftConfig(TuneConfig):
    """Fine-tune a model on prompts and completions, or chats; the same command in the same folder resumes."""

    data: str | None = None
    """JSON Lines with "prompt" and "completion", or chats in "messages", whose messages of "weight" 0 are not learned;
    generated exercises in arithmetic and with strings if left out. One in ten of what they ask is held out."""
    examples: int = 4096
    """Generated exercises, without `data`."""
    batch: int = 4
    """Packed sequences a step, a multiple of grain."""


@named_flags(SftConfig)
def main(argv: list[str], operations: Callable[[str, str], ModuleType]) -> int:
    """Run `fourbit sft` with `argv`; return the exit code 0, or raise as `sft` does."""
    config = tyro.cli(SftConfig, args=argv, prog=PROGRAM)
    done = sft(config, operations(config.ops, config.device), f"{PROGRAM} {shlex.join(argv)}")
    last = done.records[-1]
    said = "was finished already" if done.resumed_from == config.steps else "done"
    judged = (
        f"held-out {last['heldout_ce']:.4f} nats a token of completions, {100 * last['heldout_exact']:.0f} % of "
        f"{last['heldout_examples']} as greedy decoding would write them"
        if "heldout_ce" in last
        else f"{last['loss']:.4f} nats a token of the last step's completions; nothing is held out"
    )
    print(f"sft in {done.folder} {said}: {config.steps} steps, {judged}")
    return 0


def sft(
    config: SftConfig,
    ops: ModuleType,
    command: str | None = None,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> Tuned:
    """Fine-tune, or resume.

    Raises:
        ValueError: a bad argument, data or run folder; nothing was written.
        TrainingStopped, Interrupted, OSError: as `train`.
    """
    with interruptible(config.out) as interrupts:
        start = begin(config, ops, config.batch)
        sequence = start.config.model.sequence
        found = load_examples(config.data, start.codec, sequence, config.examples, config.seed)
        train, heldout = pack(found.train, sequence), pack(found.heldout, sequence) if found.heldout else None
        if not heldout:
            notice(f"data {found.description}: give examples that differ to have some held out")
        data = {"digest": found.digest, "description": found.description}
        tuned = {"stage": "sft", "packed": True}

        def make(tuning: Tuning) -> Sft:
            return Sft(tuning, train, heldout, found.heldout)

        return tune(start, tuned, data, make, interrupts, command, on_progress)


@dataclass(frozen=True, eq=False)
class Sft:
    """The stage, see `tune.Stage`. `texts`: the examples in `heldout`, which is None if nothing is held out."""

    tuning: Tuning
    train: Rows
    heldout: Rows | None
    texts: list[Example]

    def advance(self, step: int) -> dict[str, Any]:
        config, model = self.tuning.start.config, self.tuning.start.model
        windows = epoch_windows((step - 1) * config.batch, config.batch, len(self.train), config.seed)
        rows = self.train.take(torch.from_numpy(windows.astype("int64")))
        learned, real = int((rows.targets != IGNORED).sum()), rows.real
        ce = balance = 0.0
        for grain, part in parts(rows, config.grain, config.device):
            logits_BSV, extra = model.logits(part.tokens, Draw(config.seed, step, grain), 1, part.segments)
            loss = _sum(logits_BSV, part.targets) / torch.full((), learned, dtype=torch.float32)
            share = part.real / real
            require_finite(config.out, step, "loss", (loss + extra).item())
            (loss + extra * share).backward()
            ce, balance = ce + loss.item(), balance + extra.item() * share
        return {"loss": ce, "balance": balance, "learned": learned} | self.tuning.update(step)

    @torch.no_grad()
    def evaluate(self, step: int) -> dict[str, Any]:
        """heldout_ce: nats per learned token; heldout_exact: share of the heldout_examples whose learned tokens are all
        the likeliest ones. Nothing if nothing is held out."""
        if self.heldout is None:
            return {}
        config, model = self.tuning.start.config, self.tuning.start.model
        total, right = 0.0, []
        model.eval()
        for grain, part in parts(self.heldout, config.grain, config.device):
            # step -1: of no step of training
            logits_BSV, _ = model.logits(part.tokens, Draw(config.seed, -1, grain), 1, part.segments)
            total += _sum(logits_BSV, part.targets).item()
            right.append((logits_BSV.argmax(-1) == part.targets) | (part.targets == IGNORED))
        model.train()
        right_NS = torch.cat(right).cpu()
        exact = [
            bool(right_NS[row, column : column + len(text.tokens) - 1].all())
            for text, (row, column) in zip(self.texts, self.heldout.places, strict=True)
        ]
        ce = total / int((self.heldout.targets != IGNORED).sum())
        require_finite(config.out, step, "held-out loss", ce)
        return {"heldout_ce": ce, "heldout_exact": sum(exact) / len(exact), "heldout_examples": len(exact)}


def parts(rows: Rows, grain: int, device: str) -> Iterator[tuple[int, Rows]]:
    """What passes through the model together: the grain's number and its rows, on the device."""
    pieces = zip(*(t.split(grain) for t in (rows.tokens, rows.targets, rows.segments)), strict=True)
    for i, piece in enumerate(pieces):
        tokens, targets, segments = (t.to(device) for t in piece)
        yield i, Rows(tokens, targets, segments, [])


def _sum(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """The summed cross entropy of learned tokens, nats."""
    logits = logits_BSV.flatten(0, 1).to(torch.float32)
    return F.cross_entropy(logits, targets_BS.flatten(), ignore_index=IGNORED, reduction="sum")
