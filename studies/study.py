"""The harness: runs a study and keeps what it found, all or nothing; and `fourbit study`.

    fourbit study list                          the questions
    fourbit study run NAME [--fast] [--out DIR] measure, and write DIR/NAME/
    fourbit study report [--fast] [--out DIR]   run those not finished, and write DIR/report.html, one page of all

DIR/NAME/ holds

    rows.csv        every measurement
    finding.md      question and finding, then the details
    figure.svg/png  for print and for a screen; further figures by their names
    NAME.csv/md     tables for readers
    meta.json       question, finding and its numbers; command, date, seconds, seeds, versions, commit, device

A study is written into a temporary folder beside its place and renamed into it at the end: its folder is absent, the
former one, or complete. When it fails, nothing is written. CSV and JSON numbers read back to the same bits.
`report` runs what is not finished (see `kept`) with the parts that were measured before.
"""

import contextlib
import importlib.metadata
import io
import multiprocessing
import os
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import tyro

from reference.checkpoint import write_atomic, write_json
from reference.log import environment
from reference.progress import Progress

from . import (
    accumulation,
    cache,
    combine,
    dialects,
    format_error,
    formats,
    four_over_six,
    hadamard,
    kept,
    moe_timeline,
    outer_scale,
    plots,
    report,
    requantization,
    requantization_kinds,
    sampler,
    throughput,
    transpose_mismatch,
)
from .result import Result, Study, markdown

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        formats.STUDY,
        format_error.STUDY,
        transpose_mismatch.STUDY,
        requantization.STUDY,
        requantization_kinds.STUDY,
        four_over_six.STUDY,
        hadamard.STUDY,
        combine.STUDY,
        outer_scale.STUDY,
        moe_timeline.STUDY,
        accumulation.STUDY,
        throughput.STUDY,
        dialects.STUDY,
        sampler.STUDY,
    )
}
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
        ValueError: `out` cannot be written, which is found out before anything is measured. OSError: the disk refuses.
        Whatever the study raises. No folder of the study is written then; parts that were measured are kept.
    """
    require_writable(out)
    began, sources = time.perf_counter(), kept.sources(study)  # before it runs: files may be edited meanwhile
    with _threads(study.threads), cache.using(out / ".cache"):
        result = study.run(fast)
    meta = _meta(study, result, fast, command, time.perf_counter() - began) | {"sources": sources}
    target = out / study.name
    with _replacing(target) as folder:
        result.rows.to_csv(folder / "rows.csv", index=False, lineterminator="\n")
        lines = [f"**{study.question}** {result.finding}", *([""] if result.details else [])]
        lines += [f"- {detail}" for detail in result.details]
        (folder / "finding.md").write_text("\n".join(lines) + "\n", "utf-8")
        plots.save(result.figure, folder / "figure.svg")
        plots.save(result.figure, folder / "figure.png")
        for plate in result.plates:
            plots.save(plate.figure, folder / f"{plate.name}.svg")
            plots.save(plate.figure, folder / f"{plate.name}.png")
        for table in result.tables:
            table.frame.to_csv(folder / f"{table.name}.csv", index=False, lineterminator="\n")
            (folder / f"{table.name}.md").write_text(f"{table.caption}\n\n{markdown(table.frame)}", "utf-8")
        write_json(folder / "meta.json", meta)
    return target


def require_writable(out: Path) -> None:
    """See that the folder `out` can be written, or made; nothing is written. Raises ValueError if not."""
    place = out.absolute()
    while not place.exists() and not place.is_symlink():
        place = place.parent
    if not place.is_dir():
        raise ValueError(f"out {str(out)!r}: {str(place)!r} is a file; name a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"out {str(out)!r}: {str(place)!r} cannot be written; name a folder that can")


def finished(out: Path) -> list[Path]:
    """The folders of complete studies in `out`, those of known studies first and in their order."""
    names = sorted(path.parent.name for path in out.glob("[!.]*/meta.json") if kept.read(path.parent) is not None)
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
    folder = run_study(study, out, fast, _command(name, out, fast))
    print((folder / "finding.md").read_text("utf-8"))
    print(f"written to {folder}")


def _report(fast: bool = False, out: Path = OUT, workers: int = 2) -> None:
    """Run the studies that are not finished, and write one page of all.

    Args:
        fast: The fast versions, together a few minutes; full ones that are finished already are taken as well.
        out: Folder of all studies; report.html is written into it.
        workers: Studies that run at the same time, each on one core.
    """
    if workers < 1:
        raise ValueError(f"workers={workers}: use 1 or more")
    require_writable(out)
    with kept.alone(out):
        missing = [name for name, study in STUDIES.items() if not kept.is_finished(study, out / name, fast)]
        run_together(missing, out, fast, workers)
        folders = finished(out)
        write_atomic(out / "report.html", report.studies(folders, out).encode())
    print(f"{len(folders)} studies in {out / 'report.html'}")


def run_together(names: Sequence[str], out: Path, fast: bool, workers: int) -> None:
    """Run several studies in processes of their own, with one progress bar; those that must run alone come last.

    Raises: as `run_study`, for the first that fails; finished ones are kept, others not begun.
    """
    # a new interpreter: a forked one would inherit torch's thread pool without its threads
    context = multiprocessing.get_context("spawn")
    shared, alone = ([name for name in names if find(name).alone is kind] for kind in (False, True))
    with Progress(len(names), "studies") as progress:
        for batch, count in ((shared, workers), (alone, 1)):
            with ProcessPoolExecutor(count, context, _end_with, (os.getpid(),)) as pool:
                futures = {pool.submit(_run_one, name, out, fast): name for name in batch}
                try:
                    for future in as_completed(futures):
                        future.result()
                        progress.advance(1, futures[future])
                except BaseException as error:
                    pool.shutdown(wait=False, cancel_futures=True)
                    for worker in () if isinstance(error, Exception) else multiprocessing.active_children():
                        worker.terminate()  # an interrupt does not wait; parts are kept
                    raise


def _run_one(name: str, out: Path, fast: bool) -> None:
    with contextlib.redirect_stderr(io.StringIO()):  # one bar for all, in the parent
        run_study(find(name), out, fast, _command(name, out, fast))


def _command(name: str, out: Path, fast: bool) -> str:
    return shlex.join(
        ["fourbit", "study", "run", name, *["--fast"] * fast, *(["--out", str(out)] if out != OUT else [])]
    )


def _end_with(parent: int) -> None:
    """In a worker: interrupts are the parent's to handle, and when it has been killed the worker ends too."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)  # files are written whole or not at all

    signal.signal(signal.SIGINT, signal.SIG_IGN)

    threading.Thread(target=watch, daemon=True).start()


def _meta(study: Study, result: Result, fast: bool, command: str, seconds: float) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {
        "name": study.name,
        "title": study.title,
        "question": study.question,
        "finding": result.finding,
        "details": list(result.details),
        "caption": result.caption,
        "summary": result.summary,
        "tables": [{"name": table.name, "caption": table.caption} for table in result.tables],
        "plates": [{"name": plate.name, "caption": plate.caption} for plate in result.plates],
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
        with contextlib.suppress(FileNotFoundError):
            # a folder cannot be renamed over a full one; what is between these two lines can be lost only to a kill
            target.rename(old)
        new.rename(target)
    except BaseException:
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
