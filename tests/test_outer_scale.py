"""The study of outer scales: its changes of company, its limits of underflow, its main claims, words after numbers.

Oracles: rows traced by their contents; E4M3's least number and the tie below it, in closed form; a loop over tokens.
"""

import numpy as np
import pandas as pd
import pytest
import torch

import numerics as nm
from studies import outer_scale as study
from studies import outer_scale_cases as cases

SMALL = study.Size((4, 8, 128), (0, 1, 2))


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def frames(one_thread: None) -> study.Frames:
    return study.measure(SMALL)


@pytest.mark.parametrize("change", cases.CHANGES)
def test_a_change_of_company_keeps_the_tokens_it_names(change: str) -> None:
    x = cases.normal(0, 4, 6, 16)
    new, now, then = cases.changed(x, change, 3)
    assert torch.equal(new.flatten(0, 1)[now], x.flatten(0, 1)[then])
    counts = {"half of the tokens": 12, "one token x 10": 23}
    assert len(now) == len(set(now.tolist())) == len(set(then.tolist())) == counts.get(change, 24)
    if change == "half of the tokens":
        assert new.shape == (4, 3, 16)
    elif change == "zero tokens added":
        assert new.shape == (4, 12, 16) and int((new == 0).all(-1).sum()) == 24
    elif change == "one token x 10":
        assert torch.equal(new[-1, -1], x[-1, -1] * 10)
    else:
        assert new.shape == x.shape and not torch.equal(new, x)
        moved = [not torch.equal(a.sort(0).values, b.sort(0).values) for a, b in zip(new, x, strict=True)]
        assert any(moved) == (change == "other experts")


def test_another_change_is_refused() -> None:
    with pytest.raises(ValueError, match=r"change='x': use one of \('half of the tokens', "):
        cases.changed(cases.normal(0, 2, 2, 16), "x", 0)


def test_the_company_of_a_token(frames: study.Frames) -> None:
    lowest = frames["invariance"].groupby("scope")[["values", "codes"]].min()
    for scope in ("token", "token, power of two"):
        assert (lowest.loc[scope] == 1).all()
    for scope in ("tensor, power of two", "expert, power of two"):
        assert lowest.loc[scope, "values"] == 1 and lowest.loc[scope, "codes"] < 1
    for scope in ("tensor", "expert"):
        assert lowest.loc[scope, "values"] < 1


def test_one_loud_token(frames: study.Frames) -> None:
    rows = frames["leaks"]
    assert (rows[rows.scope.str.startswith("token")][["changed", "codes", "leak"]] == 0).all(axis=None)
    tenfold = rows[rows.factor == 10].groupby("scope").changed.mean()
    assert 0.9 < tenfold["tensor"] < 0.95 and tenfold["tensor, power of two"] == 0
    assert tenfold["expert"] == pytest.approx(tenfold["tensor"] * 7 / 31, rel=0.1)  # its expert's 7 others of 31
    assert rows[(rows.scope == "tensor, power of two") & (rows.factor == 1e6)].changed.min() > 0.5


def test_limits_of_underflow_in_closed_form() -> None:
    """A scale bmax / (outer M) is zero up to the tie 2^-10, and outer = amax / (6 F): amax / bmax >= 6 F 2^10 / M. An
    outer that is a power of two takes the place of amax / (6 F). bmax is the last float32 number that flushes, and the
    outer is rounded: two units in the last place.
    """
    for name, scale_max, largest in (("NVFP4", 448, 6), (cases.SIX, 256, 6), ("four-over-six", 256, 4)):
        rows = cases.thresholds(name, [1.0, 1.5, 1.75, 5.33]).set_index(["rounding", "amax"]).ratio
        for amax in (1.0, 1.5, 1.75, 5.33):
            exact = scale_max * 6 / largest * 2**10
            assert rows["FP32", amax] == pytest.approx(exact, rel=2.0**-22)
            outer = 2.0 ** np.ceil(np.log2(amax / (6 * scale_max)))
            assert rows["pow2", amax] == pytest.approx(amax * 2**10 / (outer * largest), rel=2.0**-22)


def test_error_is_that_of_each_token() -> None:
    found = cases.spreads("NVFP4", "tokens", 0, 2, 3, 64, [3.0]).set_index("scope").loc["tensor"]
    u = torch.rand(2, 3, 1, generator=torch.Generator().manual_seed(0))
    x = cases.normal(0, 2, 3, 64) * 10.0 ** (-3.0 * u)
    values = nm.quantize(x, nm.NVFP4, outer="tensor").dequantize()
    errors = [nm.metrics.error(a, b).rel_mse for a, b in zip(x.flatten(0, 1), values.flatten(0, 1), strict=True)]
    assert found.error == pytest.approx(np.mean(errors), rel=1e-12)
    assert found.total_error == nm.metrics.error(x, values).rel_mse


def test_spread_scales_underflow_by_scope(frames: study.Frames) -> None:
    rows = frames["spreads"]
    zero = rows[rows.decades == 8].groupby(["of", "scope"]).zero_blocks.mean()
    assert zero["tokens", "tensor"] > 0.1 and zero["tokens", "expert"] > 0.1 and zero["tokens", "token"] == 0
    assert zero["experts", "tensor"] > 0.2 and zero["experts", "expert"] == 0 == zero["experts", "token"]
    assert rows[rows.decades == 0].zero_blocks.max() == 0


def test_published_values_are_met_or_explained(frames: study.Frames) -> None:
    table = study.claimed(frames, study.VALUES, study.TOLERANCE).frame
    assert len(table) == len(study.VALUES)
    assert (table.explanation[table.verdict == "differs"] != "").all()
    assert table.verdict[table.quantity.str.startswith("four-over-six: a block")].tolist() == ["differs"]
    assert (table.verdict == "agrees").sum() >= len(table) - 3


def test_the_finding_follows_the_numbers(frames: study.Frames) -> None:
    told = " ".join(study.find(frames))
    leaks = frames["leaks"]
    changed = study.over_seeds(leaks[leaks.factor == 10], ["format", "scope"], "changed")
    assert f"{changed['NVFP4', 'tensor'].text(1, 100)} % by a relMSE of" in told
    assert "with an outer per token none, whatever the factor" in told and "leaks nothing up to a factor of" in told
    assert "four-over-six from 393,216 on" in told and "reaches 1.50 times as far, which no source states" in told
    other = {name: frame.copy() for name, frame in frames.items()}
    other["invariance"][["values", "codes"]] = 0.5
    other["leaks"].changed = 0.25
    other["thresholds"].ratio = 1000.0
    other["spreads"].error *= np.where(other["spreads"].scope == "token", 2, 1)
    told = " ".join(study.find(other))
    assert "With no scope do a token's bytes stay" in told and "with an outer per token up to 25.0 %" in told
    assert "A power of two for the tensor leaks as well." in told and "which no source states" not in told
    assert "scopes differ by 0" not in told and "at most in error" not in told


def test_a_run_is_complete(monkeypatch: pytest.MonkeyPatch, frames: study.Frames) -> None:
    monkeypatch.setattr(study, "measure", lambda at: frames)
    result = study.run(fast=True)
    assert set(result.rows.part) == set(frames) and len(result.rows) == sum(map(len, frames.values()))
    assert [table.name for table in result.tables] == ["key", "invariance", "leak", "spread", "thresholds", "published"]
    assert len(result.figure.axes) == 3 and [plate.name for plate in result.plates] == ["company"]
    assert isinstance(result.summary["changed"]["NVFP4, tensor, x 10"], float)
    assert isinstance(result.rows, pd.DataFrame)
