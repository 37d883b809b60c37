"""Whether stochastically rounded codes had a random word each: words that are shared leave correlated errors.

    r = 1 if an element is rounded away from zero, else 0, minus its share p of the way there; variance v = p (1 - p)
    z(L) = sum_i r_i r_(i+L) / sqrt(sum_i v_i v_(i+L))        L values apart, in the order of memory, blocks last

Under words of their own the r are independent with mean 0, whatever x is, so that z is normal: of 2^24 distances the
largest is below 6. Where two elements have one word, r_i r_j has the mean min(p_i, p_j) - p_i p_j, about half of v, and
z grows to sqrt(pairs) / 2. Rounding may also add the word to the value instead of its magnitude, which negates r of
negative elements: both are tried. All distances at once are one Fourier transform.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHANCE = 7.0  # |z| beyond this is no chance
FEWEST = 10.0  # the least variance of a sum of products that is nearly normal
MOST = 1 << 24  # values that are looked at


def shared_words(share: Tensor, up: Tensor, negative: Tensor, inside: Tensor) -> str | None:
    """How random words are shared, in words; None if they are not, or too few to tell.

    Args:
        share: how far each element lies above its lower neighbour, 0 to 1, float64 (..., K). up: whether it became the
            upper one. negative: its sign. inside: which elements lie between two codes.
    """
    r = torch.where(inside, up.to(torch.float64) - share, 0.0)
    v = torch.where(inside, share * (1 - share), 0.0)
    length = share.shape[-1]
    r, v, negative = (t.flatten()[:MOST] for t in (r, v, negative))
    found = None
    for signed in (torch.where(negative, -r, r), r):
        signed = torch.where(v > 0, signed - signed.sum() / max(int((v > 0).sum()), 1), 0.0)  # bias is another fault
        z = _scores(signed, v)
        largest = float(z.abs().max()) if z.numel() else 0.0
        if largest > CHANCE and (found is None or largest > found[0]):
            found = largest, _words(z, signed, v, length)
    return None if found is None else found[1]


def one_threshold(share: Tensor, up: Tensor, negative: Tensor, inside: Tensor) -> float | None:
    """The share of the way to the next code from which on every element is rounded away from zero, or else up; None if
    there is none. Arguments as above."""
    for away, p in ((up ^ negative, torch.where(negative, 1 - share, share)), (up, share)):
        to, stay = p[away & inside], p[~away & inside]
        if to.numel() and stay.numel() and float(stay.max()) < float(to.min()):
            return float(stay.max() + to.min()) / 2
    return None


def _scores(r: Tensor, v: Tensor) -> Tensor:
    """z(L) of L = 1, 2, ..; 0 where too few elements are that far apart."""
    n = r.numel()
    covariance, variance = (torch.fft.irfft(torch.fft.rfft(t, 2 * n).abs().square(), 2 * n)[1:n] for t in (r, v))
    return torch.where(variance >= FEWEST, covariance / variance.clamp(min=FEWEST).sqrt(), 0.0)


def _words(z: Tensor, r: Tensor, v: Tensor, length: int) -> str:
    apart = int((z.abs() >= 0.8 * z.abs().max()).nonzero()[0]) + 1  # the nearest of those that are nearly as many
    if float(z[apart - 1]) < 0:
        return f"the random words of values {apart:,} apart are opposite"
    if apart == 1:
        sizes = [1 << k for k in range(1, r.numel().bit_length()) if r.numel() % (1 << k) == 0]
        run = max(sizes, key=lambda size: _together(r, v, size), default=2)
        return f"one random word serves each run of {run:,} values"
    rows = apart // length
    if apart % length:
        return f"the random words repeat every {apart:,} values"
    return "every row has the same random words" if rows == 1 else f"the random words repeat every {rows:,} rows"


def _together(r: Tensor, v: Tensor, size: int) -> float:
    """z of all pairs within runs of `size` values."""
    pairs, variance = (
        float((t.sum(-1).square() - t.square().sum(-1)).sum()) / 2 for t in (r.view(-1, size), v.view(-1, size))
    )
    return pairs / max(variance, 1e-300) ** 0.5
