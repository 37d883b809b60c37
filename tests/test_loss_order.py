"""`fourbit order`, on a tiny model and on losses made up here.

Contract: runs of a seed are pairs; a claim holds, is violated or undecided as Student's interval over seeds says; the
tables are of the last evaluated step that all runs have reached; a campaign that ran out of time goes on with the same
bits, and repeats no finished run; a run that fails stops no other; the tables come again from two small files. Oracle:
intervals by hand, from printed quantiles of t, and a run of `train` that was never interrupted.
"""

import json
import math
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import scipy.stats
import torch
import tyro

from numerics import ops
from reference.log import read_log
from reference.model import ModelConfig
from reference.presets import PRESETS, preset
from reference.train import train
from studies import campaign, loss_order, loss_order_records
from studies import loss_order_table as tables
from studies.interval import Interval
from studies.loss_order_claims import BASELINE, CHAIN, CLAIMS, RECIPES, Claim

TINY = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=32)
T2 = 4.302653  # t(.975, 2)
CLAIM = Claim("bf16", "mxfp8", CHAIN, "a paper")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> loss_order.OrderConfig:
    """Two recipes, two seeds, eight steps in stages of four."""
    folder = tmp_path_factory.mktemp("order")
    (folder / "text").write_text("".join(f"line {i}: {i * i % 97}\n" for i in range(4000)))
    return loss_order.OrderConfig(
        **{"out": folder / "out", "recipes": ("bf16", "fourbit"), "seeds": (0, 1), "steps": 8, "stage": 4},
        **{"data": str(folder / "text"), "batch": 2, "grain": 2, "eval_sequences": 2, "model": TINY},
    )


@pytest.fixture(scope="module")
def done(config: loss_order.OrderConfig) -> loss_order.OrderConfig:
    assert loss_order.order(config) == {}
    return config


def losses(values: dict[str, list[list[float]]], every: int = 4) -> pd.DataFrame:
    """Rows of losses.csv: for each recipe and seed, the loss of each step; held-out losses are 1 more."""
    rows = [
        (recipe, seed, step, loss, loss + 1 if step % every == 0 else math.nan)
        for recipe, runs in values.items()
        for seed, run in enumerate(runs)
        for step, loss in enumerate(run, start=1)
    ]
    return pd.DataFrame(rows, columns=list(loss_order_records.COLUMNS))


def flat(*ends: float) -> list[list[float]]:
    """One run of eight steps for each seed, whose last quarter is `end` +- .5 and whose last loss is that + .5."""
    return [[9.0] * 6 + [end - 0.5, end + 0.5] for end in ends]


def measured(**values: list[list[float]]) -> tables.Measured:
    return tables.measure(losses(values), list(values), range(3))


def test_intervals_are_students_over_paired_seeds() -> None:
    """Seeds differ by whole nats, recipes by hundredths: pairs alone show that. Differences .01, .02, .03: mean .02,
    standard deviation .01, half-width t s / 3^.5."""
    m = measured(bf16=flat(1, 2, 3), mxfp8=flat(1.01, 2.02, 3.03))
    assert m.step == 8 and m.losses["training"].loc["bf16"].tolist() == [1, 2, 3]
    assert m.losses["heldout"].loc["bf16"].tolist() == [2.5, 3.5, 4.5]
    for loss in tables.LOSSES:
        gap = m.difference(loss, "bf16", "mxfp8")
        assert gap.mean == pytest.approx(0.02, abs=1e-12)
        assert gap.half == pytest.approx(T2 * 0.01 / 3**0.5, rel=1e-6)
    row = tables.recipe_table(m).set_index("recipe").loc["mxfp8"]
    assert (row.training_gap, row.heldout_gap_half) == pytest.approx((0.02, T2 * 0.01 / 3**0.5), rel=1e-6)


@pytest.mark.parametrize(
    ("ends", "word"),
    [
        ((1.03, 2.04, 3.05), "holds"),  # .04 +- .0248
        ((0.97, 1.96, 2.95), "violated"),
        ((1.01, 2.02, 3.03), "undecided"),  # .02 +- .0248
        ((1.0, 2.0, 3.0), "undecided"),
    ],
)
def test_verdicts_and_the_words_that_follow_them(ends: tuple[float, ...], word: str) -> None:
    m = measured(bf16=flat(1, 2, 3), mxfp8=flat(*ends))
    table = tables.claim_table(m, [CLAIM, Claim("mxfp8", "not_run", "", "")])
    assert table[["training_verdict", "heldout_verdict"]].to_numpy().tolist() == [[word, word]]
    text = tables.finding(m, [CLAIM])
    counts = {name: int(name == word) for name in ("holds", "violated", "undecided")}
    assert (
        "Of the chain's 1 links: {holds} holds, {violated} violated and {undecided} undecided".format(**counts) in text
    )
    assert f"bf16 < mxfp8 by {1000 * (sum(ends) / 3 - 2) + 0.0:.1f} ± " in text
    assert "n = 3 paired seeds" in text and "over steps 7 to 8" in text and "gives the same verdicts" in text
    assert f"| `bf16` < `mxfp8` | {1000 * (sum(ends) / 3 - 2) + 0.0:+.1f} ± " in tables.markdown(m, [CLAIM], {})
    look = tables._LOOKS[word][0]
    assert tables.draw(m, [CLAIM]).axes[1].containers[-1].lines[0].get_color() == look


def test_an_interval_that_touches_zero_decides_nothing() -> None:
    assert [tables.verdict(Interval(mean, 1.0)) for mean in (1.0, -1.0, 1.1, -1.1)] == [
        *("undecided", "undecided", "holds", "violated")
    ]


def test_a_verdict_that_the_other_loss_does_not_share_is_told() -> None:
    rows = losses({"bf16": flat(1, 2, 3), "mxfp8": flat(1.03, 2.04, 3.05)})
    rows.loc[(rows.recipe == "mxfp8") & (rows.step == 8), "heldout_nats"] = 0.0
    m = tables.measure(rows, ["bf16", "mxfp8"], range(3))
    assert "By held-out loss bf16 < mxfp8 would be judged otherwise." in tables.finding(m, [CLAIM])


def test_the_step_is_the_last_that_all_runs_were_evaluated_at() -> None:
    runs = {"bf16": [[1.0] * 12] * 2, "mxfp8": [[1.0] * 12, [1.0] * 11]}
    both = [(recipe, seed) for recipe in runs for seed in (0, 1)]
    assert tables.common_step(losses(runs), both) == 8
    assert tables.common_step(losses(runs), both[:3]) == 12
    assert tables.common_step(losses(runs, every=3), both) == 9
    with pytest.raises(
        ValueError, match=r"common to all 5 runs \(nvfp4_all with seed 0 is behind\): go on with the same"
    ):
        tables.common_step(losses(runs), [*both, ("nvfp4_all", 0)])


def test_claims_name_recipes_and_the_chain_is_one() -> None:
    assert set(RECIPES) <= set(PRESETS) and RECIPES[0] == BASELINE
    assert len(CLAIMS) == len({(claim.lower, claim.higher) for claim in CLAIMS})
    chain = [claim for claim in CLAIMS if claim.group == CHAIN]
    assert [claim.higher for claim in chain[:-1]] == [claim.lower for claim in chain[1:]]
    for recipe in RECIPES:
        loss_order.OrderConfig().model.check(preset(recipe))


def test_runs_of_a_seed_are_pairs(done: loss_order.OrderConfig) -> None:
    """The same but for the recipe; the first losses are near, those of another seed are not the same."""
    folders = [[done.out / "runs" / recipe / str(seed) for recipe in done.recipes] for seed in done.seeds]
    for pair in folders:
        a, b = (json.loads((folder / "config.json").read_text()) for folder in pair)
        assert {name for name in a if a[name] != b[name]} == {"preset"}
    first = [[read_log(folder / "log.jsonl")[0]["loss"] for folder in pair] for pair in folders]
    assert all(a == pytest.approx(b, rel=0.01) and a != b for a, b in first)
    assert first[0][0] != first[1][0]


def test_what_is_written(done: loss_order.OrderConfig) -> None:
    names = ["claims.csv", "losses.csv", "meta.json", "order.png", "order.svg", "recipes.csv", "runs", "table.md"]
    assert sorted(path.name for path in done.out.iterdir()) == names
    rows = loss_order_records.read_losses(done.out / "losses.csv")
    log = read_log(done.out / "runs/fourbit/1/log.jsonl")
    own = rows[(rows.recipe == "fourbit") & (rows.seed == 1)]
    assert own.loss.tolist() == [record["loss"] for record in log]
    assert own.heldout_nats.dropna().tolist() == [log[3]["heldout_ce"], log[7]["heldout_ce"]]
    meta = json.loads((done.out / "meta.json").read_text())
    assert (meta["table_step"], meta["failed"]) == (8, {}) and meta["finding"] in (done.out / "table.md").read_text()
    assert loss_order.command_line(done) in (done.out / "table.md").read_text()


def test_finished_runs_are_not_repeated_and_tables_come_again_from_two_files(
    done: loss_order.OrderConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {name: (done.out / name).read_bytes() for name in ("table.md", "claims.csv", "order.svg", "losses.csv")}
    monkeypatch.setattr(campaign, "_start", lambda: pytest.fail("a worker was started"))
    loss_order.order(done)
    assert {name: (done.out / name).read_bytes() for name in texts} == texts
    for name in ("losses.csv", "meta.json"):
        shutil.copy(done.out / name, tmp_path)
    loss_order.order(loss_order.OrderConfig(out=tmp_path, table=True))  # no other option is needed
    assert {name: (tmp_path / name).read_bytes() for name in texts} == texts
    with pytest.raises(ValueError, match=r"seeds=\[7\]: this campaign has \[0, 1\]"):
        loss_order.order(loss_order.OrderConfig(out=tmp_path, table=True, seeds=(0, 7)))


@pytest.mark.exhaustive
def test_stopped_by_the_time_it_tabulates_a_common_step_and_resumes_with_the_same_bits(
    config: loss_order.OrderConfig, tmp_path: Path
) -> None:
    """The clock is replaced by one that strikes when every run has been seen beyond step 4."""
    config = replace(config, out=tmp_path / "out", runs=tmp_path / "runs", seeds=(0, 1))
    runs = [loss_order.train_config(config, recipe, seed) for seed in config.seeds for recipe in config.recipes]
    seen: list[tuple[Path, int]] = []

    def enough(run: Any, record: dict[str, Any]) -> None:
        seen.append((run.out, record["step"]))
        if record["step"] == 6:
            raise TimeoutError  # as a deadline in the middle of a stage

    with pytest.raises(TimeoutError):
        campaign.advance_all(runs, 1, enough)
    assert [step for _, step in seen] == [1, 2, 3, 4] * 4 + [5, 6]  # all first stages before any second one
    assert [campaign.reached(run.out) for run in runs] == [4] * 4
    stopped = campaign.advance_all(runs, 1, enough, time.monotonic())  # past: nothing starts
    assert (stopped.failed, stopped.finished) == ({}, False)
    loss_order.order(replace(config, minutes=1e-9))
    assert json.loads((config.out / "meta.json").read_text())["table_step"] == 4
    assert not (config.out / "runs").exists()
    loss_order.order(config)
    for run in runs[1:3]:
        alone = train(replace(run, out=tmp_path / "alone" / str(run.seed)), ops)
        assert [record["loss"] for record in read_log(run.out / "log.jsonl")] == list(alone.train_losses)


@pytest.mark.exhaustive
def test_a_run_that_fails_stops_no_other(done: loss_order.OrderConfig, tmp_path: Path) -> None:
    """A folder that holds something else: its recipe is left out, and the others are told."""
    runs = tmp_path / "runs"
    shutil.copytree(done.out / "runs", runs)
    (runs / "mxfp8/1").mkdir(parents=True)
    (runs / "mxfp8/1/other").write_text("x")
    config = replace(done, out=tmp_path / "out", runs=runs, recipes=("bf16", "mxfp8", "fourbit"), workers=1)
    failed = loss_order.order(config)
    assert list(failed) == ["mxfp8, seed 1"] and "holds files but no run" in failed["mxfp8, seed 1"]
    assert "Left out: `mxfp8`, seed 1 failed: out " in (config.out / "table.md").read_text()
    assert pd.read_csv(config.out / "recipes.csv").recipe.tolist().count("mxfp8") == 0
    assert campaign.reached(runs / "mxfp8/0") == 8


def test_a_worker_that_dies_is_a_failed_run() -> None:
    context = campaign.multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    process = context.Process(target=campaign.os._exit, args=(3,))
    process.start()
    other.close()
    worker = campaign._Worker(process, own)
    assert campaign._receive(worker) == ("failed", "its process ended early (exit code 3)")


def test_runs_that_are_no_pairs_are_refused(done: loss_order.OrderConfig, tmp_path: Path) -> None:
    shutil.copytree(done.out, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob("runs/*/*/checkpoint*"):
        path.unlink()
    stored = tmp_path / "runs/fourbit/0/config.json"
    stored.write_text(stored.read_text().replace('"steps": 8', '"steps": 9'))
    with pytest.raises(ValueError, match=r"differ in configuration, as .*fourbit/0' does: they are no pairs"):
        loss_order.order(replace(done, out=tmp_path, table=True))


BAD = [
    ({"seeds": (0,)}, r"seeds=\(0,\): intervals need two or more"),
    ({"seeds": (1, 1)}, r"seeds=\(1, 1\): intervals need two or more different"),
    ({"seeds": (0, -1)}, "seed -1 cannot be used"),
    ({"recipes": ("mxfp8", "fourbit")}, r"recipes=.*name bf16, the baseline"),
    ({"recipes": ("bf16", "bf16")}, r"recipes=.*each once"),
    ({"recipes": ("bf16", "fp4")}, "preset='fp4' is unknown"),
    ({"recipes": ("bf16", "quartet2")}, "dim=32"),
    ({"steps": 3}, "steps=3: .* use 4 or more"),
    ({"stage": 3}, "stage=3: .* use 4 or more"),
    ({"minutes": 0.0}, "minutes=0.0: use a positive number"),
    ({"workers": 0}, "workers=0: use 1 or more"),
    ({"grain": 3}, "batch 2 cannot be used"),
    ({"data": "/no/such/text"}, "no/such/text"),
    ({"table": True}, "holds no meta.json of `fourbit order`"),
]


@pytest.mark.parametrize(("change", "words"), BAD, ids=[str(next(iter(change))) for change, _ in BAD])
def test_bad_arguments_start_nothing(
    change: dict[str, Any], words: str, config: loss_order.OrderConfig, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        loss_order.order(replace(config, **({"out": tmp_path / "out"} | change)))
    assert list(tmp_path.iterdir()) == []


def test_stages_end_at_checkpoints(config: loss_order.OrderConfig, capsys: pytest.CaptureFixture[str]) -> None:
    run = loss_order.train_config(config, "bf16", 0)
    assert [campaign.stage_end(run, step) for step in (0, 3, 4, 7)] == [4, 4, 8, 8]
    assert campaign.stage_end(replace(run, steps=9), 8) == 9
    with pytest.raises(ValueError, match=r"checkpoint_every=3 of .*use eval_every, 4"):
        campaign.advance_all([replace(run, checkpoint_every=3)], 1, lambda *_: None)


def test_the_command_repeats_the_configuration(config: loss_order.OrderConfig) -> None:
    parse: Callable = lambda words: tyro.cli(loss_order.OrderConfig, args=words)  # noqa: E731
    for each in (config, loss_order.OrderConfig(device="cuda", workers=16, lr=1e-3)):
        words = loss_order.shlex.split(loss_order.command_line(each))
        assert words[:2] == ["fourbit", "order"] and replace(parse(words[2:]), out=each.out) == each
    assert loss_order.command_line(loss_order.OrderConfig()) == "fourbit order"


def test_workers_take_the_gpus_that_the_process_may_use(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,")
    assert campaign.visible_gpus() == ["3", "1"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert campaign.visible_gpus() == ["0", "1"]


def test_the_slope_of_the_chain_is_the_least_squares_line_of_each_seed():
    chain = [c.lower for c in CLAIMS if c.group == CHAIN][:1] + [c.higher for c in CLAIMS if c.group == CHAIN]
    noise = torch.randn(len(chain), 3, generator=torch.Generator().manual_seed(0)).double().numpy() * 1e-3
    frame = pd.DataFrame(noise + 0.002 * torch.arange(len(chain)).numpy()[:, None], index=chain, columns=[0, 1, 2])
    measured = tables.Measured(4, (0, 1, 2), {"training": frame.sample(frac=1, random_state=1), "heldout": -frame})
    slopes = [scipy.stats.linregress(range(len(chain)), frame[seed]).slope for seed in frame]
    slope = tables.chain_slope(measured, CLAIMS, "training")
    assert slope.mean == pytest.approx(sum(slopes) / 3)
    assert slope.half == pytest.approx(4.302652729911275 * scipy.stats.sem(slopes))  # t(0.975, 2)
    assert f"as a whole the loss changes by {1e3 * sum(slopes) / 3:.2f} ± " in tables.finding(measured, CLAIMS)
    assert "), as claimed." in tables.finding(measured, CLAIMS)
    part = {loss: f.drop(chain[2]) for loss, f in measured.losses.items()}
    assert tables.chain_slope(tables.Measured(4, (0, 1, 2), part), CLAIMS, "training") is None


def test_another_campaign_in_the_folder_is_refused_and_left_as_it_is(done: loss_order.OrderConfig) -> None:
    """Its meta.json too, which a mistyped command that goes on with it must not write over."""
    before = {path.name: path.read_bytes() for path in done.out.iterdir() if path.is_file()}
    with pytest.raises(ValueError, match=r"holds a run with another configuration: steps \(8 there, 12 now\)"):
        loss_order.order(replace(done, steps=12))
    assert {path.name: path.read_bytes() for path in done.out.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("change", [{"recipes": ("fourbit",)}, {"seeds": (1,)}, {"seeds": (1, 1)}])
def test_tables_need_the_baseline_and_two_seeds(done: loss_order.OrderConfig, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"recipes=.*, seeds=.*: tables need bf16, the baseline, and two or more"):
        loss_order.order(replace(done, table=True, **change))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("meta.json", "{", r"meta\.json' is damaged, or of something else: it lacks JSON"),
        ("meta.json", "[]", r"meta\.json' is damaged"),
        ("meta.json", "{}", r"meta\.json' is damaged, .* it lacks command, recipes, seeds"),
        ("losses.csv", "", r"losses .*losses\.csv' is damaged"),
        ("losses.csv", "a,b\n1,2\n", r"losses .*its columns are a, b, not recipe, seed"),
        ("losses.csv", "recipe,seed,step,loss,heldout_nats\nbf16,0,1,x,\n", r"losses .*could not convert .*'x'"),
        ("losses.csv", "recipe,seed,step,loss,heldout_nats\nbf16,0,one,1,\n", r"losses .* is damaged"),
        ("runs/bf16/0/config.json", "{", r"config\.json' is damaged"),
        ("runs/bf16/0/meta.json", "{}", r"meta\.json' is damaged, .* it lacks corpus"),
        ("runs/bf16/0/log.jsonl", '{"step": 1}\n', r"log\.jsonl' is damaged at line 1: loss is None, no number"),
    ],
)
def test_damaged_files_are_refused_by_name(
    done: loss_order.OrderConfig, tmp_path: Path, name: str, text: str, words: str
) -> None:
    shutil.copytree(done.out, tmp_path, dirs_exist_ok=True)
    if name == "losses.csv":
        shutil.rmtree(tmp_path / "runs")
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        loss_order.order(replace(done, out=tmp_path, table=True))
