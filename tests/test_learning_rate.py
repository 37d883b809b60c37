"""Contract of reference.learning_rate: every step of both schedules, and which settings are refused.

Oracle: the formulas in fractions, the square root and the cosine to 30 digits. Tolerance: each is at most eight
float64 operations and one library function, an error of 16 units of 2^-53 at the peak's size.
"""

import dataclasses
import itertools
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path

import pytest

from reference.config import TrainConfig, check
from reference.learning_rate import learning_rate

WSD = TrainConfig(Path("run"), steps=200, warmup=20, lr=0.3, min_lr_ratio=0.1, schedule="wsd", decay_share=0.25)


def root(x: Fraction) -> Fraction:
    with localcontext() as context:
        context.prec = 30
        return Fraction((Decimal(x.numerator) / Decimal(x.denominator)).sqrt())


def expected(c: TrainConfig, step: int) -> Fraction:
    """The rate of a WSD step as a share of the peak."""
    decay = round(Fraction(c.decay_share) * c.steps)
    if step <= c.warmup:
        return Fraction(step, c.warmup)
    if step <= c.steps - decay:
        return Fraction(1)
    p = Fraction(step - (c.steps - decay), decay)
    low = Fraction(c.min_lr_ratio)
    return low + (1 - low) * (1 - (root(p) if c.decay_shape == "sqrt" else p))


@pytest.mark.parametrize("shape", ["sqrt", "linear"])
@pytest.mark.parametrize(("share", "warmup"), [(0.25, 20), (1.0, 0), (0.001, 200 - 1), (0.5, 0)])
def test_wsd_warms_up_stays_and_decays(shape: str, share: float, warmup: int) -> None:
    c = dataclasses.replace(WSD, decay_shape=shape, decay_share=share, warmup=warmup)
    if share == 0.001:  # less than a step: the last one alone decays
        assert [learning_rate(c, step) for step in (199, 200)] == [c.lr, pytest.approx(c.lr * 0.1, rel=1e-15)]
        return
    for step in range(1, c.steps + 1):
        assert abs(Fraction(learning_rate(c, step)) - Fraction(c.lr) * expected(c, step)) <= 16 * 2.0**-53 * c.lr
    assert learning_rate(c, c.steps) == pytest.approx(c.lr * c.min_lr_ratio, rel=1e-15)


def test_the_stable_part_has_the_peak_itself_and_a_decay_to_zero_reaches_it() -> None:
    assert {learning_rate(WSD, step) for step in range(20, 151)} == {0.3}
    assert learning_rate(WSD, 151) < 0.3
    assert learning_rate(dataclasses.replace(WSD, min_lr_ratio=0.0), 200) == 0.0


def test_the_cosine_does_not_know_the_decay() -> None:
    c = dataclasses.replace(WSD, schedule="cosine", min_lr_ratio=0.0)
    assert learning_rate(c, 110) == pytest.approx(0.15, rel=1e-15)  # half way
    rates = [learning_rate(c, step) for step in range(20, 201)]
    assert all(a > b for a, b in itertools.pairwise(rates))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decay_share": 0.95}, r"decay_share 0\.95 cannot be used; of 200 steps 20 are warm-up; use a smaller share"),
        ({"decay_share": 0.0}, r"decay_share 0\.0 cannot be used; use a share of the steps, above 0 and at most 1"),
        ({"decay_share": float("nan")}, "decay_share nan cannot be used"),
        ({"decay_shape": "square"}, "decay_shape 'square' cannot be used; use 'sqrt' or 'linear'"),
        ({"schedule": "constant"}, "schedule 'constant' cannot be used; use 'cosine' or 'wsd'"),
        ({"schedule": "cosine"}, r"decay_share 0\.25 does nothing alone; give schedule wsd, or leave it out"),
        ({"lr": -0.1}, r"lr -0\.1 cannot be used; use a positive number"),
    ],
)
def test_settings_that_cannot_be_are_refused(change: dict[str, object], message: str) -> None:
    check(WSD)
    with pytest.raises(ValueError, match=message):
        check(dataclasses.replace(WSD, **change))
