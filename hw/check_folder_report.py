"""What `check_folder` found: findings, grouped by kind and wording, one line each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .check_report import Report

SHOWN = 2  # names that a line holds; twice that where they belong together


@dataclass(frozen=True)
class Finding:
    """One fault. kind: what findings are grouped by, with `text`. text: the fault, a sentence without the names.
    tensors: whose. detail: numbers of this one, shown of the first."""

    kind: str
    text: str
    tensors: tuple[str, ...]
    detail: str = ""


@dataclass(frozen=True)
class FolderReport(Report):
    """A Report of a folder. findings: every fault with all of its tensors."""

    findings: tuple[Finding, ...] = ()

    def write(self, path: Path) -> None:
        """As JSON: passed, format, facts, and findings by kind with every tensor's name."""
        found = [{"kind": f.kind, "text": f.text, "detail": f.detail, "tensors": f.tensors} for f in self.findings]
        body = {"passed": bool(self), "format": self.format, "facts": self.facts, "findings": found}
        path.write_text(json.dumps(body, indent=1) + "\n")


def lines(findings: Iterable[Finding]) -> tuple[str, ...]:
    """One line for the findings of one kind and wording: the first names, and how many more."""
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        groups[finding.kind, finding.text].append(finding)
    return tuple(_line(text, group) for (_, text), group in groups.items())


def _line(text: str, group: list[Finding]) -> str:
    first = group[0]
    detail = f" ({first.detail})" if first.detail else ""
    if len(group) > 1 and len(first.tensors) < 2:
        names = tuple(name for finding in group for name in finding.tensors)
        shown = names[:SHOWN]
        left = len(names) - len(shown)
    else:
        shown = first.tensors[: 2 * SHOWN]
        left = len(group) - 1 if len(group) > 1 else len(first.tensors) - len(shown)
    more = f" and {left:,} more of the same kind" if left else ""
    return f"{', '.join(shown)}{more}: {text}{detail}" if shown else text + detail
