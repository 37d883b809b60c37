"""Contract of reference.checkpoint: bits come back, a damaged or foreign file is told, writes are all or nothing.

Oracles: the tensors themselves, compared as bytes. A real SIGKILL is in test_train.py.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from reference import checkpoint


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(-(2**31), 2**31, (64, 8), generator=generator, dtype=torch.int64)
    return {
        "any/float32": words.to(torch.int32).view(torch.float32),  # NaN payloads, infinities and subnormals among them
        "any/bfloat16": words.to(torch.int16).view(torch.bfloat16).T,
        "codes": words.to(torch.uint8)[:, ::3],
        "scalar": torch.tensor(17.0),
        "nothing": torch.zeros(0, 3),
    }


def test_bits_shapes_dtypes_and_metadata_come_back(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    meta = {"step": 3, "nested": {"lr": 0.1 + 0.2, "text": "ä"}, "none": None}
    checkpoint.save(tmp_path / "x.safetensors", tensors, meta)
    back, meta_back = checkpoint.load(tmp_path / "x.safetensors")
    assert meta_back == meta
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert back[name].shape == tensor.shape and back[name].dtype == tensor.dtype
        assert bytes_of(back[name]) == bytes_of(tensor)
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_a_file_cut_anywhere_is_refused(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    checkpoint.save(tmp_path / "x.safetensors", tensors, {})
    whole = (tmp_path / "x.safetensors").read_bytes()
    for length in range(0, len(whole), 13):
        (tmp_path / "cut.safetensors").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut\.safetensors' cannot be read .* delete it to") as caught:
            checkpoint.load(tmp_path / "cut.safetensors")
        assert "\n" not in str(caught.value)


def test_foreign_and_missing_files_are_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="was not written by fourbit"):
        checkpoint.load(tmp_path / "other.safetensors")
    save_file({"weight": torch.ones(2)}, tmp_path / "other.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match="was not written by fourbit"):
        checkpoint.load(tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("this is no checkpoint at all")
    for name in ("text.safetensors", "missing.safetensors"):
        with pytest.raises(ValueError, match="cannot be read"):
            checkpoint.load(tmp_path / name)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    checkpoint.write_atomic(path, b"old")
    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:

            def refuse(*_: object) -> None:
                raise OSError(28, "No space left on device")

            patch.setattr(os, function, refuse)
            with pytest.raises(OSError, match="No space left"):
                checkpoint.write_atomic(path, b"new")
        assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["x"]
    checkpoint.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_write_is_flushed_before_and_after_it_is_moved_into_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watch_fsync(descriptor: int) -> None:
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def watch_replace(source: Path, target: Path) -> None:
        assert Path(source).parent == Path(target).parent and checkpoint.is_leftover(Path(source))
        calls.append("replace")
        replace(source, target)

    if not Path("/proc/self/fd").exists():
        pytest.skip("not run: this system does not name open files")
    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "replace", watch_replace)
    checkpoint.write_atomic(tmp_path / "x", b"contents")
    assert calls == [f".x.{os.getpid()}.tmp", "replace", tmp_path.name]
    calls.clear()
    checkpoint.make_folder(tmp_path / "a" / "b")
    assert calls == [tmp_path.name, "a"] and (tmp_path / "a" / "b").is_dir()


def test_json_is_whole_and_refuses_what_json_lacks(tmp_path: Path) -> None:
    checkpoint.write_json(tmp_path / "x.json", {"a": [1, 0.1 + 0.2]})
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [1, 0.1 + 0.2]}
    with pytest.raises(ValueError, match="not JSON compliant"):
        checkpoint.write_json(tmp_path / "x.json", float("nan"))
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": [1, 0.1 + 0.2]}


def test_latest_counts_steps_not_letters_and_only_finished_files(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    for step in (5, 100_000_000, 99_999_999):
        checkpoint.checkpoint_path(tmp_path, step).touch()
    stem = "checkpoint-999999999.safetensors"
    for name in (f".{stem}.1.tmp", f"{stem}.bak", f"old-{stem}", "checkpoint-x.safetensors"):
        (tmp_path / name).touch()
    assert checkpoint.latest(tmp_path) == checkpoint.checkpoint_path(tmp_path, 100_000_000)


def test_prune_keeps_the_last_ones(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").touch()
    for step in (1, 2, 10, 3):
        checkpoint.checkpoint_path(tmp_path, step).touch()
    checkpoint.prune(tmp_path)
    left = {checkpoint.checkpoint_path(tmp_path, step).name for step in (3, 10)} | {"log.jsonl"}
    assert set(os.listdir(tmp_path)) == left
    with pytest.raises(ValueError, match="keep 0"):
        checkpoint.prune(tmp_path, keep=0)


def made() -> tuple[nn.Module, torch.optim.AdamW]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    named = list(model.named_parameters())
    groups = [{"params": [p for p in named if p[1].ndim == n], "weight_decay": 0.1 * n} for n in (2, 1)]
    return model, torch.optim.AdamW(groups, lr=0.01)


def step(model: nn.Module, optimizer: torch.optim.AdamW, seed: int) -> None:
    optimizer.zero_grad()
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
    model(x).square().sum().backward()
    optimizer.step()


def test_training_state_continues_bit_for_bit(tmp_path: Path) -> None:
    model, optimizer = made()
    for seed in range(3):
        step(model, optimizer, seed)
    state = checkpoint.training_state(model, optimizer)
    assert {"model/0.weight", "adam/0.weight/exp_avg", "adam/1.bias/exp_avg_sq", "adam/2.bias/step"} <= state.keys()
    assert state["adam/2.bias/step"] == 3
    checkpoint.save(tmp_path / "x.safetensors", state, {})
    other, other_optimizer = made()
    checkpoint.restore_training_state(checkpoint.load(tmp_path / "x.safetensors")[0], other, other_optimizer)
    for seed in range(3, 6):
        step(model, optimizer, seed)
        step(other, other_optimizer, seed)
    ours, theirs = checkpoint.training_state(model, optimizer), checkpoint.training_state(other, other_optimizer)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_training_state_of_another_model_is_refused() -> None:
    model, optimizer = made()
    step(model, optimizer, 0)
    state = checkpoint.training_state(model, optimizer)
    for wrong in (
        state | {"model/extra": torch.ones(1)},
        {k: v for k, v in state.items() if k != "model/0.bias"},
        state | {"model/0.bias": torch.ones(9)},
    ):
        with pytest.raises(ValueError, match=r"checkpoint and model differ in (extra|0\.bias): another version"):
            checkpoint.restore_training_state(wrong, *made())


def test_one_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-00000001.safetensors"
    checkpoint.save(path, {"a": torch.arange(8.0), "b": torch.zeros(3, dtype=torch.bfloat16)}, {"step": 1})
    good = path.read_bytes()
    assert checkpoint.load(path)[1] == {"step": 1}
    for position in (len(good) - 1, len(good) - 30):
        path.write_bytes(good[:position] + bytes([good[position] ^ 0x40]) + good[position + 1 :])
        with pytest.raises(ValueError, match="is damaged: it does not hold what was saved"):
            checkpoint.load(path)
