"""Contract of reference.order and of epoch batches: every window once an epoch, in an order of (seed, epoch) alone,
computed for any place.

Oracle: the network written out for one place in Python's integers. That the order looks random is measured with fixed
seeds, so these tests are deterministic too.
"""

import math

import numpy as np
import pytest
import torch

from reference.corpus import batch, epoch_batch
from reference.order import epoch_windows, permuted


def mixed(v: int) -> int:
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    v = (v ^ (v >> 27)) * 0x94D049BB133111EB % 2**64
    return v ^ (v >> 31)


def slow(place: int, n: int, seed: int, epoch: int) -> int:
    """One place, in integers."""
    key = np.array([seed, epoch], dtype=np.uint64)
    counter = np.array([0, 1, 0, 0], dtype=np.uint64)
    words = [int(w) for w in np.random.Philox(key=key, counter=counter).random_raw(8)]
    a = next(a for a in range(1, n + 1) if a * a >= n) if n < 10**6 else math.isqrt(n - 1) + 1
    b = (n + a - 1) // a
    while True:
        left, right = divmod(place, b)
        for r, word in enumerate(words):
            if r % 2:
                right = (right + mixed((left + word) % 2**64)) % b
            else:
                left = (left + mixed((right + word) % 2**64)) % a
        place = left * b + right
        if place < n:
            return place


@pytest.mark.parametrize("n", [*range(1, 40), 99, 100, 101, 1023, 1024, 1025])
def test_an_epoch_has_every_window_once(n: int) -> None:
    for seed, epoch in ((0, 0), (0, 1), (2**32 - 1, 5)):
        order = permuted(np.arange(n), n, seed, epoch)
        assert order.dtype == np.uint64 and np.array_equal(np.sort(order), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100, 12345, 10**9 + 7, 2**50 + 1])
def test_places_are_those_of_the_network_in_integers(n: int) -> None:
    places = np.random.default_rng(n % 1000).integers(0, n, 40)
    for seed, epoch in ((0, 0), (3, 9)):
        expected = [slow(int(place), n, seed, epoch) for place in places]
        assert permuted(places, n, seed, epoch).tolist() == expected


def test_the_order_is_frozen() -> None:
    # Known answer, so that no version of numpy or of ours changes the order of a given seed unnoticed.
    assert permuted(np.arange(10), 10, 1, 2).tolist() == [1, 2, 5, 0, 3, 4, 9, 6, 7, 8]


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    keys = [(seed, epoch) for seed in range(8) for epoch in range(8)]
    assert len({tuple(permuted(np.arange(50), 50, *key).tolist()) for key in keys}) == len(keys)


def test_the_order_looks_random() -> None:
    """2000 orders of 30 windows: every window is as often at every place, and every pair of neighbours as frequent.

    Chi-square over m cells with f degrees of freedom has mean f and variance 2 f; the bound of 5 standard deviations
    fails once in a million keys, and these are fixed.
    """
    n, trials = 30, 2000
    orders = np.stack([permuted(np.arange(n), n, seed, 0) for seed in range(trials)]).astype(np.int64)
    places = np.zeros((n, n))
    np.add.at(places, (np.broadcast_to(np.arange(n), orders.shape), orders), 1)
    chi = ((places - trials / n) ** 2).sum() / (trials / n)
    freedom = (n - 1) ** 2
    assert abs(chi - freedom) < 5 * math.sqrt(2 * freedom)
    pairs = np.zeros((n, n))
    np.add.at(pairs, (orders[:, :-1].ravel(), orders[:, 1:].ravel()), 1)
    expected = trials * (n - 1) / (n * (n - 1))
    chi = (((pairs - expected) ** 2)[~np.eye(n, dtype=bool)]).sum() / expected
    assert abs(chi - n * (n - 1)) < 5 * math.sqrt(2 * n * (n - 1))


def test_epochs_follow_each_other() -> None:
    whole = epoch_windows(0, 35, 10, 7)
    for epoch in range(3):
        assert whole[10 * epoch : 10 * epoch + 10].tolist() == permuted(np.arange(10), 10, 7, epoch).tolist()
    for first, count in ((0, 3), (8, 4), (9, 22), (20, 10), (5, 0)):
        assert epoch_windows(first, count, 10, 7).tolist() == whole[first : first + count].tolist()


@pytest.mark.parametrize("draw", [batch, epoch_batch])
def test_ranks_compute_their_own_rows(draw: type[batch]) -> None:
    split = np.random.default_rng(0).integers(0, 60000, 1000).astype(np.uint16)
    whole = draw(split, 3, 5, 12, 16)
    for ranks in (1, 2, 3, 4):
        rows = [slice(12 // ranks * rank, 12 // ranks * (rank + 1)) for rank in range(ranks)]
        parts = [draw(split, 3, 5, 12, 16, own) for own in reversed(rows)][::-1]  # in any order of time
        assert all(
            torch.equal(torch.cat(column), all_) for column, all_ in zip(zip(*parts, strict=True), whole, strict=True)
        )
    assert draw(split, 3, 5, 12, 16, slice(4, 4))[0].shape == (0, 16)


def test_epoch_batches_read_every_window_once() -> None:
    """103 tokens hold 20 windows of 5 and their last targets; 4 steps of 5 sequences are an epoch."""
    split = np.arange(103, dtype=np.uint16)
    steps = [epoch_batch(split, 1, step, 5, 5) for step in range(1, 9)]
    for epoch in (steps[:4], steps[4:]):
        tokens = torch.cat([tokens for tokens, _ in epoch])
        assert sorted(tokens[:, 0].tolist()) == list(range(0, 100, 5))
    for tokens, targets in steps:
        assert torch.equal(targets, tokens + 1) and torch.equal(tokens, tokens[:, :1] + torch.arange(5))
    # another batch size gives the same windows in the same order
    other = torch.cat([epoch_batch(split, 1, step, 8, 5)[0] for step in range(1, 6)])
    assert torch.equal(other, torch.cat([tokens for tokens, _ in steps]))


def test_rows_with_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows slice\(0, 8, 2\) cannot be used; use rows one after the other"):
        epoch_batch(np.arange(99, dtype=np.uint16), 0, 1, 8, 5, slice(0, 8, 2))
