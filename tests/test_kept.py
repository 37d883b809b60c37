"""Contract: a study counts as finished only when it is whole and of the sources of now; one report works in a folder;
killed or interrupted reports leave no process and nothing that the next one trips over.

Oracle: a study of nothing, damaged by hand; processes counted by the system.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_study import TOY

from studies import cache, kept, study

REPORT = "from studies import study; study.main(['report', '--fast', '--out', {!r}])"


@pytest.mark.parametrize("name", ["meta.json", "rows.csv", "finding.md", "figure.svg", "figure.png"])
def test_a_study_that_lacks_a_file_is_not_finished(tmp_path: Path, name: str) -> None:
    folder = study.run_study(TOY, tmp_path, True, "")
    assert kept.is_finished(TOY, folder, True) and not kept.is_finished(TOY, folder, False)
    (folder / name).unlink()
    assert not kept.is_finished(TOY, folder, True) and study.finished(tmp_path) == []


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:40],
        lambda text: "[]",
        lambda text: text.replace('"fast"', '"slow"'),
        lambda text: text.replace('"torch"', '"t"'),
        lambda text: re.sub(r'"tables": \[\]', '"tables": 3', text),
        lambda text: re.sub(r'"environment": \{', '"environment": 1, "was": {', text),
    ],
)
def test_a_damaged_meta_is_measured_again(
    tmp_path: Path, damage: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = study.run_study(TOY, tmp_path, True, "")
    text = (folder / "meta.json").read_text()
    assert damage(text) != text
    (folder / "meta.json").write_text(damage(text))
    assert not kept.is_finished(TOY, folder, True)
    monkeypatch.setattr(study, "STUDIES", {"toy": TOY})
    monkeypatch.setattr(study, "run_together", lambda names, out, fast, workers: study.run_study(TOY, out, fast, ""))
    study.main(["report", "--fast", "--out", str(tmp_path)])
    assert json.loads((folder / "meta.json").read_text())["fast"]


def test_changed_sources_and_new_data_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = study.run_study(TOY, tmp_path, True, "")
    with monkeypatch.context() as patch:
        patch.setattr(cache, "sources", lambda module: "other")
        assert not kept.is_finished(TOY, folder, True)
    with monkeypatch.context() as patch:  # only a study that asks for real data cares about them
        found = {}
        for here in (False, True):
            patch.setattr(kept.real_data, "missing", lambda here=here: "" if here else "nothing installed")
            found[here] = [kept.sources(study.STUDIES[name]) for name in ("format_error", "formats")]
        assert found[False][0] != found[True][0] and found[False][1] == found[True][1]
    assert kept.is_finished(TOY, folder, True)


def test_a_second_report_in_a_folder_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "STUDIES", {"toy": TOY})
    study.run_study(TOY, tmp_path, True, "")
    with kept.alone(tmp_path), pytest.raises(ValueError, match="another report works in it; wait"):
        study.main(["report", "--fast", "--out", str(tmp_path)])
    study.main(["report", "--fast", "--out", str(tmp_path)])


def test_what_a_killed_process_left_is_cleared_and_a_living_one_is_left_alone(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for name in (f".toy.{ended.pid}.old", f".toy.{ended.pid}.new", f".toy.{os.getpid()}.new", ".mine.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with kept.alone(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.new", f".toy.{os.getpid()}.new", "toy"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)])
def test_a_report_that_ends_leaves_no_process(tmp_path: Path, how: signal.Signals) -> None:
    root = Path(study.__file__).parent.parent
    command = [sys.executable, "-c", REPORT.format(str(tmp_path))]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, start_new_session=True) as report:
        while not any((tmp_path / ".cache").glob("*.csv")) and report.poll() is None:
            time.sleep(0.2)
        assert report.poll() is None
        os.kill(report.pid, how)
        report.wait(20)
        for _ in range(100):
            if not _session(report.pid):
                break
            time.sleep(0.2)
        assert _session(report.pid) == []
        assert report.stderr is not None and report.stderr.read().count(b"Traceback") == (how is signal.SIGINT)


def _session(number: int) -> list[str]:
    """The processes of a session, dead ones that nobody has waited for left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(session) == number and state not in "ZX":
            found.append(path.parent.name)
    return found
