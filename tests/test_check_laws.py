"""Faults that `fourbit check` names, and what it says of bytes that no law makes.

Contract: a fault is named if its law makes every byte, and if it is the simplest that does; where one byte in a hundred
is damaged besides, it is not named, and the report says how many bytes differ, where, and by how much. Oracle: a
quantizer from tables of values (`plain_quantizer`), which shares no code with `check`.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from plain_quantizer import (
    E2M1,
    E4M3,
    E5M2,
    E8M0,
    Array,
    blocks,
    decoded,
    dump,
    mx,
    nvfp4,
    rounded,
    signed,
)

from hw.check import check

Dump = dict[str, torch.Tensor]
G = torch.Generator().manual_seed(5)
X = torch.randn(32, 256, generator=G)
HEAVY = X * torch.exp(2 * torch.randn(32, 256, generator=G))
UNEVEN = (X.view(32, 8, 32) * torch.exp2(torch.randint(-6, 7, (32, 8, 1), generator=G).float())).flatten(-2)
OUTER = np.float32(X.abs().max() / 2688)
ROWS = np.arange(32)[:, None]


def quarters() -> torch.Tensor:
    """Ties and others, under outer and block scales of 1."""
    x = torch.randint(-24, 25, (32, 256), generator=torch.Generator().manual_seed(2)) / 4
    x[:, ::16] = 6.0
    x[0, 0] = 2688.0
    return x


def scale_ties() -> torch.Tensor:
    """Every other block's scale is a tie of E4M3, under an outer scale of 1."""
    g = torch.Generator().manual_seed(3)
    middle = torch.from_numpy(3 * (E4M3[1:] + E4M3[:-1]))[torch.randint(20, 120, (32, 16), generator=g)].float()
    x = torch.rand(32, 16, 16, generator=g) - 0.5
    largest = torch.where(torch.rand(32, 16, generator=g) < 0.5, middle, torch.rand(32, 16, generator=g) * 2000)
    x = x * largest.unsqueeze(-1)
    x[..., 0] = largest
    x[0, 0, 0] = 2688.0
    return x.flatten(-2)


def small_scales() -> torch.Tensor:
    """Many blocks' scales are subnormal."""
    g = torch.Generator().manual_seed(4)
    x = torch.randn(32, 16, 16, generator=g) * torch.exp2(-torch.randint(0, 18, (32, 16, 1), generator=g).float())
    x[0, 0, 0] = 1000.0
    return x.flatten(-2)


def experts() -> tuple[torch.Tensor, Array]:
    """Three experts and their outer scales."""
    x = (
        torch.randn(3, 32, 64, generator=torch.Generator().manual_seed(6))
        * torch.tensor([1.0, 3.0, 0.5])[:, None, None]
    )
    return x, (x.abs().amax((1, 2)) / 2688).numpy()[:, None, None]


def halves() -> tuple[torch.Tensor, Array]:
    """Gate and up of one matrix, and the outer scale of each row's half."""
    x = torch.where(torch.arange(32)[:, None] < 16, X, 1.7 * X)
    return x, np.where(ROWS < 16, x[:16].abs().max() / 2688, x[16:].abs().max() / 2688).astype(np.float32)


def bfloat16(v: Array) -> Array:
    return torch.from_numpy(np.asarray(v, np.float32)).bfloat16().double().numpy()


def float16(v: Array) -> Array:
    return np.asarray(v, np.float32).astype(np.float16).astype(np.float64)


def e4m3(v: Array) -> Array:
    return decoded(rounded(v, E4M3), E4M3)


def log2(ratio: Array) -> Array:
    return (np.round(np.log2(ratio)) + 127).astype(int)


def flushed(values: Array, normal: int, sign: int) -> Callable[[Array], Array]:
    """Codes whose subnormal ones are zero."""

    def codes(q: Array) -> Array:
        c = signed(q, values)
        return np.where(c % sign < normal, c - c % sign, c)

    return codes


def instead(of: Callable[[Array], Array], code: int, values: Array) -> Callable[[Array], Array]:
    """Codes where numbers have another code, with their sign."""
    return lambda q: np.where(of(np.abs(q)), code + 128 * np.signbit(q), signed(q, values))


def scales_as(d: Dump, change: Callable[[Array], Array]) -> Dump:
    return d | {"scales": torch.from_numpy(change(d["scales"].numpy()).astype(np.int64).astype(np.uint8))}


def elements(x: torch.Tensor, d: Dump, multiplier: Callable[[Array, Array], Array]) -> Dump:
    """Codes of x * multiplier(scale, outer)."""
    m = multiplier(decoded(d["scales"].numpy(), E4M3), np.float64(d["outer"].numpy()))
    return dump(x, signed(blocks(x.double().numpy(), 16) * m[..., None], E2M1), d["scales"].numpy()) | {
        "outer": d["outer"]
    }


def codes_by_value() -> Dump:
    c = mx(X)["codes"].numpy()
    v = np.where(c > 127, -1, 1) * decoded(c % 128, E4M3)
    return mx(X) | {"codes": torch.from_numpy(v.astype(np.int64).astype(np.uint8))}


def element_half() -> Dump:
    """Elements of the second half of the rows under another outer scale."""
    d = nvfp4(X)
    return elements(X, d, lambda s, o: 1 / (s * o * np.where(ROWS < 16, 1, 1.2)))


def of_halves(x: torch.Tensor) -> Dump:
    return nvfp4(x, used=halves()[1])


# ---- E8M0 ------------------------------------------------------------------------------------------------------------

FORMATS = {"E2M1": E2M1, "E4M3": E4M3, "E5M2": E5M2}
POWERS = {"even": "to nearest", "down": "down", "log2": "to nearest in log2"}


@pytest.mark.parametrize("element", FORMATS)
@pytest.mark.parametrize("how", POWERS)
def test_e8m0_scales_rounded_otherwise_are_named(how: str, element: str):
    report = check(mx(X, FORMATS[element], scale=log2 if how == "log2" else how), contract="rceil")
    assert len(report.faults) == 1 and f"scales are rounded {POWERS[how]}, not up" in report.faults[0], str(report)


@pytest.mark.parametrize(("element", "how"), [("E2M1", "up"), ("E4M3", "up"), ("E4M3", "even"), ("E5M2", "even")])
def test_e8m0_scales_of_the_largest_power_of_two_rounded_otherwise_are_named(how: str, element: str):
    top = 2.0 ** np.floor(np.log2(FORMATS[element][-1]))
    report = check(mx(X, FORMATS[element], scale=how, divisor=top), contract="ocp_floor")
    words = "up" if how == "up" else "to nearest"
    assert len(report.faults) == 1 and f"scales are rounded {words}, not down" in report.faults[0], str(report)


@pytest.mark.parametrize(
    ("tie", "words"),
    [
        ("away", "to nearest,"),  # as torch's cast
        ("zero", "to nearest, ties down,"),
        ("even", "to nearest, ties to the even byte,"),
        ("odd", "to nearest, ties to the odd byte,"),
    ],
)
def test_ties_of_e8m0_scales_are_told_apart(tie: str, words: str):
    x = X.clone()
    x.view(32, 8, 32)[..., 0] = 1.5 * 6 * 2.0 ** torch.randint(-3, 3, (32, 8), generator=G)  # 3/2 of a power of two
    report = check(mx(x, E2M1, scale=tie), contract="rceil")
    assert len(report.faults) == 1 and f"rounded {words} not up" in report.faults[0], str(report)


def test_halves_of_log2_are_told_apart():
    """Near 2^10.5 float32 has numbers whose logarithm it rounds to 10.5."""
    x = torch.rand(32, 8, 32, generator=G) * 6000
    x[..., 0] = 6 * 2 ** (10 + 3 * torch.rand(32, 8, generator=G))
    x[::4, :, 0], x[1::4, :, 0] = 6 * 2.0**10.5, 6 * 2.0**11.5

    def away(r: Array) -> Array:
        return (np.floor(np.log2(r).astype(np.float32) + 0.5) + 127).astype(int)

    def even(r: Array) -> Array:
        return (np.round(np.log2(r).astype(np.float32)) + 127).astype(int)

    for scale, words in ((away, "halves away from zero"), (even, "halves to even")):
        report = check(mx(x.flatten(-2), E2M1, scale=scale), contract="rceil")
        assert len(report.faults) == 1 and f"in log2, {words}, not up" in report.faults[0], str(report)


# ---- each law --------------------------------------------------------------------------------------------------------

TIES = {
    "away": "away from zero",
    "zero": "toward zero",
    "odd": "to odd",
    "tie up": "toward +infinity",
    "tie down": "toward -infinity",
}
DIRECTIONS = {"down": "toward zero", "up": "away from zero", "ceil": "toward +infinity", "floor": "toward -infinity"}
SCALES = {
    "down": "toward zero, not",
    "up": "toward +infinity, not",
    "away": "with ties away from zero",
    "zero": "with ties toward zero",
    "odd": "with ties to odd",
}
MX_LAWS: dict[str, tuple[Callable[[], Dump], str]] = {
    **{
        f"codes {k}": (lambda k=k: mx(X, code=k), f"codes are rounded {v}, not to nearest")
        for k, v in DIRECTIONS.items()
    },
    **{
        f"ties {k}": (lambda k=k: mx(quarters(), E2M1, code=k), f"codes are rounded with ties {v}")
        for k, v in TIES.items()
    },
    "subnormal elements": (lambda: mx(HEAVY, code=flushed(E4M3, 8, 128)), "subnormal elements are flushed to zero"),
    "overflow to NaN": (
        lambda: mx(X, scale="down", divisor=256.0, code=instead(lambda q: q > 464, 0x7F, E4M3)),
        "elements that round above 448 become NaN instead of saturating",
    ),
    "NaN above 448": (
        lambda: mx(X, scale="down", divisor=256.0, code=instead(lambda q: q > 448, 0x7F, E4M3)),
        "elements above 448 become NaN instead of saturating",
    ),
    "overflow to infinity": (
        lambda: mx(X, E5M2, scale="down", divisor=32768.0, code=instead(lambda q: q >= 61440, 0x7C, E5M2)),
        "elements that round above 57344 become infinity instead of saturating",
    ),
    "scales by value": (
        lambda: scales_as(mx(X * 1000), lambda c: np.minimum(decoded(c, E8M0), 255)),
        "scales are copied by value instead of by their bits",
    ),
    "codes by value": (codes_by_value, "codes are copied by value instead of by their bits"),
    "reciprocal of 448": (
        lambda: mx(
            X.view(16, 512).repeat(4, 1) * torch.rand(64, 512, generator=torch.Generator().manual_seed(8)),
            scale=lambda r: rounded(r * 448 * bfloat16(1 / 448), E8M0, "up"),
        ),
        "the reciprocal of 448 is rounded to bfloat16, then block maxima are multiplied by it",
    ),
    "reciprocal bytes": (lambda: scales_as(mx(UNEVEN), lambda c: 254 - c), "scales are stored as their reciprocals"),
    "twice": (lambda: mx(X, divisor=224.0), "every scale byte is +1 from that of rceil, 2 times as much"),
}
LAWS: dict[str, tuple[Callable[[], Dump], str]] = {
    **{
        f"codes {k}": (lambda k=k: nvfp4(X, code=k), f"codes are rounded {v}, not to nearest")
        for k, v in DIRECTIONS.items()
    },
    **{
        f"ties {k}": (lambda k=k: nvfp4(quarters(), code=k), f"codes are rounded with ties {v}")
        for k, v in TIES.items()
    },
    **{f"scales {k}": (lambda k=k: nvfp4(scale_ties(), scale=k), f"scales are rounded {v}") for k, v in SCALES.items()},
    "subnormal scales": (
        lambda: nvfp4(small_scales(), scale=lambda r: np.where(rounded(r, E4M3) < 8, 0, rounded(r, E4M3))),
        "subnormal scales are flushed to zero",
    ),
    "raised scales": (
        lambda: nvfp4(
            small_scales(),
            scale=lambda r: np.where(
                rounded(r, E4M3) % 8 == rounded(r, E4M3), 8 * (rounded(r, E4M3) > 0), rounded(r, E4M3)
            ),
        ),
        "subnormal scales are raised to 0.015625, the least normal number",
    ),
    "halves lost": (lambda: nvfp4(X, code=flushed(E2M1, 2, 8)), "subnormal elements are flushed to zero"),
    "scales become NaN": (
        lambda: nvfp4(X, outer=OUTER / 2, scale=lambda r: np.where(r > 464, 0x7F, rounded(r, E4M3))),
        "scales that round above 448 become NaN instead of saturating",
    ),
    "scales by value": (
        lambda: scales_as(nvfp4(X), lambda c: decoded(c, E4M3)),
        "scales are copied by value instead of by their bits",
    ),
    "scales by int8": (lambda: scales_as(nvfp4(X), lambda c: np.minimum(decoded(c, E4M3), 127)), "as int8"),
    "bytes as numbers": (
        lambda: scales_as(nvfp4(X), lambda c: rounded(c.astype(float), E4M3)),
        "the byte, taken as a number, was rounded to E4M3",
    ),
    "a neighbour's outer": (
        lambda: nvfp4(experts()[0], outer=experts()[1], used=np.roll(experts()[1], -1, 0)),
        "the outer scale of each expert is that of its expert +1",
    ),
    "one outer for all": (
        lambda: nvfp4(experts()[0], outer=experts()[1], used=experts()[1].max()),
        "one outer scale is used for all experts, that of the largest value",
    ),
    "gate and up": (
        lambda: of_halves(halves()[0]),
        "in the first half of the rows 0.623 times the stored one, as of gate and up, that of its own largest value",
    ),
    "gate and up, interleaved": (
        lambda: nvfp4(X, used=np.where(ROWS % 2 == 0, OUTER * 1.3, OUTER)),
        "in the even rows 1.3 times the stored one, as of gate and up",
    ),
    "halves of the columns": (
        lambda: nvfp4(X, used=np.where(np.arange(16) < 8, OUTER, OUTER * 1.3)[None]),
        "in the second half of the columns 1.3 times the stored one",
    ),
    "another outer": (lambda: nvfp4(X, used=OUTER * 1.37), "another outer scale: 1.37 times the stored one"),
    "elements under another outer": (element_half, "elements are divided by another outer scale: in the second half"),
    "x in bfloat16": (
        lambda: nvfp4(X.bfloat16().float()) | {"x": X},
        "x is rounded to bfloat16 before it is quantized",
    ),
    "maxima in bfloat16": (
        lambda: nvfp4(X, amax=lambda b: bfloat16(np.abs(b).max(-1))),
        "block maxima are rounded to bfloat16 before scales are made of them",
    ),
    "maxima of x": (lambda: nvfp4(X, amax=lambda b: b.max(-1)), "block maxima are those of x, not of their magnitudes"),
    "elements through bfloat16": (
        lambda: nvfp4(X, code=lambda q: signed(bfloat16(q), E2M1)),
        "elements are rounded twice: to bfloat16 before E2M1",
    ),
    "through 10 bits": (
        lambda: nvfp4(HEAVY, code=lambda q: signed(float16(q), E2M1)),
        "elements are rounded twice: to a 10-bit mantissa (as TF32 and FP16 have, though no tensor here is either)",
    ),
    "through float16": (
        lambda: nvfp4(HEAVY.half().float(), code=lambda q: signed(float16(q), E2M1)) | {"x": HEAVY.half()},
        "elements are rounded twice: to float16 before E2M1",
    ),
    "bfloat16 reciprocal": (
        lambda: elements(X, nvfp4(X), lambda s, o: bfloat16(1 / (s * o))),
        "the reciprocal of scale * outer is rounded to bfloat16; elements are multiplied by it",
    ),
    "float16 reciprocal": (
        lambda: elements(X, nvfp4(X), lambda s, o: float16(1 / (s * o))),
        "the reciprocal of scale * outer is rounded to a 10-bit mantissa",
    ),
    "E4M3 reciprocal": (
        lambda: elements(X * 300, nvfp4(X * 300), lambda s, o: e4m3(1 / (s * o))),
        "the reciprocal of scale * outer is rounded to E4M3; elements are multiplied by it",
    ),
    "bfloat16 reciprocal of the scale": (
        lambda: elements(X, nvfp4(X), lambda s, o: bfloat16(1 / s) / o),
        "the reciprocal of the scale is rounded to bfloat16; elements are multiplied by it",
    ),
    "reciprocal of 6": (
        lambda: nvfp4(X, scale=lambda r: rounded(r * 6 * bfloat16(1 / 6), E4M3)),
        "the reciprocal of 6 is rounded to bfloat16, then block maxima are multiplied by it",
    ),
    "scales of the block before": (
        lambda: elements(X, nvfp4(X), lambda s, o: 1 / (np.roll(s, 1, -1) * o)),
        "elements are divided by the scale of their block -1",
    ),
}
USUAL = (
    "codes up", "ties odd", "scales zero", "subnormal scales", "scales become NaN", "scales by value", "gate and up",
    "a neighbour's outer", "x in bfloat16", "through 10 bits", "bfloat16 reciprocal", "E4M3 reciprocal",
)  # fmt: skip
NAMED = {f"MX: {k}": v for k, v in MX_LAWS.items()} | LAWS
DEFAULT = [name for name in NAMED if name.startswith("MX") or name in USUAL]


def contract_of(name: str) -> str | None:
    """MX laws depart from rceil, but for those that saturate."""
    return ("ocp_floor" if "NaN" in name or "infinity" in name else "rceil") if name.startswith("MX") else None


def is_named(name: str) -> None:
    make, words = NAMED[name]
    report = check(make(), contract=contract_of(name))
    assert len(report.faults) == 1 and words in report.faults[0], str(report)


@pytest.mark.parametrize("name", DEFAULT)
def test_a_law_that_makes_every_byte_is_named(name: str):
    is_named(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in NAMED if name not in DEFAULT])
def test_every_law_that_makes_every_byte_is_named(name: str):
    is_named(name)


# ---- laws that nearly hold -------------------------------------------------------------------------------------------

OF_SCALES = ("scale", "outer", "gate", "columns", "maxima", "reciprocal of 6", "reciprocal of 448", "twice", "bytes")


def is_not_named(name: str) -> None:
    """One byte in a hundred is another."""
    make, words = NAMED[name]
    d = make()
    key = "scales" if any(part in name for part in OF_SCALES) and "elements" not in name else "codes"
    damaged = d[key].clone()
    hit = torch.rand(damaged.shape, generator=torch.Generator().manual_seed(9)) < 0.01
    damaged[hit] ^= 1
    report = check(d | {key: damaged})
    assert not report and not any(words in fault and "differ" not in fault for fault in report.faults), str(report)
    assert any("differ: " in fault or "another tensor" in fault for fault in report.faults), str(report)


NEARLY = [
    "MX: codes down",
    "MX: ties odd",
    "MX: twice",
    "MX: overflow to NaN",
    "halves lost",
    "another outer",
    "x in bfloat16",
]


@pytest.mark.parametrize("name", NEARLY)
def test_a_law_that_nearly_holds_is_not_named(name: str):
    is_not_named(name)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in NAMED if name not in NEARLY])
def test_no_law_that_nearly_holds_is_named(name: str):
    is_not_named(name)
