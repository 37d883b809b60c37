"""Stochastic rounding, counted: for each bfloat16 input, how many of the 65,536 random fields round it up.

Contract: with D the 16 leading discarded bits of an input, exactly the D largest of the 65,536 fields round its
magnitude up and the others truncate it; what is exact, saturated, NaN or beyond the least value never moves. Oracle: D
and the two neighbours in integer arithmetic on the input's bits, for every format of `nm.FORMATS`; sampled, the search
of `numerics.oracle`. Bitwise. Results are compared as values with their signs, which name a code.

A rule that is monotone in the field is known from two fields, 65,535 - D and 65,536 - D: these, and the least and the
greatest field, are checked for all 65,536 inputs in every run.
Under the marker `exhaustive` nothing is assumed: all 65,536 inputs with 512 fields (each leading byte, with a low byte
of 00 or FF), and all 65,536 fields for every input that may move. That writes records/stochastic.json.
"""

import datetime
import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import numerics as nm
from numerics import oracle

RECORD = Path(__file__).resolve().parent / "records" / "stochastic.json"
FIELDS = 1 << 16
FORMATS = list(nm.FORMATS.values())
CHUNK = 16  # inputs that meet all 65,536 fields at a time


@dataclass(frozen=True)
class Expected:
    """For each input, float64 (65536,): its magnitude rounded down and up, signed; and the number of fields that do."""

    down: Tensor
    up: Tensor
    count: Tensor

    def of(self, fields: Tensor, inputs: slice = slice(None)) -> Tensor:
        """The rounded values for one field per input."""
        down, up, count = self.down[inputs], self.up[inputs], self.count[inputs]
        return torch.where(fields >= FIELDS - count, up, down)


def name(fmt: nm.Format) -> str:
    return fmt.name


def inputs() -> Tensor:
    """Every bfloat16, by its bits."""
    return torch.arange(1 << 16).to(torch.uint16).view(torch.bfloat16)


def expected(fmt: nm.Format) -> Expected:
    """What the discarded bits demand, in integers: a finite input is significand x 2^exponent, significand < 256."""
    bits = torch.arange(1 << 16)
    negative, biased, fraction = bits >> 15 == 1, bits >> 7 & 0xFF, bits & 0x7F
    significand = torch.where(biased > 0, fraction + 128, fraction)
    exponent = biased.clamp(min=1) - 134
    leading = exponent - 1 + sum((significand >> k > 0).long() for k in range(8))  # of a nonzero significand
    if fmt.kind == "fixed":
        quantum = torch.full_like(bits, -fmt.mantissa_bits)
    else:
        quantum = leading.clamp(min=fmt.min_exponent) - fmt.mantissa_bits
    # significand x 2^16 has 24 bits: shifted by more than 24 nothing is left, and none shifts left by more than 23
    drop = (quantum - exponent).clamp(-23, 40)
    fixed_point = torch.where(
        drop > 0, (significand << 16) >> drop.clamp(min=0), significand << (16 - drop).clamp(0, 39)
    )
    whole, count = fixed_point >> 16, fixed_point & 0xFFFF
    down, up = (torch.ldexp((whole + carry).double(), quantum) for carry in (0, 1))
    count = torch.where(biased == 0xFF, 0, count)
    highest = torch.where(negative, -fmt.min, fmt.max) if fmt.kind == "fixed" else torch.full_like(down, fmt.max)
    least = fmt.value(0) if fmt.kind == "exponent" else 0.0
    magnitude = torch.where(biased == 0xFF, torch.inf, torch.ldexp(significand.double(), exponent))
    count = torch.where((magnitude >= highest) | (magnitude <= least), 0, count)
    down, up = (torch.where(magnitude >= highest, highest, v).clamp(min=least) for v in (down, up))
    has_sign = fmt.kind != "exponent" and fmt.signed
    if has_sign:
        down, up = (torch.where(negative, -v, v) for v in (down, up))
    not_a_number = (biased == 0xFF) & (fraction > 0)
    replaced = torch.nan if fmt.nan_code is not None else fmt.max
    below = negative & (magnitude > 0) if not has_sign else torch.zeros_like(negative)
    down, up = (torch.where(not_a_number, replaced, torch.where(below, torch.nan, v)) for v in (down, up))
    count = torch.where(not_a_number | below, 0, count)
    return Expected(down, up, count)


def rounded(x: Tensor, fmt: nm.Format, fields: Tensor) -> Tensor:
    """nm.encode with these fields, decoded; NaN is the format's canonical one."""
    codes = nm.encode(x.contiguous(), fmt, nm.Rounding.STOCHASTIC, fields.contiguous()).to(torch.int32)
    values = nm.decode(codes, fmt)
    assert fmt.nan_code is None or bool((codes[torch.isnan(values)] == fmt.nan_code).all())
    return values


def assert_values(got: Tensor, want: Tensor, fmt: nm.Format) -> None:
    """Equal with the signs of zeros, where the format has them; NaN equals NaN."""
    same = (got == want) | (torch.isnan(got) & torch.isnan(want))
    if fmt.kind == "float" and fmt.signed:
        same &= (torch.signbit(got) == torch.signbit(want)) | torch.isnan(got)
    wrong = (~same).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise AssertionError(
            f"{fmt.name}: {len(wrong)}/{same.numel()} differ; first at {at}: {float(got[at])}, not {float(want[at])}"
        )


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_both_sides_of_each_threshold(fmt: nm.Format) -> None:
    """Fields 65,535 - D and 65,536 - D, 0 and 65,535, for all 65,536 inputs."""
    x, want = inputs(), expected(fmt)
    threshold = FIELDS - want.count
    for fields in (threshold - 1, threshold.clamp(max=FIELDS - 1), torch.zeros_like(threshold)):
        assert_values(rounded(x, fmt, fields), want.of(fields), fmt)
    greatest = torch.full_like(threshold, FIELDS - 1)
    assert_values(rounded(x, fmt, greatest), torch.where(want.count > 0, want.up, want.down), fmt)


@pytest.mark.parametrize("fmt", [fmt for fmt in FORMATS if fmt.bits <= 16], ids=name)
def test_the_search_of_the_oracle_agrees(fmt: nm.Format) -> None:
    """The expectation itself against a search among the format's values in rationals: every 101st input.

    TF32 is too wide for a search; every bfloat16 is one of its values.
    """
    x, want = inputs()[::101], expected(fmt)
    for i, value in zip(range(0, 1 << 16, 101), x.tolist(), strict=True):
        if fmt.kind == "exponent" or not fmt.signed:
            value = abs(value)  # the oracle takes magnitudes; the sign's policy is this module's
            i &= 0x7FFF
        for field in {0, FIELDS - 1, FIELDS - 1 - int(want.count[i]), min(FIELDS - int(want.count[i]), FIELDS - 1)}:
            code = oracle.stochastic(value, fmt, field)
            assert_values(torch.tensor([fmt.value(code)]), want.of(torch.tensor([field]), slice(i, i + 1)), fmt)


def test_counts_by_hand() -> None:
    """2.5 lies halfway between E2M1's 2 and 3, 2.015625 one 64th of the way; 0.5 x 2^-16 moves once; below, never."""
    want = expected(nm.E2M1)
    points = torch.tensor([2.5, -2.5, 2.015625, 5.0, 2.0, 2.0**-17, 2.0**-18, 100.0]).bfloat16()
    index = points.view(torch.uint16).to(torch.int64)
    assert want.count[index].tolist() == [32768, 32768, 1024, 32768, 0, 1, 0, 0]
    assert want.down[index].tolist() == [2, -2, 2, 4, 2, 0, 0, 6]
    assert want.up[index].tolist()[:4] == [3, -3, 3, 6]


@pytest.mark.exhaustive
@pytest.mark.parametrize("fmt", FORMATS, ids=name)
def test_all_fields(fmt: nm.Format) -> None:
    """512 fields for all inputs, and all 65,536 fields for those that move, where they round up D times."""
    began = time.monotonic()
    x, want = inputs(), expected(fmt)
    for leading in range(256):
        for low in (0x00, 0xFF):
            fields = torch.full((1 << 16,), leading << 8 | low, dtype=torch.int32)
            assert_values(rounded(x, fmt, fields), want.of(fields), fmt)
    moving = (want.count > 0).nonzero().flatten()
    every = torch.arange(FIELDS, dtype=torch.int32)
    ups = 0
    for part in moving.split(CHUNK):
        fields = every.expand(len(part), -1)
        got = rounded(x[part, None].expand_as(fields), fmt, fields)
        up = every >= FIELDS - want.count[part, None]
        assert_values(got, torch.where(up, want.up[part, None], want.down[part, None]), fmt)
        ups += int((got == want.up[part, None]).sum())
    assert ups == int(want.count.sum())
    compared = 512 * (1 << 16) + FIELDS * len(moving)
    record(fmt, compared, len(moving), ups, time.monotonic() - began)


def record(fmt: nm.Format, compared: int, moving: int, ups: int, seconds: float) -> None:
    """Replace the format's row in the record."""
    rows = json.loads(RECORD.read_text("utf-8"))["rows"] if RECORD.exists() else []
    new = {
        "format": fmt.name,
        "compared": compared,
        "differing": 0,
        "inputs that move": moving,
        "roundings up": ups,
        "seconds": round(seconds),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"torch": torch.__version__},
    }
    rows = sorted([r for r in rows if r["format"] != fmt.name] + [new], key=lambda r: r["format"])
    about = (
        "nm.encode under STOCHASTIC: all bfloat16 inputs with 512 fields, and those that move with all 65,536; "
        "roundings up are the sum of the inputs' discarded bits"
    )
    RECORD.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n", "utf-8")


def test_the_record_is_whole() -> None:
    """A row a format; its counts are those that the bits demand."""
    rows = {row["format"]: row for row in json.loads(RECORD.read_text("utf-8"))["rows"]}
    assert sorted(rows) == sorted(nm.FORMATS)
    for fmt in FORMATS:
        count, row = expected(fmt).count, rows[fmt.name]
        moving = int((count > 0).sum())
        assert row["inputs that move"] == moving and row["roundings up"] == int(count.sum())
        assert row["compared"] == 512 * (1 << 16) + FIELDS * moving and row["differing"] == 0
