"""What the explorer page is asked in its tests, and what numerics answers: numbers for every format, and random blocks.

Shared by test_explorer.py (the page's arithmetic under node) and test_browser.py (the page itself in Chromium).
"""

from dataclasses import dataclass

import numpy as np
import torch

import numerics as nm
from numerics.formats import Format

SIZE = 16
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 5e-324, -5e-324, 1e308, -1e308, 3.4028235677973366e38, 2.0**-149, 1 / 3]


def numbers_for(fmt: Format) -> np.ndarray:
    """Doubles that try every code of a format: each value, each midpoint between neighbours, what lies just beside a
    midpoint, and specials."""
    codes = torch.arange(1 << fmt.bits, dtype=torch.int32)
    values = np.unique(nm.decode(codes, fmt).double().numpy())
    values = values[np.isfinite(values)]
    middle = (values[1:] + values[:-1]) / 2
    beside = [np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)]
    beyond = [values[-1] * 1.5, values[0] * 1.5, np.nextafter(values[-1], np.inf)]
    return np.concatenate([values, middle, *beside, beyond, SPECIAL])


@dataclass(frozen=True)
class Case:
    """A block to quantize: sixteen doubles, and how the page is asked for the outer scale ("auto", "amax", "given")."""

    values: np.ndarray
    kind: str
    outer: float


def random_values(random: np.random.Generator) -> np.ndarray:
    """Sixteen doubles of one of many distributions."""
    normal = random.standard_normal(SIZE)
    bits = random.integers(0, 1 << 32, SIZE, dtype=np.uint64).astype(np.uint32)
    specials = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e39, -1e300, 2.0**-149])
    some = random.random(SIZE) < 0.15
    kinds = [
        lambda: normal,
        lambda: random.laplace(size=SIZE),
        lambda: random.uniform(-1, 1, SIZE) * 10.0 ** random.integers(-6, 7),
        lambda: np.where(np.arange(SIZE) == random.integers(SIZE), 200.0, normal),
        lambda: normal * np.exp(6 * random.standard_normal(SIZE)),
        lambda: torch.from_numpy(normal).bfloat16().double().numpy(),  # BF16 values, whose products tie
        lambda: random.integers(-12, 13, SIZE) / 4.0,  # on the grid and its ties
        lambda: random.integers(0, 5, SIZE) * 10.0,
        lambda: np.zeros(SIZE) * random.choice([1.0, -1.0], SIZE),
        lambda: np.where(random.random(SIZE) < 0.8, 0.0, normal),
        lambda: normal * 2.0 ** -random.integers(120, 150),
        lambda: normal * 2.0 ** random.integers(100, 129),
        lambda: bits.view(np.float32).astype(np.float64),  # any float32 at all
        lambda: np.where(some, random.choice(specials, SIZE), normal),
        lambda: normal * 10.0 ** random.integers(-300, 300),
    ]
    with np.errstate(invalid="ignore"):  # signalling NaNs among the random bits
        return np.asarray(kinds[random.integers(len(kinds))](), dtype=np.float64)


def random_cases(count: int, seed: int) -> list[Case]:
    """Blocks of many distributions, under outer scales of their own, of a larger tensor, and given ones."""
    random = np.random.default_rng(seed)
    cases = []
    for _ in range(count):
        values, kind = random_values(random), random.choice(["auto", "amax", "given"])
        finite = values[np.isfinite(values)]
        near = float(np.abs(finite).max(initial=0.0)) or 1.0
        outer = 1.0
        if kind == "amax":
            outer = min(near * 2.0 ** random.integers(-3, 24), 1e38)
        elif kind == "given":
            wanted = random.choice([1.0, near / 2688, near / 1e4, near / 50, 2.0 ** random.integers(-128, 128)])
            outer = float(np.clip(wanted, 2.0**-127, 3e38))
        cases.append(Case(values, str(kind), float(outer)))
    return cases


@dataclass(frozen=True)
class Answer:
    """What numerics makes of a case: scale code, outer (None without one), codes, values; and, for four-over-six, the
    squared errors of a largest magnitude mapped to 6 and to 4."""

    scale_code: int
    outer: float | None
    codes: list[int]
    values: np.ndarray
    candidates: tuple[float, float] | None


def answer(case: Case, name: str) -> Answer:
    """`case` in the block format of this name, by numerics.quantize."""
    fmt, x = nm.BLOCK_FORMATS[name], torch.from_numpy(case.values)
    if fmt.outer is None:
        q = nm.quantize(x, fmt)
    elif case.kind == "given":
        q = nm.quantize(x, fmt, outer=torch.tensor([case.outer], dtype=torch.float32))
    elif case.kind == "amax":
        other = torch.zeros_like(x)
        other[0] = case.outer
        q = nm.quantize(torch.cat([x, other]), fmt)
    else:
        q = nm.quantize(x, fmt)
    candidates = _candidates(x, q.outer) if name == "NVFP4_46" else None
    values = q.dequantize()[:SIZE].double().numpy()
    outer = None if q.outer is None else float(q.outer)
    return Answer(int(q.scales[0]), outer, q.codes[:SIZE].tolist(), values, candidates)


def _candidates(x: torch.Tensor, outer: torch.Tensor) -> tuple[float, float] | None:
    """Squared errors of both maps, as four-over-six compares them; None of a block that is not finite."""
    if not torch.isfinite(x).all():
        return None
    top = torch.finfo(torch.float32).max
    kept, found = x.clamp(-top, top).float(), []
    for rule in ("static_6", "static_4"):
        q = nm.quantize(kept, nm.NVFP4, rule=rule, outer=outer)
        difference = q.values() * outer - kept  # not `dequantize`, which leaves no infinity
        found.append(float(nm.scales.tree(difference * difference, torch.add)))
    return found[0], found[1]


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit, signs of zeros included; any NaN equals any other."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all(nan | (a.view(np.int64) == b.view(np.int64))))
