"""`hw.draws` and `fourbit validate --ops K --own-random`: stochastic rounding by random words that nobody knows.

Contract: independent words of 16 bits or more pass, whatever they are; words that are too few, too small, reused or
shared fail by name, as do codes that are no neighbours. Oracle: E4M3 codes that `nm.encode` makes of words with a fault
each, drawn by numpy.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from seam_copies import failed, run, written
from seam_copies import two_threads as two_threads
from torch import Tensor

import numerics as nm
from hw import ways
from hw.draws import Draws, interval
from hw.judge_draws import randoms

N, ROWS, COLUMNS = 93, 96, 96
NAMES = tuple(name for name, _ in randoms(nm.Random((0, 0))))
NEAREST, SR = nm.Rounding.NEAREST_EVEN, nm.Rounding.STOCHASTIC
Rng = np.random.Generator
Words = Callable[[Rng], np.ndarray]


@pytest.fixture(scope="module")
def q() -> Tensor:
    """Elements of every fraction, none beyond 448."""
    x = ways.fractions(np.random.default_rng(3), (ROWS, COLUMNS)).astype(np.float32)
    assert np.abs(x).max() < 448
    return torch.from_numpy(x)


def draws(q: Tensor, codes: Tensor) -> Draws:
    lo, down, up = (
        nm.encode(q, nm.E4M3, mode)
        for mode in (nm.Rounding.TOWARD_ZERO, nm.Rounding.TOWARD_NEGATIVE, nm.Rounding.TOWARD_POSITIVE)
    )
    return Draws(q.double(), lo, torch.where(lo == down, up, down), codes, NAMES, nm.E4M3)


def coded(q: Tensor, words: np.ndarray) -> Tensor:
    """Codes by words (N, R, C) in [0, 2^16)."""
    return torch.stack([nm.encode(q, nm.E4M3, SR, torch.from_numpy(w.astype(np.int64))) for w in words])


def plain(rng: Rng, *shape: int) -> np.ndarray:
    return rng.integers(0, 1 << 16, shape or (N, ROWS, COLUMNS))


def one_per(rng: Rng, rows: int, columns: int) -> np.ndarray:
    """The same word for so many rows and columns."""
    w = plain(rng, N, ROWS // rows, COLUMNS // columns)
    return w.repeat(rows, 1).repeat(columns, 2)


def stream(rng: Rng, draw: int, row: int) -> np.ndarray:
    """Words of one long stream; each draw, and each row, starts so many words further."""
    long = plain(rng, N * draw + ROWS * row + COLUMNS + 1)
    n, r, c = np.ogrid[:N, :ROWS, :COLUMNS]
    return long[n * draw + r * row + c]


def same_for(rng: Rng, *components: str) -> np.ndarray:
    """Draws that differ in these components alone have the words of the first."""
    w = plain(rng)
    for i, name in enumerate(NAMES):
        w[i] = w[0] if name in components else w[i]
    return w


def every_other_draw(rng: Rng) -> np.ndarray:
    """Two streams in turn, each of which goes on three rows further."""
    made = [stream(rng, 3 * COLUMNS, COLUMNS) for _ in range(2)]
    return np.stack([made[i % 2][i // 2] for i in range(N)])


def held(rng: Rng, at: tuple[object, ...], word: int | None = None) -> np.ndarray:
    """Words that are the first draw's in every draw at some places, or one word."""
    w = plain(rng)
    w[:, *at] = w[0, *at] if word is None else word
    return w


def opposite(rng: Rng) -> np.ndarray:
    w = plain(rng)
    w[:, :, 1::2] = 65535 - w[:, :, ::2]
    return w


FAULTS: dict[str, tuple[Words, str]] = {
    "one seed": (lambda g: plain(g, 1, ROWS, COLUMNS).repeat(N, 0), "a reused seed: all 93 draws have the same codes"),
    "no step": (lambda g: same_for(g, "step"), "words do not depend on the step as they should: 44 of 45 draws"),
    "no seed": (lambda g: same_for(g, "seed"), "words do not depend on the seed as they should: 10 of 10 draws"),
    "no role": (lambda g: same_for(g, "layer and role"), "words do not depend on the layer and role as they should"),
    "no grain": (lambda g: same_for(g, "grain"), "words do not depend on the grain as they should"),
    **{
        f"no high bits of the {name}": (
            lambda g, name=name: same_for(g, f"high bits of the {name}"),
            f"words do not depend on the high bits of the {name} as they should",
        )
        for name in ("step", "seed", "layer and role", "grain")
    },
    "two draws later": (every_other_draw, "words come again in the draw 2 later, -288 elements further"),
    "a lane to nearest": (lambda g: held(g, (slice(None), 7), 1 << 15), "same code in all 93 draws, all in lane 7, "),
    "a row that does not draw": (lambda g: held(g, (40,)), "same code in all 93 draws, all in row 40, such as [40, "),
    "a tile that does not draw": (
        lambda g: held(g, (slice(64), slice(32))),
        "same code in all 93 draws, such as [0, ",
    ),
    "a lane that is rounded too far": (
        lambda g: plain(g) * np.where(np.arange(COLUMNS) == 50, 7, 8) // 8,
        "bias in 1 of 96 lanes, most in lane 50: ",
    ),
    "one word": (lambda g: one_per(g, ROWS, COLUMNS), "words are shared by lanes"),
    "a word for each block": (lambda g: one_per(g, 1, 32), "words are shared by lanes"),
    "a word for each pair": (lambda g: one_per(g, 1, 2), "pairs of lanes are correlated, most 28 and 29 (+0."),
    "rows alike": (lambda g: one_per(g, ROWS, 1), "words are shared by rows: "),
    "every other row": (lambda g: one_per(g, 2, 1), "words are shared by rows: "),
    "opposite lanes": (opposite, "pairs of lanes are correlated, most 24 and 25 (-0."),
    "rows overlap": (
        lambda g: stream(g, 16 * ROWS + COLUMNS, 16),
        "words come again 1 rows and -16 col",
    ),
    "draws overlap": (lambda g: stream(g, 1, COLUMNS), "words come again in the next draw, -1 elements further"),
    "8 bits": (lambda g: plain(g) & 0xFF00, "fractions below 2^-8 never round away from zero"),
    "8 bits behind": (lambda g: plain(g) | 0xFF, "fractions near 2^-11 round away from zero"),
    "4 bits": (lambda g: plain(g) & 0xF000, ": 4 random bits, or words that are too small"),
    "half of the range": (lambda g: plain(g) >> 1, "fractions below 2^-1 never round away from zero"),
    "the larger of two": (lambda g: np.maximum(plain(g), plain(g)), "bias between 0 and 0.00195312: +0."),
    "a little too small": (lambda g: (plain(g) * 0.97).astype(np.int64), "bias: -0."),
    "thirds": (lambda g: g.choice([0, 21845, 43690], (N, ROWS, COLUMNS)), "fractions below 2^-2 never round away"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_words_with_a_fault_are_found(name: str, q: Tensor) -> None:
    words, said = FAULTS[name]
    found = draws(q, coded(q, words(np.random.default_rng(1)))).findings()
    assert any(said in text for text in found), found


@pytest.mark.parametrize("seed", range(2))
def test_independent_words_pass(seed: int, q: Tensor) -> None:
    """Of 16 bits, and of 32, which know fractions that 16 do not."""
    rng = np.random.default_rng(seed)
    made = draws(q, coded(q, plain(rng)))
    assert made.findings() == []
    assert len(made.remarks()) == 1 and "at least 11 random bits" in made.remarks()[0]
    wide = (torch.from_numpy(rng.integers(0, 1 << 32, q.shape)) for _ in NAMES)
    assert draws(q, torch.stack([nm.encode(q, nm.E4M3, SR, w, random_width=32) for w in wide])).findings() == []


def test_words_that_are_as_random_as_needed_in_no_more_than_a_million(q: Tensor) -> None:
    """The interval is what it says: Bernstein's bound, of a fair coin and of a rare event."""
    variance, tests = torch.tensor([2.5e5, 30.0]), 50
    t = interval(variance, tests)
    bound = 2 * torch.exp(-(t**2) / (2 * (variance + t / 3)))
    torch.testing.assert_close(bound, torch.full((2,), 1e-6 / tests), rtol=1e-3, atol=0)
    assert 2.9e3 < float(t[0]) < 3.1e3  # 5.9 standard deviations


def test_codes_that_are_no_matter_of_chance(q: Tensor) -> None:
    true = coded(q, plain(np.random.default_rng(2)))
    once = [nm.encode(q, nm.E4M3, mode).expand(N, -1, -1) for mode in (NEAREST, nm.Rounding.TOWARD_ZERO)]
    cases = {
        "it does not draw: every draw has the nearest codes": once[0],
        "it does not draw: every draw rounds toward zero": once[1],
        "every code is zero, in every draw": true & 0x80,
        "it clips at 240, and E4M3 reaches 448": torch.where((true & 0x7F) > 0x77, (true & 0x80) | 0x77, true),
        "codes are no neighbour of their element, the first in draw 0": torch.where(
            true == true[0, 0, 0], true ^ 4, true
        ),
    }
    for said, codes in cases.items():
        (text,) = draws(q, codes).findings()
        assert said in text, text


def test_reused_words_are_worse_than_none(q: Tensor) -> None:
    """Nearly all draws have the words of the first: their mean errs more than rounding to nearest."""
    w = plain(np.random.default_rng(1))
    w[1:] = w[0]
    w[-1] = plain(np.random.default_rng(2), ROWS, COLUMNS)  # so that not all are equal
    found = draws(q, coded(q, w)).findings()
    assert found[0].startswith("words do not depend on the step")
    (worse,) = (text for text in found if text.startswith("worse than none: the mean of 93 draws errs by "))
    drawn, nearest, independent = (float(x) for x in re.findall(r"0\.\d{3}", worse))
    assert 6 * independent < nearest < drawn


# The command.

OWN = '''
import zlib
from dataclasses import replace as _replace
from numerics.quantizer import quantize as _true
{more}

def quantize(x, fmt, axis, outer, outer_rounding, groups, rounding, random):
    """With words of its own, of a generator that knows `random`."""
    if random is None:
        return _true(x, fmt, axis, outer, outer_rounding, groups, rounding=rounding)
    seed = zlib.crc32(repr((random.key, random.counter)).encode()) if {seeded} else 1
    generator = torch.Generator().manual_seed(seed)

    def apply(block):
        words = torch.randint(0, 1 << 16, block.x.shape, generator=generator, dtype=torch.int32)
        return fmt.rule.apply(_replace(block, random_bits={words}))

    rule = _replace(fmt.rule, apply=apply)
    return {result}

def requantize(q, fmt, axis, groups, outer, rounding, random):
    values = q.dequantize() if outer == "multiply" else q.values()
    new = quantize(values, fmt, axis, None, None, groups, rounding, random)
    return new if outer != "keep" else new.derived(outer=q.outer)
'''
CALL = "_true(x, fmt, axis, outer, outer_rounding, groups, rule, rounding, random).derived(rule=fmt.rule.name)"


def own(folder: Path, words: str = "words", seeded: bool = True, result: str = CALL) -> Path:
    """A copy of the seam with random words of its own."""
    return written(folder, more=OWN.format(more="", words=words, seeded=seeded, result=result))


def test_words_of_its_own_pass_where_they_are_announced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Else their bits fail, and the derivation says how to have them judged."""
    only = (
        "--only",
        "quantize_tokens MXFP8, normal",
        "quantize_tokens MXFP8, layouts",
        "requantize_transpose NVFP4, d",
    )
    status, lines = run(capsys, own(tmp_path), *only[:2])
    assert status == 1 and "random field" in "\n".join(lines)
    told = [line.strip() for line in lines if "their elements' neighbours" in line or "over many" in line]
    assert told[0].startswith("these codes are") and told[1].startswith("over many draws, along rows: 93 draws of ")
    status, lines = run(capsys, own(tmp_path), "--own-random", *only, "quantize_tokens MXFP8, draws")
    assert status == 0, failed(lines)
    assert sum(" draws of " in line and "random bits" in line for line in lines) == 3  # input, weight, along rows


def test_words_that_are_no_function_of_random_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They pass: the contract's `random` is not theirs. But a step cannot be computed again."""
    path = own(tmp_path, words="words ^ torch.randint_like(words, 0, 1 << 16)")
    status, lines = run(capsys, path, "--own-random", "--only", "quantize_tokens MXFP8 rows, draws")
    assert status == 0 and "the same `random` gives other codes: a step cannot be computed again" in lines[3]


@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("random = random and Random((random.key[0], 0), random.counter)", "step"),
        ("random = random and Random(random.key, (0, 0))", "layer and role"),
        ("random = random and Random((0, 0), (0, 0))", "a reused seed: all 93"),
    ],
)
def test_the_contracts_words_with_a_component_left_out_are_told_without_being_asked(
    new: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bits decide; draws say which."""
    check = '    require_tensor(x, "x")\n    require_float(x, "x")\n    require_kind(cast, Cast, '
    path = written(tmp_path, check, f"    {new}\n{check}")
    status, lines = run(capsys, path, "--only", "quantize_tokens MXFP8, normal", "quantize_tokens NVFP4, normal")
    told = [line for line in lines if "over many draws, along rows: " in line]
    assert status == 1 and said in told[0] and len([line for line in lines if " draws of " in line]) <= 1, lines


@pytest.mark.exhaustive
def test_independent_words_never_fail(q: Tensor) -> None:
    for seed in range(200):
        assert draws(q, coded(q, plain(np.random.default_rng(1000 + seed)))).findings() == [], seed


@pytest.mark.parametrize(
    ("options", "case", "said"),
    [
        ({"words": "words & 0xFF00"}, "quantize_tokens MXFP8 rows", "grad: fractions below 2^-8 never round away"),
        ({"seeded": False}, "requantize_transpose NVFP4", "input: a reused seed: all 93 draws have the same codes"),
        (
            {"words": "words[..., :1].expand_as(words)"},
            "grad_to_wire NVFP4 drawn",
            "payload: words are shared by lanes",
        ),
        (
            {"result": f"(lambda r: r.derived(codes=r.codes & 0x80))({CALL})"},
            "quantize_tokens MXFP8",
            "every code is zero",
        ),
    ],
)
def test_words_of_its_own_with_a_fault_fail(
    options: dict[str, object], case: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, lines = run(capsys, own(tmp_path, **options), "--own-random", "--only", f"{case}, draws")
    assert status == 1 and said in failed(lines)[0], lines


def test_a_code_that_is_no_neighbour_fails_with_words_of_its_own_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt = f"(lambda r: r.derived(codes=torch.where(r.codes % 16 == 3, r.codes + 2, r.codes)))({CALL})"
    status, lines = run(
        capsys, own(tmp_path, result=spoilt), "--own-random", "--only", "quantize_tokens MXFP8 rows, normal"
    )
    assert status == 1 and "grad.codes[" in lines[1]
