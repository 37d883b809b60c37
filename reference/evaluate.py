"""`fourbit eval RUN`: held-out loss and bits per byte of a trained model, and small tasks with known answers.

Held-out loss is the trainer's own, of the same sequences with the same bits. A task's item is scored by the model's
log-likelihoods of what follows the prompt, with the tokens before given:

    choice       the choice of largest sum log p, the first of equals, is the answer
    completion   at every place of the answer its token is the likeliest one: greedy decoding would write it

An item's choices pass through the model together, apart from other items. Intervals hold 95 % of a proportion's
estimates (Wilson, JASA 22, 1927), each by itself: of twenty one may miss. Shapes: B choices, S positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

from .alphabet import Tokens
from .checkpoint import write_json
from .config import TrainConfig, can_be_file
from .data import Corpus, heldout_batch, tokenizer_file
from .expert import Draw
from .flags import named_flags
from .load import Loaded, load_run
from .log import environment
from .pinned import pinned
from .progress import Progress
from .run import heldout_loss
from .tasks import CHOICES, TASKS, Item, Task
from .train import corpus_of

PROGRAM = "fourbit eval"
_Z = 1.959963984540054  # of 95 %, two-sided


@dataclass(frozen=True)
class EvalConfig:
    """Evaluate a trained model: held-out loss, bits per byte, and small generated tasks."""

    run: tyro.conf.Positional[Path]
    """Run folder, as `fourbit train` left it."""
    data: str | None = None
    """What `fourbit train --data` takes, whose held-out part is used; what the run was trained on if left out."""
    sequences: int | None = None
    """Held-out sequences; as many as in the run's own evaluations if left out; 0: no held-out loss."""
    items: int = 100
    """Items of each task; 0: no tasks."""
    seed: int = 0
    """Of the tasks' items."""
    step: int | None = None
    """Checkpoint to use; the newest if left out."""
    out: Path | None = None
    """JSON file for the results."""
    ops: Literal["emulated", "triton"] = "emulated"
    """What computes the experts: the emulation, or Triton kernels, on a GPU."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to compute."""
    progress: Literal["auto", "show", "hide"] = "auto"
    """Progress: auto is a bar on a terminal, else a line now and then."""


@dataclass(frozen=True)
class Score:
    """How often a task was solved. `right` of `items`; `chance`: what a guess is right in."""

    task: str
    kind: Literal["choice", "completion"]
    right: int
    items: int
    chance: float

    @property
    def share(self) -> float:
        return self.right / self.items

    @property
    def interval(self) -> tuple[float, float]:
        """Of 95 %."""
        return wilson(self.right, self.items)

    @property
    def verdict(self) -> str:
        """Whether the interval holds chance."""
        low, high = self.interval
        return "above chance" if self.chance < low else "below chance" if self.chance > high else "chance not excluded"


def wilson(right: int, items: int) -> tuple[float, float]:
    """The 95 % interval of a proportion of which `right` of `items` were seen, items >= 1."""
    share, square = right / items, _Z * _Z / items
    middle, half = share + square / 2, _Z * math.sqrt(share * (1 - share) / items + square / (4 * items))
    low, high = (middle - half) / (1 + square), (middle + half) / (1 + square)
    return (0.0 if right == 0 else low, 1.0 if right == items else high)


@torch.no_grad()
def score_item(run: Loaded, item: Item) -> tuple[bool, bool]:
    """(the answer is the likeliest choice, the answer is what greedy decoding writes)."""
    prompt = run.alphabet.encode(item.prompt)
    rows = [(place, run.alphabet.encode(choice)) for place, choice in enumerate(item.choices)]
    sums, greedy = [-math.inf] * len(rows), False
    rows.sort(key=lambda row: (len(row[1]), row[0]))
    for _, same in groupby(rows, key=lambda row: len(row[1])):  # all, where tokens are bytes
        places, choices = zip(*same, strict=True)
        ids_BS = torch.tensor([[*prompt, *choice] for choice in choices], device=run.config.device)
        log_BSV = _log_likelihoods(run, ids_BS, len(choices[0]))
        chosen_BS = torch.tensor(choices, device=log_BSV.device)
        found = log_BSV.gather(-1, chosen_BS[..., None]).sum((1, 2)).tolist()
        for place, value in zip(places, found, strict=True):
            sums[place] = value
        if item.answer in places:
            row = places.index(item.answer)
            greedy = torch.equal(log_BSV[row].argmax(-1), chosen_BS[row])
    return max(range(len(sums)), key=sums.__getitem__) == item.answer, greedy


def _log_likelihoods(run: Loaded, ids_BS: Tensor, last: int) -> Tensor:
    """log p (B, last, V) of the last tokens, float64, each with all before it given."""
    # step -1: of no step of training, as in evaluations
    logits_BSV, _ = run.model.logits(ids_BS[:, :-1], Draw(run.config.seed, -1, 0))
    return logits_BSV[:, -last:, : run.alphabet.size].double().log_softmax(-1)


def score_task(
    run: Loaded, task: Task, items: int, seed: int, advance: Callable[[int], object] = lambda _: None
) -> tuple[Score, Score] | None:
    """A task's (choice, completion); None where an item is longer than what the model has seen in training. advance:
    called after each item with 1."""
    made = [task.item(seed, number) for number in range(items)]
    longest = max(len(run.alphabet.encode(item.prompt + item.choices[0])) for item in made)
    if longest > run.config.model.sequence + 1:
        return None
    found = []
    for item in made:
        found.append(score_item(run, item))
        advance(1)
    chosen, completed = zip(*found, strict=True)
    return (
        Score(task.name, "choice", sum(chosen), items, 1 / CHOICES),
        Score(task.name, "completion", sum(completed), items, task.guess),
    )


def heldout(
    run: Loaded, data: str | None, sequences: int, advance: Callable[[int], object] = lambda _: None
) -> dict[str, Any]:
    """The held-out loss of `sequences` sequences of `data`, or of the run's own corpus: a JSON object. advance: told
    how many sequences have passed since it was called last.

    Raises:
        ValueError: no such text, too little of it, or no longer what the run was trained on.
    """
    config = dataclasses.replace(run.config, eval_sequences=sequences)
    if sequences < 1 or sequences % config.grain:
        raise ValueError(f"sequences {sequences} cannot be used; use a multiple of the run's grain {config.grain}")
    corpus = corpus_of(config) if data is None else _other(run, config, data)
    if data is None and corpus.digest != run.corpus:
        raise ValueError(
            f"data {config.data!r} is no longer what the run was trained on (sha256 was {run.corpus[:12]}, is "
            f"{corpus.digest[:12]}); name one with --data, or leave the held-out loss out with --sequences 0"
        )
    tokens_BS, targets_BS = heldout_batch(corpus.heldout, sequences, config.model.sequence)
    ce = heldout_loss(run.model, config, tokens_BS, targets_BS, advance)
    about = {"data": corpus.description, "digest": corpus.digest, "sequences": sequences, "tokens": targets_BS.numel()}
    return about | {"ce": ce, "bits_per_byte": ce / math.log(2) / corpus.bytes_per_token(targets_BS)}


def _other(run: Loaded, config: TrainConfig, data: str) -> Corpus:
    """Another corpus, in the run's tokens. ValueError for shards of other ones."""
    own, shards = run.alphabet, tokenizer_file(data)
    if shards is not None:
        if not isinstance(own, Tokens) or own.tokenizer.sha256 != shards[0].sha256:
            raise ValueError(f"data {data!r} has other tokens than the run reads; name its text instead")
        return corpus_of(dataclasses.replace(config, data=data, tokenizer=None, end_token=None))
    if isinstance(own, Tokens):
        config = dataclasses.replace(config, tokenizer=own.path, end_token=own.end_token)
    return corpus_of(dataclasses.replace(config, data=data))


def evaluate(config: EvalConfig, ops: ModuleType) -> dict[str, Any]:
    """Everything that `config` asks for, as a JSON object. ValueError for a bad argument or run folder."""
    for name in ("sequences", "items"):
        if (getattr(config, name) or 0) < 0:
            raise ValueError(f"{name} {getattr(config, name)} cannot be used; use 0, which leaves it out, or more")
    if not 0 <= config.seed < 2**64:
        raise ValueError(f"seed {config.seed} cannot be used; use 0 to 2^64 - 1")
    if not can_be_file(config.out):
        raise ValueError(f"out {str(config.out)!r} cannot be used; name a file in a folder that exists")
    run = load_run(config.run, ops, config.device, config.step)
    sequences = run.config.eval_sequences if config.sequences is None else config.sequences
    found: dict[str, Any] = {"run": str(config.run), "preset": run.config.preset, "step": run.step}
    total = sequences + config.items * len(TASKS)
    with pinned(run.config.threads), Progress(max(1, total), "eval", shown=config.progress) as progress:
        found["heldout"] = heldout(run, config.data, sequences, progress.advance) if sequences else None
        found["tasks"] = list(_tasks(run, config, progress)) if config.items else []
    return found | {"seed": config.seed, "environment": environment(config.device)}


def _tasks(run: Loaded, config: EvalConfig, progress: Progress) -> Iterator[dict[str, Any]]:
    for task in TASKS:
        scores = score_task(run, task, config.items, config.seed, lambda n, name=task.name: progress.advance(n, name))
        if scores is None:
            progress.skip(config.items, f"{task.name} not run")
            needs = f"items are longer than the run's sequences of {run.config.model.sequence} tokens"
            yield {"task": task.name, "not_run": needs}
        for score in scores or ():
            told = {"share": score.share, "interval": list(score.interval), "verdict": score.verdict}
            yield dataclasses.asdict(score) | told


def table(found: dict[str, Any]) -> str:
    """What `evaluate` found, as text."""
    lines = [f"{found['run']}: {found['preset']} after {found['step']} steps"]
    if (held := found["heldout"]) is not None:
        lines.append(
            f"held-out: {held['ce']:.4f} nats a token, {held['bits_per_byte']:.4f} bits a byte "
            f"({held['tokens']} tokens of {held['data']})"
        )
    rows = [("task", "scored by", "right", "95 % interval", "chance", "")]
    for entry in found["tasks"]:
        if "not_run" in entry:
            rows.append((entry["task"], "not run", "", "", "", entry["not_run"]))
            continue
        low, high = entry["interval"]
        numbers = f"{entry['right']} of {entry['items']}", f"{100 * low:.1f} to {100 * high:.1f} %"
        rows.append((entry["task"], entry["kind"], *numbers, f"{100 * entry['chance']:.2g} %", entry["verdict"]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if len(rows) > 1:
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join(lines)


@named_flags(EvalConfig, eval_sequences="--sequences")
def main(argv: list[str], operations: Callable[[str, str], ModuleType]) -> int:
    """Run `fourbit eval` with `argv`; return the exit code 0, or raise ValueError in one sentence.

    Args: operations: gives the module that `ops` and `device` of the command line name, or raises ValueError.
    """
    config = tyro.cli(EvalConfig, args=argv, prog=PROGRAM)
    found = evaluate(config, operations(config.ops, config.device))
    print(table(found))
    if config.out is not None:
        write_json(config.out, found)
    return 0
