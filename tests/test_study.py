"""The harness, the page maker, the plots, the intervals and the progress lines, around studies made for the purpose.

Contract: a study's folder is complete or as it was before; files hold what the study returned; pages need nothing from
outside; nothing global changes. Oracle for intervals: tables of Student's t, and hand calculation.
"""

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
import torch

from reference import progress
from studies import interval, plots, report, requantization, study
from studies.result import Plate, Result, Study, Table, three_digits

FILES = ["figure.png", "figure.svg", "finding.md", "meta.json", "rows.csv"]


def measure(fast: bool) -> Result:
    """A study of nothing."""
    with plots.style():
        figure, (axes,) = plots.panels(1, plots.COLUMN, 2)
        axes.plot([1, 2], [3, 4], color=plots.BLUE)
    rows = pd.DataFrame({"x": [1, 2], "y": [0.1, 1 / 3], "fast": fast})
    return Result(rows, figure, "A line.", "It is 0.50 ± 0.25 (n = 2).", (7, 8), {"mean": 0.5})


TOY = Study("toy", "A toy", "Is 1 < 2?", measure)


def snapshot(folder: Path) -> dict[str, bytes]:
    """Contents of all files, by relative name."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_study_leaves_all_its_files(tmp_path: Path) -> None:
    out = tmp_path / "new" / "studies"
    folder = study.run_study(TOY, out, True, "fourbit study run toy --fast")
    assert folder == out / "toy" and [path.name for path in out.iterdir()] == ["toy"]
    assert sorted(snapshot(folder)) == FILES
    assert (folder / "rows.csv").read_text() == f"x,y,fast\n1,0.1,True\n2,{1 / 3!r},True\n"
    assert (folder / "finding.md").read_text() == "**Is 1 < 2?** It is 0.50 ± 0.25 (n = 2).\n"
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (folder / "figure.svg").read_bytes()
    meta = json.loads((folder / "meta.json").read_text())
    known = {"name": "toy", "seeds": [7, 8], "rows": 2, "fast": True, "device": "cpu", "summary": {"mean": 0.5}}
    assert known.items() <= meta.items() and meta["command"] == "fourbit study run toy --fast"
    versions = {"python", "torch", "numpy", "scipy", "pandas", "matplotlib", "fourbit", "commit", "device"}
    assert versions <= meta["environment"].keys()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", meta["date"])


def test_a_study_that_fails_writes_nothing(tmp_path: Path) -> None:
    def fail(fast: bool) -> Result:
        raise RuntimeError("no answer")

    with pytest.raises(RuntimeError, match="no answer"):
        study.run_study(replace(TOY, run=fail), tmp_path / "out", False, "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.every(3)
@pytest.mark.parametrize("former", [False, True], ids=["first", "again"])
@pytest.mark.parametrize("name", FILES)
def test_a_write_that_fails_leaves_things_as_they_were(
    name: str, former: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk refuses one of the files, after others have been written."""
    if former:
        study.run_study(TOY, tmp_path, True, "before")
    before = snapshot(tmp_path)

    def refusing(function: Callable) -> Callable:
        def write(*args: object, **options: object) -> object:
            if any(Path(arg).name == name for arg in args if isinstance(arg, (str, Path))):
                raise OSError(28, "No space left on device")
            return function(*args, **options)

        return write

    writers = [(Path, "write_text"), (Path, "write_bytes"), (pd.DataFrame, "to_csv"), (study, "write_json")]
    for owner, function in writers:
        monkeypatch.setattr(owner, function, refusing(getattr(owner, function)))
    with pytest.raises(OSError, match="No space"):
        study.run_study(TOY, tmp_path, False, "now")
    assert snapshot(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["toy"] * former


def test_a_study_whose_place_is_refused_leaves_the_former_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rename fails, when the former folder has been moved aside."""
    study.run_study(TOY, tmp_path, True, "before")
    before, rename = snapshot(tmp_path), Path.rename

    def refusing(path: Path, target: Path) -> Path:
        if path.name.endswith(".new"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refusing)
    with pytest.raises(OSError, match="Input/output"):
        study.run_study(TOY, tmp_path, False, "now")
    assert snapshot(tmp_path) == before and [path.name for path in tmp_path.iterdir()] == ["toy"]


def test_a_second_run_takes_the_place_of_the_first(tmp_path: Path) -> None:
    folder = study.run_study(TOY, tmp_path, True, "first")
    (folder / "stray").touch()
    study.run_study(TOY, tmp_path, False, "second")
    assert sorted(snapshot(folder)) == FILES and [path.name for path in tmp_path.iterdir()] == ["toy"]
    assert json.loads((folder / "meta.json").read_text())["command"] == "second"


def test_threads_are_set_for_the_study_alone(tmp_path: Path) -> None:
    seen = []
    before = torch.get_num_threads()
    watched = replace(TOY, run=lambda fast: seen.append(torch.get_num_threads()) or measure(fast), threads=before + 1)
    study.run_study(watched, tmp_path, True, "")
    assert (seen, torch.get_num_threads()) == ([before + 1], before)


def test_an_unknown_study_is_told_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"study 'nonsense' is unknown; the known ones are formats"):
        study.main(["run", "nonsense"])


def test_studies_are_listed_with_their_questions(capsys: pytest.CaptureFixture[str]) -> None:
    assert study.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{each.name}: {each.question}" for each in study.STUDIES.values()]
    assert f"requantization: {requantization.STUDY.question}" in lines
    assert all(name == each.name and each.question.endswith("?") for name, each in study.STUDIES.items())


def test_run_and_report_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "STUDIES", {"toy": TOY})
    assert study.main(["run", "toy", "--fast", "--out", str(tmp_path)]) == 0
    assert "It is 0.50 ± 0.25 (n = 2)." in capsys.readouterr().out
    meta = json.loads((tmp_path / "toy" / "meta.json").read_text())
    assert meta["command"] == f"fourbit study run toy --fast --out {tmp_path}"
    assert study.main(["report", "--fast", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert_self_contained(page)
    assert "Is 1 &lt; 2?" in page and "A line." in page and page.count("<img ") == 1


def test_a_report_runs_what_is_missing_and_takes_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], bool]] = []
    monkeypatch.setattr(study, "STUDIES", {"toy": TOY, "other": TOY})
    monkeypatch.setattr(study, "run_together", lambda names, out, fast, workers: asked.append((names, fast)))
    study.run_study(TOY, tmp_path, True, "")
    study.main(["report", "--fast", "--out", str(tmp_path)])
    study.main(["report", "--out", str(tmp_path)])  # a fast version does not do for a full report
    study.run_study(TOY, tmp_path, False, "")
    study.main(["report", "--out", str(tmp_path)])
    study.main(["report", "--fast", "--out", str(tmp_path)])
    both, one = ["toy", "other"], ["other"]
    assert asked == [(one, True), (both, False), (one, False), (one, True)]


def test_studies_run_together_and_the_first_failure_is_raised(tmp_path: Path) -> None:
    study.run_together(["requantization"], tmp_path, True, 2)
    assert json.loads((tmp_path / "requantization" / "meta.json").read_text())["fast"]
    with pytest.raises(ValueError, match="study 'nonsense' is unknown"):
        study.run_together(["nonsense"], tmp_path, True, 1)


def test_tables_and_plates_are_kept_and_shown(tmp_path: Path) -> None:
    def measure_more(fast: bool) -> Result:
        frame = pd.DataFrame({"format": ["a|b", "<c>"], "error": [0.5, None], "ours": ["1 ± 2", "3"]})
        with plots.style():
            figure, _ = plots.panels(1)
        more = {"tables": (Table("ours", frame, "A table."),), "plates": (Plate("again", figure, "A plate."),)}
        return replace(measure(fast), **more)

    folder = study.run_study(Study("toy", "A toy", "Is 1 < 2?", measure_more), tmp_path, True, "")
    assert (folder / "ours.md").read_text() == (
        "A table.\n\n| format | error | ours |\n| --- | --: | --- |\n| a\\|b | 0.5 | 1 ± 2 |\n| <c> |  | 3 |\n"
    )
    assert (folder / "ours.csv").read_text() == "format,error,ours\na|b,0.5,1 ± 2\n<c>,,3\n"
    assert (folder / "again.svg").exists() and (folder / "again.png").exists()
    page = report.studies([folder], tmp_path)
    assert_self_contained(page)
    assert page.count("<img ") == 2 and "A plate." in page and "&lt;c&gt;" in page


def test_a_section_shows_figure_finding_and_key_table_and_folds_the_rest(tmp_path: Path) -> None:
    def measure_all(fast: bool) -> Result:
        tables = (
            Table("key", pd.DataFrame({"format": ["kept"]}), "The key."),
            Table("some", pd.DataFrame({"n": range(50, 110)}), "Some."),
            Table("many", pd.DataFrame({"n": range(200, 261)}), "Many."),
        )
        plates = (Plate("again", measure(fast).figure, "A plate."),)
        return replace(measure(fast), tables=tables, plates=plates, details=("First.", "Second & third."))

    folder = study.run_study(Study("toy", "A toy", "Is 1 < 2?", measure_all), tmp_path, True, "")
    assert (folder / "finding.md").read_text().endswith("(n = 2).\n\n- First.\n- Second & third.\n")
    page = report.studies([folder], tmp_path)
    assert_self_contained(page)
    shown, rest = page.split("<details>")
    assert shown.index('href="#toy"') < shown.index("A line.") < shown.index("It is 0.50") < shown.index("kept")
    assert all(text not in shown and text in rest for text in ("First.", "Second &amp; third.", "A plate.", ">109<"))
    assert ">200<" not in page  # 61 rows are a link alone
    linked = re.findall(r'<a href="toy/([^"]*)"', rest)
    names = ["rows.csv", "key.csv", "some.csv", "many.csv", "figure.svg", "again.svg", "meta.json"]
    assert linked == names and all((folder / name).is_file() for name in names)
    assert "prefers-color-scheme: dark" in page


def test_three_digits_keep_an_interval() -> None:
    cells = {
        "9.041 ± 0.037": "9.04 ± 0.04",
        "20.434 ± 0.018": "20.4 ± 0.02",
        "0.0123456 and 1,234 of 16": "0.0123 and 1,234 of 16",
        "-0.9988 ± 0.0056": "-0.999 ± 0.006",
        "6.32e-7 ± 1.08e-7": "6.32e-7 ± 1.08e-7",
        "1e-3": "1e-3",
        "16x16": "16x16",
        3.14159: "3.14",
        458751.98: "4.59e+05",
        7: 7,
    }
    assert {cell: three_digits(cell) for cell in cells} == cells
    assert three_digits(float("nan")) == ""


def test_a_finding_is_short_and_so_is_the_key_table() -> None:
    with pytest.raises(ValueError, match="finding has 61 words"):
        replace(measure(True), finding="word " * 61)
    with pytest.raises(ValueError, match="key table, has 13 rows"):
        replace(measure(True), tables=(Table("key", pd.DataFrame({"n": range(13)}), ""),))


def test_an_out_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file; name a folder"):
        study.run_study(TOY, tmp_path / "file", True, "")


def assert_self_contained(page: str) -> None:
    """No script, and every source, address and style is inside the page; links lead to its sections or to files beside
    it."""
    assert "<script" not in page and "@import" not in page
    links = re.findall(r'<a href="([^"]*)">', page)
    assert all(f' id="{link[1:]}"' in page if link.startswith("#") else re.match(r"\w[\w.-]*/", link) for link in links)
    page = re.sub(r'<a href="[^"]*">', "", page)
    for address in re.findall(r"""(?:src|href|srcset|data|url)\s*[=(]\s*["']?([^"'\s>)]+)""", page):
        assert address.startswith("data:"), address


@pytest.mark.parametrize(
    "bad",
    [
        '<a href="http://x/a">',
        '<a href="/x/a">',
        '<a href="#x">',
        '<img src="http://x/a.png">',
        "<img src='a.png'>",
        '<link href="//x/a.css">',
        "<p style='color:url(a)'>",
    ],
)
def test_the_check_of_pages_finds_what_comes_from_outside(bad: str) -> None:
    with pytest.raises(AssertionError):
        assert_self_contained(report.page("x", report.Html(bad)))


def test_pages_escape_plain_text() -> None:
    evil = '<b>&"'
    for part in (
        *(make(evil) for make in (report.heading, report.paragraph, report.note, report.command)),
        report.paragraph("", evil),
        report.bullets([evil]),
        report.facts([(evil, evil)]),
        report.table([evil, evil], [[evil, evil]], evil),
        report.figure(b"", evil, evil),
    ):
        assert "<b>" not in part and "&lt;b&gt;&amp;" in part
    assert "<b>" not in report.page(evil)


def test_tables_align_numbers_right() -> None:
    table = report.table(("name", "n"), [("a", "1")])
    assert '<td>a</td><td class="number">1</td>' in table and '<th>name</th><th class="number">n</th>' in table


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_equal_figures_have_equal_bytes_and_the_style_stays_inside(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = plots.render(measure(True).figure, kind)
    monkeypatch.setitem(matplotlib.rcParams, "axes.facecolor", "red")  # a user's own setting
    monkeypatch.setitem(matplotlib.rcParams, "svg.hashsalt", None)
    before = dict(matplotlib.rcParams)
    assert plots.render(measure(True).figure, kind) == first
    assert dict(matplotlib.rcParams) == before


def test_figures_are_svg_or_png() -> None:
    with pytest.raises(ValueError, match="kind='pdf': use 'svg' or 'png'"):
        plots.render(measure(True).figure, "pdf")


def test_pngs_are_sharp(tmp_path: Path) -> None:
    plots.save(measure(True).figure, tmp_path / "a.png")
    width = int.from_bytes((tmp_path / "a.png").read_bytes()[16:20], "big")
    assert width / plots.COLUMN >= 150


def test_import_opens_no_window_and_changes_no_setting() -> None:
    code = (
        "import sys, matplotlib as m; before = dict(m.rcParams); import studies.study, studies.demo;"
        "print(dict(m.rcParams) == before, 'matplotlib.pyplot' in sys.modules)"
    )
    root = Path(study.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


def test_student_interval() -> None:
    """1, 2, 3: mean 2, standard deviation 1, t(.975, 2) = 4.30265, so half = 4.30265 / sqrt 3."""
    found = interval.interval([1.0, 2.0, 3.0])
    assert (found.mean, found.half) == (2.0, pytest.approx(2.48414, abs=1e-5))
    assert found.holds(4.48) and not found.holds(4.49) and found.text(2) == "2.00 ± 2.48"
    assert interval.Interval(-1e-9, 0.001).text(1, 1e3) == "0.0 ± 1.0"
    with pytest.raises(ValueError, match="values has 1 entries; an interval needs two or more"):
        interval.interval([1.0])


def test_share_interval() -> None:
    """No success in 10: 0 to 1 - .025^(1/10), exactly; and symmetry."""
    low, high = interval.share_interval(0, 10)
    assert (low, high) == (0.0, pytest.approx(1 - 0.025**0.1, rel=1e-9))
    assert interval.share_interval(10, 10) == pytest.approx((1 - high, 1.0))


def test_lists_in_words() -> None:
    assert [interval.listed("abc"[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that stands where the test puts it."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_progress_in_a_file_is_a_line_each_twentieth(clock: list[float]) -> None:
    stream = io.StringIO()
    with progress.Progress(1000, "work", stream) as bar:
        for _ in range(1000):
            clock[0] += 1.0
            bar.advance(1, "note")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 20
    assert lines[0] == "work:   5 %, note, 0:50 passed, about 15:50 left"
    assert lines[-1] == "work: 100 %, note, 16:40 passed"


def test_fast_progress_tells_its_end_alone(clock: list[float]) -> None:
    stream = io.StringIO()
    with progress.Progress(100, "work", stream) as bar:
        for _ in range(100):
            clock[0] += 0.01
            bar.advance()
    assert stream.getvalue() == "work: 100 %, 0:01 passed\n"


def test_what_was_done_before_does_not_count_as_speed(clock: list[float]) -> None:
    stream = io.StringIO()
    with progress.Progress(100, "work", stream) as bar:
        bar.skip(50)
        clock[0] += 10.0
        bar.advance(10)
        bar.skip(40)
    assert stream.getvalue().splitlines() == [
        "work:  60 %, 0:10 passed, about 0:40 left",
        "work: 100 %, done before, 0:10 passed",
    ]


def test_progress_on_a_terminal_is_a_bar() -> None:
    stream = Terminal()
    with progress.Progress(4, "work", stream) as bar:
        bar.skip(1)
        for _ in range(3):
            bar.advance(1, "note")
    assert "100%" in stream.getvalue() and "4/4" in stream.getvalue() and stream.getvalue().count("\n") == 1
