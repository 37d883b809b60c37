"""Philox in Triton, in the interpreter and compiled.

Contract: `hw.philox.philox` and `fields` are `numerics.philox` and `Random.fields`, bit for bit. Oracles: Random123's
published known answers, and the emulator. "interpreter" runs on the CPU, "gpu" on a CUDA device; each is skipped
where the other one is at hand, since triton chooses between them when it is imported.
"""

import numpy as np
import pytest
import torch
from kernel_cases import device as device
from test_philox import KNOWN_ANSWERS, ONES, random_words

import numerics as nm
from hw.device import INTERPRET, require_launch, triton_absent

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw import philox as hw


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple, key: tuple, words: tuple, device: torch.device) -> None:
    found = hw.philox(torch.tensor(key), torch.tensor(counter, device=device))
    assert found.tolist() == list(words)
    assert found.dtype == torch.int64 and found.device.type == device.type


def test_random_counters(device: torch.device) -> None:
    """1,000 counters: four programs, the last one partly filled; words at the ends of int32 and uint32 among them."""
    keys, counters = random_words(1000, 2), random_words(1000, 4, seed=1)
    edges = torch.tensor([0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, ONES])
    counters[:6], keys[6:12] = edges[:, None], edges[:, None]
    found = hw.philox(keys.to(device), counters.to(device)).cpu()
    assert torch.equal(found, nm.philox(keys, counters))
    assert int(found.max()) > 0x7FFFFFFF and int(found.min()) >= 0
    assert torch.equal(hw.philox(keys.to(device), counters.to(device), 7).cpu(), nm.philox(keys, counters, 7))


def test_any_leading_shape_broadcasts(device: torch.device) -> None:
    keys, counters = random_words(3, 1, 2), random_words(5, 4, seed=1)
    assert torch.equal(hw.philox(keys, counters.to(device)).cpu(), nm.philox(keys, counters))
    assert hw.philox((1, 2), torch.zeros(0, 4, dtype=torch.int64, device=device)).shape == (0, 4)
    transposed = random_words(4, 6, seed=2).mT  # not contiguous
    assert torch.equal(hw.philox((1, 2), transposed.to(device)).cpu(), nm.philox((1, 2), transposed))


def test_any_slice_alone_is_the_slice_of_the_whole(device: torch.device) -> None:
    counters = random_words(600, 4).to(device)
    whole = hw.philox((7, 8), counters)
    for part in (slice(5, 6), slice(250, 270), slice(0, 600, 7)):
        assert torch.equal(hw.philox((7, 8), counters[part]), whole[part])


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_fields(bits: int, device: torch.device) -> None:
    """Every split and reversal, experts by tensor and by number, key and counter beyond 31 bits, and slices."""
    random = nm.Random((0xFFFFFFF0, 0x80000000), (0x90000005, 0xFFFFFFFF))
    expert, line, group = torch.arange(3).view(3, 1, 1), torch.arange(70).view(70, 1), torch.arange(4)
    expected = random.fields(expert, line, group, bits)
    there = [x.to(device) for x in (expert, line, group)]
    found = hw.fields(random, *there, bits)
    assert found.dtype == torch.int32 and found.shape == (3, 70, 4, 16)
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(hw.fields(random, 2, *there[1:], bits).cpu(), expected[2])
    assert torch.equal(
        hw.fields(random, there[0][2:], there[1][3:5], there[2][1:3], bits).cpu(), expected[2:, 3:5, 1:3]
    )
    assert hw.fields(random, 0, there[1][:0], there[2], bits).shape == (0, 4, 16)


def test_errors_are_the_emulators(device: torch.device) -> None:
    counter = torch.zeros(4, dtype=torch.int64, device=device)
    with pytest.raises(ValueError, match="key has shape"):
        hw.philox((1, 2, 3), counter)
    with pytest.raises(ValueError, match="counter has shape"):
        hw.philox((1, 2), counter[:3])
    if device.type == "cpu":
        words = hw.philox(np.array([1, 2]), np.zeros((3, 4), np.uint32))
        assert isinstance(words, np.ndarray) and np.array_equal(
            words, nm.philox(np.array([1, 2]), np.zeros((3, 4), int))
        )


def test_where_triton_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import JITFunction

    monkeypatch.setenv(INTERPRET, "0")
    assert "set TRITON_INTERPRET=1" in triton_absent(torch.device("cpu"))
    assert triton_absent(torch.device("cuda")) is None
    monkeypatch.setenv(INTERPRET, "1")
    assert triton_absent(torch.device("cpu")) is None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "triton is not installed; pip install 'fourbit[hw]'" in triton_absent(torch.device("cuda"))
    compiled = JITFunction.__new__(JITFunction)
    with pytest.raises(ValueError, match=r"^counter is on cpu: a compiled kernel runs on a CUDA device; move it there"):
        require_launch(compiled, torch.zeros(1), "counter")
