"""Devices by name.

Contract: a name is resolved to exactly that device or refused in one sentence with the argument, its value and a
remedy; nothing falls back. CUDA is a stand-in here, except where a test says that it needs one.
"""

import json
from types import SimpleNamespace

import pytest
import torch

from hw.device import DeviceAbsent, describe, resolve


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch as it is on a machine with two CUDA devices of which the second is current."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))


def test_cpu() -> None:
    assert resolve("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("name", "index"), [("cuda", 1), ("cuda:0", 0), ("cuda:1", 1)])
def test_cuda_has_its_index(name: str, index: int) -> None:
    assert resolve(name) == torch.device("cuda", index)


@pytest.mark.usefixtures("two_gpus")
def test_index_out_of_range() -> None:
    with pytest.raises(DeviceAbsent, match=r"^device='cuda:2': torch finds 2 CUDA devices; use 'cuda:0' to 'cuda:1'$"):
        resolve("cuda:2")


@pytest.mark.usefixtures("two_gpus")
def test_index_out_of_range_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DeviceAbsent, match=r"torch finds 1 CUDA device; use 'cuda:0'$"):
        resolve("cuda:1")


@pytest.mark.parametrize(("toolkit", "reason"), [(None, "is built without CUDA"), ("13.0", "finds no CUDA device")])
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_no_cuda(monkeypatch: pytest.MonkeyPatch, name: str, toolkit: str | None, reason: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=toolkit, hip=None))
    whole = rf"^device='{name}': torch \S+ {reason}; use 'cpu', or a machine with a GPU$"
    with pytest.raises(DeviceAbsent, match=whole):
        resolve(name)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:a", "cuda:1 ", "cuda:1\n", "cpu:0"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not a device; use 'cpu', 'cuda' or 'cuda:1'") as caught:
        resolve(name)
    assert repr(name) in str(caught.value)
    assert not isinstance(caught.value, DeviceAbsent)  # a mistake, not missing hardware


def test_description_of_the_cpu() -> None:
    about = describe(torch.device("cpu"))
    assert about == json.loads(json.dumps(about))
    assert about["device"] == "cpu"
    assert about["torch"] == torch.__version__
    assert about["cuda"] == torch.version.cuda
    assert about["name"] and about["capability"]


@pytest.mark.usefixtures("two_gpus")
def test_description_of_a_gpu() -> None:
    about = describe(torch.device("cuda", 1))
    assert (about["device"], about["name"], about["capability"]) == ("cuda:1", "GPU 1", "9.0")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: torch finds no CUDA device")
def test_the_real_gpu() -> None:
    device = resolve("cuda")
    assert torch.ones(1, device=device).device == device
    assert describe(device)["name"] == torch.cuda.get_device_name()
