"""Contract of `fourbit compare`: gaps at equal steps to the first run, what else differs told, and nothing compared
that cannot be.

Oracle: losses made up here, and differences by hand.
"""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

import fourbit
from numerics import ops
from reference.model import ModelConfig
from reference.rl import RlConfig, rl
from reference.sft import SftConfig, sft
from studies.compare_runs import differences, draw, gather, read_run, tabulate
from studies.plots import render

ROOT = Path(fourbit.__file__).parent


def _run(
    folder: Path, preset: str, losses: dict[int, float], steps: int = 6, corpus: str = "a", **config: object
) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"preset": preset, "steps": steps, "seed": 0, **config}))
    (folder / "meta.json").write_text(json.dumps({"corpus": {"digest": corpus}}))
    lines = []
    for step in range(1, steps + 1):
        record = {"step": step, "loss": 3.0, "seconds": step / 8, "tokens": 10 * step}
        if step in losses:
            record |= {"heldout_ce": losses[step], "heldout_bits_per_byte": 2 * losses[step]}
        lines.append(json.dumps(record) + "\n")
    (folder / "log.jsonl").write_text("".join(lines))
    return folder


def test_gaps_are_to_the_first_run_at_the_last_common_step(tmp_path: Path) -> None:
    a = _run(tmp_path / "x", "bf16", {2: 3.0, 4: 2.0, 6: 1.5})
    b = _run(tmp_path / "y", "fourbit", {2: 3.5, 4: 2.25}, lr=0.1)
    curves = gather((a, b))
    table = tabulate(curves)
    assert table.run.tolist() == ["bf16", "fourbit"] and table.step.tolist() == [4, 4]
    assert table.tokens.tolist() == [40, 40] and table.gap_nats.tolist() == [0.0, 0.25]
    assert table.heldout_bits_per_byte.tolist() == [4.0, 4.5] and table.step_seconds.tolist() == [3.5 / 8, 3.5 / 8]
    assert differences(curves) == ["lr"]


def test_the_command_writes_a_table_of_every_evaluation_and_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = _run(tmp_path / "x", "fourbit", {2: 3.0, 6: 1.5})
    b = _run(tmp_path / "y", "fourbit", {2: 3.5, 6: 2.25})
    out, csv = tmp_path / "f.svg", tmp_path / "t.csv"
    assert fourbit.main(["compare", str(a), str(b), "--out", str(out), "--table", str(csv)]) == 0
    said = capsys.readouterr().out
    assert "0.75" in said and "also differ" not in said  # one recipe twice: named by folder
    table = pd.read_csv(csv)
    assert table.run.tolist() == ["x", "x", "y", "y"] and table.heldout_ce.tolist() == [3.0, 1.5, 3.5, 2.25]
    assert out.read_bytes().startswith(b"<?xml")


def test_what_cannot_be_compared_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = _run(tmp_path / "a", "bf16", {2: 3.0})
    other = _run(tmp_path / "b", "mxfp8", {2: 3.0}, corpus="b")
    apart = _run(tmp_path / "c", "mxfp8", {3: 3.0})
    bare = _run(tmp_path / "d", "mxfp8", {})
    for words, says in (
        ([a, other], "different corpora"),
        ([a, apart], "no evaluated step in common"),
        ([a, bare], "has no held-out loss yet"),
        ([a, tmp_path / "none"], "is no run folder"),
        ([a, "--out", tmp_path / "f.pdf"], "use a file that ends in .svg or .png"),
        ([a, "--table", tmp_path / "no" / "t.csv"], "name a file in a folder that exists"),
    ):
        assert fourbit.main(["compare", *map(str, words)]) == 2
        assert says in capsys.readouterr().err


def test_runs_are_named_apart_whatever_they_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for parent in ("one", "two"):
        (tmp_path / parent).mkdir()
    a, b = (_run(tmp_path / parent / "_$\\frac{$", "bf16", {6: 3.0}) for parent in ("one", "two"))
    curves = gather((a, b))
    assert [curve.name for curve in curves] == [str(a), str(b)]
    svg = render(draw([replace(curve, name=curve.name[-9:]) for curve in curves]), "svg").decode()
    assert svg.count("<!-- _$\\frac{$ -->") == 2 and "<!-- Gap to _$\\frac{$ -->" in svg
    monkeypatch.chdir(a)
    assert [curve.name for curve in gather((Path("."), _run(tmp_path / "c", "bf16", {6: 3.0})))] == [a.name, "c"]
    with pytest.raises(ValueError, match=r"^runs names '\.' more than once; name every run once$"):
        gather((a, b, Path(".")))


def _tuned(folder: Path, stage: str, evaluations: dict[int, dict[str, float]], **tuned: object) -> Path:
    """A run of forty steps after pretraining."""
    folder.mkdir()
    about = {"stage": stage, "rules": 2, "data": "d", "init": {"step": 3, "weights": "w"}} | tuned
    config = {"preset": folder.name, "steps": 40, "seed": 0, "tuned": about}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "meta.json").write_text(json.dumps({"corpus": {"digest": about["data"], "description": "x"}}))
    numbers = {"sft": lambda n: {"loss": 2.0, "learned": 7}, "rl": lambda n: {"reward": n / 40, "loss": -0.1}}[stage]
    lines = [{"step": n, "seconds": n / 8} | numbers(n) | evaluations.get(n, {}) for n in range(1, 41)]
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_runs_of_fine_tuning_have_numbers_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = _tuned(tmp_path / "bf16", "sft", {n: {"heldout_ce": 80 / n, "heldout_exact": n / 50} for n in (20, 40)})
    b = _tuned(tmp_path / "fourbit", "sft", {20: {"heldout_ce": 4.5, "heldout_exact": 0.25}}, init=None)
    table = tabulate(gather((a, b)))
    assert table.columns.tolist() == ["run", "step", "heldout_nats", "heldout_exact", "gap_nats", "step_seconds"]
    assert table.step.tolist() == [20, 20] and table.heldout_nats.tolist() == [4.0, 4.5]
    assert table.heldout_exact.tolist() == [0.4, 0.25] and table.gap_nats.tolist() == [0.0, 0.5]
    out, csv = tmp_path / "f.svg", tmp_path / "t.csv"
    assert fourbit.main(["compare", str(a), str(b), "--out", str(out), "--table", str(csv)]) == 0
    assert "the runs also differ in init" in capsys.readouterr().out
    written = pd.read_csv(csv)
    assert written.columns.tolist() == ["run", "step", "heldout_ce", "heldout_exact"] and len(written) == 3
    svg = out.read_text()
    assert "<!-- Held-out loss of completions -->" in svg and "<!-- steps -->" in svg


def test_runs_of_reinforcement_learning_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Problems follow the seed, so the environment is what they have in common."""
    own = {"environment": "arithmetic"}
    a = _tuned(tmp_path / "a", "rl", {n: {"heldout_reward": n / 80, "kl": 0.1} for n in (20, 40)}, **own)
    b = _tuned(
        tmp_path / "b", "rl", {n: {"heldout_reward": 0.75, "kl": 0.1} for n in (30, 40)}, data="e", group=8, **own
    )
    table = tabulate(gather((a, b)))
    assert table.columns.tolist() == ["run", "step", "heldout_reward", "reward", "gap_reward", "step_seconds"]
    assert table.heldout_reward.tolist() == [0.5, 0.75] and table.gap_reward.tolist() == [0.0, 0.25]
    assert table.reward.tolist() == [79 / 80, 79 / 80]  # of the last two of forty steps
    c = _tuned(tmp_path / "c", "rl", {40: {"greedy_reward": 0.5}}, **own)
    d = _tuned(tmp_path / "d", "rl", {40: {"heldout_reward": 0.5}}, environment="countdown")
    e = _tuned(tmp_path / "e", "sft", {40: {"heldout_ce": 1.0, "heldout_exact": 0.0}})
    f = _tuned(tmp_path / "f", "rl", {}, **own)
    assert tabulate(gather((c,))).greedy_reward.tolist() == [0.5]
    for other, says in (
        (c, "runs are not of one kind: rl (Held-out reward, greedy), rl (Reward, greedy; nothing is held out)"),
        (d, "runs were trained on different environments; their numbers cannot be compared"),
        (e, "runs are not of one kind: rl (Held-out reward, greedy), sft (Held-out loss of completions)"),
        (f, "has no held-out reward yet; let it train to its first evaluation"),
        (_run(tmp_path / "g", "bf16", {6: 3.0}), "runs are not of one kind: rl (Held-out reward, greedy), train"),
    ):
        assert fourbit.main(["compare", str(a), str(other)]) == 2
        assert says in capsys.readouterr().err


def test_the_logs_of_the_stages_are_those(tmp_path: Path, one_thread: None) -> None:
    small = ModelConfig(dim=32, heads=2, dense_layers=5, experts=4, expert_dim=32, shared_dim=32, sequence=48)
    run = {"steps": 2, "warmup": 0, "eval_every": 1, "progress": "hide"}
    first = sft(SftConfig(tmp_path / "sft", preset="bf16", examples=40, model=small, **run), ops)
    own = {"prompts": 2, "group": 2, "tokens": 2, "eval_problems": 2}
    second = rl(RlConfig(tmp_path / "rl", first.folder, **own, **run), ops)
    for done in (first, second):
        curve = read_run(done.folder)
        assert curve.points.step.tolist() == [1, 2] and curve.stage.name == done.folder.name
        main = [record[curve.stage.main] for record in done.records]
        assert curve.points[curve.stage.main].tolist() == main
        assert isinstance(tabulate(gather((done.folder,))), pd.DataFrame)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("meta.json", '{"corpus": {"digest": "a"}}', '{"corpus": 3}'),
        ("meta.json", '{"corpus": {"digest": "a"}}', "{}"),
        ("meta.json", '"a"', "[1]"),
        ("config.json", '"bf16"', "null"),
        ("config.json", '"bf16"', '["bf16"]'),
        ("log.jsonl", '"heldout_ce": 3.0', '"heldout_ce": "3"'),
        ("log.jsonl", '"heldout_ce": 3.0', '"heldout_ce": NaN'),
        ("log.jsonl", ', "heldout_bits_per_byte": 6.0', ""),
        ("log.jsonl", '"seconds": 0.125', '"seconds": null'),
    ],
)
def test_a_damaged_run_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str
) -> None:
    a, b = (_run(tmp_path / name, "bf16", {6: 3.0}) for name in "ab")
    text = (b / file).read_text()
    assert old in text
    (b / file).write_text(text.replace(old, new))
    assert fourbit.main(["compare", str(a), str(b)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_the_readme_says_of_runs_on_a_gpu_is_what_their_records_hold() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    table = pd.read_csv(ROOT / "tests" / "records" / "h200_runs.csv")
    last = table[table.step == table.step.max()].set_index("run").heldout_ce
    assert f"Held-out after {table.step.max():,} steps: " in readme
    said = ", ".join(f"`{run}` {last[run]:.3f}" for run in ("bf16", "mxfp8", "fourbit"))
    assert f"{said} nats per byte" in readme
    twice = pd.read_csv(ROOT / "tests" / "records" / "h200_runs_twice.csv", dtype=str)
    assert set(twice.run) == set(last.index) and f"[{len(twice)} steps that were taken twice]" in readme
    assert (twice.loss_killed == twice.loss_resumed).all() and (twice.grad_norm_killed == twice.grad_norm_resumed).all()
