"""The modelled expert layer: its counts, its timeline, its bounds, and that finding and tables follow the numbers.

Oracle: hand calculation with numbers a human can follow, the closed form of a pipeline of equal waves, bounds that no
schedule can beat, and the published counts of DeepSeek-V4 and DeepGEMM. Tolerances are rounding of float64 sums, 1e-12
relative, unless said.
"""

import itertools
from dataclasses import fields, replace

import pandas as pd
import pytest

from studies import moe_gain as gain
from studies import moe_model as model
from studies import moe_timeline as study
from studies import moe_timeline_cases as cases

# 1e12 FLOP/s and 1e9 B/s; a row is 2 x 1000 x 500 = 1e6 FLOP a matrix, 1 us, and at 8 bits 1000 bytes, 1 us
TOY = model.Machine("toy", 1e12, 1e12, 1e12, 1e9, 1e9)
PLAIN = model.Setup(
    TOY, hidden=1000, width=500, top_k=2, experts=8, layers=1, rest=1e6, gpus=4, tokens=8, decode_tokens=8, waves=2,
    imbalance=1.0, fp4=1.0, fp8=1.0, bf16=1.0, link=1.0, memory=1.0, latency=0.0, extra_bytes=0.0, last=0.0,
)  # fmt: skip
EIGHTS = model.Recipe("8 + 16", 8.0, 16.0, 8.0, "mxfp8")


def test_break_even_widths_are_the_known_ones() -> None:
    """15e15 / 900e9 = 16,667 FLOP per byte; d = 16,667 x bytes / 6, bytes summed or the larger of two."""
    found = cases.widths(model.Setup()).set_index("wire").round(0)
    assert model.balance(model.GB300) == pytest.approx(50000 / 3, rel=1e-12)
    assert found.peak.tolist() == [11111, 8333, 7118, 4427]
    assert found.one.tolist() == [5556, 5556, 5556, 2865]
    # at 55 % of the products' rate and 60 % of the link's, widths are 55 / 60 of those
    assert found.here.tolist() == [10185, 7639, 6525, 4058]


def test_the_balance_of_deepseek_v4() -> None:
    """6 h d FLOP and 3 h bytes: C / B <= 2 d."""
    assert model.hidden_balance(3072, 8, 16) == 6144
    assert model.break_even_width(6144, 8, 16) == 3072


def test_counts_of_one_layer_by_hand() -> None:
    """16 rows, of which 12 travel: 12 us out at 8 bits, 24 us back at 16; 32 us of w1 and w3, 16 us of w2."""
    ahead, back = model.forward(PLAIN, EIGHTS), model.backward(PLAIN, EIGHTS)
    assert [getattr(ahead, f.name) * 1e6 for f in fields(ahead)] == pytest.approx([12, 32, 16, 0, 24], rel=1e-12)
    # gradients travel at 8.25 bits: 12.375 us; inputs' gradients 16 us of w2 and 32 of w1 and w3, weights' as much
    assert [getattr(back, f.name) * 1e6 for f in fields(back)] == pytest.approx([12.375, 16, 32, 48, 12.375], rel=1e-12)
    doubled = model.forward(replace(PLAIN, imbalance=2.0, link=0.5), EIGHTS)
    assert [doubled.dispatch * 1e6, doubled.first * 1e6] == pytest.approx([48, 64], rel=1e-12)
    assert model.forward(replace(PLAIN, behind=0.75), EIGHTS).dispatch * 1e6 == pytest.approx(3, rel=1e-12)


def test_requantization_costs_memory_traffic_of_four_bit_recipes_alone() -> None:
    """16 rows x 1500 saved values x 0.5 bytes / 1e9 B/s = 12 us."""
    costly = replace(PLAIN, extra_bytes=0.5)
    four = replace(EIGHTS, forward="nvfp4")
    assert model.backward(costly, EIGHTS) == model.backward(PLAIN, EIGHTS)
    extra = model.backward(costly, four).weights - model.backward(PLAIN, four).weights
    assert extra * 1e6 == pytest.approx(12, rel=1e-9)


def test_a_timeline_by_hand() -> None:
    """Two waves, latency 1: dispatches 0-2, 2-4; products begin when the first has arrived, 3; combines wait for the
    shared link's dispatches (4) and for products."""
    phases = model.Phases(dispatch=4, first=4, second=2, weights=5, combine=8)
    told = [(t.what, t.wave, t.start, t.end) for t in model.timeline(phases, 2, 1.0, False)]
    assert told == [
        ("dispatch", 0, 0, 2), ("w1 and w3", 0, 3, 5), ("w2", 0, 5, 6), ("combine", 0, 6, 10),
        ("dispatch", 1, 2, 4), ("w1 and w3", 1, 6, 8), ("w2", 1, 8, 9), ("combine", 1, 10, 14),
        ("weight gradients", 1, 9, 14),
    ]  # fmt: skip
    assert model.makespan(phases, 2, 1.0, False) == 15  # the last combine's latency
    with pytest.raises(ValueError, match="waves=0: use 1 or more"):
        model.timeline(phases, 0, 0.0, False)


def test_a_shared_direction_makes_combines_wait_and_own_gpus_do_not() -> None:
    phases = model.Phases(dispatch=8, first=1, second=1, weights=0, combine=2)
    assert model.makespan(phases, 2, 0.0, False) == 10
    first = next(t for t in model.timeline(phases, 2, 0.0, True) if t.what == "combine")
    assert (first.start, model.makespan(phases, 2, 0.0, True)) == (5, 10)


@pytest.mark.parametrize("waves", [1, 2, 7, 64])
def test_separate_links_are_a_pipeline_of_equal_waves(waves: int) -> None:
    """Closed form: (sum of stages + (waves - 1) longest stage) / waves, and two latencies."""
    for dispatch, first, combine in itertools.product((1.0, 3.0, 8.0), repeat=3):
        phases = model.Phases(dispatch, first, 1.0, 0.0, combine)
        stages = (dispatch, first + 1.0, combine)
        known = (sum(stages) + (waves - 1) * max(stages)) / waves + 2 * 0.25
        assert model.makespan(phases, waves, 0.25, True) == pytest.approx(known, rel=1e-12)


def test_no_schedule_beats_its_bounds_and_many_waves_reach_them() -> None:
    for dispatch, first, combine in itertools.product((1.0, 3.0, 8.0), repeat=3):
        phases = model.Phases(dispatch, first, 1.0, 0.0, combine)
        floor = max(dispatch + combine, phases.products)
        times = [model.makespan(phases, waves, 0.0, False) for waves in (1, 2, 4, 4096)]
        assert times[0] == pytest.approx(phases.serial, rel=1e-12) and times == sorted(times, reverse=True)
        assert times[-1] >= floor * (1 - 1e-12) and times[-1] == pytest.approx(floor, rel=0.01)  # 12 / 4096 of a wave
        assert phases.serial / times[-1] <= model.overlap_bound(phases.products, dispatch + combine) * (1 + 1e-12)
        busy = [t for t in model.timeline(phases, 4, 0.0, False) if t.what in ("dispatch", "combine")]
        for a, b in itertools.pairwise(sorted(busy, key=lambda t: t.start)):
            assert b.start >= a.end - 1e-12  # one direction carries one transfer at a time


def test_overlap_gains_two_at_most() -> None:
    assert model.overlap_bound(3.0, 3.0) == 2 and model.overlap_bound(1.0, 3.0) == pytest.approx(4 / 3)


def test_a_rollouts_step_by_hand() -> None:
    """8 tokens x 2 / 4 GPUs; of 2 experts a GPU holds 1 - .75^32 are met; 1.5e6 weights of 1 byte; 12 rows travel."""
    step = gain.decode(replace(PLAIN, latency=2e-6), EIGHTS)
    assert step.memory == pytest.approx(2 * (1 - 0.75**32) * 1.5e6 / 1e9, rel=1e-12)
    assert [step.latency * 1e6, step.link * 1e6, step.products * 1e6] == pytest.approx([4, 36, 48], rel=1e-12)
    assert step.total == pytest.approx(40e-6 + step.memory, rel=1e-12)
    few = gain.decode(replace(PLAIN, decode_tokens=1, gpus=1), EIGHTS)
    assert few.memory == pytest.approx(8 * 0.25 * 1.5e6 / 1e9, rel=1e-12) and few.link == 0  # one GPU: nothing travels


def test_a_step_is_its_layers_and_the_rest() -> None:
    """The rest: 6 x 1e6 parameters x 8 tokens / 1e12 = 48 us."""
    layer = sum(gain.layer_seconds(PLAIN, EIGHTS))
    assert gain.step_seconds(replace(PLAIN, layers=3), EIGHTS) == pytest.approx(3 * layer + 48e-6, rel=1e-12)
    share = gain.expert_share(PLAIN, EIGHTS)
    assert share == pytest.approx(layer / (layer + 48e-6), rel=1e-12)
    four = replace(model.FULL)
    mixed = gain.step_seconds(replace(PLAIN, last=0.25), four) - 48e-6
    parts = [sum(gain.layer_seconds(PLAIN, recipe)) for recipe in (four, model.LAST)]
    assert mixed == pytest.approx(0.75 * parts[0] + 0.25 * parts[1], rel=1e-12)


def test_gains_follow_amdahl() -> None:
    setup = model.Setup()
    assert gain.training_gain(setup, model.BASELINE) == 0
    faster = gain.decode_seconds(setup, model.BASELINE) / gain.decode_seconds(setup, model.FULL)
    only = replace(setup, rollouts=1.0, rollout_experts=1.0)
    assert gain.learning_gain(only) == pytest.approx(faster - 1, rel=1e-12)
    none = replace(setup, rollouts=0.0)
    assert gain.learning_gain(none) == pytest.approx(gain.training_gain(setup), rel=1e-12)
    # where traffic is hidden and nothing is beside the experts, time falls from 3 units to 2 + 1/3
    pure = replace(setup, behind=1.0, rest=0.0, last=0.0, extra_bytes=0.0, latency=0.0)
    assert gain.training_gain(pure) == pytest.approx(3 / (7 / 3) - 1, rel=1e-9)


def test_counts_agree_with_a_published_kernels_rates() -> None:
    """TFLOP/s and GB/s of DeepGEMM's table from its times: half a unit of rounding, and that of times at 512 tokens and
    fewer; at one token rows are random (6 on average)."""
    lines = cases.benches()
    assert (lines.published_flops - lines.flops).abs().max() < 0.6e12
    assert (lines.published_link - lines.link).abs().max() < 0.7e9
    assert (lines.share < 1).all()  # no kernel beats its floor
    large = lines[lines.tokens >= 512]
    assert (large.published_gain < large.bound).all() and (large.bound <= 2).all()


@pytest.fixture(scope="module")
def result() -> study.Result:
    return study.run(fast=True)


def test_the_finding_states_what_the_model_gives(result: study.Result) -> None:
    setup, found = model.Setup(), result.summary
    assert " ".join((result.finding, *result.details)).startswith(
        "Modelled, not measured"
    ) and result.caption.startswith("Modelled")
    assert (
        "16,667 FLOP" in " ".join((result.finding, *result.details))
        and "d = 7,118" in " ".join((result.finding, *result.details))
        and "and 4,427 with S2F6" in " ".join((result.finding, *result.details))
    )
    train = 100 * gain.training_gain(setup)
    assert f"Gain in training: {train:.1f} %" in " ".join(
        (result.finding, *result.details)
    ) and "n = 500 settings" in " ".join((result.finding, *result.details))
    drawn = result.rows[(result.rows.part == "all parameters") & (result.rows.gain == "training")].result
    assert found["gains"]["training"]["low"] == pytest.approx(drawn.quantile(0.025))
    assert all("odelled" in each.caption for each in (*result.plates, *result.tables))
    assert all("Modelled" in axes.get_title("left") for axes in result.figure.axes)


def test_other_numbers_give_another_finding() -> None:
    """Wide experts and a slow tensor core: traffic is hidden, products bind, and the article's gain is out of reach."""
    setup = replace(model.Setup(), width=16384, fp4=0.3, fp8=0.3)
    swings = pd.DataFrame(
        [
            (g, p.field, e, 0.0, 0.01 * i)
            for g in cases.GAINS
            for i, p in enumerate(cases.PARAMETERS)
            for e in ("low", "high")
        ],
        columns=["gain", "parameter", "end", "value", "result"],
    )
    swings.loc[(swings.parameter == "waves") & (swings.end == "high"), "result"] = 0.9
    draws = pd.DataFrame(
        [(g, i, 0.001 * i) for g in cases.GAINS for i in range(11)], columns=["gain", "draw", "result"]
    )
    told = " ".join(study.find(setup, swings, draws))
    assert "hide traffic of BF16 + BF16, FP8 + BF16, NVFP4 + BF16 and NVFP4 + S2F6:" in told
    assert "MXFP8's forward is bound by its products" in told
    assert "The published 8 % is above; 100 % of settings gain less. It depends most on waves" in told
    # from a base above .08 down to ends of .00 to .08, what the first nine have, waves among them
    *first, last = (p.label for p in cases.PARAMETERS[:9])
    assert gain.training_gain(setup) > 0.09
    assert f"; {', '.join(first)} and {last} reach the published gain alone." in told


def test_every_parameter_is_varied_and_changes_something(result: study.Result) -> None:
    """All fields of a setup but its fixed shape; and each moves one of the gains somewhere in its range, but the
    efficiency of FP4, which matters only where products bind."""
    fixed = {"machine", "hidden", "experts", "layers", "gpus"}
    assert {p.field for p in cases.PARAMETERS} == {f.name for f in fields(model.Setup)} - fixed
    ends = result.rows[result.rows.part == "one parameter"].groupby("parameter").result.nunique()
    assert set(ends[ends > 2].index) | {"fp4"} == {p.field for p in cases.PARAMETERS}
    setup = model.Setup()
    assert all(p.low <= getattr(setup, p.field) <= p.high for p in cases.PARAMETERS)
    wide = [gain.training_gain(replace(setup, width=16384, fp4=fp4)) for fp4 in (0.4, 0.8)]
    assert wide[0] < wide[1]
