"""What runs of a stage are compared by: `fourbit train`, `sft` and `rl` write logs of their own.

train    held-out loss against tokens, and bits per byte
sft      held-out loss of completions against steps, and the share of examples that greedy decoding would write
rl       reward of the problems of evaluations against steps, answered greedily, held out or not; `reward`, at
         temperature 1, is a mean over the last twentieth of the steps so far
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference.load import TUNED


@dataclass(frozen=True)
class Stage:
    """What runs are compared by, in the names of log.jsonl.

    Attributes:
        name: of the command.
        numbers: what every line has.
        columns: of the table, from names of the log that evaluated lines have; the first is drawn, and its gap told.
        gap: the table's name of it.
        axis, scale, axis_label: what is drawn along, the numbers of it that make a unit, and the unit.
        title, unit: of the curves.
    """

    name: str
    numbers: tuple[str, ...]
    columns: dict[str, str]
    gap: str
    axis: str
    scale: float
    axis_label: str
    title: str
    unit: str

    @property
    def main(self) -> str:
        """The number that is drawn."""
        return next(iter(self.columns))


def _reward(kind: str, title: str) -> Stage:
    columns = {f"{kind}_reward": f"{kind}_reward"}
    return Stage("rl", ("reward", "seconds"), columns, "gap_reward", "step", 1.0, "steps", title, "mean reward")


_CE = {"heldout_ce": "heldout_nats"}
STAGES = (
    Stage(
        *("train", ("loss", "seconds", "tokens"), _CE | {"heldout_bits_per_byte": "heldout_bits_per_byte"}),
        *("gap_nats", "tokens", 1e6, "million tokens", "Held-out loss", "nats per token"),
    ),
    Stage(
        *("sft", ("loss", "seconds", "learned"), _CE | {"heldout_exact": "heldout_exact"}),
        *("gap_nats", "step", 1.0, "steps", "Held-out loss of completions", "nats per token"),
    ),
    _reward("heldout", "Held-out reward, greedy"),
    _reward("greedy", "Reward, greedy; nothing is held out"),
)


def stage_of(folder: Path, config: dict[str, Any], records: list[dict[str, Any]]) -> Stage:
    """The stage of a run. Raises ValueError for one that this version does not know, or that was never evaluated.

    Args: config: its config.json. records: its log.
    """
    tuned = config.get(TUNED)
    name = tuned.get("stage") if isinstance(tuned, dict) else "train"
    known = [stage for stage in STAGES if stage.name == name]
    if not known:
        raise ValueError(f"run {str(folder)!r} is of the stage {name!r}, which cannot be compared; leave it out")
    found = [stage for stage in known if any(stage.main in record for record in records)]
    if not found:
        what = known[0].title.lower().partition(",")[0]
        raise ValueError(f"run {str(folder)!r} has no {what} yet; let it train to its first evaluation")
    return found[0]


def learned_from(stage: Stage, config: dict[str, Any], corpus: dict[str, Any]) -> str:
    """What runs must have in common: the corpus or the examples; of reinforcement learning, whose problems are drawn by
    the seed, the environment."""
    return str(config[TUNED].get("environment") if stage.name == "rl" else corpus.get("digest"))


def differing(config: dict[str, Any]) -> dict[str, Any]:
    """The fields by which runs may differ, those of `tuned` by their own names. What is in data is compared apart."""
    tuned = config.get(TUNED)
    own = tuned if isinstance(tuned, dict) else {}
    fields = {name: value for name, value in config.items() if name != TUNED}
    return fields | {name: value for name, value in own.items() if name not in ("data", "environment")}
