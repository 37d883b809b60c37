"""The study of samplers: zero in parity, more where recipes or scopes differ, words after numbers.

Oracles: distributions made by hand for the measures; the claims that the finding makes, read from its own rows.
"""

import math

import pandas as pd
import pytest
import torch

from studies import sampler as study
from studies import sampler_cases as cases

SMALL = study.Size((0, 1), 8, 2, {"dim": 32, "heads": 2, "expert_dim": 32, "shared_dim": 32, "sequence": 24})
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def rows(one_thread: None) -> pd.DataFrame:
    return study.measure(SMALL)


def test_parity_is_zero_and_nothing_else_that_quantizes_otherwise(rows: pd.DataFrame) -> None:
    by = rows.groupby("pair")
    assert (by.kl.max()["parity"], by.equal.min()["parity"], by.rerouted.max()["parity"]) == (0.0, 1.0, 0.0)
    for name in ("sampler in mxfp8", "sampler in bf16", "outer per tensor in both", "outer per tensor in the sampler"):
        assert by.kl.min()[name] > 0 and by.equal.max()[name] < 1
    assert (rows.kl >= -1e-12).all() and rows.places.eq(2 * 8).all()
    assert len(rows) == 2 * len(cases.PAIRS)


def test_measures_of_distributions_made_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    experts = torch.zeros(2, 8, 1, 1, dtype=torch.int64)
    monkeypatch.setattr(cases, "texts", lambda count, length: [[0] * 24] * count)
    monkeypatch.setattr(cases, "trainers", lambda model, tokens: (q.log().expand(2, 8, 3), experts))
    monkeypatch.setattr(
        cases, "samplers", lambda model, tokens: (p.log().expand(len(tokens), 8, 3), 1 + experts[: len(tokens)])
    )
    found = cases.mismatch(0, 4, 2, SMALL.sizes)
    assert found.kl.tolist() == pytest.approx([0.25 * math.log(2)] * len(found), rel=1e-6)
    assert found.apart.tolist() == pytest.approx([math.log(2)] * len(found), rel=1e-6)
    assert (found.equal == 0).all() and (found.rerouted == 1).all()


def test_the_finding_states_its_numbers(rows: pd.DataFrame) -> None:
    told = " ".join(study.find(rows))
    assert "In parity zero: at all 32 places every log-probability" in told and "over 2 seeds" in told
    broken = rows.assign(equal=rows.equal.where(rows.pair != "parity", 0.5))
    assert "Parity does not hold: 50.00% of 32 places differ" in " ".join(study.find(broken))
    figure, caption = study.draw(rows)
    assert len(figure.axes) == 2 and "In parity both are zero" in caption
