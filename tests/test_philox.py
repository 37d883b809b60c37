"""Random words as a pure function of key and counter.

Contract: `nm.philox` is Philox-4x32-10; `nm.Random.fields` of any slice alone are the slice of the whole. Oracles:
Random123's published known answers (its `kat_vectors`, lines philox4x32 10), and the scalar `oracle.philox`. Bitwise.
"""

import numpy as np
import pytest
import torch

import numerics as nm
from numerics import oracle

ONES = 0xFFFFFFFF
KNOWN_ANSWERS = [  # counter, key, words; the last row is the fraction of pi
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def random_words(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 1 << 32, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...]):
    assert oracle.philox(key, counter) == words
    assert nm.philox(key, counter).tolist() == list(words)
    assert nm.philox(torch.tensor(key), torch.tensor(counter)).tolist() == list(words)
    assert nm.philox(np.array(key), np.array(counter)).tolist() == list(words)


def test_random_counters_equal_the_oracle():
    keys, counters = random_words(500, 2), random_words(500, 4, seed=1)
    ours = nm.philox(keys, counters)
    assert ours.shape == (500, 4) and ours.dtype == torch.int64
    theirs = [oracle.philox(tuple(k), tuple(c)) for k, c in zip(keys.tolist(), counters.tolist(), strict=True)]
    assert torch.equal(ours, torch.tensor(theirs))


def test_key_and_counter_broadcast():
    keys, counters = random_words(3, 1, 2), random_words(5, 4, seed=1)
    ours = nm.philox(keys, counters)
    assert ours.shape == (3, 5, 4)
    for i in range(3):
        assert torch.equal(ours[i], nm.philox(keys[i, 0], counters))
    for j in range(5):
        assert torch.equal(ours[:, j], nm.philox(keys[:, 0], counters[j].expand(3, 4)))
    assert nm.philox((1, 2), torch.zeros(0, 4, dtype=torch.int64)).shape == (0, 4)


def test_any_slice_alone_is_the_slice_of_the_whole():
    counters = random_words(64, 4)
    whole = nm.philox((7, 8), counters)
    for part in (slice(5, 6), slice(10, 40), slice(0, 64, 7)):
        assert torch.equal(nm.philox((7, 8), counters[part]), whole[part])
    order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
    assert torch.equal(nm.philox((7, 8), counters[order]), whole[order])


def test_numpy_equals_torch():
    keys, counters = random_words(3, 1, 2), random_words(5, 4, seed=1)
    ours = nm.philox(keys.numpy(), counters.numpy())
    assert isinstance(ours, np.ndarray) and np.array_equal(ours, nm.philox(keys, counters).numpy())
    ours = nm.philox(keys.numpy().astype(np.uint32), counters.numpy().astype(np.uint32))
    assert np.array_equal(ours, nm.philox(keys, counters).numpy())


@pytest.mark.parametrize("bits", [4, 8])
def test_fields_of_a_slice_are_the_slice_of_the_fields(bits: int):
    """One row, one group or one expert alone draws the same fields: no draw depends on the batch around it."""
    random = nm.Random((3, 4), (5, 6))
    expert, line, group = torch.arange(3).view(3, 1, 1), torch.arange(7).view(7, 1), torch.arange(4)
    whole = random.fields(expert, line, group, bits)
    assert whole.shape == (3, 7, 4, 16)
    assert int(whole.min()) >= 0 and int(whole.max()) < 1 << 16
    assert torch.equal(random.fields(expert[2:], line[3:5], group[1:3], bits), whole[2:, 3:5, 1:3])
    assert torch.equal(random.fields(2, line, group, bits), whole[2])
    assert torch.equal(nm.Random((3, 4), (5, 8)).fields(0, line, group, bits), whole[2])


def test_every_word_of_key_and_counter_matters():
    line, group = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    base = nm.Random((0, 0), (0, 0)).fields(0, line, group, 8)
    others = [
        nm.Random((1, 0), (0, 0)).fields(0, line, group, 8),
        nm.Random((0, 1), (0, 0)).fields(0, line, group, 8),
        nm.Random((0, 0), (1, 0)).fields(0, line, group, 8),
        nm.Random((0, 0), (0, 1)).fields(0, line, group, 8),
        nm.Random((0, 0), (0, 0)).fields(0, line + 1, group, 8),
        nm.Random((0, 0), (0, 0)).fields(0, line, group + 1, 8),
        nm.Random((0, 0), (0, 0)).fields(0, line, group, 4),
    ]
    distinct = {tuple(fields.flatten().tolist()) for fields in [base, *others]}
    assert len(distinct) == 8


def test_fields_are_uniform():
    """2^16 fields of each of the 16 places: mean within 5 standard errors of 32767.5 (sd 18918.6)."""
    line, group = torch.arange(1 << 6).view(-1, 1), torch.arange(1 << 10)
    for bits in (4, 8):
        fields = nm.Random((11, 12)).fields(0, line, group, bits).to(torch.float64).flatten(0, 1)
        assert float((fields.mean(0) - 32767.5).abs().max()) < 5 * 18918.6 / 2**8


def test_words_count_modulo_two_to_the_32():
    """Of any size and sign, in every kind of argument."""
    key, counter = (3, 2**32 - 1), (2**32 - 2, 0, 5, 2**31)
    expected = nm.philox(key, counter)
    assert int(expected.min()) >= 0 and int(expected.max()) < 2**32
    for shift in (2**32, -(2**32), 2**70, -(2**70), 2**32 * (2**200 + 1)):
        far = [[word + shift for word in words] for words in (key, counter)]
        assert torch.equal(nm.philox(*far), expected), shift
        assert torch.equal(nm.philox(key, [far[1], counter]), torch.stack((expected, expected))), shift
    wrapped = torch.tensor(counter) - 2**32
    assert torch.equal(nm.philox(key, wrapped), expected)
    assert np.array_equal(nm.philox(key, wrapped.numpy().view(np.uint64)), expected.numpy())


@pytest.mark.parametrize("shift", [2**32, -(2**32), 2**70, -(2**70)])
def test_fields_take_their_words_modulo_two_to_the_32(shift: int):
    line, group = torch.arange(3)[:, None], torch.arange(5)
    expected = nm.Random((1, 7), (9, 2**32 - 1)).fields(2, line, group, 4)
    far = nm.Random((1 + shift, 7 + shift), (9 + shift, 2**32 - 1 + shift))
    assert torch.equal(far.fields(2 + shift, line, group, 4), expected)
    assert torch.equal(nm.Random((np.uint8(1), 7), (np.uint8(9), -1)).fields(2, line, group, 4), expected)
    if abs(shift) < 2**63:
        assert torch.equal(far.fields(torch.tensor(2 + shift), line + shift, group + shift, 4), expected)


def test_errors():
    with pytest.raises(ValueError, match="key has shape"):
        nm.philox((1, 2, 3), (0, 0, 0, 0))
    with pytest.raises(ValueError, match="counter has shape"):
        nm.philox((1, 2), torch.zeros(3, dtype=torch.int64))
