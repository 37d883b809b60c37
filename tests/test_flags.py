"""Contract of reference.flags: messages of a command name its flags, not attributes; paths, quoted text and words that
happen to be names of fields are left alone.

Oracle: sentences written out.
"""

from pathlib import Path

import pytest

import fourbit
from reference.command_line import Arguments
from reference.evaluate import EvalConfig
from reference.flags import in_flags, named_flags
from reference.rl import RlConfig
from reference.sft import SftConfig
from reference.stopping import TrainingStopped
from reference.train import TrainConfig


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ("steps 0 cannot be used; use 1 or more", "--steps 0 cannot be used; use 1 or more"),
        ("kv_heads=3: it must divide heads=4", "--model.kv-heads=3: it must divide --model.heads=4"),
        ("model.sequence 0 cannot be used", "--model.sequence 0 cannot be used"),
        (
            "micro_batch 3 cannot be used; use a multiple of grain 4 that divides batch 8",
            "--micro-batch 3 cannot be used; use a multiple of --grain 4 that divides --batch 8",
        ),
        (
            "decay_share 0.9 cannot be used; of 200 steps 20 are warm-up; use a smaller share, or less warmup",
            "--decay-share 0.9 cannot be used; of 200 steps 20 are warm-up; use a smaller share, or less --warmup",
        ),
        (
            "muon_momentum 0.3 does nothing alone; give optimizer muon, or leave it out",
            "--muon-momentum 0.3 does nothing alone; give --optimizer muon, or leave it out",
        ),
        (
            "out '/my warmup 3/eval_every' holds a run with another configuration: warmup (20 there, 30 now), "
            "model.dim (96 there, 32 now); use its values to resume it, or another out",
            "--out '/my warmup 3/eval_every' holds a run with another configuration: --warmup (20 there, 30 now), "
            "--model.dim (96 there, 32 now); use its values to resume it, or another --out",
        ),
        (
            "checkpoint and model differ in layers.0.moe.w13; start",
            "checkpoint and model differ in layers.0.moe.w13; start",
        ),
        ("the model's step 3 and run's data", "the model's step 3 and run's data"),
        ("name the one with the text with --text-field", "name the one with the text with --text-field"),
    ],
)
def test_names_become_flags(message: str, wanted: str) -> None:
    assert in_flags(message, Arguments) == wanted
    assert in_flags(wanted, Arguments) == wanted


def test_each_command_has_its_own() -> None:
    assert in_flags("clip_ratio 2 cannot be used", RlConfig) == "--clip-ratio 2 cannot be used"
    assert in_flags("clip_ratio 2 cannot be used", SftConfig) == "clip_ratio 2 cannot be used"
    # what it acts on is no flag
    assert in_flags("run 'x' is no run folder", EvalConfig) == "run 'x' is no run folder"
    others = {"eval_sequences": "--sequences"}
    assert in_flags("eval_sequences 9 of 16 tokens", EvalConfig, others) == "--sequences 9 of 16 tokens"


def test_errors_keep_their_kind_and_others_their_words() -> None:
    class Special(ValueError):
        """Has its own words."""

    for error, told in (
        (ValueError("steps 0 cannot"), "--steps 0 cannot"),
        (TrainingStopped("try a lower lr"), "try a lower --lr"),
        (Special("steps 0 cannot"), "steps 0 cannot"),
        (KeyError("steps 0"), "'steps 0'"),
    ):
        with pytest.raises(type(error)) as caught, named_flags(TrainConfig):
            raise error
        assert caught.value is error and str(error) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "--model.kv-heads", "3"], "--model.kv-heads=3: it must divide --model.heads=4"),
        (["train", "--eval-every", "0"], "--eval-every 0 cannot be used; use 1 or more"),
        (["sft", "--batch", "3"], "--batch 3 cannot be used; use a multiple of --grain 4"),
        (["sft", "--min-lr-ratio", "2"], "--min-lr-ratio 2.0 cannot be used; use 0 to 1"),
        (["rl", "--init", "x", "--eval-problems", "0"], "--eval-problems 0 cannot be used; use 1 or more"),
        (["rl"], "--init None cannot be used; name the run folder"),
        (["tokenize", "--shard-bytes", "0"], "--shard-bytes 0 cannot be used; use 1 or more"),
        (["eval", "x", "--items", "-1"], "--items -1 cannot be used; use 0"),
        (["generate", "x", "--prompt", "a", "--top-p", "2"], "--top-p 2.0 cannot be used; use a share above 0"),
        (["export", "x", "--to", "bf16"], "run 'x' does not exist; name the --out of `fourbit train`"),
    ],
)
def test_every_command_names_its_flags(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("abcdefgh " * 20_000)
    out = ["--out", "run"] if words[0] not in ("eval", "generate") else []
    data = ["--data", "text"] if words[0] in ("train", "tokenize") else []
    assert fourbit.main([*words, *out, *data]) == 2
    assert capsys.readouterr().err.startswith(f"fourbit: error: {told}")
