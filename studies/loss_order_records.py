"""What the runs of `loss_order` left behind: read, checked to be pairs, and kept in two small files.

losses.csv has a row for each step of each run: recipe, seed, step, loss, heldout_nats (empty where there was no
evaluation), floats to their last bit. meta.json says what the campaign was. The tables need these two alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from reference.checkpoint import write_atomic, write_json
from reference.log import read_log

COLUMNS = ("recipe", "seed", "step", "loss", "heldout_nats")


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
        facts = {"configuration": json.loads((folder / "config.json").read_bytes()) | {"preset": None, "seed": None}}
        facts |= {"corpus": json.loads(about.read_bytes())["corpus"]} if about.is_file() else {}
        for name, value in facts.items():
            if common.setdefault(name, value) != value:
                raise ValueError(f"runs in {str(runs)!r} differ in {name}, as {str(folder)!r} does: they are no pairs")
        records = read_log(folder / "log.jsonl")
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
    meta = json.loads((out / "meta.json").read_bytes())
    if runs.is_dir():
        return collect(out, runs, meta), meta
    if not (out / "losses.csv").is_file():
        raise ValueError(
            f"neither runs {str(runs)!r} nor {str(out / 'losses.csv')!r} is there; name the runs with --runs"
        )
    return read_losses(out / "losses.csv"), meta


def read_losses(path: Path) -> pd.DataFrame:
    """The rows of a losses.csv, floats to their last bit, as pandas' own parser does not read them in every version."""
    return pd.read_csv(path, converters={"loss": float, "heldout_nats": lambda text: float(text or "nan")})


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
