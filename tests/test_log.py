"""Contract of reference.log: the log keeps one line a step, a run has one writer, the environment is told.

Oracles: files written here. How the trainer uses it all is in test_train.py.
"""

import json
import logging
import math
import os
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reference import log as run_log
from reference.log import EVALUATION, Log, open_run, read_log, record_environment


def fill(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_floats_read_back_to_the_same_bits(tmp_path: Path) -> None:
    values = [0.1 + 0.2, 5e-324, 1.7976931348623157e308, -0.0, 2.0**-126, math.pi]
    values += [v for v in struct.unpack("<2000d", os.urandom(16000)) if math.isfinite(v)]
    with Log(tmp_path / "log.jsonl") as log:
        log.append({"step": 1, "values": values})
        with pytest.raises(ValueError, match="not JSON compliant"):
            log.append({"step": 2, "loss": math.nan})
    back = read_log(tmp_path / "log.jsonl")[0]["values"]
    assert struct.pack(f"<{len(values)}d", *back) == struct.pack(f"<{len(values)}d", *values)


@pytest.mark.parametrize("tail", ["", '{"step": 4, "lo', '{"step": 4}\n{"st', "junk\n"])
def test_cut_keeps_exactly_the_steps_before(tmp_path: Path, tail: str) -> None:
    path = fill(tmp_path / "log.jsonl", '{"step": 1}\n{"step": 2}\n{"step": 3}\n' + tail)
    with Log(path) as log:
        log.cut(2)
        assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
        log.append({"step": 3, "loss": 0.5})
        assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3, "loss": 0.5}\n'
        log.cut(0)
        assert path.read_text() == ""


@pytest.mark.parametrize(
    "text", ["", '{"step": 1}\n', '{"step": 1}\n{"step": 2}', '{"step": 1}\n{"step": 3}\n', "1\n2\n"]
)
def test_cut_refuses_a_log_that_lacks_a_step(tmp_path: Path, text: str) -> None:
    path = fill(tmp_path / "log.jsonl", text)
    with Log(path) as log, pytest.raises(ValueError, match=r"lacks the line of step .*; start again in another"):
        log.cut(2)
    assert path.read_text() == text


def test_reading_leaves_out_an_unfinished_line_and_refuses_a_damaged_one(tmp_path: Path) -> None:
    assert read_log(fill(tmp_path / "a", '{"step": 1}\n{"step": 2}\n{"ste')) == [{"step": 1}, {"step": 2}]
    with pytest.raises(ValueError, match="is damaged at line 2"):
        read_log(fill(tmp_path / "b", '{"step": 1}\n{"ste\n{"step": 3}\n'))
    with pytest.raises(ValueError, match="does not exist; name the folder of a run"):
        read_log(tmp_path / "c")


@pytest.mark.parametrize("held", ['"x"', "NaN", "null", "true", "[1]"])
def test_an_evaluation_has_both_of_its_numbers(tmp_path: Path, held: str) -> None:
    first, good = '{"step": 1}\n', '{"step": 2, "heldout_ce": 2, "heldout_bits_per_byte": 1.5}\n'
    assert read_log(fill(tmp_path / "log.jsonl", first + good), evaluation=EVALUATION)[1]["heldout_ce"] == 2
    for line in (
        f'{{"step": 2, "heldout_ce": {held}, "heldout_bits_per_byte": 1.5}}\n',
        f'{{"step": 2, "heldout_ce": 2, "heldout_bits_per_byte": {held}}}\n',
        '{"step": 2, "heldout_ce": 2}\n',
        '{"step": 2, "heldout_bits_per_byte": 2}\n',
    ):
        with pytest.raises(ValueError, match=r"damaged at line 2: heldout_(ce|bits_per_byte) is .*, no number"):
            read_log(fill(tmp_path / "log.jsonl", first + line), evaluation=EVALUATION)
    # a tuned run's has other ones
    assert read_log(fill(tmp_path / "log.jsonl", first + '{"step": 2, "heldout_ce": 2}\n'))[1]["heldout_ce"] == 2


@pytest.mark.parametrize(
    "damage", [{"environment": 3}, {"resumed": 4}, {"resumed": [3]}, {"resumed": [{}]}, {"resumed": {"a": 1}}]
)
def test_a_damaged_environment_is_one_sentence(tmp_path: Path, damage: dict[str, Any]) -> None:
    record_environment(tmp_path, "cpu", {}, 0)
    meta = json.loads((tmp_path / "meta.json").read_text())
    fill(tmp_path / "meta.json", json.dumps(meta | damage))
    with pytest.raises(ValueError, match=r"meta\.json' is damaged: environment or resumed is of another kind; restore"):
        record_environment(tmp_path, "cpu", {}, 10)


def test_a_log_has_one_writer_at_a_time(tmp_path: Path) -> None:
    with Log(tmp_path / "log.jsonl"), pytest.raises(ValueError, match="is being written by another process"):
        Log(tmp_path / "log.jsonl")
    with Log(tmp_path / "log.jsonl") as log:
        log.append({"step": 1})


def test_a_run_folder_is_made_entered_again_and_cleaned(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    open_run(folder, {"lr": 0.1, "model": {"dim": 2}}).__exit__(None, None, None)
    assert json.loads((folder / "config.json").read_text()) == {"lr": 0.1, "model": {"dim": 2}}
    (folder / ".checkpoint-00000001.safetensors.7.tmp").touch()
    with open_run(folder, {"lr": 0.1, "model": {"dim": 2}}):
        assert sorted(os.listdir(folder)) == ["config.json", "log.jsonl"]
        (folder / ".x.7.tmp").touch()
        with pytest.raises(ValueError, match="another process"):
            open_run(folder, {"lr": 0.1, "model": {"dim": 2}})
        assert (folder / ".x.7.tmp").exists()  # it may be the other's


def test_a_folder_where_only_a_first_write_was_killed_is_new(tmp_path: Path) -> None:
    (tmp_path / ".config.json.7.tmp").touch()
    with open_run(tmp_path, {"lr": 0.1}):
        assert sorted(os.listdir(tmp_path)) == ["config.json", "log.jsonl"]


def test_every_difference_of_configuration_is_named(tmp_path: Path) -> None:
    open_run(tmp_path, {"lr": 0.1, "model": {"dim": 2, "old": 1}}).__exit__(None, None, None)
    with pytest.raises(
        ValueError,
        match=r"lr \(0\.1 there, 0\.2 now\), model\.old \(1 there, absent now\), "
        r"model\.new \(absent there, 3 now\); use its values to resume it",
    ):
        open_run(tmp_path, {"lr": 0.2, "model": {"dim": 2, "new": 3}})


def test_the_environment_names_the_commit_and_changes_to_it(tmp_path: Path) -> None:
    assert run_log._commit(tmp_path) is None
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", tmp_path, *identity, *words], check=True)
    commit = run_log._commit(tmp_path)
    assert commit is not None and len(commit) == 40
    (tmp_path / "x").touch()
    assert run_log._commit(tmp_path) == commit + "+changes"


def test_a_resume_in_another_environment_is_recorded_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now: dict[str, Any] = run_log.environment("cpu")
    monkeypatch.setattr(run_log, "environment", lambda device: dict(now))
    meta = tmp_path / "meta.json"
    record_environment(tmp_path, "cpu", {"seed": 5}, 0)
    record_environment(tmp_path, "cpu", {"seed": 5}, 10)
    assert json.loads(meta.read_text()) == {"seed": 5, "environment": now, "resumed": []}
    before, now["torch"] = dict(now), "9.9"
    with caplog.at_level(logging.WARNING):
        record_environment(tmp_path, "cpu", {"seed": 5}, 20)
        record_environment(tmp_path, "cpu", {"seed": 5}, 30)
    assert json.loads(meta.read_text()) == {
        "seed": 5,
        "environment": before,
        "resumed": [{"step": 20, "environment": now}],
    }
    assert len(caplog.records) == 1 and f"torch {before['torch']} -> 9.9" in caplog.text
