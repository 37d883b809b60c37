"""Whether stochastically rounded codes had a random word each: words that are shared leave correlated errors.

    r = 1 if an element is rounded away from zero, else 0, minus its share p of the way there; variance v = p (1 - p)
    z(L) = sum_i r_i r_(i+L) / sqrt(sum_i v_i v_(i+L))        L values apart, in the order of memory, blocks last

Under words of their own the r are independent with mean 0, whatever x is, so that z is normal: of 2^24 distances the
largest is below 6. Where two elements have one word, r_i r_j has the mean min(p_i, p_j) - p_i p_j, about half of v, and
z grows to sqrt(pairs) / 2. Rounding may also add the word to the value instead of its magnitude, which negates r of
negative elements: both are tried. All distances at once are one Fourier transform. That all words are shared is said
only if one word for each group explains every element: no element stays whose share is larger than that of one that
goes. Else the words are correlated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CHANCE = 7.0  # |z| beyond this is no chance
FEWEST = 10.0  # the least variance of a sum of products that is nearly normal
MOST = 1 << 24  # values that are looked at
ALIKE = 2.0**-7  # shares that words of a few bits, or an approximate division, do not tell apart


@dataclass(frozen=True)
class Drawn:
    """Elements in the order of memory, flat: `away`, whether each went to the farther code from zero (or else to the
    upper one), `p`, its share of the way there, and which of them lie between two codes; the length of a row."""

    away: Tensor
    p: Tensor
    inside: Tensor
    length: int

    @property
    def residual(self) -> Tensor:
        """r, less its mean: a bias is another fault."""
        r = torch.where(self.inside, self.away.to(torch.float64) - self.p, 0.0)
        return torch.where(self.inside, r - r.sum() / max(int(self.inside.sum()), 1), 0.0)

    @property
    def variance(self) -> Tensor:
        """v."""
        return torch.where(self.inside, self.p * (1 - self.p), 0.0)

    def repeats(self, apart: int, opposite: bool) -> bool:
        """Whether one word u for any two elements that far apart, of a row if it is that long, or u and 1 - u, may have
        made all of them: away where u < p."""
        i, j = slice(None, -apart), slice(apart, None)
        p, away = (1 - self.p, ~self.away) if opposite else (self.p, self.away)
        against = (self.away[i] & ~away[j] & (p[j] > self.p[i] + ALIKE)) | (
            ~self.away[i] & away[j] & (self.p[i] > p[j] + ALIKE)
        )
        column = torch.arange(against.numel()) % self.length
        apart_in_row = (column + apart < self.length) | (apart >= self.length)
        return not bool((against & self.inside[i] & self.inside[j] & apart_in_row).any())

    def serves(self, run: int) -> bool:
        """Whether one word for each run of so many elements may have made all of them."""
        p, away, inside = (t.view(-1, run) for t in (self.p, self.away, self.inside))
        least = torch.where(away & inside, p, 1.0).amin(-1)
        return bool((torch.where(~away & inside, p, 0.0).amax(-1) <= least + ALIKE).all())


def drawings(share: Tensor, up: Tensor, negative: Tensor, inside: Tensor) -> list[Drawn]:
    """Both ways of rounding.

    Args:
        share: how far each element lies above its lower neighbour, 0 to 1, float64 (..., K). up: whether it became the
            upper one. negative: its sign. inside: which elements lie between two codes.
    """
    length = share.shape[-1]
    share, up, negative, inside = (t.flatten()[:MOST] for t in (share, up, negative, inside))
    from_zero = Drawn(up ^ negative, torch.where(negative, 1 - share, share), inside, length)
    return [from_zero, Drawn(up, share, inside, length)]


def shared_words(drawn: list[Drawn]) -> str | None:
    """How random words are shared, in words; None if they are not, or too few elements to tell."""
    scores = [_scores(d.residual, d.variance) for d in drawn]
    largest = [float(z.abs().max()) if z.numel() else 0.0 for z in scores]
    best = largest.index(max(largest))
    return _words(scores[best], drawn[best]) if largest[best] > CHANCE else None


def one_threshold(drawn: list[Drawn]) -> float | None:
    """The share of the way to the next code from which on every element goes there; None if there is none."""
    for d in drawn:
        to, stay = d.p[d.away & d.inside], d.p[~d.away & d.inside]
        if to.numel() and stay.numel() and float(stay.max()) < float(to.min()):
            return float(stay.max() + to.min()) / 2
    return None


def _scores(r: Tensor, v: Tensor) -> Tensor:
    """z(L) of L = 1, 2, ..; 0 where too few elements are that far apart. float32 errs by some 1e-3 of z's unit."""
    n = r.numel()

    def sums(t: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(t.to(torch.float32), 2 * n).abs().square_(), 2 * n)[1:n]

    variance = sums(v)
    return torch.where(variance >= FEWEST, sums(r) / variance.clamp(min=FEWEST).sqrt(), 0.0)


def _words(z: Tensor, d: Drawn) -> str:
    apart = int((z.abs() >= 0.8 * z.abs().max()).nonzero()[0]) + 1  # the nearest of those that are nearly as many
    opposite = float(z[apart - 1]) < 0
    if apart == 1 and not opposite:
        sizes = [1 << k for k in range(1, z.numel().bit_length() + 1) if d.p.numel() % (1 << k) == 0]
        run = max(sizes, key=lambda size: _together(d, size), default=0)
        if run and d.serves(run):
            return f"one random word serves each run of {run:,} values"
    if not d.repeats(apart, opposite):
        return f"the random words of values {apart:,} apart are correlated"
    if opposite:
        return f"the random words of values {apart:,} apart are opposite"
    if apart % d.length:
        return f"the random words repeat every {apart:,} values"
    return (
        "every row has the same random words"
        if apart == d.length
        else f"the random words repeat every {apart // d.length:,} rows"
    )


def _together(d: Drawn, size: int) -> float:
    """z of all pairs within runs of `size` elements."""
    rows = (t.view(-1, size) for t in (d.residual, d.variance))
    pairs, variance = (float((t.sum(-1).square() - t.square().sum(-1)).sum()) / 2 for t in rows)
    return pairs / max(variance, 1e-300) ** 0.5
