"""The harness: runs a study and keeps what it found, all or nothing; and `fourbit study`.

    fourbit study list                          the questions
    fourbit study run NAME [--fast] [--out DIR] measure, and write DIR/NAME/
    fourbit study report [--out DIR]            DIR/report.html, one page of all finished studies

DIR/NAME/ holds

    rows.csv        every measurement
    finding.md      question and finding, one paragraph
    figure.svg/png  for print and for a screen
    meta.json       question, finding and its numbers; command, date, seconds, seeds, versions, commit, device

A study is written into a temporary folder beside its place and renamed into it at the end: its folder is absent, the
former one, or complete. When it fails, nothing is written. CSV and JSON numbers read back to the same bits.
"""

import importlib.metadata
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import tyro

from reference.checkpoint import write_atomic, write_json
from reference.log import environment

from . import dialects, plots, report, requantization
from .result import Result, Study

STUDIES: dict[str, Study] = {study.name: study for study in (requantization.STUDY, dialects.STUDY)}
OUT = Path("results/studies")
_LIBRARIES = ("scipy", "pandas", "matplotlib")


def find(name: str) -> Study:
    """The study called `name`.

    Raises:
        ValueError: there is none; the message lists the known ones.
    """
    if name not in STUDIES:
        raise ValueError(f"study {name!r} is unknown; the known ones are {', '.join(STUDIES)}")
    return STUDIES[name]


def run_study(study: Study, out: Path, fast: bool, command: str) -> Path:
    """Run a study and write what it found to `out`/NAME, replacing what was there.

    Args:
        study: the study. out: folder of all studies, made if missing. fast: ask for the fast version.
        command: what repeats this, for meta.json.

    Returns:
        The study's folder.

    Raises:
        OSError: the disk refuses. Whatever the study raises. Either way nothing was written.
    """
    if out.exists() and not out.is_dir():
        raise ValueError(f"out {str(out)!r} is a file; name a folder")
    began = time.perf_counter()
    with _threads(study.threads):
        result = study.run(fast)
    meta = _meta(study, result, fast, command, time.perf_counter() - began)
    target = out / study.name
    with _replacing(target) as folder:
        result.rows.to_csv(folder / "rows.csv", index=False, lineterminator="\n")
        (folder / "finding.md").write_text(f"**{study.question}** {result.finding}\n", "utf-8")
        plots.save(result.figure, folder / "figure.svg")
        plots.save(result.figure, folder / "figure.png")
        write_json(folder / "meta.json", meta)
    return target


def finished(out: Path) -> list[Path]:
    """The folders of finished studies in `out`, those of known studies first and in their order."""
    names = sorted(path.parent.name for path in out.glob("[!.]*/meta.json"))
    known = [name for name in STUDIES if name in names]
    return [out / name for name in [*known, *(name for name in names if name not in known)]]


def main(argv: list[str]) -> int:
    """Run `fourbit study` with `argv`; return the exit code 0.

    Raises:
        ValueError: an unknown study, or a report without any.
    """
    commands = {"list": _list, "run": _run, "report": _report}
    about = "Questions, measurements and figures."
    tyro.extras.subcommand_cli_from_dict(
        commands, args=argv, prog="fourbit study", description=about, config=(tyro.conf.FlagCreatePairsOff,)
    )
    return 0


def _list() -> None:
    """List the studies and their questions."""
    for study in STUDIES.values():
        print(f"{study.name}: {study.question}")


def _run(name: tyro.conf.Positional[str], /, fast: bool = False, out: Path = OUT) -> None:
    """Run one study.

    Args:
        name: Which one; `fourbit study list` shows them.
        fast: Smaller, in a few seconds.
        out: Folder of all studies; this one gets a folder in it.
    """
    study = find(name)
    words = ["fourbit", "study", "run", name, *["--fast"] * fast, *(["--out", str(out)] if out != OUT else [])]
    folder = run_study(study, out, fast, shlex.join(words))
    print((folder / "finding.md").read_text("utf-8"))
    print(f"written to {folder}")


def _report(out: Path = OUT) -> None:
    """Write one page of all finished studies.

    Args:
        out: Folder of all studies; report.html is written into it.
    """
    folders = finished(out)
    if not folders:
        raise ValueError(f"out {str(out)!r} holds no finished study; run one: fourbit study run {next(iter(STUDIES))}")
    write_atomic(out / "report.html", report.studies(folders).encode())
    print(f"{len(folders)} of {len(STUDIES)} studies in {out / 'report.html'}")


def _meta(study: Study, result: Result, fast: bool, command: str, seconds: float) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {
        "name": study.name,
        "title": study.title,
        "question": study.question,
        "finding": result.finding,
        "caption": result.caption,
        "summary": result.summary,
        "seeds": list(result.seeds),
        "rows": len(result.rows),
        "fast": fast,
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "threads": study.threads,
        "device": result.device,
        "environment": {**environment(result.device), **versions},
    }


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Run torch on `count` threads, and give the former number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A new folder beside `target` that takes its place if the block ends well, and vanishes if not."""
    new, old = (target.with_name(f".{target.name}.{os.getpid()}.{kind}") for kind in ("new", "old"))
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
        if target.exists():
            # a folder cannot be renamed over a full one; what is between these two lines can be lost only to a kill
            target.rename(old)
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
