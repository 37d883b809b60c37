"""Stochastic rounding over many draws: what codes say about the random words behind them, whose bits are not known.

Of an element with the magnitude |q| between the codes lo < hi, away is drawn with probability

    f = (|q| - lo) / (hi - lo)            the contract's: floor(2^16 f) / 2^16; of finer words up to ceil(2^16 f) / 2^16

and for N draws of every element this is judged:

    drawn         no element of a middle fraction has the same code in every draw
    neighbours    a code is lo or hi, an exact value stays; scales are no matter of chance (they are compared elsewhere)
    bias          how often away, of each value (pair of codes, sign), of each lane and row, and of all
    resolution    how often away, of fractions near 2^-k and 1 - 2^-k: words of b bits know none below 2^-b
    independence  residuals e = (away - its mean) / sqrt(f (1 - f)), f in [0.2, 0.8], are uncorrelated between any two
                  lanes, rows or draws, and at any distance in the tensor and, flattened, in the next draws

A number of times is held against Bernstein's interval: a sum of independent terms of variance V in all, none beyond c,
leaves t = L c / 3 + sqrt((L c / 3)^2 + 2 L V) with probability 2 e^-L at most. L is set by the number of tests, so that
a true rounding fails one time in a million.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

import numerics as nm

FALSE_ALARMS = 1e-6
MIDDLE = 0.2  # fractions from here to 1 - it tell about correlations
BITS = 16
NEXT = 4  # draws in which the words of one are looked for


def interval(variance: Tensor, tests: int, largest: float = 1.0) -> Tensor:
    """Bernstein's t for each of so many tests."""
    c = math.log(2 * max(tests, 1) / FALSE_ALARMS) * largest / 3
    return c + (c * c + 6 * c / largest * variance).sqrt()


@dataclass(frozen=True)
class Draws:
    """An operand that was drawn again and again.

    Args:
        q: elements before rounding, float64 (R, C). lo, hi: codes of the neighbours, by magnitude; equal of an exact or
        saturated value. codes: what was found, uint8 (N, R, C). names: how each draw's `random` differs from the
        first's, in a word. element: format.
    """

    q: Tensor
    lo: Tensor
    hi: Tensor
    codes: Tensor
    names: tuple[str, ...]
    element: nm.Format

    @cached_property
    def fraction(self) -> Tensor:
        """f of every element, 0 of an exact one."""
        lo, hi = (nm.decode(c, self.element).to(torch.float64).abs() for c in (self.lo, self.hi))
        gap = hi - lo
        return torch.where(gap > 0, ((self.q.abs() - lo) / gap.clamp(min=1e-300)).clamp(0, 1), 0.0)

    @cached_property
    def between(self) -> Tensor:
        """Whether chance decides, (R, C)."""
        return (self.lo != self.hi) & self.q.isfinite()

    @cached_property
    def away(self) -> Tensor:
        """Whether the larger magnitude was drawn, (N, R, C)."""
        return (self.codes == self.hi) & self.between

    @cached_property
    def middle(self) -> Tensor:
        """Whether an element's fraction is one of the middle, (R, C)."""
        return self.between & (self.fraction >= MIDDLE) & (self.fraction <= 1 - MIDDLE)

    @cached_property
    def residuals(self) -> Tensor:
        """e of the middle fractions, less its mean over the draws, which a bias shifts; else 0. float32 (N, R, C)."""
        f, away = self.fraction, self.away.to(torch.float32)
        e = (away - away.mean(0)) / (f * (1 - f)).clamp(min=1e-9).sqrt().to(torch.float32)
        return torch.where(self.middle, e, 0.0)

    def findings(self) -> list[str]:
        """What is wrong, the plainest first; nothing of words that are as they should be."""
        if not bool(self.between.any()):
            return []
        found = [*self.alone()]
        if found:
            return found
        distinct, reused = self.distinct()
        shared = distinct.shared()
        often = (
            [] if shared else [*distinct.resolution(), *distinct.biased(), *distinct.places()]
        )  # their intervals are of independent words
        return [*reused, *shared, *distinct.still(), *often, *self.worse()]

    def remarks(self) -> list[str]:
        """What was measured, in words."""
        n, between = len(self.codes), int(self.between.sum())
        if not between or any(self.alone()):
            return [] if between else ["no element lies between two codes"]
        count, trials = self._levels()[0], self._levels()[1]
        error, t = self._overall()
        known = [k for k in range(1, BITS + 1) if float(trials[k]) >= 25 and float(count[k]) > 0]
        bits = f"at least {max(known)} random bits" if known else "too few small fractions to count random bits"
        return [f"{n} draws of {between} elements: bias {error:+.5f} of a step away from zero, +-{t:.5f}; {bits}"]

    # What needs no statistics.

    def alone(self) -> Iterator[str]:
        """Codes that are no neighbour, zeros everywhere, draws that never differ."""
        odd = (self.codes != self.lo) & (self.codes != self.hi) & self.q.isfinite()
        values = nm.decode(self.codes, self.element).abs()
        if bool((values == 0).all()) and float(self.fraction.sum()) * len(self.codes) > 30:
            yield "every code is zero, in every draw: nothing is left of the operand"
        elif bool(odd.any()):
            yield self._odd(odd, values)
        elif len(self.codes) > 1 and bool((self.codes == self.codes[:1]).all()):
            yield self._fixed()

    def _odd(self, odd: Tensor, values: Tensor) -> str:
        at = tuple(odd.nonzero()[0].tolist())
        largest = float(values.max())
        text = f"{int(odd.sum())} codes are no neighbour of their element"
        if largest < self.element.max and bool((values[odd] == largest).all()):
            return f"{text}: it clips at {largest:g}, and {self.element.name} reaches {self.element.max:g}"
        q, code = float(self.q[at[1:]]), int(self.codes[at])
        return f"{text}, the first in draw {at[0]} at {list(at[1:])}: {q:.9g} became {code:#04x}"

    def _fixed(self) -> str:
        first, between = self.codes[0], self.between
        nearest = torch.where(self.fraction > 0.5, self.hi, self.lo)
        sure = between & (self.fraction != 0.5)
        if bool((first == nearest)[sure].all()):
            return "it does not draw: every draw has the nearest codes"
        if bool((first == self.lo)[between].all()):
            return "it does not draw: every draw rounds toward zero"
        if bool((first == self.hi)[between].all()):
            return "it does not draw: every draw rounds away from zero"
        return f"a reused seed: all {len(self.codes)} draws have the same codes, whatever `random` says"

    def still(self) -> Iterator[str]:
        """Elements whose code is the same in every draw, which chance gives to none."""
        n, f = len(self.codes), self.fraction
        never = self.middle & (f**n + (1 - f) ** n < FALSE_ALARMS / max(f.numel(), 1))
        at = (never & (self.codes == self.codes[:1]).all(0)).nonzero()
        if len(at):
            row, lane = at[0].tolist()
            alike = {f"row {row}": at[:, 0] == row, f"lane {lane}": at[:, 1] == lane}
            place = next((f", all in {name}" for name, same in alike.items() if bool(same.all())), "")
            one = f"such as [{row}, {lane}], whose fraction is {float(f[row, lane]):.3f}"
            yield f"{len(at)} elements have the same code in all {n} draws{place}, {one}"

    # Independence.

    def distinct(self) -> tuple[Draws, list[str]]:
        """The draws without those that repeat an earlier one, and of which component of `random` that comes."""
        first: dict[bytes, int] = {}
        pairs = [(first.setdefault(codes.numpy().tobytes(), i), i) for i, codes in enumerate(self.codes)]
        again = [(i, j) for i, j in pairs if i != j]
        said = []
        for name in dict.fromkeys(self.names[j] for _, j in again):
            count, total = sum(self.names[j] == name for _, j in again), self.names.count(name)
            text = f"{count} of {total} draws that differ in the {name} have the codes of another draw"
            said.append(f"words do not depend on the {name} as they should: " * (2 * count >= total) + text)
        kept = sorted(first.values())
        return replace(self, codes=self.codes[kept], names=tuple(self.names[i] for i in kept)), said

    def shared(self) -> list[str]:
        """Places that share words. One kind makes others correlated in some degree: the most correlated are told."""
        found = [*self._pairs(), *self._again()]
        most = max((abs(r) for r, _ in found), default=0.0)
        return [text for r, text in found if abs(r) >= 0.7 * most]

    def _pairs(self) -> Iterator[tuple[float, str]]:
        """Lanes, rows and draws any two of which are correlated: how much at most, and which."""
        e, middle = self.residuals, self.middle.to(torch.float32)
        n = len(e)
        counts = {"lanes": n * (middle.T @ middle), "rows": n * (middle @ middle.T), "draws": middle.sum().expand(n, n)}
        for axis, (name, count) in zip((2, 1, 0), counts.items(), strict=True):
            flat = e.movedim(axis, 0).flatten(1)
            together = flat @ flat.T
            if name == "draws":  # of which each mean was taken
                together += count / max(n - 1, 1)
            beyond = (together.abs() > self._limit(count, count.numel())).triu(1)
            r = torch.where(beyond, together / count.clamp(min=1), 0.0).clamp(-1, 1).flatten()
            at = int(r.abs().argmax())
            if bool(beyond.any()):
                most = (
                    f"{int(beyond.sum())} pairs of {name} are correlated, most {at // len(flat)} and {at % len(flat)}"
                )
                yield float(r[at]), f"words are shared by {name}: {most} ({float(r[at]):+.2f})"

    def _again(self) -> Iterator[tuple[float, str]]:
        """The same words at a distance in the tensor, and, flattened, in one of the next draws."""
        n, rows, columns = self.residuals.shape
        each, size, long = self.residuals.numpy(), (2 * rows, 2 * columns), 2 * rows * columns
        plain = self.middle.numpy().astype(np.float64)
        lags = np.fft.irfft2(sum(np.abs(np.fft.rfft2(e, size)) ** 2 for e in each), size)
        lags[0, 0] = 0
        count = n * np.fft.irfft2(np.abs(np.fft.rfft2(plain, size)) ** 2, size)
        for at, r in self._nearest_lag(lags, count):
            yield r, f"words come again {at[0]} rows and {at[1]} columns further ({r:+.2f})"
        before: deque[np.ndarray] = deque(maxlen=NEXT)
        sums = np.zeros((NEXT, long // 2 + 1), np.complex128)
        for line in (np.fft.rfft(e.ravel(), long) for e in each):
            for i, earlier in enumerate(before):
                sums[i] += earlier.conj() * line
            before.appendleft(line)
        count = np.fft.irfft(np.abs(np.fft.rfft(plain.ravel(), long)) ** 2, long)
        for i in range(min(NEXT, n - 1)):
            lags = np.fft.irfft(sums[i], long)
            lags[0] = 0  # the same element: see the pairs
            later = "the next draw" if i == 0 else f"the draw {i + 1} later"
            for at, r in self._nearest_lag(lags, (n - 1 - i) * count, NEXT):
                yield r, f"words come again in {later}, {at[0]} elements further ({r:+.2f})"

    def _nearest_lag(self, lags: np.ndarray, count: np.ndarray, times: int = 1) -> Iterator[tuple[list[int], float]]:
        """The least distance at which residuals are correlated, and how much. times: how many such tests there are."""
        limit = self._limit(torch.from_numpy(count.round().clip(min=0)), lags.size * times).numpy()
        beyond = np.argwhere(np.abs(lags) > limit)
        if len(beyond):
            signed = np.where(beyond > np.array(lags.shape) // 2, beyond - lags.shape, beyond)
            best = int(np.abs(signed).sum(-1).argmin())
            yield signed[best].tolist(), float(lags[tuple(beyond[best])] / max(count[tuple(beyond[best])], 1))

    @staticmethod
    def _limit(shared: Tensor, tests: int) -> Tensor:
        """What a sum of so many products of two independent residuals, of variance 1, does not exceed."""
        largest = (1 - MIDDLE) / MIDDLE  # of a product of two residuals
        return interval(shared, tests, largest)

    # Frequencies.

    def _levels(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of fractions in [2^-k, 2^(1 - k)): how often away, how often at least and at most, and the variance, by k to
        BITS; behind them those of fractions as near to 1, and how often not."""
        f, n = self.fraction[self.between], len(self.codes)
        away = self.away[:, self.between].sum(0, dtype=torch.float64)
        low, high = (f * 2.0**BITS).floor() / 2.0**BITS, ((f * 2.0**BITS).ceil() / 2.0**BITS)
        out = []
        for near, count, least, most in ((f, away, low, high), (1 - f, n - away, 1 - high, 1 - low)):
            k = (-torch.log2(near.clamp(min=2.0**-40))).ceil().clamp(0, BITS + 1).long()
            k = torch.where((near > 0.5) | (near <= 0), BITS + 1, k)
            terms = (count, n * least, n * most, n * f * (1 - f))
            out.append([torch.bincount(k, t, BITS + 2)[: BITS + 1] for t in terms])
        first, second = out
        return tuple(torch.cat(pair) for pair in zip(first, second, strict=True))  # type: ignore[return-value]

    def resolution(self) -> Iterator[str]:
        """Fractions that words of few bits do not know."""
        count, least, most, variance = self._levels()
        t = interval(variance, 2 * BITS)
        for k in range(2, BITS + 1):
            if float(count[k]) == 0 and float(least[k]) > float(t[k]):
                yield (
                    f"fractions below 2^-{k - 1} never round away from zero (of {float(least[k]):.0f} times or more): "
                    f"{k - 1} random bits, or words that are too small"
                )
                return
        excess = torch.maximum(least - count, count - most) / t
        k = int(excess.argmax())
        if float(excess[k]) > 1:
            far, mirrored = k % (BITS + 1), k > BITS
            near, way = ("1 - ", "toward") if mirrored else ("", "away from")
            due = float(least[k]) if float(count[k]) < float(least[k]) else float(most[k])
            times = f"{float(count[k]):.0f} times, {due:.0f} +- {float(t[k]):.0f} are due"
            yield f"fractions near {near}2^-{far} round {way} zero {times}"

    def biased(self) -> Iterator[str]:
        """Values that are rounded away too often, or too seldom, each with its interval."""
        n, lo = len(self.codes), self.lo[self.between].long()
        f, away = self.fraction[self.between], self.away[:, self.between].sum(0, dtype=torch.float64)
        trials, count, mean, variance = (
            torch.bincount(lo, t, 256) for t in (torch.full_like(f, n), away, n * f, n * f * (1 - f))
        )
        values = int((trials > 0).sum())
        t = interval(variance, values) + trials * 2.0**-BITS
        wrong = ((count - mean).abs() > t).nonzero().flatten().tolist()
        error, overall = self._overall()
        if abs(error) > overall:
            yield f"bias: {error:+.5f} of a step away from zero, +-{overall:.5f}"
        hi = self.hi[self.between].long()
        for code in wrong[:3]:
            ends = nm.decode(torch.stack([lo[lo == code][0], hi[lo == code][0]]), self.element).tolist()
            off, width = (float(x[code] / trials[code]) for x in (count - mean, t))
            text = f"{off:+.5f} of a step away from zero, +-{width:.5f} ({len(wrong)} of {values} values)"
            yield f"bias between {ends[0]:g} and {ends[1]:g}: {text}"

    def places(self) -> Iterator[str]:
        """Lanes and rows in which elements are rounded away too often, or too seldom."""
        n, f = len(self.codes), torch.where(self.between, self.fraction, 0.0)
        excess, variance, trials = self.away.sum(0) - n * f, n * f * (1 - f), n * self.between
        for name, axis in (("lane", 0), ("row", 1)):
            off, count = excess.sum(axis), trials.sum(axis)
            t = interval(variance.sum(axis), sum(f.shape)) + count * 2.0**-BITS
            wrong = (off.abs() > t).nonzero().flatten().tolist()
            if wrong:
                at = max(wrong, key=lambda i: float(off[i].abs() / count[i]))
                error, width = (float(x[at] / count[at]) for x in (off, t))
                yield (
                    f"bias in {len(wrong)} of {len(off)} {name}s, most in {name} {at}: {error:+.5f} of a step away "
                    f"from zero, +-{width:.5f}"
                )

    def _overall(self) -> tuple[float, float]:
        """Mean of away - f, and its interval."""
        f, n = self.fraction[self.between], len(self.codes)
        trials = f.numel() * n
        excess = self.away[:, self.between].sum(dtype=torch.float64) - n * f.sum()
        t = interval(n * (f * (1 - f)).sum(), 1)
        return float(excess) / trials, float(t) / trials + 2.0**-BITS

    def worse(self) -> Iterator[str]:
        """Whether the mean of the draws errs more than rounding to nearest would."""
        f = self.fraction[self.between]
        mean = self.away[:, self.between].to(torch.float64).mean(0)
        drawn, nearest = ((x - f).square().mean().sqrt() for x in (mean, (f > 0.5).to(torch.float64)))
        if float(drawn) > float(nearest):
            n = len(self.codes)
            yield (
                f"worse than none: the mean of {n} draws errs by {float(drawn):.3f} of a step, nearest rounding by "
                f"{float(nearest):.3f}, independent words by {float((f * (1 - f) / n).mean().sqrt()):.3f}"
            )
