"""Laws of the quantizers that hold for any tensor, searched for counterexamples with hypothesis.

Contract, for every entry of `nm.BLOCK_FORMATS` and every rule that it takes, on finite inputs of any shape, ragged and
empty ones included:

- strides, dtypes: a view gives what its contiguous copy gives, a narrow (or wide but float32-exact) dtype what
  float32 gives; inputs are never written to.
- order: exchanging whole blocks exchanges codes and scales; a slice of rows has the slice of the codes (outer per row
  or none). Groups are quantized as if alone.
- scaling by 2^k, away from the ends of float32: moves an E8M0 or FP32 scale or the outer scale by 2^k, no code.
- negation flips signs alone.
- dequantized values are fixed points: quantized again to nearest, with the same outer, they come back.
    `rceil`, `floor`: where they are finite (near FLT_MAX an element may round up to 2^128), saturated or not. The
    largest code lies above max / 2, or all codes double into other codes, so that half the scale gives the same values.
    E4M3 scales: where the block's scale is normal (or zero: so are all its values) and outer well inside float32. A
    normal scale errs by at most 1/17, so the largest code is the aim of its rule and gives the same scale back;
    four_over_six and if4 then find an error of zero. FALSE for subnormal scales: an amax of 3.06 units of 2^-9 is
    stored as 3 x 2^-9, whose scale is a tie to zero. FALSE for `unbiased`, which adds its headroom once more each time:
    1.125 comes back as 1.25.
    `amax`: where the scale is well inside float32. The largest element is stored as y = fl(448 s), and fl(y / 448) = s
    for every s that is itself a quotient by 448 = 7 x 64: with a in [8, 14), 7 s is within 3.5 of s's ulps of a, less
    than half of the 8 that lie between neighbours of a, so y = a; with a in [7, 8), y is within 2 of 7 s, so y / 7
    within 2/7 of s. FALSE for other s.
- encode is monotone in every mode but STOCHASTIC; round_to is idempotent.

Oracle: the other side of each law. Bitwise, signs of zeros included where codes are compared.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import numerics as nm

FORMATS = list(nm.BLOCK_FORMATS.values())
DETERMINISTIC = [mode for mode in nm.Rounding if mode is not nm.Rounding.STOCHASTIC]
NARROW = {torch.bfloat16: 7, torch.float16: 10, torch.float64: 23}  # mantissa bits of what is fed to each
properties = settings(max_examples=30, deadline=None, derandomize=True, database=None)


def rules(fmt: nm.BlockFormat) -> list[str]:
    """Names of the rules that `fmt` takes."""
    if fmt.scale is not nm.E4M3:
        return ["amax"] if fmt.scale is None else ["rceil", "floor"]
    others = ("amax", "rceil", "floor", "three_quarters", "eden")  # for other formats, or with scales drawn at random
    return [r for r in nm.scales.RULES if r not in others and (r != "if4" or fmt is nm.IF4)]


def name(parameter: object) -> str:
    return str(getattr(parameter, "name", parameter))


# ---- inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A tensor and how it is to be quantized."""

    x: Tensor
    fmt: nm.BlockFormat
    axis: int
    groups: tuple[int, ...] | None
    outer: str | int | None
    rule: str

    def quantize(self, x: Tensor | None = None, **options: object) -> nm.BlockTensor:
        """`x`, or the case's own tensor."""
        how = {"axis": self.axis, "groups": self.groups, "outer": self.outer, "rule": self.rule} | options
        return nm.quantize(self.x if x is None else x, self.fmt, **how)


def numbers(shape: list[int], seed: int, spread: int, bits: int = 23, center: int = 0) -> Tensor:
    """float32 of both signs, exponents within `spread` of `center`, an eighth zero, some lines zero throughout."""
    generator = torch.Generator().manual_seed(seed)
    exponent = torch.randint(center - spread, center + spread + 1, shape, generator=generator).clamp_(max=127)
    significand = torch.randint(1 << bits, 2 << bits, shape, generator=generator)
    sign = torch.randint(0, 2, shape, generator=generator) * 2 - 1
    x = torch.ldexp((sign * significand).double(), exponent - bits).float()
    zero = torch.rand(shape, generator=generator) < 0.125
    zero |= torch.rand([*shape[:-1], 1], generator=generator) < 0.125
    return x.masked_fill_(zero, 0.0)


@st.composite
def cases(
    draw: st.DrawFn,
    fmt: nm.BlockFormat,
    rule: str | None = None,
    outers: tuple[str | int | None, ...] | None = None,
    whole: bool = False,
    grouped: bool = True,
    extreme: bool = False,
    bits: int = 23,
) -> Case:
    """`outers`: the scopes to choose from, those the case does not have left out; None: all. whole: no short block.

    extreme: numbers anywhere in float32, subnormals included, instead of around 1.
    """
    ndim = draw(st.integers(1 if fmt.tile == 1 else 2, 3))
    axis = draw(st.integers(0 if fmt.tile == 1 else ndim - 2, ndim - 1))
    shape = [draw(st.integers(0, 3)) for _ in range(ndim)]
    if fmt.tile > 1 and draw(st.booleans()):
        shape[2 * ndim - 3 - axis] = fmt.tile + draw(st.integers(0, 2))  # more than one line of tiles
    blocks = draw(st.integers(1, 3))
    shape[axis] = blocks * fmt.block if whole else draw(st.integers(0, blocks * fmt.block))
    groups = None
    if grouped and draw(st.booleans()):
        cuts = draw(st.lists(st.integers(0, shape[axis]), max_size=3))
        groups = (0, *sorted(cuts), shape[axis])
    chosen = rule or draw(st.sampled_from(rules(fmt)))
    scopes: list[str | int | None] = [None]
    if nm.scales.RULES[chosen].scale_max is not None:
        scopes += ["tensor"] + (["leading"] if axis and (fmt.tile == 1 or ndim == 3) else [])
        scopes += ["row", 2 * fmt.block] if fmt.tile == 1 else []
    outer = draw(st.sampled_from([s for s in scopes if outers is None or s in outers]))
    center = draw(st.integers(-148, 127)) if extreme else 0
    x = numbers(shape, draw(st.integers(0, 1 << 30)), draw(st.sampled_from([0, 2, 12])), bits, center)
    return Case(x, fmt, axis, groups, outer, chosen)


def assert_same(a: nm.BlockTensor, b: nm.BlockTensor) -> None:
    """Codes, scales, outer and all that names them."""
    assert torch.equal(a.codes, b.codes) and torch.equal(a.scales, b.scales)
    assert (a.outer is None) == (b.outer is None) and (a.outer is None or torch.equal(a.outer, b.outer))
    assert replace(a, codes=b.codes, scales=b.scales, outer=b.outer).__dict__ == b.__dict__


def views(x: Tensor) -> dict[str, Tensor]:
    """`x` again with other strides."""
    padded = x.new_full([2 * n + 3 for n in x.shape], 7.0)
    sliced = padded[tuple(slice(1, 1 + 2 * n, 2) for n in x.shape)]
    sliced.copy_(x)
    transposed = x.transpose(0, -1).contiguous().transpose(0, -1)
    return {"sliced": sliced, "transposed": transposed}


# ---- strides, dtypes, inputs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
@properties
@given(data=st.data())
def test_strides_do_not_matter_and_inputs_stay(fmt: nm.BlockFormat, data: st.DataObject) -> None:
    """All modes; STOCHASTIC draws by position, not by address."""
    case = data.draw(cases(fmt))
    rounding = data.draw(st.sampled_from(list(nm.Rounding)))
    how = {"rounding": rounding, "random": nm.Random((1, 2)) if rounding is nm.Rounding.STOCHASTIC else None}
    before = case.x.clone()
    want = case.quantize(**how)
    assert torch.equal(case.x.view(torch.int32), before.view(torch.int32))
    for view in views(case.x).values():
        assert_same(case.quantize(view, **how), want)
        assert torch.equal(view, before)
    for line in range(min(1, case.x.shape[0])):
        expanded = case.x[line : line + 1].expand_as(case.x)
        assert_same(case.quantize(expanded, **how), case.quantize(expanded.contiguous(), **how))


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
@properties
@given(data=st.data())
def test_dtypes_hold_the_same_numbers(fmt: nm.BlockFormat, data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(list(NARROW)))
    case = data.draw(cases(fmt, bits=NARROW[dtype]))
    held = case.x.to(dtype)
    assert torch.equal(held.to(torch.float32), case.x)
    assert_same(case.quantize(held), case.quantize())


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
@properties
@given(data=st.data())
def test_requantize_reads_codes_and_no_strides(fmt: nm.BlockFormat, data: st.DataObject) -> None:
    """It equals quantize of the values, from views of codes and scales too, and leaves them as they were."""
    case = data.draw(cases(data.draw(st.sampled_from(FORMATS))).filter(lambda c: fmt.tile == 1 or c.x.ndim > 1))
    ndim = case.x.ndim
    axis = data.draw(st.integers(0 if fmt.tile == 1 else ndim - 2, ndim - 1))
    q = case.quantize()
    outer = data.draw(st.sampled_from(["multiply", "drop"]))
    got = nm.requantize(q, fmt, axis, outer=outer, rounding=nm.Rounding.NEAREST_EVEN)
    values = q.dequantize() if outer == "multiply" else q.values()
    assert_same(got, nm.quantize(values, fmt, axis, outer=None))
    kept = [t.clone() for t in (q.codes, q.scales)]
    for view in ("sliced", "transposed"):
        strided = replace(q, codes=views(q.codes)[view], scales=views(q.scales)[view])
        assert_same(nm.requantize(strided, fmt, axis, outer=outer, rounding=nm.Rounding.NEAREST_EVEN), got)
        if ndim > 1:
            turned = {ndim - 1: ndim - 2, ndim - 2: ndim - 1}.get(axis, axis)
            again = nm.requantize(strided.mT, fmt, turned, outer=outer, rounding=nm.Rounding.NEAREST_EVEN)
            if axis >= ndim - 2 or fmt.tile == 1:
                assert_same(again.mT, got)
    assert torch.equal(kept[0], q.codes) and torch.equal(kept[1], q.scales)


# ---- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
@properties
@given(data=st.data())
def test_blocks_may_change_places(fmt: nm.BlockFormat, data: st.DataObject) -> None:
    """An outer scale of the tensor, of a row or of a leading index sees the same largest magnitude."""
    case = data.draw(cases(fmt, outers=(None, "tensor", "row", "leading"), whole=True, grouped=False))
    blocks = case.x.shape[case.axis] // fmt.block
    order = torch.tensor(data.draw(st.permutations(range(blocks))))
    values = (order[:, None] * fmt.block + torch.arange(fmt.block)).flatten()
    q = case.quantize()
    scales = q.scales.index_select(case.axis, order)
    moved = replace(q, codes=q.codes.index_select(case.axis, values), scales=scales)
    assert_same(case.quantize(case.x.index_select(case.axis, values)), moved)


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
@properties
@given(data=st.data())
def test_rows_are_quantized_as_if_alone(fmt: nm.BlockFormat, data: st.DataObject) -> None:
    """A slice of another axis than the blocks', in whole tiles where tiles reach into it."""
    case = data.draw(cases(fmt, outers=(None, "row")).filter(lambda c: c.x.ndim > 1))
    dim = data.draw(st.integers(0, case.x.ndim - 1).filter(lambda d: d != case.axis))
    per = fmt.tile if dim == 2 * case.x.ndim - 3 - case.axis and fmt.tile > 1 else 1
    total = -(-case.x.shape[dim] // per)
    start = data.draw(st.integers(0, total))
    stop = data.draw(st.integers(start, total))
    part = slice(start * per, stop * per)
    q = case.quantize()
    lines = [slice(None)] * dim
    outer = None if q.outer is None else q.outer[(*lines, part)]
    expected = replace(q, codes=q.codes[(*lines, part)], scales=q.scales[(*lines, slice(start, stop))], outer=outer)
    assert_same(case.quantize(case.x[(*lines, part)]), expected)


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
@properties
@given(data=st.data())
def test_groups_are_quantized_as_if_alone(fmt: nm.BlockFormat, data: st.DataObject) -> None:
    """Without an outer scale; empty groups have no blocks."""
    case = data.draw(cases(fmt, outers=(None,)).filter(lambda c: c.groups is not None))
    q = case.quantize()
    sizes = torch.tensor(case.groups).diff().tolist()
    parts = [case.quantize(part, groups=None) for part in case.x.split(sizes, case.axis)]
    assert torch.equal(torch.cat([p.codes for p in parts], case.axis), q.codes)
    assert torch.equal(torch.cat([p.scales for p in parts], case.axis), q.scales)


# ---- scaling and negation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
@properties
@given(data=st.data())
def test_powers_of_two_move_scales_alone(fmt: nm.BlockFormat, data: st.DataObject) -> None:
    """E8M0 and FP32 scales without outer move; else the outer does. An all-zero block or scope keeps its scale."""
    outers = ("tensor", "row", "leading", 2 * fmt.block) if fmt.scale is nm.E4M3 else (None,)
    case = data.draw(cases(fmt, outers=outers))
    k = data.draw(st.integers(-40, 40))
    q, moved = case.quantize(), case.quantize(case.x * 2.0**k)
    assert torch.equal(moved.codes, q.codes)
    assert torch.equal(moved.dequantize(), q.dequantize() * 2.0**k)
    if fmt.scale is nm.E4M3:
        assert torch.equal(moved.scales, q.scales)
        assert bool(((moved.outer == q.outer * 2.0**k) | ((moved.outer == 1) & (q.outer == 1))).all())
    elif fmt.scale is None:
        assert bool(((moved.scales == q.scales * 2.0**k) | ((moved.scales == 1) & (q.scales == 1))).all())
    else:
        shift = moved.scales.int() - q.scales.int()
        assert bool(((shift == k) | ((shift == 0) & (q.scales == 0))).all())


@pytest.mark.parametrize("fmt", FORMATS, ids=name)
@properties
@given(data=st.data())
def test_negation_flips_signs_alone(fmt: nm.BlockFormat, data: st.DataObject) -> None:
    """Under the modes that treat both signs alike; the directed ones exchange roles."""
    case = data.draw(cases(fmt))
    rounding, other = data.draw(
        st.sampled_from(
            [(m, m) for m in (nm.Rounding.NEAREST_EVEN, nm.Rounding.NEAREST_AWAY, nm.Rounding.TOWARD_ZERO)]
            + [(nm.Rounding.TOWARD_POSITIVE, nm.Rounding.TOWARD_NEGATIVE)]
        )
    )
    q, negative = case.quantize(rounding=rounding), case.quantize(-case.x, rounding=other)
    bits = fmt.element.bits
    flipped = q.codes ^ (1 << (bits - 1)) if fmt.element.kind == "float" else -q.codes & ((1 << bits) - 1)
    if fmt.alternative is not None:
        chosen = q._per_value(q.scales > 0x7F, fmt.block)
        flipped = torch.where(chosen, -q.codes & 0xF, flipped)
    assert_same(negative, replace(q, codes=flipped))


# ---- fixed points ----------------------------------------------------------------------------------------------------


def again(q: nm.BlockTensor) -> nm.BlockTensor:
    """Its values quantized again, in the same way and with the same outer."""
    return nm.quantize(q.dequantize(), q.fmt, q.axis, outer=q.outer, groups=q.groups, rule=q.rule)


@pytest.mark.every(3)
@pytest.mark.parametrize(("fmt", "rule"), [(f, r) for f in FORMATS for r in rules(f) if r != "unbiased"], ids=name)
@properties
@given(data=st.data())
def test_dequantized_values_are_fixed_points(fmt: nm.BlockFormat, rule: str, data: st.DataObject) -> None:
    """All of float32 for E8M0; with E4M3 scales wherever the block's is normal, or zero. Tiles take no given outer."""
    outers = (None,) if fmt.tile > 1 else (None, "tensor", "row")
    case = data.draw(cases(fmt, rule, outers=outers, extreme=fmt.scale is nm.E8M0))
    q = case.quantize()
    y = q.dequantize()
    assume(bool(torch.isfinite(y).all()))  # rounding up may overflow near float32's largest
    kept = torch.ones_like(y, dtype=torch.bool)
    if fmt.scale is nm.E4M3:
        code = q.scales & 0x7F
        kept = q._per_value((code >= 8) | (code == 0), fmt.block)
    assert torch.equal(again(q).dequantize()[kept], y[kept])


def test_a_quotient_by_448_survives_its_product() -> None:
    """fl(fl(448 s) / 448) = s for s = fl(a / 448), every significand of a; not for every s."""
    a = (torch.arange(1 << 23, dtype=torch.int32) + (127 << 23)).view(torch.float32)
    limit = torch.tensor(448.0)
    s = a / limit
    assert torch.equal(limit * s / limit, s)
    assert not torch.equal(limit * a / limit, a)


def test_where_values_are_no_fixed_points() -> None:
    """The exceptions of the module docstring: a subnormal E4M3 scale and the headroom of unbiased."""
    x = torch.full((1, 16), 3.06 * 2.0**-9)
    q = nm.quantize(x, nm.NVFP4, outer=None)
    assert q.scales.tolist() == [[1]] and bool((q.dequantize() == 3 * 2.0**-9).all())
    assert again(q).scales.tolist() == [[0]]

    q = nm.quantize(torch.full((1, 16), 1.125 * 6 * 16 / 17), nm.NVFP4, outer=None, rule="unbiased")
    assert nm.decode(q.scales, nm.E4M3).tolist() == [[1.125]] and bool((q.dequantize() == 6.75).all())
    assert nm.decode(again(q).scales, nm.E4M3).tolist() == [[1.25]]


# ---- one number to one code ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", nm.FORMATS.values(), ids=name)
@properties
@given(data=st.data())
def test_encode_is_monotone_and_round_to_idempotent(fmt: nm.Format, data: st.DataObject) -> None:
    """Unsigned formats on magnitudes. Both float32 and float64, infinities too; values and midpoints come often."""
    width = data.draw(st.sampled_from([32, 64]))
    points = [fmt.max, fmt.max * 1.5, fmt.min_normal, fmt.min_subnormal, fmt.min_subnormal / 2, 1.5, 2.5, 0.0]
    number = st.floats(width=width, allow_nan=False) | st.sampled_from(points + [-p for p in points])
    between = st.integers(0, fmt.max_code - 1).map(lambda code: (fmt.value(code) + fmt.value(code + 1)) / 2)
    value = st.integers(0, fmt.max_code).map(fmt.value)
    listed = data.draw(st.lists(number | st.floats(-8, 8, width=width) | between | value, min_size=2, max_size=40))
    x = torch.tensor(listed, dtype=torch.float32 if width == 32 else torch.float64).sort().values
    if fmt.kind == "exponent" or not fmt.signed:
        x = x.abs().sort().values
    for rounding in DETERMINISTIC:
        values = nm.decode(nm.encode(x, fmt, rounding), fmt)
        assert bool((values.diff() >= 0).all()), rounding
        once = nm.round_to(x, fmt, rounding)
        assert once.dtype == x.dtype and torch.equal(once, values.to(x.dtype))
        assert torch.equal(nm.round_to(once, fmt, rounding), once), rounding
