"""Contract: a disk that is full while a run writes ends it in one sentence; the checkpoint before is intact, nothing
half-written is left, and the same command goes on to the same bits.

Oracle: an uninterrupted run. The full disk is a file that takes half of a checkpoint, and, in a process of its own, the
system's limit on the size of files, which stops a write in its middle likewise.
"""

import builtins
import errno
import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fourbit
from numerics import ops
from reference import checkpoint
from reference.command_line import parse
from reference.log import read_log
from reference.train import train

ROOT = Path(fourbit.__file__).parent


class Full:
    """A file on a disk that is full after half of what is written at once."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def __enter__(self) -> "Full":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, contents: bytes) -> int:
        self._file.write(contents[: len(contents) // 2])
        self._file.flush()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "text").write_bytes(bytes(random.Random(0).choices(range(1, 256), k=4000)))
    small = [f"--model.{name}=32" for name in ("dim", "expert-dim", "shared-dim")] + ["--model.sequence=16"]
    steps = ["--steps=6", "--batch=1", "--grain=1", "--warmup=1", "--eval-sequences=1", "--checkpoint-every=2"]
    return [f"--data={tmp_path / 'text'}", *steps, *small, "--monitor-every=0", "--progress=hide"]


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in read_log(folder / "log.jsonl")]


def assert_goes_on(folder: Path, words: list[str]) -> None:
    """From the checkpoint of step 2 to the bits of a run that nothing stopped."""
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint-00000002.safetensors",
        "config.json",
        "log.jsonl",
        "meta.json",
    ]
    checkpoint.load(folder / "checkpoint-00000002.safetensors")
    assert train(parse([f"--out={folder}", *words]), ops).resumed_from == 2
    whole = folder.with_name("whole")
    train(parse([f"--out={whole}", *words]), ops)
    assert losses(folder) == losses(whole)
    name = "checkpoint-00000006.safetensors"
    assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_a_disk_that_fills_keeps_the_checkpoint_before(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    opened = []

    def limited(path: Any, *mode: str) -> Any:
        file = builtins.open(path, *mode)
        if "checkpoint-00000004" not in str(path):
            return file
        opened.append(path)
        return Full(file)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "open", limited, raising=False)
        assert fourbit.main(["train", f"--out={folder}", *words]) == 2
    assert len(opened) == 1
    target = folder / "checkpoint-00000004.safetensors"
    assert capsys.readouterr().err == (
        f"fourbit: error: No space left on device: {target}; make room or name another folder, then give the same "
        "command again\n"
    )
    assert_goes_on(folder, words)


def test_a_write_that_the_system_stops_keeps_the_checkpoint_before(tmp_path: Path, words: list[str]) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(parse([f"--out={folder}", *words]), ops, _interrupt_at_3)
    size = (folder / "checkpoint-00000002.safetensors").stat().st_size
    done = subprocess.run(
        [sys.executable, "-m", "fourbit", "train", f"--out={folder}", *words],
        **{"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2)),
    )
    begun, told = done.stderr.splitlines()  # one sentence each
    assert done.returncode == 2 and begun.endswith("goes on after step 2 of 6")
    assert told.startswith(f"fourbit: error: File too large: {folder / 'checkpoint-00000004.safetensors'}; ")
    assert_goes_on(folder, words)


@pytest.mark.exhaustive
def test_a_log_that_the_system_stops_is_named_and_cut(tmp_path: Path, words: list[str]) -> None:
    """The log is the one file that grows: its last line breaks off, and is taken again."""
    folder, words = tmp_path / "run", [*words, "--monitor-every=1"]  # lines that are longer than meta.json
    with pytest.raises(KeyboardInterrupt):
        train(parse([f"--out={folder}", *words]), ops, _interrupt_at_3)
    lines = (folder / "log.jsonl").read_bytes().split(b"\n")
    size = sum(len(line) + 1 for line in lines[:2]) + len(lines[2]) // 2
    done = subprocess.run(
        [sys.executable, "-m", "fourbit", "train", f"--out={folder}", *words],
        **{"cwd": ROOT, "capture_output": True, "text": True, "timeout": 120},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )
    begun, told = done.stderr.splitlines()  # one sentence each
    assert done.returncode == 2 and begun.endswith("goes on after step 2 of 6")
    assert told.startswith(f"fourbit: error: File too large: {folder / 'log.jsonl'}; ")
    assert_goes_on(folder, words)


def _interrupt_at_3(record: dict[str, Any]) -> None:
    if record["step"] == 3:
        raise KeyboardInterrupt


def test_a_log_that_does_not_fit_is_cut_back(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    from reference.log import Log

    append = Log.append

    def full(log: Log, record: dict[str, Any]) -> None:
        if record["step"] < 4:
            return append(log, record)
        with open(folder / "log.jsonl", "ab") as file:
            file.write(b'{"step": 4, "lo')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Log, "append", full)
        assert fourbit.main(["train", f"--out={folder}", *words]) == 2
    assert "No space left on device; make room" in capsys.readouterr().err
    assert_goes_on(folder, words)
