"""Contract: every tensor-core row of the table gives the hardware's bits.

Oracle: dot products that GPUs computed (Khattak and Mikaitis, arXiv 2512.07004, and an H200's wgmma), in a folder
beside the checkout: where that is absent, those tests are skipped.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import numerics as nm

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"

MODELS = [row.name for row in nm.ACCUMULATORS.values() if row.steps]
KINDS = {
    **{
        f"{gpu}_{fmt}": f"hopper_{kind}" for gpu in ("H100", "H200") for fmt, kind in (("e4m3", "fp8"), ("e5m2", "fp8"))
    },
    **{f"{gpu}_{fmt}": f"hopper_{fmt}" for gpu in ("H100", "H200") for fmt in ("bf16", "fp16", "tf32")},
    **{f"B200_{fmt}": f"blackwell_{fmt}" for fmt in ("bf16", "fp16", "tf32")},
    "A100_bf16": "ampere_bf16",
    "L40S_e4m3": "ada_fp8",
    "B200_e4m3": "mma_sync_fp8_as_fp16",
}


def _loaded(name: str) -> dict[str, np.ndarray]:
    if not (DATA / name).exists():
        pytest.skip(f"{name} is not beside the checkout")
    with np.load(DATA / name, allow_pickle=False) as stored:
        return dict(stored)


def _floats(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.view(np.float32).copy())


def _wrong(found: torch.Tensor, expected: np.ndarray) -> int:
    return int((found.numpy().view(np.uint32) != expected).sum())


def test_dot_products_of_five_gpus():
    """All of them; FP8 of H100 and H200 ran without c."""
    stored, seen = _loaded("tensor_core_vectors.npz"), 0
    for key in sorted({name.rpartition("_")[0] for name in stored}):
        a, b, c = (_floats(stored[f"{key}_{part}"]) for part in "abc")
        kind = KINDS[key]
        c = torch.zeros_like(c) if kind == "hopper_fp8" else c
        if kind.endswith("fp8") or "e4m3" in key or "e5m2" in key:
            dtype = torch.float8_e4m3fn if "e4m3" in key else torch.float8_e5m2
            a, b = a.to(dtype), b.to(dtype)
        found = nm.matmul(a[:, None], b[:, None], kind, c[:, None, None]).flatten()
        assert _wrong(found, stored[f"{key}_d"]) == 0, key
        seen += len(found)
    assert seen == 32500


def test_products_of_an_h200():
    stored = _loaded("h200_wgmma.npz")
    seen = 0
    for key in sorted({name.rpartition("_")[0] for name in stored}):
        fmt = key.split("_")[0]
        a, b = (torch.from_numpy(stored[f"{key}_{part}"]) for part in "ab")
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
        a, b = a.view(dtype[fmt]), b.view(dtype[fmt])
        kind = f"hopper_{fmt if fmt[0] in 'bf' else 'fp8'}"
        found = nm.matmul(a, b.mT.contiguous(), kind, _floats(stored[f"{key}_c"]))
        assert _wrong(found, stored[f"{key}_d"]) == 0, key
        seen += found.numel()
    assert seen == len(stored) // 4 * 4096


SANITY = {
    **dict.fromkeys(["volta_fp16", "hopper_fp8", "ada_fp8"], 0.0),
    **dict.fromkeys(["ampere_fp16", "ampere_bf16", "ampere_tf32"], -0.5),
    **{f"{gpu}_{fmt}": -0.75 for gpu in ("hopper", "blackwell") for fmt in ("fp16", "bf16", "tf32")},
    "blackwell_fp8": -0.75,
    "exact": -0.875,
}


@pytest.mark.parametrize("kind", SANITY)
def test_the_sum_that_tells_architectures_apart(kind: str):
    """2^23 - 2^23 - 1/2 - 1/4 - 1/8, the first as c (MMA-Sim, Table 8)."""
    a = torch.tensor([[-(2.0**15), -0.5, -0.25, -0.125]])
    b = torch.tensor([[2.0**8, 1.0, 1.0, 1.0]])
    if nm.ACCUMULATORS[kind].steps:
        assert float(nm.matmul(a, b, kind, torch.tensor([[2.0**23]]))) == SANITY[kind]
    if nm.ACCUMULATORS[kind].length != 4:
        terms = torch.tensor([2.0**15, -(2.0**15), -0.5, -0.25, -0.125])[None]
        assert float(nm.matmul(terms, torch.tensor([[2.0**8, 2.0**8, 1.0, 1.0, 1.0]]), kind)) == SANITY[kind]


def test_the_same_sum_in_blocks():
    """MXFP8: one block, -3/4. NVFP4: groups of their own scales, 2^16 x 128, -2^16 x 128, and -7/8 kept whole."""
    one = torch.full((1, 1), 127, dtype=torch.uint8)
    values = torch.zeros(2, 1, 32)
    values[0, 0, :5], values[1, 0, :5] = torch.tensor([[2.0**15, -(2.0**15), -0.5, -0.25, -0.125], [256, 256, 1, 1, 1]])
    fmt = nm.MXFP8_E5M2
    a, b = (nm.BlockTensor(nm.encode(x, nm.E5M2), one, None, fmt, fmt.rule.name, 1) for x in values)
    assert float(nm.matmul(a, b, "blackwell_mxfp8")) == -0.75
    values = torch.zeros(2, 1, 64)
    values[0, 0, :8], values[1, 0, :8], values[0, 0, 16:24], values[1, 0, 16:24] = 4.0, 4.0, -4.0, 4.0
    values[0, 0, 32:35], values[1, 0, 32:35] = torch.tensor([[-0.5, -0.5, -0.5], [1.0, 0.5, 0.5]])
    values[1, 0, 34] = 0.0
    values[0, 0, 35], values[1, 0, 35] = -0.5, 0.5  # -1/2 - 1/4 - 1/4 x 1/2 needs a scale of its own
    scale = nm.encode(torch.tensor([[256.0, 256.0, 0.5, 0.0]]), nm.E4M3)
    a, b = (nm.BlockTensor(nm.encode(x, nm.E2M1), scale, None, nm.NVFP4, "nvfp4", 1) for x in values)
    exact = float(nm.matmul(a, b))
    assert -0.5 < exact < 0 and float(nm.matmul(a, b, "blackwell_nvfp4")) == exact


ORDERED = ["ampere_bf16", "hopper_bf16", "blackwell_bf16", "ampere_tf32", "hopper_tf32", "blackwell_tf32"]


@pytest.mark.parametrize("kind", ORDERED)
def test_a_zero_sets_the_least_alignment(kind: str):
    """With c = 0 all terms are cut to multiples of q = 2^(e_zero - F), however small they are: L - 1 products of 3/4 q
    vanish, where q / 2 would keep enough of them to lift the first product to 2^-149. FP8 and FP16 products are never
    that small, so of those rows the exponent cannot be seen."""
    row = nm.ACCUMULATORS[kind]
    unit, lacks = 2.0 ** (row.zero_exponent - row.fraction_bits + 80), row.length // 4
    a = torch.full((1, row.length), 0.75 * unit)
    a[0, 0] = 2.0 ** (-149 + 80) - lacks * unit
    b = torch.full_like(a, 2.0**-80)
    assert float(nm.matmul(a, b, kind)) == 0
    a[0, 1:] = unit
    assert float(nm.matmul(a, b, kind)) == 2.0**-149


def test_a_subnormal_c_has_the_least_normal_exponent():
    """Beside c = 2^-149, of exponent -126, sixteen products of 3 x 2^-152 count 2^-151 each; 24 x 2^-151 without."""
    a, b = torch.full((1, 16), 1.5 * 2.0**-75), torch.full((1, 16), 2.0**-76)
    assert float(nm.matmul(a, b, "hopper_bf16", torch.tensor([[2.0**-149]]))) == 2.0**-149 * (1 + 4)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_step_of_the_largest_significands_does_not_overflow(kind: str, sign: float):
    row = nm.ACCUMULATORS[kind]
    fmt = row.operands[0]
    element = fmt.element if isinstance(fmt, nm.BlockFormat) else fmt
    value = 1.5 if element is nm.E2M1 else 2 - 2.0**-element.mantissa_bits
    if element is nm.E4M3:
        value = 1.875
    a, b = torch.full((1, row.length), value), torch.full((1, row.length), sign * value)
    if isinstance(fmt, nm.BlockFormat):
        scales = nm.encode(torch.ones(1, row.length // fmt.block), fmt.scale)
        a, b = (nm.BlockTensor(nm.encode(x, element), scales, None, fmt, fmt.rule.name, 1) for x in (a, b))
    exact = sign * value**2 * row.length
    assert abs(float(nm.matmul(a, b, kind)) - exact) <= abs(exact) * 2.0**-row.output.mantissa_bits


def test_mma_sync_sums_every_other_pair_first():
    """Of 32 products those with k % 4 in {0, 1}; the vectors of a B200 agree with any halves."""
    a, b = torch.zeros(1, 32), torch.zeros(1, 32)
    a[0, 0], b[0, 0] = 256.0, 256.0  # the first half, of k % 4 = 0: 2^16
    a[0, 2], b[0, 2] = 2.0**-6, 2.0**-6  # the second: 2^-12 below what a register of 2^16 keeps of a term
    a[0, 1], b[0, 1] = -256.0, 256.0
    assert float(nm.matmul(a, b, "mma_sync_fp8_as_fp16")) == 2.0**-12  # the first half cancels before
    a[0, 1], a[0, 3], b[0, 3] = 0.0, -256.0, 256.0
    assert float(nm.matmul(a, b, "mma_sync_fp8_as_fp16")) == 0  # now in the second half, where 2^-12 is cut


def _example(kind: str, rows: int, k: int, seed: int) -> torch.Tensor | nm.BlockTensor:
    """Random values that an accumulator takes, zeros among them."""
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(seed))
    x[:, ::5] = 0
    (fmt, *_) = nm.ACCUMULATORS[kind].operands or (nm.BF16,)
    return nm.quantize(x, fmt, outer=None) if isinstance(fmt, nm.BlockFormat) else nm.round_to(x, fmt)


@pytest.mark.parametrize("kind", MODELS)
def test_tiles_batches_and_groups_do_not_matter(kind: str):
    """A result larger than a tile, in one piece, by rows, as a batch, by expert, along cut contractions."""
    a, b = _example(kind, 70, 192, 1), _example(kind, 300, 192, 2)
    c = torch.randn(70, 300, generator=torch.Generator().manual_seed(3))
    whole = nm.matmul(a, b, kind, c)
    assert torch.equal(nm.matmul(_rows(a, 31, 33), b, kind, c[31:33]), whole[31:33])
    assert torch.equal(nm.matmul(a, _rows(b, 290, 300), kind, c[:, 290:]), whole[:, 290:])
    stacked = a.view(7, 10, 192) if isinstance(a, torch.Tensor) else a.derived(
        codes=a.codes.view(7, 10, -1), scales=a.scales.view(7, 10, -1), axis=2
    )  # fmt: skip
    assert torch.equal(nm.matmul(stacked, b, kind, c.view(7, 10, 300)).flatten(0, 1), whole)
    experts = b.view(3, 100, 192) if isinstance(b, torch.Tensor) else b.derived(
        codes=b.codes.view(3, 100, -1), scales=b.scales.view(3, 100, -1), axis=2
    )  # fmt: skip
    grouped = nm.matmul(a, experts, kind, c[:, :100], groups=(0, 20, 20, 70))
    assert torch.equal(grouped[:20], whole[:20, :100])
    parts = [nm.matmul(_rows(a, 20, 70), _rows(b, 200, 300), kind, c[20:, :100])]
    assert torch.equal(grouped[20:], parts[0])


def test_groups_along_the_contraction_start_steps_anew():
    a, b = _example("hopper_fp8", 6, 75, 4), _example("hopper_fp8", 5, 75, 5)
    c = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(6))
    found = nm.matmul(a, b, "hopper_fp8", c, groups=(0, 40, 40, 75))
    for e, (i, j) in enumerate(((0, 40), (40, 40), (40, 75))):
        assert torch.equal(found[e], nm.matmul(a[:, i:j], b[:, i:j], "hopper_fp8", c[e]))
    assert torch.equal(found[1], c[1])  # no step, no rounding


def _rows(x: torch.Tensor | nm.BlockTensor, i: int, j: int) -> torch.Tensor | nm.BlockTensor:
    return x[i:j] if isinstance(x, torch.Tensor) else x.rows(torch.arange(i, j))


def test_outer_scales_stay_outside_and_c_follows():
    """As an epilogue does it: fl(fl(sum x fl(outer x outer)) + c)."""
    x, w = (torch.randn(4, 96, generator=torch.Generator().manual_seed(s)) for s in (7, 8))
    a, b = nm.quantize(x, nm.NVFP4, outer="row"), nm.quantize(w, nm.NVFP4)
    bare = [nm.BlockTensor(q.codes, q.scales, None, q.fmt, q.rule, q.axis) for q in (a, b)]
    inner = nm.matmul(*bare, "blackwell_nvfp4")
    assert torch.equal(nm.matmul(a, b, "blackwell_nvfp4", torch.ones(4)), inner * (a.outer * b.outer) + 1.0)


def test_what_is_not_taken_is_named_with_what_takes_it():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(9))
    fp8, q, mx = nm.round_to(x, nm.E4M3), nm.quantize(x, nm.NVFP4), nm.quantize(x, nm.MXFP8)
    odd = fp8.clone()
    odd[2, 3] = 1.0625 + 2.0**-20
    cases = [
        (ValueError, (fp8, odd, "hopper_fp8"), {}, r"b\[2, 3\] is 1.0625.*: hopper_fp8 takes values of E4M3"),
        (ValueError, (q, q, "hopper_fp8"), {}, "a is a BlockTensor of NVFP4: .*; NVFP4 is taken by .*blackwell_nvfp4"),
        (ValueError, (q, mx, "blackwell_nvfp4"), {}, "b is a BlockTensor of MXFP8: blackwell_nvfp4 takes NVFP4; MXFP8"),
        (TypeError, (fp8, q, "blackwell_nvfp4"), {}, "a is a plain torch.float32 tensor: .* takes blocks of NVFP4"),
        (TypeError, (fp8.to(torch.float8_e4m3fn), fp8, "hopper_bf16"), {}, "a is torch.float8_e4m3fn: pass float32"),
        (ValueError, (fp8, fp8, "hopper_fp8"), {"promote": 48}, "promote=48: hopper_fp8 takes steps of 32 products"),
        (ValueError, (fp8, fp8, "exact"), {"promote": 32}, "promote=32: an exact sum has no order"),
        (ValueError, (fp8, fp8, "library"), {"splits": 2}, "splits=2: the library's order is its own"),
        (ValueError, (fp8, fp8, "fp32"), {"splits": 0}, "splits=0: pass a number of parts"),
        (TypeError, (fp8, fp8, "fp32"), {"promote": 2.0}, "promote is 2.0"),
    ]  # fmt: skip
    for error, arguments, options, message in cases:
        with pytest.raises(error, match=message):
            nm.matmul(*arguments, **options)
    tokens = nm.quantize(x.mT.contiguous(), nm.MXFP8, axis=0)
    moving = nm.BlockTensor(tokens.codes, tokens.scales, torch.rand(64, 1), nm.MXFP8, tokens.rule, 0).mT
    with pytest.raises(ValueError, match="a has an outer scale that varies along the contraction"):
        nm.matmul(moving, mx, "blackwell_mxfp8")


def test_every_row_says_where_it_comes_from():
    for name, row in nm.ACCUMULATORS.items():
        assert name == row.name and row.source and row.hardware
        if row.steps:
            assert row.source.startswith(("vectors: ", "model: ")) and row.length % row.group == 0
            assert (row.rule == "groups") == (row.group > 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", MODELS)
def test_a_gpu_gives_the_same_bits(kind: str):
    a, b = _example(kind, 70, 320, 10), _example(kind, 90, 320, 11)
    c = torch.randn(70, 90, generator=torch.Generator().manual_seed(12))
    c[0, :4] = torch.tensor([torch.nan, torch.inf, 3e38, -(2.0**-149)])
    on_gpu = [x.cuda() if isinstance(x, torch.Tensor) else x.derived(codes=x.codes.cuda(), scales=x.scales.cuda())
              for x in (a, b)]  # fmt: skip
    found, expected = nm.matmul(*on_gpu, kind, c.cuda()).cpu(), nm.matmul(a, b, kind, c)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize("name", [name for name, row in nm.ACCUMULATORS.items() if row.takes_plain])
def test_only_the_librarys_product_is_differentiable(name: str) -> None:
    """Operands that ask for a gradient are multiplied all the same."""
    x = torch.arange(1.0, 65.0).remainder(8).view(2, 32)
    asks = x.clone().requires_grad_()
    found = nm.matmul(asks, asks, name, c=torch.ones(2, 2, requires_grad=True))
    assert found.requires_grad == (name == "library")
    assert torch.equal(found.detach(), nm.matmul(x, x, name, c=torch.ones(2, 2)))
