"""The page of `fourbit validate --ops`, its record, and the command that repeats a case.

Contract: one well-formed file that loads nothing, escapes what it is told and holds every failed case, whole or not at
all; the printed command gives the same line again. Oracle: Python's HTML parser; a module with a hostile name.
"""

import html.parser
import json
import shlex
from pathlib import Path

import pytest
from seam_copies import FAULTS, failed, run, written
from seam_copies import two_threads as two_threads

from hw import validate

TIE = FAULTS[0]


class Page(html.parser.HTMLParser):
    """Raises unless every tag is closed in order; collects text and addresses."""

    VOID = ("meta", "link", "br")

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action", "data")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_complete_and_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A module of a hostile name, whose exceptions are hostile too, and another fault with a derivation."""
    hostile = "<script>alert(1)</script>"
    more = f"\ndef glu_backward(dh, gate_up):\n    raise RuntimeError('{hostile}')\n"
    path = written(tmp_path, TIE.old, TIE.new, more, name='<img src="x">&.py')
    page, out = tmp_path / "page.html", tmp_path / "record.json"
    only = ("--only", "glu_backward, normal", "quantize_tokens NVFP4, ties", "row_scale NVFP4, normal")
    status, lines = run(capsys, path, *only, "--html", str(page), "--out", str(out))
    assert status == 1 and not list(tmp_path.glob("*.partial"))
    source = page.read_text("utf-8")
    found = Page(source)
    assert not found.tags & {"script", "img", "a", "iframe"} and found.addresses == ["data:,"]
    assert "url(" not in source and "@import" not in source and "http" not in source
    record = json.loads(out.read_text())
    bad = [case for case in record["cases"] if case["first"]]
    assert len(bad) == record["failed"] == 2 and f"Failed cases: {len(bad)}" in found.text
    for case in bad:
        assert case["first"] in found.text and case["repeat"] in found.text
        assert "\n".join(case["derivation"]) in found.text
        assert f"FAILED:{case['differing']:,} of {case['elements']:,}" in found.text
    assert lines[-1] in found.text and record["versions"]["torch"] in found.text and hostile in found.text
    assert found.text.count("passed:") == 1  # the one operation that did


def test_the_command_of_a_failed_case_repeats_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = written(tmp_path, TIE.old, TIE.new), tmp_path / "record.json"
    arguments = ("--only", "NVFP4, ties", "--seeds", "5", "--rows", "50", "--out", str(out))
    status, lines = run(capsys, path, *arguments)
    case = next(case for case in json.loads(out.read_text())["cases"] if case["first"])
    words = shlex.split(case["repeat"])
    assert status == 1 and words[:2] == ["fourbit", "validate"] and "ragged, seed 5: " in case["first"]
    assert validate.main(words[2:]) == 1
    again = capsys.readouterr().out.splitlines()
    assert len(failed(again)) == 1 and again[1] == lines[1]
