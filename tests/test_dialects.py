"""Dialects: codes, scales and decoded values of public quantizers.

Contract and oracles: (1) scalar twins in exact rationals (dialect_twins.py) for every dialect, on blocks with ties,
zeros, subnormal scales, underflow, tiny and huge tensors; (2) the bytes that each quantizer is known for: zero blocks,
zero tensors, infinities, the published examples and counts of scale formulas; (3) `nm.quantize` for fourbit's own; (4)
any two dialects differ on a stated input, or are listed as the same function. Bitwise. The quantizers themselves are
the oracle of test_dialect_peers.py.
"""

import itertools
import math
from fractions import Fraction
from pathlib import Path

import dialect_twins as twins
import numpy as np
import pytest
import torch
from dialect_twins import nearest_fraction
from dialect_twins_engines import ENGINE_FP8_TWINS, ENGINE_MX_TWINS, ENGINE_TWINS

import numerics as nm
from numerics.dialects_casts import rounded_logarithm
from numerics.dialects_core import LAYOUTS, ROUNDINGS, Outer

TWINS = twins.TWINS | ENGINE_TWINS
MX_TWINS = twins.MX_TWINS | ENGINE_MX_TWINS
FP8_TWINS = twins.FP8_TWINS | ENGINE_FP8_TWINS
DIALECTS = nm.scales.DIALECTS
NV = [name for name, d in DIALECTS.items() if "NVFP4" in d.formats]
MX = [(name, fmt) for name, d in DIALECTS.items() for fmt in d.formats if LAYOUTS[fmt].scale is nm.E8M0]
FP8 = [name for name, d in DIALECTS.items() if "FP8_1X128" in d.formats]
TILED = [name for name, d in DIALECTS.items() if "NVFP4_2D" in d.formats]
INF, NAN = float("inf"), float("nan")


def test_every_dialect_has_a_twin_and_says_what_it_does():
    assert set(TWINS) == set(NV) and set(MX_TWINS) == {name for name, _ in MX} and set(FP8_TWINS) == set(FP8)
    assert set(TILED) <= set(NV)
    for name, d in DIALECTS.items():
        text = str(d)
        assert text.startswith(f"{name}: ") and d.source
        for word in ("outer", "scale", "zero", "elements", "NaN, Inf", "decode"):
            assert f"\n    {word:<12}" in text
        assert (d.outer_of is None) == (d.direction is None)


def test_the_pages_count_the_dialects():
    root = Path(__file__).parent.parent
    for page in ("README.md", "docs/check.md"):
        assert f" {len(DIALECTS)} " in (root / page).read_text(encoding="utf-8")


# ---- scalar twins ----------------------------------------------------------------------------------------------------


def tensors(block: int = 16) -> dict[str, torch.Tensor]:
    """Tensors of 8 x 128, finite, by a name."""
    g = torch.Generator().manual_seed(7)
    x = torch.randn(8, 128, generator=g)
    ties = torch.randint(-48, 49, (8, 128), generator=g) / 8 * torch.exp2(torch.arange(8.0) - 4)[:, None]
    wide = (x * torch.exp2(torch.randint(-24, 24, (8, 128), generator=g).float())).bfloat16().float()
    sparse = x.clone()
    sparse[0], sparse[1, :32], sparse[2, ::3], sparse[3] = 0, 0, -0.0, sparse[3] * 1e-6
    sparse[4] *= 2e-7
    outlier = x.clone()
    outlier[0, 0] = 3e5
    return {
        "normal": x,
        "bfloat16 values": x.bfloat16().float(),
        "ties": ties,
        "wide": wide,
        "zeros and small rows": sparse,
        "an outlier": outlier,
        "zero": torch.zeros(8, 128),
        "1e-20": x * 1e-20,
        "1e-30": x * 1e-30,
        "1e30": x * 1e30,
        "1e37": x * 1e37,
    }


TENSORS = tensors()


def same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1.0, a) == math.copysign(1.0, b))


# of the blocks in the order of memory a step apart, by whose twins the default run goes: of every row some
STEPS = pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.exhaustive)], ids=["some", "all"])


@pytest.mark.every(2)
@pytest.mark.parametrize("name", NV)
@pytest.mark.parametrize("which", TENSORS)
@STEPS
def test_scalar_twin(name: str, which: str, step: int):
    d, x = DIALECTS[name], TENSORS[which]
    q = d.quantize(x)
    values = d.dequantize(q)
    amax = float(x.abs().max())
    for row, start in list(itertools.product(range(8), range(0, 128, 16)))[:: 2 * step - 1]:
        xs = x[row, start : start + 16].tolist()
        scope = float(x[row].abs().max()) if d.run == 128 or d.rows else amax
        scale, codes, decoded = TWINS[name](xs, scope)
        assert int(q.scales[row, start // 16]) == scale
        undefined = scale == 0x7F and not d.defined_nan
        if not undefined:
            assert q.codes[row, start : start + 16].tolist() == codes
            assert all(map(same, values[row, start : start + 16].tolist(), decoded))


# their entries do not claim scales below float32's normal numbers
TINY_NOT_CLAIMED = (
    "compressed_tensors_mx",
    "fouroversix_mx",
    "ggml_mxfp4",
    "mlx_mxfp4_cpu_before",
    "mlx_mxfp8_cpu_before",
    "quark_floor",
    "quark_ceil",
)


@pytest.mark.every(2)
@pytest.mark.parametrize(("name", "fmt"), MX)
@pytest.mark.parametrize("which", [*TENSORS, "1e-38", "2^-120", "edges"])
@STEPS
def test_scalar_twin_mx(name: str, fmt: str, which: str, step: int):
    special = {
        "1e-38": TENSORS["normal"] * 1e-38,
        "2^-120": TENSORS["normal"] * 2.0**-120,
        "edges": edges(LAYOUTS[fmt].element.max),
    }
    x = special[which] if which in special else TENSORS[which]
    if which in ("1e-38", "2^-120", "edges") and name in TINY_NOT_CLAIMED:
        return
    d, element = DIALECTS[name], LAYOUTS[fmt].element
    q = d.quantize(x, fmt)
    values = d.dequantize(q)
    for row, block in list(itertools.product(range(x.shape[0]), range(4)))[::step]:
        part = slice(32 * block, 32 * block + 32)
        scale, codes = MX_TWINS[name](x[row, part].tolist(), element)
        assert int(q.scales[row, block]) == scale, (row, block, float(x[row, part].abs().max()).hex())
        assert q.codes[row, part].tolist() == codes
        decoded = [float(torch.tensor(element.value(c) * 2.0 ** (scale - 127), dtype=torch.float32)) for c in codes]
        assert all(map(same, values[row, part].tolist(), decoded))


@pytest.mark.parametrize("name", TILED)
@pytest.mark.parametrize("which", ["normal", "ties"])
def test_scalar_twin_of_a_tile(name: str, which: str):
    """Tiles of 16 x 16, the last of 4 lines: the twin of a block sees the values of all lines, one after another."""
    d, x = DIALECTS[name], TENSORS[which].view(32, 32)[:20, :16].contiguous()
    q = d.quantize(x, "NVFP4_2D")
    values, amax = d.dequantize(q), float(x.abs().max())
    assert q.scales.shape == (2, 1)
    for tile in range(2):
        part = slice(16 * tile, min(16 * tile + 16, 20))
        xs = x[part].flatten().tolist()
        scale, codes, decoded = TWINS[name]([*xs, *[0.0] * (256 - len(xs))], amax)
        assert int(q.scales[tile]) == scale
        assert q.codes[part].flatten().tolist() == codes[: len(xs)]
        assert all(map(same, values[part].flatten().tolist(), decoded))
    line = d.quantize(x.T.contiguous(), "NVFP4_2D", axis=-2)
    assert torch.equal(line.codes.T, q.codes) and torch.equal(line.scales.T, q.scales)


@pytest.mark.parametrize("name", FP8)
@pytest.mark.parametrize("which", ["normal", "ties", "zeros and small rows", "1e-30", "1e37"])
def test_scalar_twin_of_fp8_blocks(name: str, which: str):
    """Blocks of 128, and tiles of which only 3 lines and 5 columns are values."""
    d, x = DIALECTS[name], TENSORS[which]
    q = d.quantize(x, "FP8_1X128")
    found = [(x[row].tolist(), q.scales[row], q.codes[row], d.dequantize(q)[row]) for row in range(len(x))]
    if "FP8_128X128" in d.formats:
        tile = d.quantize(x[:3, :5], "FP8_128X128")
        found.append((x[:3, :5].flatten().tolist(), tile.scales[0], tile.codes.flatten(), d.dequantize(tile).flatten()))
    for xs, scales, codes, values in found:
        scale, expected = FP8_TWINS[name](xs)
        assert scales.dtype == torch.float32 and scales.tolist() == [scale]
        assert codes.tolist() == expected
        decoded = [float(torch.tensor(nm.E4M3.value(c) * scale, dtype=torch.float32)) for c in expected]
        assert all(map(same, values.tolist(), decoded))


def edges(largest: float) -> torch.Tensor:
    """Block maxima at, one and a few ulp around powers of two and multiples of `largest`, over float32's range."""
    maxima = [
        math.ldexp(m, k)
        for k in (-149, -135, -127, -126, -100, -64, -33, -9, -1, 0, 1, 7, 32, 63, 90, 118)
        for m in (1.0, largest)
    ]
    row = torch.tensor(maxima, dtype=torch.float64).to(torch.float32)
    steps = torch.tensor([-2, -1, 0, 1, 2, 5, 11, 22, 23, 40], dtype=torch.int32)
    b = ((row.view(torch.int32)[:, None] + steps).clamp(0, 0x7F7FFFFF)).view(torch.float32).flatten()
    x = torch.zeros(len(b) + -len(b) % 4, 32)
    x[: len(b), 0], x[: len(b), 1] = b, -b * 0.4
    return x.view(-1, 128)


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="numpy's long double is no wider than float64")
def test_rounded_logarithms_are_those_of_a_wider_format():
    """All of bfloat16, and float32 around powers of two and around 2^(k + 1/2), where rules change their mind: equal,
    and nowhere so near to a tie of float32 that a relative error of 2^-48 would decide."""
    centres = torch.tensor([*(2.0**k for k in range(-126, 128)), *(2.0 ** (k + 0.5) for k in range(-126, 127))])
    near = (centres.view(torch.int32)[:, None] + torch.arange(-64, 65, dtype=torch.int32)).view(torch.float32).flatten()
    coarse = (torch.arange(1, 0x7F80, dtype=torch.int32) << 16).view(torch.float32)
    for x, dtype in ((near, torch.float32), (coarse, torch.bfloat16)):
        wide = np.log2(x.numpy().astype(np.longdouble))
        once = torch.from_numpy(wide.astype(np.float32))
        assert torch.equal(rounded_logarithm(x, dtype), once.to(dtype).float())
        up, down = (torch.nextafter(once, torch.full_like(once, to)).numpy() for to in (math.inf, -math.inf))
        ties = [(once.numpy().astype(np.longdouble) + other) / 2 for other in (up, down)]
        assert all((np.abs(wide - tie) > np.abs(wide) * 2.0**-48)[wide != 0].all() for tie in ties)


def test_the_logarithm_of_torchao_rceil_is_torchs():
    """Ratios 2^k (1 + i 2^-23), all k, i up to 64: ceil(log2) as torch computes it on this CPU."""
    k = torch.arange(-126, 127).double()
    ratio = (torch.exp2(k)[:, None] * (1 + torch.arange(65).double() * 2.0**-23)).to(torch.float32)
    expected = torch.ceil(torch.log2(ratio)).clamp(-127, 127).to(torch.int32) + 127
    x = torch.zeros(ratio.numel(), 32)
    x[:, 0] = ratio.flatten()
    element = nm.Format("ONE", "float", 8, 5, 2, 30)  # any format whose largest value is a power of two times 1.75
    blocks = DIALECTS["torchao_rceil"].blocks(x * element.max, 32, element)
    exact = (blocks.amax / element.max).flatten() == ratio.flatten()
    steps = DIALECTS["torchao_rceil"].steps(blocks, Outer(torch.ones(1), None))
    assert int(exact.sum()) > 15000
    assert torch.equal(steps.scales.flatten()[exact], expected.flatten().to(torch.uint8)[exact])


# ---- known bytes -----------------------------------------------------------------------------------------------------

ZERO_BLOCK = {
    "te": 0x00,
    "fouroversix": 0x00,
    "flashinfer": 0x00,
    "exact": 0x00,
    "fourbit": 0x00,
    "torchao": 0x08,
    "torchao_one_level": 0x08,
    "modelopt": 0x38,
    "quartet_ii": 0x38,
    "quartet_ii_torch": 0x38,
    "qwix": 0x38,
    "compressed_tensors": 0x20,
    "tetrajet_v2": 0x01,
    "flashinfer_46": 0x00,
    "vllm": 0x00,
    "triton_nvfp4": 0x00,
    "mlx_nvfp4": 0x00,
    "mlx_nvfp4_cpu": 0x00,
    "ggml_nvfp4": 0x00,
}


@pytest.mark.parametrize("name", ZERO_BLOCK)
def test_a_zero_block(name: str):
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    x[0, 16:32] = 0
    q = DIALECTS[name].quantize(x)
    assert int(q.scales[0, 1]) == ZERO_BLOCK[name]
    assert torch.all(DIALECTS[name].dequantize(q)[0, 16:32] == 0)


def test_zeros_before_2_15_of_transformer_engine_become_sixes_of_scale_zero():
    x = torch.randn(1, 32, generator=torch.Generator().manual_seed(0))
    x[0, :16] = 0
    q = DIALECTS["te_before_2_15"].quantize(x)
    assert int(q.scales[0, 0]) == 0 and torch.all(q.codes[0, :16] == 7)
    assert torch.all(DIALECTS["te_before_2_15"].dequantize(q)[0, :16] == 0)


@pytest.mark.parametrize("name", NV)
def test_an_all_zero_tensor(name: str):
    q = DIALECTS[name].quantize(torch.zeros(2, 64))
    values = DIALECTS[name].dequantize(q)
    if name in ("torchao", "modelopt", "flashinfer", "flashinfer_exact", "vllm"):
        poisoned = name != "flashinfer_exact"
        assert torch.all(q.scales == (0x7F if poisoned else 0)) and torch.isnan(values).all() == poisoned
    else:
        assert torch.all(values == 0)


UNDERFLOW = {"te": 0x00, "modelopt": 0x01, "torchao": 0x08, "compressed_tensors": 0x20, "exact": 0x00}


@pytest.mark.parametrize("name", UNDERFLOW)
def test_a_block_whose_scale_underflows(name: str):
    """Block maximum 1.7e-6 of the tensor's."""
    x = torch.ones(1, 32)
    x[0, :16] = 1.7e-6 * torch.linspace(-1, 1, 16)
    q = DIALECTS[name].quantize(x)
    assert int(q.scales[0, 0]) == UNDERFLOW[name]
    first = {"te": 15, "exact": 8}.get(name)
    assert first is None or int(q.codes[0, 0]) == first
    assert (DIALECTS[name].dequantize(q)[0, 0] == 0) == (name not in ("modelopt", "torchao"))


def test_fouroversix_does_not_saturate():
    x = torch.ones(1, 32)
    x[0, :5] = 6.4e-6 * torch.tensor([1, -0.97, 0.9, -0.8, 0.7])
    x[0, 5:16] = 0
    ours, theirs = (DIALECTS[name].quantize(x) for name in ("te", "fouroversix_static_6"))
    assert int(ours.scales[0, 0]) == int(theirs.scales[0, 0]) == 0x01
    assert ours.codes[0, :5].tolist() == [7, 15, 7, 15, 7]
    assert theirs.codes[0, :5].tolist() == [8, 8, 8, 8, 7]


def test_seven_becomes_code_eight():
    """A is 2688, so scales are not moved: 7 * 2^-9 has scale 2^-9, is 7 and rounds to 8; below 7 it is 6."""
    x = torch.zeros(1, 32)
    x[0, 16], x[0, 0], x[0, 1] = 2688, 7 * 2.0**-9, -6.875 * 2.0**-9
    q = DIALECTS["fouroversix_static_6"].quantize(x)
    assert int(q.scales[0, 0]) == 0x01 and q.codes[0, :2].tolist() == [8, 15]


def test_ties_of_quartet_ii():
    """Outer 1 and a block maximum of 6: every element is what is rounded. Away from zero, and toward +infinity."""
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    x = torch.cat((ties, -ties, torch.tensor([6.0, 0.0])))[None]
    away, up = (DIALECTS[name].quantize(x, outer=1.0).codes[0].tolist() for name in ("quartet_ii", "quartet_ii_torch"))
    assert away == [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 7, 8]
    assert up == [1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12, 13, 14, 7, 0]


# fl(1e-4 / 6) is above 2^-16, fl(1e-4 / 448) above 2^-23, fl(1e-10 / 448) above 2^-43
ZERO_MX = {
    "ocp_floor": 0x00,
    "triton_up": 0x00,
    "ggml_mxfp4": 0x00,
    "mlx_mx": 0x00,
    "mlx_mxfp4_cpu_before": 0x7F,
    "mlx_mxfp8_cpu_before": 0x7F,
    "deepgemm_mxfp4": 127 - 15,
    "vllm_mxfp4": 0x00,
    "vllm_mxfp8": 0x00,
    "vllm_mxfp8_floor": 0x01,
    "microxcaling": 0x00,
    "quark": 0x00,
    "quark_floor": 127 - 23,
    "quark_ceil": 127 - 23,
}
ZERO_FP8 = {"fourbit_fp8": 1.0, "deepgemm_fp8_ue8m0": 2.0**-22, "vllm_fp8_ue8m0": 2.0**-42}


@pytest.mark.parametrize("name", [*ZERO_MX, *ZERO_FP8])
def test_a_zero_block_of_powers_of_two(name: str):
    q = DIALECTS[name].quantize(torch.zeros(1, 128))
    assert torch.all(q.scales == (ZERO_MX | ZERO_FP8)[name]) and torch.all(q.codes == 0)


def test_scales_of_ggml_between_256_and_448_are_448():
    """Its E4M3 has no codes from 0x78 to 0x7D; below 2^-6 there is none for 8 * 2^-9, and ties go up."""
    ratios = {247.9: 0x77, 248: 0x7E, 256: 0x7E, 400: 0x7E, 7.5 * 2.0**-9: 0x07, 2.0**-6: 0x08, 2.5 * 2.0**-9: 0x03}
    x = torch.zeros(len(ratios), 16)
    x[:, 0] = torch.tensor(list(ratios)) * 6
    assert DIALECTS["ggml_nvfp4"].quantize(x).scales.flatten().tolist() == list(ratios.values())


def test_what_is_too_large_for_a_search_becomes_zero():
    """GGML: 2^30 times the scale 448, beside which every code times 448 has the same error."""
    x = torch.full((1, 16), 448 * 2.0**30)
    q = DIALECTS["ggml_nvfp4"].quantize(x)
    assert int(q.scales) == 0x7E and torch.all(q.codes == 0)
    assert torch.all(DIALECTS["triton_nvfp4"].quantize(x).codes == 7)


def test_mlx_rounds_scales_up_since_4353():
    """b / 6 of 1.414 lies nearer to 1, and of 1.4145 to 2: log2 of them is 0.4998 and 0.5003."""
    x = torch.zeros(2, 32)
    x[:, 0] = torch.tensor([1.414, 1.4145]) * 6
    for name, scales in {"mlx_mx": [128, 128], "mlx_mx_before": [127, 128], "mlx_mxfp4_cpu_before": [127, 128]}.items():
        assert DIALECTS[name].quantize(x).scales.flatten().tolist() == scales
    assert DIALECTS["mlx_mx_before"].quantize(x).codes[0, 0] == 7  # 8.5, saturated


def test_the_number_before_a_quarter_is_a_tie_for_microxcaling():
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 1], x[0, 2] = 6, 0.25 - 2.0**-26, 0.25 - 2.0**-25
    assert DIALECTS["microxcaling"].quantize(x).codes[0, :3].tolist() == [7, 1, 0]
    assert DIALECTS["ocp_floor"].quantize(x).codes[0, :3].tolist() == [7, 0, 0]


def test_rows_of_transformer_engine_have_outer_scales_of_their_own():
    x = TENSORS["normal"] * torch.tensor([1.0, 1e-3, 1e3, 1, 1, 1, 1, 1])[:, None]
    q, rows = DIALECTS["te_row"].quantize(x), [DIALECTS["te"].quantize(row[None]) for row in x]
    assert torch.equal(q.outer, x.abs().amax(-1, keepdim=True))
    assert torch.equal(q.codes, torch.cat([row.codes for row in rows]))
    assert torch.equal(q.scales, torch.cat([row.scales for row in rows]))
    x[2, 5] = NAN  # poisons its row alone
    assert (DIALECTS["te_row"].quantize(x).scales == 0x7F).all(-1).nonzero().flatten().tolist() == [2]


def rounded(scaled: np.ndarray, fmt: nm.Format, rounding: str) -> np.ndarray:
    """Magnitudes of the nearest values by a search in the table, NaN where |scaled| is beyond the largest."""
    sizes = np.unique(np.abs(nm.decode(np.arange(1 << fmt.bits, dtype=np.uint8), fmt).astype(np.float64)))
    sizes = sizes[np.isfinite(sizes)]
    size = np.abs(scaled.astype(np.float64))
    place = np.clip(np.searchsorted(sizes, size, "right"), 1, len(sizes) - 1)
    low, high = sizes[place - 1], sizes[place]
    tie, even = size * 2 == low + high, (place - 1) % 2 == 0
    to_low = {
        "ties to even": even,
        "ties away from zero": np.zeros_like(even),
        "ties toward +infinity": scaled < 0,
        "ties toward zero": np.ones_like(even),
    }
    down = size * 2 < low + high if rounding != "truncated" else size < high
    down |= tie & to_low.get(rounding, np.ones_like(even))
    return np.where(size > fmt.max, np.nan, np.where(down, low, high))


@pytest.mark.parametrize("name", DIALECTS)
def test_elements_are_rounded_as_declared(name: str):
    """Midpoints of the element format, beside its largest value: many stay ties whatever the scale is."""
    d = DIALECTS[name]
    assert d.rounding in ROUNDINGS
    for fmt in (fmt for fmt in d.formats if LAYOUTS[fmt].tile == 1 and LAYOUTS[fmt].element.kind == "float"):
        element, block = LAYOUTS[fmt].element, LAYOUTS[fmt].block
        values = nm.decode(torch.arange(element.max_code + 1), element)
        middle = (values[:-1] + values[1:]) / 2
        middle = torch.cat((middle, -middle, -middle * 1.3))
        middle = torch.nn.functional.pad(middle, (0, -len(middle) % (block - 1))).view(-1, block - 1)
        x = torch.cat((torch.full((len(middle), 1), element.max), middle), 1)
        blocks = d.blocks(x, block, element)
        outer = {"amax": 2688.0, None: 1.0}.get(d.direction, 1.0)
        steps = d.steps(blocks, Outer(torch.full((len(x), 1, 1), outer), None))
        expected = rounded(steps.scaled.numpy(), element, d.rounding)
        judged, made = ~np.isnan(expected), nm.decode(steps.codes, element).numpy()
        assert judged.mean() > 0.5 and np.array_equal(np.abs(made[judged]), expected[judged])
        others = [rounded(steps.scaled.numpy(), element, r) for r in ROUNDINGS if r != d.rounding]
        adaptive = "46" in name or name.startswith("fouroversix")  # by 4 the midpoints are no ties
        assert adaptive or all((other != expected)[judged].any() for other in others)


def test_an_infinity():
    x = torch.ones(1, 32)
    x[0, 0] = INF
    q = DIALECTS["te"].quantize(x)
    assert q.scales.tolist() == [[0x7E, nm.encode(torch.tensor([1 / 6]), nm.E4M3).item()]] and int(q.codes[0, 0]) == 7
    assert DIALECTS["te"].dequantize(q)[0, 0] == INF
    assert float(DIALECTS["compressed_tensors"].quantize(x).outer) == 0
    for name in ("torchao", "modelopt", "flashinfer", "fouroversix", "quartet_ii"):
        assert int(DIALECTS[name].quantize(x).scales[0, 0]) == 0x7F
    one = DIALECTS["torchao_one_level"]
    assert one.dequantize(one.quantize(x))[0, 0] == 2688
    assert DIALECTS["fourbit"].quantize(x).scales.tolist() == [[0x7F, 0x7E]]


def test_a_nan():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    x[1, 20] = NAN
    everywhere = {"te", "te_46", "te_46_fast", "vllm", "torchao", "modelopt", "flashinfer", "fouroversix", "quartet_ii"}
    for name in everywhere:
        assert torch.all(DIALECTS[name].quantize(x).scales == 0x7F), name
    for name in ("torchao_one_level", "compressed_tensors", "qwix", "fourbit", "exact", "triton_nvfp4"):
        assert (DIALECTS[name].quantize(x).scales == 0x7F).nonzero().tolist() == [[1, 1]], name
    for name in ("te_kernel", "te_before_2_15", "app_b", "flashinfer_exact", "tetrajet_v2", "thunderkittens"):
        q = DIALECTS[name].quantize(x)
        assert not torch.any(q.scales == 0x7F) and int(q.codes[1, 20]) == 7, name
    for name in ("flashinfer_46", "flashinfer_46_fast", "mlx_nvfp4"):
        q = DIALECTS[name].quantize(x)
        assert not torch.any(q.scales == 0x7F) and int(q.codes[1, 20]) == 7, name
    q = DIALECTS["mlx_nvfp4_cpu"].quantize(x)
    assert int(q.scales[1, 1]) == 0x7E and int(q.codes[1, 20]) == 0
    q = DIALECTS["ggml_nvfp4"].quantize(x)
    assert int(q.scales[1, 1]) < 0x7E and int(q.codes[1, 20]) == 0
    assert torch.all(DIALECTS["te"].quantize(x).codes == 0)
    assert torch.all(DIALECTS["modelopt"].quantize(x).codes == 7)
    assert float(DIALECTS["compressed_tensors"].quantize(x).outer) == 1.0


def test_tiny_and_huge_tensors_decode_by_the_order_of_products():
    tiny, huge = torch.full((1, 16), 1e-38), torch.full((1, 16), 3.3e38)
    found = {name: [float(d.dequantize(d.quantize(t))[0, 0]) for t in (tiny, huge)] for name, d in DIALECTS.items()}
    assert found["te"][0] == pytest.approx(6.3e-42, rel=1e-2) and found["te"][1] == INF
    assert found["fouroversix_static_6"][1] == INF
    for name in ("torchao", "modelopt", "fourbit", "exact"):
        assert found[name][0] == pytest.approx(1e-38, rel=1e-5) and found[name][1] == pytest.approx(3.3e38, rel=1e-5)
    assert found["compressed_tensors"][0] == 0 and found["compressed_tensors"][1] == pytest.approx(3.3e38, rel=1e-5)


# b, A, and the byte of the formula and of the real quotient
EXAMPLES = [
    ("te", 0.76171875, 1.015625, 0x7B, 0x7A),
    ("tetrajet_v2", 0.76171875, 1.015625, 0x7B, 0x7A),
    ("te_before_2_15_transpose", 1.58548e-05, 1.0390625, 0x03, 0x04),
    ("fouroversix_static_6", 1.58548e-05, 1.0390625, 0x03, 0x04),
]


def examples() -> tuple[torch.Tensor, ...]:
    """The tensors of `EXAMPLES`."""
    x = torch.zeros(len(EXAMPLES), 32)
    for i, (_, b, amax, _, _) in enumerate(EXAMPLES):
        x[i, 0], x[i, 16] = b, amax
    return x.bfloat16().split(1)


@pytest.mark.parametrize(("name", "b", "amax", "byte", "real"), EXAMPLES)
def test_published_examples_of_scale_formulas(name: str, b: float, amax: float, byte: int, real: int):
    x = torch.zeros(1, 32)
    x[0, 0], x[0, 16] = b, amax
    x = x.bfloat16()
    assert int(DIALECTS[name].quantize(x).scales[0, 0]) == byte
    assert int(DIALECTS["exact"].quantize(x).scales[0, 0]) == real


# How often the byte differs from that of the real quotient. Published: all but that of compressed-tensors and
# FlashInfer, whose 2688 / A was counted as one division; with a Python number torch makes it (1 / A) * 2688.
COUNTS = {
    "te": 338,
    "te_kernel": 338,
    "app_b": 95,
    "fouroversix_static_6": 95,
    "torchao": 106,
    "modelopt": 117,
    "tetrajet_v2": 168,
    "quartet_ii_torch": 493,
    "exact": 0,
}


@pytest.mark.parametrize("name", COUNTS)
def test_all_pairs_of_bfloat16_maxima(name: str):
    """Mantissas of b and A, 20 gaps of exponents, b <= A: 319,552 pairs."""
    bits = torch.arange(128) / 128 + 1
    amax = bits.view(-1, 1, 1)
    b = bits.view(1, -1, 1) * torch.exp2(-torch.arange(20.0)).view(1, 1, -1)
    amax, b = (t[b <= amax] for t in torch.broadcast_tensors(amax, b))
    assert len(b) == 319552
    d = DIALECTS[name]
    blocks = d.blocks(b[:, None], 16, nm.E2M1)
    scope = amax[:, None, None]
    steps = d.steps(blocks, Outer(d.outer_of(scope, torch.float32), scope))
    scales = nm.encode(steps.ratio.flatten(), nm.E4M3)  # the formula alone: no least scale, no other byte for zero
    real = nm.encode(b.double() * 448 / amax.double(), nm.E4M3)
    assert int((scales != real).sum()) == COUNTS[name]


SIXTH = np.float32(1) / np.float32(6)
# the scale before rounding from b and A, and the element before rounding from x, s and A, in numpy's float32
RATIOS = {
    "te": lambda b, a: b * (np.float32(2688) / a * SIXTH),
    "te_before_2_15": lambda b, a: b * SIXTH * (np.float32(2688) / a),
    "app_b": lambda b, a: b / np.float32(6) * (np.float32(2688) / a),
    "torchao": lambda b, a: b / np.float32(6) / (a / np.float32(2688)),
    "modelopt": lambda b, a: b / (np.float32(6) * (a / np.float32(2688))),
    "compressed_tensors": lambda b, a: np.float32(1) / a * np.float32(2688) * (b / np.float32(6)),
    "flashinfer": lambda b, a: np.float32(1) / a * np.float32(2688) * (b * SIXTH),
    "flashinfer_exact": lambda b, a: b * (np.float32(1) / a * np.float32(2688) * SIXTH),
    "thunderkittens": lambda b, a: b / np.float32(6) * (np.float32(1) / (a / np.float32(2688))),
    "quartet_ii": lambda b, a: b / np.float32(6) / (a / np.float32(448) / np.float32(6)),
    "tetrajet_v2": lambda b, a: b / (a / np.float32(448) / np.float32(6)) / np.float32(6),
}
SCALED = {
    "te": lambda x, s, a: x * (np.float32(1) / (s * (np.float32(1) / (np.float32(2688) / a)))),
    "te_before_2_15": lambda x, s, a: x * (np.float32(2688) / a / s),
    "torchao": lambda x, s, a: x * (np.float32(1) / (a / np.float32(2688)) / s),
    "modelopt": lambda x, s, a: x / (s * (a / np.float32(2688))),
    "compressed_tensors": lambda x, s, a: x / (s / (np.float32(1) / a * np.float32(2688))),
    "flashinfer": lambda x, s, a: x * (np.float32(1) / (s * (np.float32(1) / (np.float32(1) / a * np.float32(2688))))),
    "thunderkittens": lambda x, s, a: x * (np.float32(1) / (s * (a / np.float32(2688)))),
    "quartet_ii": lambda x, s, a: x / (s * (a / np.float32(448) / np.float32(6))),
}


@pytest.mark.parametrize("name", RATIOS)
def test_values_before_rounding_in_numpy(name: str):
    """A million elements, one tensor amax per row: ratio and scaled elements, every bit."""
    g = torch.Generator().manual_seed(9)
    x = torch.randn(4096, 256, generator=g).bfloat16().float()
    amax = x.abs().amax(-1)[:, None, None]
    d = DIALECTS[name]
    blocks = d.blocks(x, 16, nm.E2M1)
    steps = d.steps(blocks, Outer(d.outer_of(amax, torch.float32), amax))
    ratio = RATIOS[name](blocks.amax.numpy(), amax.numpy())
    assert np.array_equal(steps.ratio.numpy(), ratio)
    if name in SCALED:
        scaled = SCALED[name](blocks.x.numpy(), nm.decode(steps.scales, nm.E4M3).numpy(), amax.numpy())
        assert np.array_equal(steps.scaled.numpy(), scaled)


# ---- fourbit's own ---------------------------------------------------------------------------------------------------

OWN = {
    "fourbit": (nm.NVFP4, "nvfp4"),
    "fourbit_static_6": (nm.NVFP4, "static_6"),
    "fourbit_46": (nm.NVFP4_46, "four_over_six"),
    "rceil": (nm.MXFP8, "rceil"),
    "ocp_floor": (nm.MXFP8, "floor"),
}


@pytest.mark.parametrize("name", OWN)
def test_fourbits_own_rules(name: str):
    fmt, rule = OWN[name]
    layout = fmt if fmt.name in LAYOUTS else "NVFP4"
    poisoned = TENSORS["normal"].clone()
    poisoned[0, 3], poisoned[3, 70], poisoned[4, 4] = NAN, INF, -INF
    subnormal = TENSORS["normal"] * 1e-39
    for x in (
        *TENSORS.values(),
        poisoned,
        subnormal,
        TENSORS["normal"].bfloat16(),
        torch.zeros(0, 64),
        torch.ones(3, 70),
    ):
        ours, d = nm.quantize(x, fmt, rule=rule), DIALECTS[name]
        q = d.quantize(x, layout)
        assert torch.equal(q.scales, ours.scales) and torch.equal(q.codes, ours.codes)
        assert (q.outer is None) == (ours.outer is None) and (q.outer is None or torch.equal(q.outer, ours.outer))
        assert torch.equal(torch.nan_to_num(d.dequantize(q)), torch.nan_to_num(ours.dequantize()))
    if fmt is nm.NVFP4:  # with an outer that was given
        outer = torch.full((8, 1), 2.0**-9) * torch.arange(1, 9)[:, None]
        ours, q = (
            nm.quantize(x := TENSORS["normal"], fmt, rule=rule, outer=outer),
            DIALECTS[name].quantize(x, outer=outer),
        )
        assert torch.equal(q.scales, ours.scales) and torch.equal(q.codes, ours.codes)


@pytest.mark.parametrize("rule", ["app_b", "torchao"])
def test_rules_of_others_in_quantize(rule: str):
    """`nm.quantize(rule=...)`: the dialect's codes and scales on finite tensors that are not all zero."""
    for which, x in (TENSORS | {str(i): pair for i, pair in enumerate(examples())}).items():
        if which != "zero":
            ours, q = nm.quantize(x, nm.NVFP4, rule=rule), DIALECTS[rule].quantize(x)
            assert torch.equal(ours.scales, q.scales) and torch.equal(ours.codes, q.codes)
            found = nm.scales.identify(x, ours.codes, ours.scales, ours.outer)
            theirs = found.matches + found.matches_given_outer + found.matches_other_outer
            assert rule in (found.matches if rule == "torchao" else theirs)


@pytest.mark.parametrize("which", TENSORS)
def test_the_rule_exact_rounds_real_quotients_of_the_stored_outer(which: str):
    x = TENSORS[which]
    for outer in ("tensor", "row"):
        q = nm.quantize(x, nm.NVFP4, rule="exact", outer=outer)
        for row, start in itertools.product(range(8), (0, 64)):
            part = slice(start, start + 16)
            factor = Fraction(float(q.outer[row if outer == "row" else 0, 0]))
            amax = Fraction(float(x[row, part].abs().max()))
            scale = nearest_fraction(amax / (6 * factor), 1.0, nm.E4M3)
            step = Fraction(nm.E4M3.value(scale)) * factor
            codes = [
                nearest_fraction(abs(Fraction(v)) / step if step else Fraction(0), v, nm.E2M1)
                for v in x[row, part].tolist()
            ]
            assert int(q.scales[row, start // 16]) == scale and q.codes[row, part].tolist() == codes


# ---- which are the same function -------------------------------------------------------------------------------------

# Codes and scales are the same on every stated input; what is stored beside them or how it is decoded is not.
SAME = {
    frozenset({"te_before_2_15_transpose", "app_b"}),  # App. B is that kernel's formula; 1 / S_enc is stored, not A
}


def stated_inputs(block: int) -> list[torch.Tensor]:
    poisoned, infinite = (TENSORS["normal"].clone() for _ in range(2))
    poisoned[0, 3], infinite[0, 3] = NAN, INF
    g = torch.Generator().manual_seed(3)
    large = torch.randn(256, 512, generator=g).bfloat16()
    return [*TENSORS.values(), poisoned, infinite, large, large.float() * 1e-38, *examples(), edges(448.0), edges(6.0)]


@pytest.mark.parametrize("fmt", ["NVFP4", "MXFP8", "MXFP4", "FP8_1X128"])
def test_any_two_dialects_differ_on_a_stated_input(fmt: str):
    names = [name for name, d in DIALECTS.items() if fmt in d.formats]
    made = {name: [DIALECTS[name].quantize(x, fmt) for x in stated_inputs(16)] for name in names}
    alike = set()
    for a, b in itertools.combinations(names, 2):
        pairs = zip(made[a], made[b], strict=True)
        if all(torch.equal(p.codes, q.codes) and torch.equal(p.scales, q.scales) for p, q in pairs):
            alike.add(frozenset({a, b}))
    assert alike == (SAME if fmt == "NVFP4" else set())
    for a, b in map(sorted, alike):
        differ = [
            not torch.equal(DIALECTS[a].dequantize(p), DIALECTS[b].dequantize(q))
            for p, q in zip(made[a], made[b], strict=True)
        ]
        assert any(differ)


# ---- shapes and bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIALECTS)
def test_axes_ragged_blocks_and_empty_tensors(name: str):
    d = DIALECTS[name]
    x = torch.randn(5, 70, 3, generator=torch.Generator().manual_seed(1))
    q = d.quantize(x, axis=1)
    block = LAYOUTS[d.formats[0]].block
    assert q.codes.shape == x.shape and q.scales.shape == (5, -(-70 // block), 3)
    moved = d.quantize(x.movedim(1, -1))
    assert torch.equal(q.codes, moved.codes.movedim(-1, 1)) and torch.equal(q.scales, moved.scales.movedim(-1, 1))
    assert torch.equal(d.dequantize(q), d.dequantize(moved).movedim(-1, 1))
    empty = d.quantize(torch.zeros(0, 64))
    assert empty.codes.shape == (0, 64) and empty.scales.shape == (0, -(-64 // block))
    assert d.dequantize(empty).shape == (0, 64)
    line = d.quantize(torch.ones(40).numpy())
    assert line.codes.shape == (40,)


def test_a_run_has_its_own_outer():
    x = torch.randn(3, 300, generator=torch.Generator().manual_seed(1))
    x[:, 128:256] *= 1000
    d = DIALECTS["tetrajet_v2"]
    q = d.quantize(x)
    assert q.outer is not None and q.outer.shape == (3, 3)
    again = d.quantize(x, outer=q.outer)
    assert torch.equal(again.codes, q.codes) and torch.equal(again.scales, q.scales)
    part = d.quantize(x[:, 128:256].contiguous())
    assert torch.equal(part.codes, q.codes[:, 128:256]) and torch.equal(part.outer, q.outer[:, 1:2])


def test_bad_input():
    d, x = DIALECTS["torchao"], torch.ones(2, 32)
    with pytest.raises(TypeError, match=r"x has dtype torch\.int64"):
        d.quantize(torch.ones(2, 32, dtype=torch.int64))
    with pytest.raises(ValueError, match="torchao makes NVFP4"):
        d.quantize(x, "MXFP8")
    with pytest.raises(ValueError, match="fmt='FP8'"):
        d.quantize(x, "FP8")
    with pytest.raises(ValueError, match="axis=2"):
        d.quantize(x, axis=2)
    with pytest.raises(TypeError, match=r"outer has dtype torch\.float64: pass float32"):
        d.quantize(x, outer=torch.ones(1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"outer has shape \(2, 2\)"):
        d.quantize(x, outer=torch.ones(2, 2))
    with pytest.raises(ValueError, match="qwix has one level of scales"):
        DIALECTS["qwix"].quantize(x, outer=1.0)
