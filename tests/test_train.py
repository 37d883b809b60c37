"""Contract of reference.train: the loop's arithmetic, exact resume after SIGKILL, and clear ends for bad input.

Oracles: AdamW written out in float64, an uninterrupted run, and the log. Most tests put a small stand-in for the model,
so that they test the loop alone; the kill tests train the real one under `fourbit`, stochastic rounding included.
Losses, logs and checkpoints are compared bit for bit, times left out.
"""

import dataclasses
import json
import math
import multiprocessing
import os
import random
import re
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fourbit
from numerics import ops
from reference import checkpoint
from reference import train as trainer
from reference.data import batch, heldout_batch, load_corpus
from reference.expert import Draw
from reference.log import read_log
from reference.model import ModelConfig
from reference.optimizer import learning_rate
from reference.train import Result, TrainConfig, TrainingStopped, train

SMALL = ModelConfig(dim=32, depth=6, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=16)


class StandIn(nn.Module):
    """Embedding, one product, a gain: enough for every branch of the loop. Records its draws; `spoil` may change it."""

    calls: list[Draw]
    spoil: Any = None

    def __init__(self, config: ModelConfig, recipe: object, ops: object, seed: int, *options: Any) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embed = nn.Parameter(torch.randn(256, 8, generator=generator))
        self.gain = nn.Parameter(torch.ones(8))
        self.head = nn.Parameter(torch.randn(8, 256, generator=generator))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, draw: Draw, grains: int = 1) -> SimpleNamespace:
        type(self).calls.append(draw)
        logits = self.embed[tokens] * self.gain @ self.head
        ce = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        balance = self.gain.square().mean() * 0.01 * (1 + draw.grain)
        if type(self).spoil is not None:
            ce = type(self).spoil(self, ce, draw)
        return SimpleNamespace(ce=ce, balance=balance, total=ce + balance)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    class Fresh(StandIn):
        pass

    Fresh.calls = []
    monkeypatch.setattr(trainer, "Transformer", Fresh)
    return Fresh


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    text = tmp_path / "text.txt"
    text.write_bytes(bytes(random.Random(0).choices(range(1, 256), k=4000)))
    return TrainConfig(
        out=tmp_path / "run",
        data=str(text),
        steps=7,
        batch=4,
        grain=2,
        warmup=2,
        eval_every=3,
        eval_sequences=4,
        checkpoint_every=2,
        seed=3,
        threads=1,
        model=SMALL,
    )


def lines(folder: Path) -> list[dict[str, Any]]:
    """The log without times; floats keep their bits."""
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def assert_same_run(one: Path, two: Path) -> None:
    assert lines(one) == lines(two)
    last = checkpoint.latest(one)
    assert last is not None and last.read_bytes() == (two / last.name).read_bytes()


# ------------------------------------------------------------------------------------------------ arithmetic


def test_learning_rate_warms_up_and_follows_half_a_cosine(tmp_path: Path) -> None:
    c = TrainConfig(out=tmp_path, steps=110, warmup=10, lr=2.0, min_lr_ratio=0.25)
    assert [learning_rate(c, step) for step in (1, 5, 10)] == [0.2, 1.0, 2.0]
    assert learning_rate(c, 60) == pytest.approx(2 * (0.25 + 0.75 / 2), rel=1e-15)
    assert learning_rate(c, 110) == 0.5
    rates = [learning_rate(c, step) for step in range(10, 111)]
    assert rates == sorted(rates, reverse=True)
    assert learning_rate(dataclasses.replace(c, warmup=110), 110) == 2.0
    assert learning_rate(dataclasses.replace(c, warmup=0), 1) < 2.0


def test_steps_follow_adamw_written_out_in_float64(config: TrainConfig, model: type[StandIn]) -> None:
    config = dataclasses.replace(config, clip=0.5, weight_decay=0.3)
    train(config, ops)
    corpus = load_corpus(config.data)
    twin = StandIn(config.model, None, None, config.seed).double()
    StandIn.calls = []
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in twin.named_parameters()}
    for step, record in enumerate(lines(config.out), start=1):
        tokens, targets = batch(corpus.train, config.seed, step, 4, 16)
        parts = [twin(tokens[g : g + 2], targets[g : g + 2], Draw(3, step, g // 2)) for g in (0, 2)]
        gradients = torch.autograd.grad((parts[0].total + parts[1].total) / 2, list(twin.parameters()))
        norm = torch.sqrt(sum(g.square().sum() for g in gradients))
        lr = learning_rate(config, step)
        with torch.no_grad():
            for (name, p), g in zip(twin.named_parameters(), gradients, strict=True):
                first, second = moments[name]
                g = g * min(1.0, 0.5 / norm)
                first.lerp_(g, 1 - 0.9)
                second.lerp_(g * g, 1 - 0.95)
                step_size = first / (1 - 0.9**step) / ((second / (1 - 0.95**step)).sqrt() + 1e-8)
                p.copy_(p * (1 - lr * (0.3 if p.ndim >= 2 else 0)) - lr * step_size)
        # FP32 against float64: about 2^-24 per operation, a few hundred operations in a loss or a norm.
        assert record["loss"] == pytest.approx((parts[0].ce + parts[1].ce).item() / 2, rel=2e-5)
        assert record["balance"] == pytest.approx((parts[0].balance + parts[1].balance).item() / 2, rel=2e-5)
        assert record["grad_norm"] == pytest.approx(norm.item(), rel=2e-5)
        assert record["lr"] == lr and record["tokens"] == step * 64
    tokens, targets = heldout_batch(corpus.heldout, 4, 16)
    assert record["heldout_ce"] == pytest.approx(twin(tokens, targets, Draw(3, -1, 0)).ce.item(), rel=2e-5)
    assert record["heldout_bits_per_byte"] == record["heldout_ce"] / math.log(2)
    weights = checkpoint.load(checkpoint.latest(config.out))[0]
    for name, p in twin.named_parameters():
        assert torch.allclose(weights[f"model/{name}"].double(), p, rtol=1e-4, atol=1e-6)


def test_every_grain_gets_its_own_draw_and_evaluation_none_of_training(
    config: TrainConfig, model: type[StandIn]
) -> None:
    train(config, ops)
    expected = []
    for step in range(1, 8):
        expected += [Draw(3, step, 0), Draw(3, step, 1)]
        expected += [Draw(3, -1, 0), Draw(3, -1, 1)] if step in (3, 6, 7) else []
    assert model.calls == expected


def test_the_log_has_one_line_a_step_and_the_result_repeats_it(config: TrainConfig, model: type[StandIn]) -> None:
    seen: list[dict[str, Any]] = []
    result = train(config, ops, on_progress=seen.append)
    records = read_log(config.out / "log.jsonl")
    assert records == seen  # floats too: what was written reads back to the same bits
    assert [record["step"] for record in records] == list(range(1, 8))
    assert all(record["seconds"] > 0 for record in records)
    assert result.steps == 7 and result.folder == config.out and result.resumed_from == 0
    assert result.train_losses == tuple(record["loss"] for record in records)
    assert [step for step, _ in result.heldout_losses] == [3, 6, 7]
    assert result.heldout_ce == result.heldout_losses[-1][1] == records[-1]["heldout_ce"]
    assert result.bits_per_byte == pytest.approx(result.heldout_ce / math.log(2), rel=1e-15)
    assert result.median_step_seconds == sorted(record["seconds"] for record in records)[3]
    assert sorted(os.listdir(config.out)) == [
        "checkpoint-00000006.safetensors",
        "checkpoint-00000007.safetensors",
        "config.json",
        "log.jsonl",
        "meta.json",
    ]


def test_meta_names_all_that_bits_depend_on(config: TrainConfig, model: type[StandIn]) -> None:
    train(config, ops)
    meta = json.loads((config.out / "meta.json").read_text())
    assert (meta["preset"], meta["seed"], meta["threads"], meta["resumed"]) == ("fourbit", 3, 1, [])
    assert meta["corpus"]["digest"] == load_corpus(config.data).digest
    assert meta["corpus"]["bytes_train"] + meta["corpus"]["bytes_heldout"] == 4000
    assert meta["environment"]["torch"] == torch.__version__
    stored = json.loads((config.out / "config.json").read_text())
    assert stored["lr"] == config.lr and stored["model"]["dim"] == 32 and "out" not in stored


def test_settings_of_torch_are_given_back(config: TrainConfig, model: type[StandIn]) -> None:
    def inside(_self: StandIn, ce: torch.Tensor, _draw: Draw) -> torch.Tensor:
        assert torch.are_deterministic_algorithms_enabled() and torch.get_num_threads() == 1
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        return ce

    model.spoil = inside
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        train(config, ops)
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)


def test_progress_is_lines_without_a_terminal_a_bar_if_asked_or_nothing(
    config: TrainConfig, model: type[StandIn], capsys: pytest.CaptureFixture[str]
) -> None:
    train(config, ops)
    out, err = capsys.readouterr()
    told = [line.split(", ")[1:3] for line in err.splitlines()]
    losses = [record["loss"] for record in lines(config.out)]
    assert out == "" and told == [[f"step {i} of 7", f"loss={loss:.3f}"] for i, loss in enumerate(losses, 1)]
    train(dataclasses.replace(config, out=config.out.with_name("hidden"), progress="hide"), ops)
    assert capsys.readouterr() == ("", "")
    train(dataclasses.replace(config, out=config.out.with_name("shown"), progress="show"), ops)
    out, err = capsys.readouterr()
    assert out == "" and "7/7" in err and "loss=" in err


# ------------------------------------------------------------------------------------------------ resume


@pytest.mark.parametrize("last", [1, 2, 3, 6])
def test_an_interrupted_run_continues_bit_for_bit(config: TrainConfig, model: type[StandIn], last: int) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, ops, on_progress=interrupt)
    assert len(lines(config.out)) == last
    result = train(config, ops)
    assert result.resumed_from == last // 2 * 2
    whole = dataclasses.replace(config, out=config.out.with_name("whole"))
    train(whole, ops)
    assert_same_run(whole.out, config.out)


def test_a_finished_run_says_so_and_takes_no_step(
    config: TrainConfig, model: type[StandIn], capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(config, ops)
    before = {path.name: path.read_bytes() for path in config.out.iterdir()}
    model.calls.clear()
    assert train(config, ops) == dataclasses.replace(first, resumed_from=7, saved_bytes=None)
    assert model.calls == []
    assert {path.name: path.read_bytes() for path in config.out.iterdir()} == before
    assert fourbit.main(["train", *words(config)]) == 0
    assert "was finished already: 7 steps" in capsys.readouterr().out


def test_another_configuration_is_refused_and_named(config: TrainConfig, model: type[StandIn]) -> None:
    train(config, ops)
    before = {path.name: path.read_bytes() for path in config.out.iterdir()}
    other = dataclasses.replace(config, lr=0.5, model=dataclasses.replace(SMALL, experts=8))
    with pytest.raises(ValueError, match=r"lr \(0\.003 there, 0\.5 now\), model\.experts \(4 there, 8 now\); use its"):
        train(other, ops)
    with pytest.raises(ValueError, match=r"ops \(numerics\.ops there, kernels now\)"):
        train(config, SimpleNamespace(__name__="kernels"))
    assert {path.name: path.read_bytes() for path in config.out.iterdir()} == before
    moved = config.out.rename(config.out.with_name("moved"))
    assert train(dataclasses.replace(config, out=moved, progress="hide"), ops).resumed_from == 7


def test_a_changed_corpus_is_refused(config: TrainConfig, model: type[StandIn]) -> None:
    train(config, ops)
    Path(config.data or "").write_bytes(b"other text" * 100)
    with pytest.raises(ValueError, match=r"data .* has changed since .*; restore it, or use another out"):
        train(config, ops)


def test_a_damaged_checkpoint_is_told_and_the_one_before_still_works(config: TrainConfig, model: type[StandIn]) -> None:
    train(config, ops)
    whole = lines(config.out)
    last = checkpoint.latest(config.out)
    assert last is not None
    last.write_bytes(last.read_bytes()[:-100])
    with pytest.raises(ValueError, match="is missing or damaged; delete it to use the one before"):
        train(config, ops)
    last.unlink()
    assert train(config, ops).resumed_from == 6
    assert lines(config.out) == whole


def test_a_second_writer_is_refused(config: TrainConfig, model: type[StandIn]) -> None:
    refused = []

    def again(record: dict[str, Any]) -> None:
        if record["step"] == 2:
            with pytest.raises(ValueError, match="is being written by another process"):
                train(config, ops)
            refused.append(True)

    train(config, ops, on_progress=again)
    assert refused and [record["step"] for record in lines(config.out)] == list(range(1, 8))


# ------------------------------------------------------------------------------------------------ SIGKILL


def child(point: str, arguments: list[str]) -> None:
    """Train in a process of its own; at `point`, if there is one, a kill meets the save of step 4's checkpoint."""
    replace = os.replace

    def killing_replace(source: Path, target: Path) -> None:
        mine = point and os.path.basename(target) == "checkpoint-00000004.safetensors"
        if mine and point == "half-written":
            os.truncate(source, os.path.getsize(source) // 2)
        if not mine or point == "replaced":
            replace(source, target)
        if mine:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = killing_replace
    sys.exit(trainer.main(arguments, lambda name, device: ops))


def real(folder: Path) -> TrainConfig:
    """A run of the real model, on this Python's random.py."""
    return TrainConfig(
        out=folder,
        data=random.__file__,
        steps=12,
        batch=2,
        grain=1,
        warmup=2,
        eval_every=5,
        eval_sequences=2,
        checkpoint_every=2,
        seed=3,
        threads=1,
        model=SMALL,
    )


def start(config: TrainConfig, point: str = "") -> BaseProcess:
    """A copy of a process that has imported torch once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    process = context.Process(target=child, args=(point, words(config)))
    process.start()
    return process


def words(config: TrainConfig) -> list[str]:
    """The command line that gives `config`."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config) if f.name != "model"}
    fields.pop("layer_presets")  # none: pairs of words, which end where the next option begins
    fields |= {f"model.{name}": value for name, value in dataclasses.asdict(config.model).items()}
    fields = {name.replace("_", "-"): value for name, value in fields.items()}
    flags = [f"--{'' if value else 'no-'}{name}" for name, value in fields.items() if isinstance(value, bool)]
    return flags + [f"--{name}={value}" for name, value in fields.items() if not isinstance(value, bool)]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train(real(tmp_path_factory.mktemp("uninterrupted")), ops)


@pytest.mark.exhaustive
def test_a_run_killed_at_random_moments_ends_bit_for_bit_like_an_uninterrupted_one(tmp_path: Path) -> None:
    config, ends = dataclasses.replace(real(tmp_path / "run"), steps=30), []  # not at its end before it is killed
    for _ in range(2):
        before = checkpoint.latest(config.out) if config.out.exists() else None
        process = start(config)
        deadline = time.monotonic() + 120
        while not config.out.exists() or checkpoint.latest(config.out) in (None, before):
            assert time.monotonic() < deadline and process.is_alive()
            time.sleep(0.002)
        time.sleep(random.uniform(0, 0.3))
        process.kill()
        process.join()
        ends.append(process.exitcode)
    assert ends[0] == -signal.SIGKILL  # the second may have reached the end on a fast machine
    assert train(config, ops).resumed_from > 0
    train(dataclasses.replace(config, out=tmp_path / "whole"), ops)
    assert_same_run(tmp_path / "whole", config.out)


@pytest.mark.parametrize(
    ("point", "resumes"),
    [
        ("half-written", 2),
        pytest.param("written", 2, marks=pytest.mark.exhaustive),
        pytest.param("replaced", 4, marks=pytest.mark.exhaustive),
    ],
)
def test_a_kill_during_a_save_loses_nothing_that_was_saved(
    tmp_path: Path, uninterrupted: Result, point: str, resumes: int
) -> None:
    config = real(tmp_path / "run")
    process = start(config, point)
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert any(map(checkpoint.is_leftover, config.out.iterdir())) == (point != "replaced")
    assert train(config, ops).resumed_from == resumes
    assert not any(map(checkpoint.is_leftover, config.out.iterdir()))
    assert_same_run(uninterrupted.folder, config.out)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: no CUDA device")
def test_on_a_gpu_too_an_interrupted_run_continues_bit_for_bit(tmp_path: Path) -> None:
    def interrupt(record: dict[str, Any]) -> None:
        if record["step"] == 5:
            raise KeyboardInterrupt

    config = dataclasses.replace(real(tmp_path / "run"), device="cuda")
    with pytest.raises(KeyboardInterrupt):
        train(config, ops, on_progress=interrupt)
    assert train(config, ops).resumed_from == 4
    train(dataclasses.replace(config, out=tmp_path / "whole"), ops)
    # The configurations are equal, so are the checkpoints' headers.
    assert_same_run(tmp_path / "whole", config.out)


# ------------------------------------------------------------------------------------------------ clear ends


def nan_loss(_self: StandIn, ce: torch.Tensor, draw: Draw) -> torch.Tensor:
    return ce * math.nan if draw.step == 5 and draw.grain == 1 else ce


def nan_gradient(self: StandIn, ce: torch.Tensor, draw: Draw) -> torch.Tensor:
    # sqrt has an infinite slope at 0, so the loss is finite and its gradient is 0 * inf.
    return ce + (self.gain - self.gain).sum().sqrt() if draw.step == 5 else ce


def nan_evaluation(_self: StandIn, ce: torch.Tensor, draw: Draw) -> torch.Tensor:
    return ce * math.inf if draw.step == -1 else ce


@pytest.mark.parametrize(
    ("spoil", "step", "what"),
    [
        (nan_loss, 5, "loss is nan"),
        (nan_gradient, 5, "gradient norm is nan"),
        (nan_evaluation, 3, "held-out loss is inf"),
    ],
)
def test_a_nan_stops_the_run_and_keeps_the_last_good_checkpoint(
    config: TrainConfig, model: type[StandIn], spoil: Any, step: int, what: str
) -> None:
    model.spoil = spoil
    good = step - 1 if step == 5 else 2
    for _ in range(2):  # again from the checkpoint, it stops at the same step
        with pytest.raises(
            TrainingStopped,
            match=rf"training stopped at step {step}: the {what}; the last good "
            rf"checkpoint is .*checkpoint-0000000{good}\.safetensors; try",
        ):
            train(config, ops)
        assert [record["step"] for record in lines(config.out)] == list(range(1, step))
        last = checkpoint.latest(config.out)
        assert last == checkpoint.checkpoint_path(config.out, good)
        assert all(tensor.isfinite().all() for tensor in checkpoint.load(last)[0].values())
    model.spoil = None
    assert train(config, ops).resumed_from == good


def test_weights_that_overflowed_are_not_saved(config: TrainConfig, model: type[StandIn]) -> None:
    config = dataclasses.replace(config, checkpoint_every=1, eval_every=7)

    def overflow(self: StandIn, ce: torch.Tensor, draw: Draw) -> torch.Tensor:
        if draw.step == 3:
            self.head.data[0, 0] = math.inf
            return self.gain.sum() * 0
        return ce

    model.spoil = overflow
    with pytest.raises(TrainingStopped, match=r"step 3: the sum of magnitudes of model/head is inf"):
        train(config, ops)
    assert checkpoint.latest(config.out) == checkpoint.checkpoint_path(config.out, 2)


def test_a_nan_before_the_first_checkpoint_says_that_there_is_none(
    config: TrainConfig, model: type[StandIn], capsys: pytest.CaptureFixture[str]
) -> None:
    model.spoil = lambda _self, ce, _draw: ce * math.nan
    assert fourbit.main(["train", *words(config)]) != 0
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "training stopped at step 1: the loss is nan; no checkpoint had been written" in err
    assert not any(map(checkpoint.is_leftover, config.out.iterdir()))


BAD = {
    "--steps=0": r"steps 0 cannot be used; use 1 or more",
    "--batch=3": r"--batch 3 cannot be used; use a multiple of --grain 4",
    "--batch=0": r"batch 0 cannot be used",
    "--batch=4000000000000000000000": r"batch 4000000000000000000000 cannot be used; use at most 2147483647",
    "--grain=0": r"grain 0 cannot be used",
    "--lr=-0.001": r"lr -0\.001 cannot be used; use a positive number",
    "--lr=nan": r"lr nan cannot be used",
    "--warmup=-1": r"warmup -1 cannot be used; use 0 or more",
    "--min-lr-ratio=2": r"--min-lr-ratio 2\.0 cannot be used; use 0 to 1",
    "--weight-decay=-1": r"--weight-decay -1\.0 cannot be used",
    "--beta1=1": r"beta1 1\.0 cannot be used",
    "--beta2=-0.1": r"beta2 -0\.1 cannot be used",
    "--clip=0": r"clip 0\.0 cannot be used",
    "--eval-every=0": r"--eval-every 0 cannot be used",
    "--eval-sequences=6": r"--eval-sequences 6 cannot be used; use a multiple of --grain 4",
    "--checkpoint-every=0": r"--checkpoint-every 0 cannot be used",
    "--seed=-1": r"seed -1 cannot be used",
    "--seed=4294967296": r"seed 4294967296 cannot be used",
    "--threads=0": r"threads 0 cannot be used",
    "--data=/no/such/path": r"data '/no/such/path' cannot be found",
    "--preset=fp3": r"fp3.*bf16.*mxfp8.*fourbit.*fourbit_rn",
    "--model.sequence=5000": r"sequence 5000 is longer than the training part \(3693 bytes\)",
    "--model.sequence=1000": r"sequence 1000 is longer than the held-out part \(307 bytes\) of .*; use .*sequence 306",
    "--model.sequence=0": r"--model\.sequence 0 cannot be used",
    "--model.balance=nan": r"--model\.balance nan cannot be used",
    "--eval-sequences=64": r"--eval-sequences 64 of 16 tokens do not fit .*; use at most 19",
    "--model.vocab=255": r"--model\.vocab 255 cannot hold every byte",
    "--model.dim=40": r"dim.*40.*32.*64",
}


@pytest.mark.parametrize(("argument", "says"), BAD.items())
def test_bad_input_ends_in_one_sentence_and_writes_nothing(
    tmp_path: Path, config: TrainConfig, capsys: pytest.CaptureFixture[str], argument: str, says: str
) -> None:
    base = [f"--out={tmp_path / 'deep' / 'run'}", f"--data={config.data}", "--model.sequence=16", "--eval-sequences=4"]
    kept = [word for word in base if word.split("=")[0] != argument.split("=")[0]]
    code = fourbit.main(["train", *kept, argument])
    out, err = capsys.readouterr()
    assert code != 0 and out == ""
    assert re.search(says, err) and err.count("\n") == 1 and "Traceback" not in err
    assert not (tmp_path / "deep").exists()


def test_the_real_model_under_an_absurd_rate_is_stopped_too(tmp_path: Path) -> None:
    with pytest.raises(TrainingStopped, match=r"training stopped at step 2: the .* is (nan|inf)"):
        train(dataclasses.replace(real(tmp_path / "run"), lr=1e20), ops)


@pytest.mark.skipif(torch.cuda.is_available(), reason="not run: this machine has a CUDA device")
def test_a_device_that_is_not_there_is_refused(config: TrainConfig) -> None:
    with pytest.raises(ValueError, match=r"device 'cuda' cannot be used; this torch sees no CUDA device; use 'cpu'"):
        train(dataclasses.replace(config, device="cuda"), ops)
    assert not config.out.exists()


def test_a_folder_that_is_no_run_is_refused(config: TrainConfig, model: type[StandIn]) -> None:
    config.out.mkdir()
    (config.out / "thesis.tex").write_text("x")
    with pytest.raises(ValueError, match="holds files but no run; name an empty or a new folder"):
        train(config, ops)
    assert os.listdir(config.out) == ["thesis.tex"]
    (config.out / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"holds a config\.json that is not a run's"):
        train(config, ops)
    with pytest.raises(ValueError, match="is a file; name a folder"):
        train(dataclasses.replace(config, out=config.out / "thesis.tex"), ops)
    assert sorted(os.listdir(config.out)) == ["config.json", "thesis.tex"]


# The late switch.


@pytest.mark.every(3)
@pytest.mark.parametrize("which", ["forward", "backward", "both"])
def test_a_late_switch_changes_the_steps_after_it_and_no_others(
    which: str, tmp_path: Path, uninterrupted: Result
) -> None:
    """Half of the steps are those of the run without a switch; the first one after it equals a step of a run that
    follows the other recipe from the same weights, which `both` of bf16 is."""
    config = dataclasses.replace(real(tmp_path / which), switch_at=0.5, switch_pass=which)
    seen = train(config, ops)
    half = config.steps // 2
    # the loss of a step is that of the forward before it
    same = [a == b for a, b in zip(uninterrupted.train_losses, seen.train_losses, strict=True)]
    first = half if which != "backward" else half + 1
    assert all(same[:first]) and not any(same[first:])


def test_a_switched_run_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(real(tmp_path / "whole"), switch_at=0.5, checkpoint_every=1)
    whole = train(config, ops)
    again = dataclasses.replace(config, out=tmp_path / "parts")
    taken = []

    def stop(record: dict) -> None:
        taken.append(record["step"])
        if len(taken) == config.steps // 2 + 1:  # one step after the switch
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(again, ops, stop)
    assert train(again, ops).train_losses == whole.train_losses


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"switch_at": 0.0}, "switch_at 0.0 cannot be used; use a share of the steps between 0 and 1"),
        ({"switch_at": 1.0}, "switch_at 1.0 cannot be used"),
        ({"switch_at": math.nan}, "switch_at nan cannot be used"),
        ({"switch_at": 0.5, "switch_to": "fp4"}, "preset='fp4' is unknown"),
        ({"switch_at": 0.5, "switch_pass": "last"}, "switch_pass 'last' cannot be used"),
        ({"switch_at": 0.5, "switch_to": "fp8_deepseek"}, "blocks of 128"),
    ],
)
def test_a_switch_that_cannot_be_is_refused(changes: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        train(dataclasses.replace(real(tmp_path / "run"), **changes), ops)
    assert not (tmp_path / "run").exists()


def test_activations_are_recorded_for_validation(tmp_path: Path, uninterrupted: Result) -> None:
    """What the experts of the last step read: the same run without recording has the same bits."""
    config = dataclasses.replace(real(tmp_path / "run"), activations=tmp_path / "activations.safetensors")
    result = train(config, ops)
    assert result.train_losses == uninterrupted.train_losses
    assert result.heldout_losses == uninterrupted.heldout_losses
    kept = load_file(config.activations)
    assert list(kept) == [f"layer {i}" for i in range(config.model.depth)]
    rows = config.grain * config.model.sequence
    assert {(t.dtype, tuple(t.shape)) for t in kept.values()} == {(torch.bfloat16, (rows, config.model.dim))}
    assert all(bool(t.any()) for t in kept.values())
    with pytest.raises(ValueError, match=r"recorded in the last step, which run .* has taken"):
        train(config, ops)
    for path in (tmp_path, tmp_path / "none" / "x.safetensors"):
        with pytest.raises(ValueError, match=r"activations .* cannot be used; name a file in a folder that exists"):
            train(dataclasses.replace(config, activations=path), ops)
