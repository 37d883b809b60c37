"""What the runs of `loss_order` left behind: read, checked to be pairs, and kept in two small files.

losses.csv has a row for each step of each run: recipe, seed, step, loss, heldout_nats (empty where there was no
evaluation), floats to their last bit. meta.json says what the campaign was. The tables need these two alone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from reference.checkpoint import read_json, write_atomic, write_json
from reference.log import EVALUATION, read_log

COLUMNS = ("recipe", "seed", "step", "loss", "heldout_nats")
ENTRIES = ("command", "recipes", "seeds", "steps", "tokens_per_step", "parameters", "device", "failed")  # of meta.json


def run_folder(runs: Path, recipe: str, seed: int) -> Path:
    """Where a run lies in the folder of all."""
    return runs / recipe / str(seed)


def collect(out: Path, runs: Path, meta: dict[str, Any]) -> pd.DataFrame:
    """Read the logs of all runs that have begun, write `out`/losses.csv, and meta.json with their corpus.

    Args:
        meta: recipes and seeds of the campaign; gets the entry corpus.

    Returns:
        The rows of losses.csv.

    Raises:
        ValueError: runs that differ in more than recipe and seed, or a damaged log. OSError: the disk refuses.
    """
    parts, common = [], {}
    for folder, recipe, seed in ((run_folder(runs, r, s), r, s) for r in meta["recipes"] for s in meta["seeds"]):
        if not (folder / "log.jsonl").is_file():
            continue  # not begun; `common_step` tells if it is needed
        about = folder / "meta.json"
        facts = {"configuration": read_json(folder / "config.json") | {"preset": None, "seed": None}}
        facts |= {"corpus": read_json(about, "corpus")["corpus"]} if about.is_file() else {}
        for name, value in facts.items():
            if common.setdefault(name, value) != value:
                raise ValueError(f"runs in {str(runs)!r} differ in {name}, as {str(folder)!r} does: they are no pairs")
        records = read_log(folder / "log.jsonl", "loss", evaluation=EVALUATION)
        parts += [(recipe, seed, record["step"], record["loss"], record.get("heldout_ce")) for record in records]
    rows = pd.DataFrame(parts, columns=list(COLUMNS)).astype({"heldout_nats": float})
    meta["corpus"] = common.get("corpus")
    write_atomic(out / "losses.csv", rows.to_csv(index=False, lineterminator="\n").encode())
    write_json(out / "meta.json", meta)
    return rows


def stored(out: Path, runs: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The losses and the meta.json of an earlier call: from its runs if they are here, else from losses.csv.

    Raises:
        ValueError: neither is there, or as `collect`.
    """
    if not (out / "meta.json").is_file():
        raise ValueError(
            f"out {str(out)!r} holds no meta.json of `fourbit order`; name its folder, or leave out --table"
        )
    meta = read_json(out / "meta.json", *ENTRIES)
    if runs.is_dir():
        return collect(out, runs, meta), meta
    if not (out / "losses.csv").is_file():
        raise ValueError(
            f"neither runs {str(runs)!r} nor {str(out / 'losses.csv')!r} is there; name the runs with --runs"
        )
    return read_losses(out / "losses.csv"), meta


def read_losses(path: Path) -> pd.DataFrame:
    """The rows of a losses.csv, floats to their last bit, as pandas' own parser does not read them in every version.

    Raises: ValueError for a file that holds something else.
    """
    numbers = {"loss": float, "heldout_nats": lambda text: float(text or "nan")}
    try:
        rows = pd.read_csv(path, converters=numbers, dtype={"recipe": str, "seed": int, "step": int})
        if tuple(rows.columns) != COLUMNS:
            raise ValueError(f"its columns are {', '.join(map(str, rows.columns))}, not {', '.join(COLUMNS)}")
    except ValueError as error:  # pandas' own are ValueErrors too
        raise ValueError(
            f"losses {str(path)!r} is damaged: {error}; restore it, or name the runs with --runs"
        ) from None
    return rows


def chosen(name: str, meta: dict[str, Any], named: Sequence[Any], default: bool) -> list[Any]:
    """The `name` (recipes or seeds) to tabulate: all of the campaign's by `default`, else those that are `named`.

    Raises:
        ValueError: one of them is not the campaign's.
    """
    if default:
        return list(meta[name])
    unknown = [each for each in named if each not in meta[name]]
    if unknown:
        raise ValueError(f"{name}={unknown}: this campaign has {meta[name]}; name some of these")
    return list(named)
