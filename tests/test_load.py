"""Contract of reference.load: a run folder gives the model that the run evaluated, bit for bit; damaged folders are
refused in one sentence.

Oracle: the held-out losses that the run logged itself, after a late switch and with raised layers.
"""

import json
import random
import shutil
from pathlib import Path

import pytest
import torch

from numerics import ops
from reference.command_line import parse
from reference.data import heldout_batch, load_corpus
from reference.load import Loaded, load_run, read_config
from reference.log import read_log
from reference.model import ModelConfig
from reference.run import heldout_loss
from reference.train import TrainConfig, train

SMALL = ModelConfig(
    dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=24, router="sigmoid", kv_heads=1, convolution=2
)


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """Two checkpoints, of steps 3 and 6: one before the late switch and one after. The first step raises the layers in
    NVFP4, whose outputs are ten times less exact than others."""
    folder = tmp_path_factory.mktemp("load")
    text = folder / "text.txt"
    text.write_bytes(bytes(random.Random(0).choices(range(1, 256), k=4000)))
    config = TrainConfig(
        **{"out": folder / "run", "data": str(text), "steps": 6, "batch": 2, "grain": 1, "warmup": 1, "seed": 5},
        **{"eval_every": 3, "eval_sequences": 4, "checkpoint_every": 3, "monitor_every": 3, "progress": "hide"},
        **{"switch_at": 0.6, "switch_to": "bf16", "raise_output": 0.02, "layer_presets": {1: "mxfp8"}},
        model=SMALL,
    )
    train(config, ops)
    return config


def loss(loaded: Loaded) -> float:
    config = loaded.config
    corpus = load_corpus(config.data)
    return heldout_loss(
        loaded.model, config, *heldout_batch(corpus.heldout, config.eval_sequences, config.model.sequence)
    )


@pytest.mark.parametrize("step", [None, 3, 6])
def test_the_held_out_loss_is_the_runs_own(run: TrainConfig, step: int | None) -> None:
    loaded = load_run(run.out, step=step)
    assert loaded.step == (step or 6) and not loaded.model.training
    assert loss(loaded) == read_log(run.out / "log.jsonl")[loaded.step - 1]["heldout_ce"]


def test_layers_follow_what_they_followed(run: TrainConfig) -> None:
    raised = [e["layer"] for r in read_log(run.out / "log.jsonl") for e in r.get("raised", ())]
    assert raised and len(raised) < 6  # else this would show nothing
    early, late = (load_run(run.out, step=step).model.recipes for step in (3, 6))
    assert [early[i] != late[i] for i in range(6)] == [i not in raised for i in range(6)]


def test_the_configuration_is_the_runs(run: TrainConfig) -> None:
    config = read_config(run.out)
    names = ("preset", "data", "lr", "layer_presets", "switch_at", "raise_error", "model", "seed", "threads")
    assert [getattr(config, name) for name in names] == [getattr(run, name) for name in names]
    assert load_run(run.out).config.out == run.out


def test_nothing_is_written_and_nothing_learns(run: TrainConfig) -> None:
    before = {path.name: path.read_bytes() for path in run.out.iterdir()}
    loaded = load_run(run.out)
    loss(loaded)
    assert not loaded.model.training and not any(p.requires_grad for p in loaded.model.parameters())
    assert {path.name: path.read_bytes() for path in run.out.iterdir()} == before


@pytest.mark.parametrize(
    "words",
    [[], ["--dial=6"], ["--monitor-every=1", "--raise-loss=3"], ["--model.window=4", "--recompute=layers"]],
    ids=["plain", "dial", "thresholds", "options"],
)
def test_every_configuration_comes_back(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(range(1, 256)) * 9)
    sizes = ["--steps=1", "--batch=1", "--grain=1", "--warmup=0", "--eval-sequences=1", "--progress=hide"]
    small = [f"--model.{name}=32" for name in ("dim", "expert-dim", "shared-dim")] + ["--model.sequence=8"]
    config = parse([f"--out={tmp_path / 'run'}", f"--data={tmp_path / 'text'}", *sizes, *small, *words])
    train(config, ops)
    assert load_run(config.out).config.model == config.model


def damaged(run: TrainConfig, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run.out, tmp_path / "copy"))


def edit(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def raise_in_log(folder: Path, raised: object) -> None:
    path = folder / "log.jsonl"
    first, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps(json.loads(first) | {"raised": raised}) + "\n" + rest)


DAMAGE = {
    "no folder": (shutil.rmtree, "does not exist; name the --out of `fourbit train`"),
    "no config": (lambda f: (f / "config.json").unlink(), "is no run folder: it has no config.json"),
    "no JSON": (lambda f: (f / "config.json").write_text("{"), "lacks JSON; restore it"),
    "a list": (lambda f: (f / "config.json").write_text("[1]"), "is damaged, or of something else"),
    "no model": (lambda f: (f / "config.json").write_text('{"preset": "bf16"}'), "lacks steps, model; restore it"),
    "a model of words": (lambda f: edit(f, model="big"), "is damaged: model is 'big'"),
    "another version": (lambda f: edit(f, wings=2), r"does not know \(wings\): another version of fourbit wrote it"),
    "another model": (lambda f: edit(f, model={"wheels": 4}), r"does not know \(model.wheels\)"),
    "a word as a number": (lambda f: edit(f, lr="high"), "has a damaged config.json"),
    "an odd preset": (lambda f: edit(f, preset="sixbit"), "sixbit"),
    "odd layers": (lambda f: edit(f, layer_presets={"x": "bf16"}), r"damaged config.json \(layer_presets\)"),
    "other sizes": (lambda f: edit(f, model={"dim": 64}), "checkpoint and model differ in"),
    "a cut checkpoint": (
        lambda f: (f / "checkpoint-00000006.safetensors").write_bytes(
            (f / "checkpoint-00000006.safetensors").read_bytes()[:-9]
        ),
        "is missing or damaged; delete it to use the one before",
    ),
    "no checkpoint": (lambda f: [c.unlink() for c in f.glob("checkpoint-*")], "has no checkpoint yet; let it train"),
    "a list for a preset": (lambda f: edit(f, preset=["bf16"]), r"damaged config.json: preset is \['bf16'\]"),
    "half a seed": (lambda f: edit(f, seed=0.5), "damaged config.json: seed is 0.5"),
    "a number for a path": (lambda f: edit(f, data=5), "damaged config.json: data is 5"),
    "a word for a width": (lambda f: edit(f, model={"dim": "wide"}), "damaged config.json: model.dim is 'wide'"),
    "an endless depth": (lambda f: edit(f, model={"depth": 6e30}), r"damaged config.json: model.depth is 6e\+30"),
    "odd raised layers": (lambda f: raise_in_log(f, [5]), r"log is damaged at line 1: raised is \[5\]"),
    "a raised word": (lambda f: raise_in_log(f, [{"layer": "x"}]), "log is damaged at line 1: raised is"),
    "no log": (lambda f: (f / "log.jsonl").unlink(), "log .* does not exist"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_sentence(name: str, run: TrainConfig, tmp_path: Path) -> None:
    folder = damaged(run, tmp_path)
    spoil, words = DAMAGE[name]
    spoil(folder)
    with pytest.raises(ValueError, match=words) as told:
        load_run(folder)
    assert "\n" not in str(told.value)


def test_a_step_or_a_device_that_is_not_there_is_refused(run: TrainConfig) -> None:
    with pytest.raises(ValueError, match="has no checkpoint of step 4; it has those of steps 3, 6"):
        load_run(run.out, step=4)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="this torch sees no CUDA device"):
            load_run(run.out, device="cuda")
