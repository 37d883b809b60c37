"""What ran on a GPU, from pytest's reports: records/h200_tests.json, which kernels' contracts cite.

    python -m pytest -k "gpu or cuda or on_a" --junitxml report.xml
    python tests/gpu_record.py report.xml        # on that machine, in the same checkout

A module has how many of its tests passed, failed and were not run; one of which none ran is left out.
"""

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

RECORD = Path(__file__).resolve().parent / "records" / "h200_tests.json"
ABOUT = "pytest on an H200, the tests that run there: what each module had; gpu_record.py makes it"


def counted(reports: list[Path]) -> dict[str, dict[str, int]]:
    """Module -> passed, failed, not run."""
    rows: dict[str, dict[str, int]] = {}
    for report in reports:
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            kinds = {child.tag for child in case}
            told = "not run" if "skipped" in kinds else "failed" if kinds & {"failure", "error"} else "passed"
            row = rows.setdefault(case.attrib["classname"].split(".")[-1], {"passed": 0, "failed": 0, "not run": 0})
            row[told] += 1
    return {name: row for name, row in sorted(rows.items()) if row["passed"] or row["failed"]}


def ran(module: str) -> bool:
    """Whether the record says that tests of a module passed on a GPU, and none failed."""
    row = json.loads(RECORD.read_text("utf-8"))["modules"].get(module)
    return row is not None and row["passed"] > 0 and row["failed"] == 0


def main(reports: list[Path]) -> None:
    import torch

    from hw.device import describe
    from hw.record import date, versions

    rows = counted(reports)
    told = {"about": ABOUT, "date": date(), "versions": versions(), "device": describe(torch.device("cuda", 0))}
    told |= {name: sum(row[name] for row in rows.values()) for name in ("passed", "failed")} | {"modules": rows}
    RECORD.write_text(json.dumps(told, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
