"""Contract of studies.pipeline: every recipe goes through the three stages with paired seeds; interrupted anywhere and
started again it comes to the same numbers; the page says what the numbers say.

Oracles: the stages called one by one; an uninterrupted call; intervals by hand.
"""

import dataclasses
import math
from pathlib import Path

import pandas as pd
import pytest

import fourbit
from numerics import ops
from reference.environments import Problem
from reference.model import ModelConfig
from reference.rl import rl
from reference.sft import sft
from reference.tasks import Draws
from reference.train import train
from studies import pipeline as pipeline_module
from studies import pipeline_page
from studies.pipeline import STAGES, Chain, PipelineConfig, compare, pipeline, run_chain, tabulate

SMALL = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=64)


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


def raises(draws: Draws) -> Problem:
    raise RuntimeError


def empty(draws: Draws) -> Problem:
    return Problem("", float)


def config(out: Path, text: Path) -> PipelineConfig:
    steps = {"pretrain_steps": 4, "sft_steps": 4, "rl_steps": 2}
    text.write_bytes(b"3+4=7 and 8-2=6; " * 4000)
    return PipelineConfig(out, ("mxfp8", "bf16"), 1, **steps, data=str(text), environment="reversal", model=SMALL)


def test_it_runs_writes_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage of one chain is done beforehand, as if a call had been interrupted: stages are those of the library."""
    c = config(tmp_path / "a", tmp_path / "text")
    chain = Chain(c, "mxfp8", 0)
    first, second, third = chain.stages()
    train(first, ops)
    with pytest.raises(KeyboardInterrupt):
        sft(second, ops, on_progress=lambda record: (_ for _ in ()).throw(KeyboardInterrupt))
    table, differences = pipeline(c, "fourbit pipeline")
    assert [(row.preset, row.seed) for row in table.itertuples()] == [("mxfp8", 0), ("bf16", 0)]
    for name in ("report.html", "curves.svg", "chains.csv", "differences.csv"):
        assert (c.out / name).stat().st_size > 100
    again = pipeline(c, "fourbit pipeline")
    assert table.equals(again[0]) and differences.equals(again[1])
    # alone, in another folder
    other = Chain(dataclasses.replace(c, out=tmp_path / "b"), "mxfp8", 0)
    told: list[dict] = []
    log = run_chain(other, told.append)
    own = table[table.preset == "mxfp8"].reset_index(drop=True)
    assert tabulate({("mxfp8", 0): log}).equals(own)
    assert [record["place"] for record in told] == list(range(1, 11))
    assert [record["stage"] for record in told] == [*["pretrain"] * 4, *["sft"] * 4, *["rl"] * 2]
    assert rl(third, ops).resumed_from == 2 and set(log) == set(STAGES)


def test_differences_are_paired_by_seed() -> None:
    table = pd.DataFrame(
        {"preset": ["a", "a", "b", "b"], "seed": [1, 0, 0, 1], "reward": [0.5, 0.2, 0.1, 0.3]}
        | dict.fromkeys(["pretrain_nats", "sft_nats", "sft_exact", "heldout_reward"], 1.0)
    )
    found = compare(table, "b")
    row = found[found.measure == "reward"].iloc[0]
    # 0.1 and 0.2: Student's factor of one degree of freedom is 12.706, the standard error 0.05
    assert row["mean"] == pytest.approx(0.15) and row.half == pytest.approx(12.706 * 0.05, rel=1e-4)
    said = pipeline_page.sentences(found, "b")
    assert said[0] == (
        "a, reward at the end: +0.150 to b, 95 % interval -0.485 to +0.785 over 2 paired seeds, which holds zero: no "
        "difference is shown"
    )
    one = compare(table[table.seed == 1], "b")
    assert math.isnan(one.half.iloc[0]) and "of one seed, which has no interval" in pipeline_page.sentences(one, "b")[0]
    assert pipeline_page.sentences(found.assign(half=0.01), "b")[0].endswith("which does not hold zero")
    none = compare(table.assign(heldout_reward=math.nan), "b")
    assert pipeline_page.sentences(none, "b")[1].startswith("a, held-out reward, greedy: nothing is held out, since")


def test_what_cannot_be_run_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(*_: object) -> None:
        raise AssertionError("a stage began")

    monkeypatch.setattr(pipeline_module, "run_chains", begun)
    (tmp_path / "bad").write_text("x\n")
    for words, message in (
        (["--seeds", "0"], "use one or more of each"),
        (["--presets", "bf17"], "preset='bf17' is unknown"),
        (["--presets", "bf16", "bf16"], "presets bf16 bf16 cannot be used; name every recipe once"),
        # of later stages, before the first one runs
        (["--environment", "sums"], "environment 'sums' is unknown"),
        (["--environment", f"{__name__}:raises"], "problem 0 of seed 0 cannot be made"),
        (["--environment", f"{__name__}:empty"], "asks '' with 0 tokens"),
        (["--sft-data", str(tmp_path / "none")], "cannot be read (No such file"),
        (["--sft-data", str(tmp_path / "bad")], "line 1: Expecting value"),
        (["--model.sequence", "8"], "and the model sees 8"),
        (["--presets", "fourbit", "--model.dim", "40"], "do not divide it"),
    ):
        assert fourbit.main(["pipeline", "--out", str(tmp_path / "x"), *words]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_what_the_readme_says_of_the_default_pipeline_is_what_its_record_holds() -> None:
    root = Path(fourbit.__file__).parent
    readme = " ".join((root / "README.md").read_text().split())
    found = pd.read_csv(root / "tests" / "records" / "pipeline_differences.csv")
    reward = found[found.measure == "reward"].set_index("preset")
    assert set(reward.seeds) == {3}
    said = ", ".join(f"`{p}` {reward['mean'][p]:+.3f} ± {reward.half[p]:.3f}" for p in ("fourbit", "mxfp8"))
    assert f"Reward at the end minus that of `bf16`: {said}, halves of" in readme
    assert (reward["mean"].abs() < reward.half).all() and "no difference is shown" in readme
    chains = pd.read_csv(root / "tests" / "records" / "pipeline_chains.csv")
    again = compare(chains, "bf16")
    pd.testing.assert_frame_equal(again, found, check_exact=False, rtol=1e-9)
