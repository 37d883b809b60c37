"""Contract of reference.stopping: what ends a run is one sentence, which names the checkpoint that is kept.

Oracle: exceptions of numpy and torch that ask for more than any machine has, and words of torch's allocator on a GPU.
"""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fourbit
from numerics import ops
from reference import checkpoint
from reference.command_line import parse
from reference.load import load_run
from reference.model import Transformer
from reference.optimizer import MomentOptimizer
from reference.stopping import TrainingStopped, lacks_memory, require_finite
from reference.train import train

GPU = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 2 MiB is free."


def test_finite_numbers_pass_and_others_stop_with_the_last_checkpoint(tmp_path: Path) -> None:
    require_finite(tmp_path, 1, "loss", 1e300)
    with pytest.raises(TrainingStopped, match="stopped at step 3: the loss is nan; no checkpoint had been written"):
        require_finite(tmp_path, 3, "loss", math.nan)
    checkpoint.checkpoint_path(tmp_path, 2).touch()
    with pytest.raises(TrainingStopped, match=r"the norm is -inf; the last good .* is .*-00000002\.safetensors; try"):
        require_finite(tmp_path, 3, "norm", -math.inf)


@pytest.mark.parametrize(
    "asks", [lambda: torch.empty(1 << 60), lambda: torch.empty(1 << 40, 1 << 40), lambda: np.empty(1 << 50)]
)
def test_memory_is_told_from_other_errors(asks: Callable[[], Any]) -> None:
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        asks()
    assert lacks_memory(caught.value) and lacks_memory(torch.OutOfMemoryError(GPU))
    with pytest.raises(RuntimeError) as caught:
        torch.ones(2) @ torch.ones(3)
    assert not lacks_memory(caught.value) and not lacks_memory(ValueError("out of memory"))


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "text").write_bytes(bytes(random.Random(0).choices(range(1, 256), k=4000)))
    small = [f"--model.{name}=32" for name in ("dim", "expert-dim", "shared-dim")] + ["--model.sequence=16"]
    steps = ["--steps=4", "--batch=1", "--grain=1", "--warmup=1", "--eval-sequences=1", "--checkpoint-every=2"]
    return [f"--data={tmp_path / 'text'}", "--optimizer=muon", *steps, *small, "--monitor-every=0", "--progress=hide"]


def test_a_step_that_does_not_fit_keeps_the_checkpoint_before(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The optimizer finds no memory in step 3; with memory the same command ends as if it had always been there."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    taken, step = [], MomentOptimizer.step

    def full(self: MomentOptimizer) -> None:
        taken.append(None)
        if len(taken) == 3:
            raise torch.OutOfMemoryError(GPU)
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(MomentOptimizer, "step", full)
        assert fourbit.main(["train", f"--out={folder}", *words]) == 2
    assert capsys.readouterr().err == (
        "fourbit: error: training stopped at step 3: it does not fit into memory (CUDA out of memory); the last good "
        f"checkpoint is {checkpoint.checkpoint_path(folder, 2)}; go on with --recompute layers, or use smaller sizes, "
        "a smaller --grain or narrower --moments in another run folder\n"
    )
    assert train(parse([f"--out={folder}", *words]), ops).resumed_from == 2
    train(parse([f"--out={whole}", *words]), ops)
    assert checkpoint.latest(folder).read_bytes() == checkpoint.latest(whole).read_bytes()


def test_other_errors_of_a_step_stay_what_they_are(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: MomentOptimizer) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(MomentOptimizer, "step", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        fourbit.main(["train", f"--out={tmp_path / 'run'}", *words])


def test_a_model_that_does_not_fit_is_not_loaded(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    train(parse([f"--out={folder}", *words]), ops)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError(GPU)

    monkeypatch.setattr(Transformer, "_initialize", full)
    with pytest.raises(ValueError, match="does not fit into memory; use smaller sizes"):
        load_run(folder)
    with pytest.raises(ValueError, match="does not fit into memory; use smaller sizes"):
        train(parse([f"--out={tmp_path / 'new'}", *words]), ops)
