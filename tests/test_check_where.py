"""Where bytes differ from the nearest law and by how much, and faults that hold in one place alone.

Contract: of bytes that no law makes, the report says in which expert, rows or columns they lie, under which condition
alone, and how many codes or times they are off; it claims no place that chance would give. Oracle: the places where
this file changes bytes.
"""

from collections.abc import Callable

import pytest
import torch
from plain_quantizer import E2M1, mx, nvfp4
from torch import Tensor

from hw.check import check

Dump = dict[str, Tensor]
G = torch.Generator().manual_seed(21)
X = torch.randn(32, 256, generator=G)
EXPERTS = torch.randn(3, 32, 64, generator=G)
HEAVY = X * torch.exp(2 * torch.randn(32, 256, generator=G))
ROW, COLUMN = torch.arange(32).view(-1, 1), torch.arange(256)


def changed(d: Dump, where: Callable[[Tensor], Tensor], to: Callable[[Tensor], Tensor], key: str = "codes") -> Dump:
    """Half of the bytes at some places, drawn, as others."""
    t = d[key]
    drawn = torch.rand(t.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    return d | {key: torch.where(where(t) & drawn, to(t), t).to(torch.uint8)}


def smaller(c: Tensor) -> Tensor:
    return torch.where(c & 7 > 0, c - 1, c + 1)


def quarters() -> Tensor:
    x = torch.randint(-24, 25, (32, 256), generator=torch.Generator().manual_seed(2)) / 4
    x[:, ::16] = 6.0
    x[0, 0] = 2688.0
    return x


def saturated() -> Dump:
    """Under half of the outer scale that it takes, some blocks have the largest scale."""
    return nvfp4(HEAVY, outer=(HEAVY.abs().max() / 2688 / 16).numpy())


PLACES: dict[str, tuple[Callable[[], Dump], list[str]]] = {
    "one expert": (
        lambda: changed(mx(EXPERTS, E2M1), lambda c: torch.arange(3).view(3, 1, 1) == 1, smaller),
        ["differ: all in expert 1,"],
    ),
    "half of the columns": (
        lambda: changed(mx(X, E2M1), lambda c: COLUMN < 128, smaller),
        ["differ: all in the first half of the columns,"],
    ),
    "a range of rows": (
        lambda: changed(mx(X, E2M1), lambda c: (ROW >= 10) & (ROW < 19), smaller),
        ["differ: all in rows 10 to 18,"],
    ),
    "every fourth row": (
        lambda: changed(mx(X, E2M1), lambda c: ROW % 4 == 3, smaller),
        ["differ: all in every 4th row from row 3,"],
    ),
    "one lane": (
        lambda: changed(mx(X, E2M1), lambda c: COLUMN % 32 == 5, smaller),
        ["differ: all in every 32nd column from column 5,"],
    ),
    "part of every 64": (
        lambda: changed(mx(X, E2M1), lambda c: COLUMN % 64 >= 48, smaller),
        ["differ: all in columns 48 to 63 of every 64,"],
    ),
    "rows of columns": (
        lambda: changed(mx(X, E2M1), lambda c: (ROW == 7) & (COLUMN >= 128), smaller),
        ["differ: all in row 7,"],
    ),
    "scattered": (lambda: changed(mx(X, E2M1), lambda c: torch.rand(c.shape, generator=G) < 0.05, smaller), ["code"]),
    "ties": (
        lambda: changed(
            mx(quarters(), E2M1), lambda c: COLUMN >= 0, lambda c: mx(quarters(), E2M1, code="odd")["codes"]
        ),
        ["ties alone"],
    ),
    "subnormals": (
        lambda: changed(nvfp4(X), lambda c: c % 8 == 1, lambda c: c + 1),
        ["subnormal elements alone, all by +1 code of magnitude"],
    ),
    "zeros": (
        lambda: changed(nvfp4(X), lambda c: c % 8 == 0, lambda c: c + 1),
        ["elements that become zero alone, all by +1 code of magnitude"],
    ),
    "largest scales": (
        lambda: changed(saturated(), lambda c: (saturated()["scales"] == 0x7E).repeat_interleave(16, -1), smaller),
        ["blocks with the largest scale alone"],
    ),
    "negative": (
        lambda: changed(nvfp4(X), lambda c: (c > 8) & (c < 15), lambda c: c + 1),
        ["negative elements alone, all by +1 code of magnitude"],
    ),
    "signs": (lambda: changed(mx(X), lambda c: COLUMN % 2 == 0, lambda c: c ^ 128), ["all by their sign alone"]),
    "scales of some rows": (
        lambda: changed(nvfp4(X), lambda s: ROW >= 16, lambda s: s + 1, "scales"),
        ["differ: all in the second half of the rows, all by +1 code"],
    ),
    "scales of some blocks": (
        lambda: changed(mx(X), lambda s: torch.arange(8) == 3, lambda s: s + 2, "scales"),
        ["differ: all in block 3, all by a factor of 4"],
    ),
    "scales of one expert": (
        lambda: changed(mx(EXPERTS, E2M1), lambda s: torch.arange(3).view(3, 1, 1) == 2, lambda s: s - 1, "scales"),
        ["differ: all in expert 2, all by a factor of 0.5"],
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_the_place_and_distance_of_what_differs_is_said(name: str):
    make, words = PLACES[name]
    d = make()
    report = check(d, "nvfp4" if "outer" in d else "mxfp8" if name in ("signs", "scales of some blocks") else "mxfp4")
    assert not report, str(report)
    assert any(all(word in fault for word in words) for fault in report.faults), str(report)
    assert ("all in" in str(report.faults)) == ("all in" in words[0]) or name == "signs", str(report)


def test_rows_and_columns_are_those_of_the_dump():
    d = mx(X.T.contiguous(), E2M1)
    d = changed(d, lambda c: torch.arange(32) == 9, smaller)
    turned = {name: t.mT.contiguous() for name, t in d.items()}
    assert "differ: all in row 9," in check(turned, "mxfp4", axis=-2).faults[0]
    assert "differ: all in column 9," in check(d, "mxfp4").faults[0]


def test_a_fault_of_one_place_is_named_with_it():
    right, wrong = nvfp4(EXPERTS), nvfp4(EXPERTS, code="down")
    codes = torch.where(torch.arange(3).view(3, 1, 1) == 2, wrong["codes"], right["codes"])
    assert check(right | {"codes": codes}).faults == ("expert 2 alone: codes are rounded toward zero, not to nearest",)
    low, high = mx(X, E2M1), mx(X, E2M1, scale="even")
    mixed = {k: torch.where(ROW < 16, low[k], high[k]) for k in ("codes", "scales")}
    report = check(low | mixed, contract="rceil")
    words = "the second half of the rows alone: scales are rounded to nearest, not up (dialect rceil)"
    assert report.faults == (words,), str(report)
