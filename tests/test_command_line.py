"""Contract of reference.command_line: a dial sets the sizes that are not given, a configuration's command gives that
configuration, and a run folder has the command that made it.

Oracle: `ModelConfig.dial`; parsing the command again, by the shell's rules and tyro.
"""

import dataclasses
import json
import random
import shlex
import subprocess
from pathlib import Path

import pytest

import fourbit
from numerics import ops
from reference.command_line import command_of, parse
from reference.config import TrainConfig
from reference.model import ModelConfig
from reference.train import train

SMALL = ["--model.dim", "32", "--model.expert-dim", "32", "--model.shared-dim", "32", "--model.sequence", "16"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a text's $HOME.txt"
    path.write_bytes(bytes(random.Random(0).choices(range(1, 256), k=4000)))
    return path


def brief(out: Path, text: Path, *words: str) -> list[str]:
    """A run of two steps."""
    sizes = ["--steps=2", "--batch=1", "--grain=1", "--warmup=1", "--eval-sequences=1", "--monitor-every=0"]
    return ["--out", str(out), "--data", str(text), *sizes, *words]


def test_without_a_dial_nothing_is_set() -> None:
    assert parse(["--out", "x"]) == TrainConfig(Path("x"))
    given = parse(["--out", "x", "--lr", "1", "--layer-presets", "4", "mxfp8", "--model.depth", "12"])
    assert given == TrainConfig(Path("x"), lr=1.0, layer_presets={4: "mxfp8"}, model=ModelConfig(depth=12))
    assert type(given) is TrainConfig


@pytest.mark.parametrize("depth", [6, 12, 54])
def test_a_dial_sets_every_size(depth: int) -> None:
    words = ["--out", "x", "--steps", "7", "--deterministic", "--layer-presets", "4", "mxfp8"]
    plain = parse(words)
    assert parse([*words, "--dial", str(depth)]) == dataclasses.replace(plain, model=ModelConfig.dial(depth))


def test_a_field_that_is_given_stands_also_at_its_default() -> None:
    given = {"dim": 96, "heads": 8, "kv_heads": 2, "shared_dim": 64, "sequence": 512, "router": "sigmoid"}
    words = [word for name, value in given.items() for word in (f"--model.{name.replace('_', '-')}", str(value))]
    assert parse([*words, "--dial=12", "--out=x"]).model == ModelConfig.dial(12, **given)
    assert parse(["--dial=12", "--out=x", "--model.dim=96"]).model.dim == 96 != ModelConfig.dial(12).dim


def test_the_vocabulary_is_that_of_the_tokens(tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of shards or of a tokenizer; one that is given stands if it holds them all."""
    pytest.importorskip("tokenizers")
    (tmp_path / "words").write_text("the cat sat on a mat; " * 400)
    words = ["tokenize", "--data", str(tmp_path / "words"), "--out", str(tmp_path / "shards"), "--vocab=270"]
    assert fourbit.main([*words, "--progress=hide"]) == 0
    shards, tokenizer = ["--data", str(tmp_path / "shards")], ["--tokenizer", str(tmp_path / "shards/tokenizer.json")]
    assert parse(["--out=x", *shards]).model == ModelConfig(vocab=270)
    assert parse(["--out=x", *shards, "--dial=12"]).model == ModelConfig.dial(12, vocab=270)
    assert parse(["--out=x", "--data", str(text), *tokenizer]).model.vocab == 270
    assert parse(["--out=x", *shards, "--model.vocab=512"]).model.vocab == 512
    assert parse(["--out=x", "--data", str(text)]).model.vocab == 256
    run = ["train", *brief(tmp_path / "run", text, *SMALL), *shards, "--progress=hide"]
    assert fourbit.main([*run, "--model.vocab=256"]) == 2
    assert "error: --model.vocab 256 is smaller than the 270 tokens of" in capsys.readouterr().err
    assert fourbit.main(run) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["vocab"] == 270


@pytest.mark.parametrize("depth", ["0", "7", "60", "-6"])
def test_a_bad_dial_is_one_sentence(depth: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert fourbit.main(["train", "--out=x", f"--dial={depth}"]) == 2
    assert capsys.readouterr().err == f"fourbit: error: --dial={depth}: use a multiple of 6 from 6 to 54\n"


def test_a_run_by_dial_is_the_run_by_sizes(tmp_path: Path, text: Path) -> None:
    words = brief(tmp_path / "run", text)
    assert fourbit.main(["train", *words, *SMALL, "--dial", "6"]) == 0
    assert fourbit.main(["train", *words, *SMALL]) == 0  # was finished already
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert "dial" not in stored and stored["model"]["dim"] == 32


CONFIGS = [
    TrainConfig(Path("a b")),
    TrainConfig(
        Path("-out"),
        data="it's $HOME/*.txt",
        lr=1e-4,
        deterministic=True,
        layer_presets={0: "bf16", 5: "mxfp8"},
        raise_loss=3.5,
        monitor_reference=Path("other run"),
        recompute="layers",
        micro_batch=4,
        model=dataclasses.replace(ModelConfig.dial(18), window=64, router="sigmoid", shared_dim=0),
    ),
    TrainConfig(Path("x"), data="-", preset=""),
]


@pytest.mark.parametrize("config", CONFIGS, ids=["plain", "much", "dashes"])
def test_a_configurations_command_gives_it(config: TrainConfig) -> None:
    program, *words = shlex.split(command_of(config))
    assert (program, words[0]) == ("fourbit", "train") and parse(words[1:]) == config
    seen = subprocess.run(["sh", "-c", f"printf '%s\\n' {command_of(config)}"], capture_output=True, text=True)
    assert seen.stdout.split("\n")[:-1] == [program, *words]


def test_the_folder_has_the_command_that_was_given(tmp_path: Path, text: Path) -> None:
    words = brief(tmp_path / "run", text, *SMALL)
    assert fourbit.main(["train", *words]) == 0
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert shlex.split(meta["command"]) == ["fourbit", "train", *words]
    told = "\n".join(meta["reproduce"])
    here = meta["environment"]
    for part in (meta["command"], meta["corpus"]["digest"], here["torch"], here["numpy"], here["device"]):
        assert part in told
    assert (here["commit"] or here["fourbit"]).removesuffix("+changes") in told
    # nothing of this machine but what was given
    rest = json.dumps({name: value for name, value in meta.items() if name not in ("command", "reproduce")})
    assert str(tmp_path) not in rest.replace(json.dumps(str(text))[1:-1], "")


def test_the_command_makes_the_same_run_elsewhere(tmp_path: Path, text: Path) -> None:
    assert fourbit.main(["train", *brief(tmp_path / "run", text, *SMALL)]) == 0
    command = json.loads((tmp_path / "run" / "meta.json").read_text())["command"]
    assert fourbit.main([*shlex.split(command)[1:], "--out", str(tmp_path / "again")]) == 0
    one, two = (sorted((tmp_path / name).glob("checkpoint-*"))[-1].read_bytes() for name in ("run", "again"))
    assert one == two


def test_a_run_from_python_has_a_command_too_and_another_one_is_noted(tmp_path: Path, text: Path) -> None:
    words = brief(tmp_path / "run", text, *SMALL, "--checkpoint-every=1")
    config = parse(words)

    def interrupt(record: dict[str, object]) -> None:
        if record["step"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, ops, interrupt)
    assert fourbit.main(["train", *words, "--progress=hide"]) == 0
    meta = json.loads((tmp_path / "run" / "meta.json").read_text())
    assert parse(shlex.split(meta["command"])[2:]) == config
    (entry,) = meta["resumed"]
    assert entry["step"] == 1 and shlex.split(entry["command"])[2:] == [*words, "--progress=hide"]
