"""`fourbit bench wires`.

Contract: parts take as long as the slowest process, figures are medians of rounds and ratios of the same rounds,
packing is what a pair takes beyond BF16, and the words say whether the targets are met. Oracle: reports made up here
with figures by hand; two real processes, whose counted bits are the formula's.
"""

from pathlib import Path
from typing import Any

import pytest

from reference import wire_cost
from reference.wire_cost import PAIRS, WireCostConfig, cost, limit, slowest, tabulate, verdict
from reference.wire_cost_rank import DIRECTIONS, PARTS, Job, run
from reference.wires import WIRES, bits_per_value

VALUES = 4096 * 10


def report(wire: list[list[float]], pack: list[float], used: list[float], casts: float = 0.5) -> dict[str, Any]:
    """A process's: seconds of each round on the wire and of packing, of each pair; unpacking takes as long."""
    seconds, counts = [], {}
    for i, pair in enumerate(PAIRS):
        for direction, name in zip(DIRECTIONS, pair, strict=True):
            for part, found in zip(PARTS, ([casts], [pack[i]] * 3, wire[i], [pack[i]] * 3), strict=True):
                seconds.append([i, direction, part, found])
            size = int(VALUES * bits_per_value(WIRES[name][0], 4096)) // 8
            counts[f"{i} {direction}"] = {"bytes": size, "bytes_kept": size // 2, "values": VALUES}
    return {"seconds": seconds, "counts": counts, "used": [used] * len(PAIRS)}


BF16, OTHER = [4.0, 1.0, 6.0], [1.0, 2.0, 3.0]
FAST = [1.0, 0.5, 2.0]  # rounds of 4, 2 and 3 times less than BF16: 3 is the ratio
REPORTS = [
    report([BF16, OTHER, OTHER, FAST], [0.1, 0.1, 0.1, 0.3], [10.0, 2.0, 6.0, 9.0, 10.0]),
    report([[0.5] * 3] * 4, [0.2, 0.1, 0.1, 0.1], [10.0, 1.0, 1.0, 9.0, 10.0]),
]


def test_a_part_takes_as_long_as_the_slowest_process() -> None:
    found = slowest(REPORTS)
    assert found[0, "dispatch", "wire"] == BF16 and found[3, "combine", "wire"] == [1.0, 0.5, 2.0]
    assert found[0, "combine", "pack"] == [0.2] * 3 and found[3, "combine", "pack"] == [0.3] * 3


def test_the_table_has_medians_and_ratios_of_the_same_rounds() -> None:
    table = tabulate(REPORTS, 4096).set_index(["dispatch", "combine"])
    bf16, judged = table.loc[("bf16", "bf16")], table.loc[("nvfp4", "s2f6_rht")]
    assert (bf16.wire, judged.wire) == (8000.0, 2000.0)  # both ways
    assert (bf16.ratio, judged.ratio, judged.saved) == (1.0, 3.0, 6000.0)  # of 6, 1 and 8 s the median
    assert judged.packing == pytest.approx(2 * 2 * 100)  # both ways, pack and unpack, 0.3 s for 0.2 s
    assert (bf16.bytes, round(judged.bytes, 3), bf16.cast) == (1.0, 2.508, 1000.0)
    assert table.bits.tolist() == table.formula.tolist() and judged.bits == 4.5 + 32 / 4096 + 8.25


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "3.00 times faster on the wire than bf16, met: 2 asked; 2.508 times fewer bytes"),
        ({"ratio": 2.0}, "2.00 times faster on the wire than bf16, met"),
        ({"ratio": 1.99}, "1.99 times faster on the wire than bf16, missed: 2 asked"),
        ({}, "400.0 ms more than bf16's, less than the 6000.0 ms that the wire saves"),
        ({"packing": 6000.0}, "6000.0 ms more than bf16's, not less than the 6000.0 ms"),
    ],
)
def test_the_verdict_says_whether_it_pays(change: dict[str, float], told: str) -> None:
    table = tabulate(REPORTS, 4096)
    table.loc[len(PAIRS) - 1, list(change)] = list(change.values())
    assert told in verdict(table)


def test_the_limit_is_what_the_counters_say() -> None:
    """10 s each on 2 cores, of which the two processes used 10 s, 7 of them in the system; all processes 90 %."""
    first = limit(REPORTS, 2).splitlines()[0]
    moved = VALUES * 2 * 2 / 2 * 2 / 10 / 1e9  # both ways, bytes of a value, half of them to itself, two processes
    assert first.startswith(f"bf16 + bf16: {moved:.2f} GB/s between processes; limit: the processors: 50% of 2 cores")
    assert "70% of that in the system" in first and first.endswith("90% by all processes")
    idle = [report([BF16] * 4, [0.1] * 4, [10.0, 1.0, 1.0, 5.0, 10.0])] * 2
    assert "limit: waiting, not the processors: 20% of 2 cores" in limit(idle, 2)


def test_two_processes_exchange_what_the_formula_says(capsys: pytest.CaptureFixture[str]) -> None:
    argv = "--ranks 2 --tokens 8 --top-k 2 --width 64 --rounds 2 --patience 240".split()
    assert wire_cost.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("2 processes on ") and "16 rows of 64 values" in lines[0]
    rows = [line.split() for line in lines[2:6]]
    assert [tuple(row[:2]) for row in rows] == list(PAIRS)
    assert [row[2] for row in rows] == [row[3] for row in rows] == ["32", "16.5", "21", "13.25"]
    assert "times faster on the wire" in lines[6] and len(lines) == 7 + len(PAIRS)


def test_processes_that_do_not_end_are_stopped(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"of 2 processes \[0, 1\] did not end in 0.1 s"):
        run(Job(2, 8, 2, 64, 1, PAIRS), tmp_path, 0.1)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"ranks": 0}, "ranks=0: use 1"), ({"rounds": 0}, "rounds=0: use 1"), ({"width": 40}, "width=40: use a multiple")],
)
def test_bad_input_is_told(change: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        cost(WireCostConfig(**change))
