"""The order of an epoch: a keyed pseudo-random permutation of n windows, computed for any place, never stored.

A generalized Feistel network (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, section 5):
with a = ceil(sqrt(n)) and b = ceil(n / a), a place x = left * b + right, left < a, right < b, passes ROUNDS rounds

    even round r: left  = (left  + F_r(right)) mod a
    odd round r:  right = (right + F_r(left))  mod b

each of which can be undone, so that the rounds permute 0 .. a b - 1. That is fewer than a more than n: where x comes
out at n or beyond, it goes through again until it does not (cycle walking), which permutes 0 .. n - 1.

F_r(v) is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA
2014) on v + key_r, and key_r is a raw word of numpy's Philox keyed by (seed, epoch). Good mixing, no secrecy.

Exact: integer arithmetic modulo 2^64 in numpy.
"""

import math

import numpy as np

ROUNDS = 8
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
# apart from the words that begin at counter 0, which draw random batches
_COUNTER = 1 << 64


def permuted(places: np.ndarray, windows: int, seed: int, epoch: int) -> np.ndarray:
    """Which windows come at `places` of an epoch.

    Args:
        places: integers in [0, windows), (places,).
        windows: n, 1 <= n < 2^62.
        seed: of the run, 0 <= seed < 2^64.
        epoch: counted from 0, below 2^64.

    Returns:
        uint64 (places,); over all places every window comes once.
    """
    keys = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64), counter=_COUNTER).random_raw(ROUNDS)
    found = _network(places.astype(np.uint64), windows, keys)
    while (beyond := found >= windows).any():
        found[beyond] = _network(found[beyond], windows, keys)
    return found


def epoch_windows(first: int, count: int, windows: int, seed: int) -> np.ndarray:
    """The windows at places `first` .. `first + count - 1` of all epochs, one after the other.

    Args:
        first: place of the first, counted from 0 over all epochs.
        count: how many.
        windows: n, in an epoch.
        seed: of the run.

    Returns:
        uint64 (count,).
    """
    pieces, place, last = [np.empty(0, dtype=np.uint64)], first, first + count
    while place < last:
        epoch, inside = divmod(place, windows)
        taken = min(windows - inside, last - place)
        pieces.append(permuted(np.arange(inside, inside + taken), windows, seed, epoch))
        place += taken
    return np.concatenate(pieces)


def _network(x: np.ndarray, windows: int, keys: np.ndarray) -> np.ndarray:
    a = _root(windows)
    b = -(-windows // a)
    left, right = x // np.uint64(b), x % np.uint64(b)
    for r, key in enumerate(keys):
        if r % 2 == 0:
            left = (left + _mix(right + key) % np.uint64(a)) % np.uint64(a)
        else:
            right = (right + _mix(left + key) % np.uint64(b)) % np.uint64(b)
    return left * np.uint64(b) + right


def _mix(v: np.ndarray) -> np.ndarray:
    v = (v ^ (v >> np.uint64(30))) * _MULTIPLIERS[0]  # arrays wrap without a warning
    v = (v ^ (v >> np.uint64(27))) * _MULTIPLIERS[1]
    return v ^ (v >> np.uint64(31))


def _root(n: int) -> int:
    """ceil(sqrt(n)), exactly."""
    return math.isqrt(n - 1) + 1
