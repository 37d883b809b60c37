"""Dialects against the quantizers themselves, where they install from PyPI and run on a CPU.

Contract: codes, scale bytes, stored outer and decoded values of torchao, ModelOpt, compressed-tensors, fouroversix,
qwix, MLX on a CPU and GGML's Python are those of the dialects of their names, on random float32 and bfloat16 data,
ties, zero blocks and tensors, -0, tiny and huge tensors, an outlier, NaN and infinities. Bitwise; a NaN scale byte may
have a sign, and a code whose element is NaN before it is rounded depends on NaN's payload and is not compared, nor is
what an entry's "not claimed" names. Skipped, each by itself, where a quantizer is not installed: `pip install
.[peers]`, and fouroversix with SKIP_CUDA_BUILD=1.
"""

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import numerics as nm
from numerics import dialects_nv
from numerics.dialects_core import LAYOUTS, Quantized


def peer(name: str) -> ModuleType:
    """The module, or a skip that says what is missing, which may be what the peer itself lacks."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name.split('.')[0]} cannot be imported: {error}")


def tensors() -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(11)
    x = torch.randn(64, 256, generator=g)
    scales = torch.exp2(torch.randint(-3, 3, (64, 1), generator=g).float())
    made = {
        "ties": torch.randint(-48, 49, (64, 256), generator=g) / 8 * scales,
        "wide": x * torch.exp2(torch.randint(-20, 20, (64, 256), generator=g).float()),
        "zero": torch.zeros(4, 64),
        "outlier": x.clone(),
        "zeros and small rows": x.clone(),
        "a NaN": x.clone(),
        "infinities": x.clone(),
    }
    made["outlier"][5, 7] = 3e5
    small = made["zeros and small rows"]
    small[0], small[1, :32], small[4, ::3] = 0, 0, -0.0
    small[2], small[3] = small[2] * 1e-6, small[3] * -1e-9
    made["a NaN"][3, 5] = float("nan")
    made["infinities"][3, 5], made["infinities"][7, 100] = float("inf"), -float("inf")
    made |= {f"{factor:g}": x * factor for factor in (1, 1e-38, 1e-36, 1e-30, 1e-20, 1e-10, 1e10, 1e30, 1e37)}
    return made


TENSORS = tensors()
CASES = [(which, dtype) for which in TENSORS for dtype in (torch.float32, torch.bfloat16)]
cases = pytest.mark.parametrize(("which", "dtype"), CASES, ids=lambda v: str(v).removeprefix("torch."))


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def assert_bytes(
    name: str, x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, fmt: str = "NVFP4", where: Any = True
) -> Quantized:
    """Codes and scale bytes are the dialect's; `where`: a mask over blocks to compare."""
    d, layout = nm.scales.DIALECTS[name], LAYOUTS[fmt]
    q = d.quantize(x, fmt)
    scales = scales.view(torch.uint8).reshape(q.scales.shape)
    if fmt == "NVFP4":
        scales = torch.where(scales == 0xFF, 0x7F, scales)
    where = torch.as_tensor(where).expand(scales.shape)
    assert torch.equal(q.scales[where], scales[where])
    blocks = d.blocks(x, layout.block, layout.element)
    judged = ~torch.isnan(d.steps(blocks, d.own_outer(blocks)).scaled).flatten(-2)
    judged &= where.repeat_interleave(layout.block, -1)
    assert torch.equal(q.codes[judged], codes.reshape(x.shape)[judged])
    return q


def assert_values(name: str, q: Quantized, codes: torch.Tensor, values: torch.Tensor) -> None:
    """Decoded values are the dialect's, where codes are (a NaN's may not be) and values are numbers."""
    ours = nm.scales.DIALECTS[name].dequantize(q)
    judged = ~torch.isnan(values) & (q.codes == codes)
    assert torch.equal(ours[judged], values[judged])


def assert_outer(q: Quantized, outer: torch.Tensor) -> None:
    assert q.outer is not None
    assert torch.equal(torch.nan_to_num(q.outer.flatten()), torch.nan_to_num(outer.float().flatten()))


# ---- torchao ---------------------------------------------------------------------------------------------------------


@cases
def test_torchao(which: str, dtype: torch.dtype):
    ao, x = peer("torchao.prototype.mx_formats.nvfp4_tensor"), TENSORS[which].to(dtype)
    scales, packed = ao.nvfp4_quantize(x)
    assert_bytes("torchao_one_level", x, unpacked(packed), scales)
    outer = ao.per_tensor_amax_to_scale(x.abs().max())
    scales, packed = ao.nvfp4_quantize(x, per_tensor_scale=outer)
    q = assert_bytes("torchao", x, unpacked(packed), scales)
    assert_outer(q, outer)
    decoded = ao.NVFP4Tensor(packed, scales, 16, torch.float32, per_tensor_scale=outer).dequantize(torch.float32)
    assert_values("torchao", q, unpacked(packed), decoded)


@cases
@pytest.mark.parametrize("fmt", ["MXFP8", "MXFP4"])
@pytest.mark.parametrize(("mode", "name"), [("FLOOR", "torchao_floor"), ("EVEN", "even"), ("RCEIL", "torchao_rceil")])
def test_torchao_mx(mode: str, name: str, fmt: str, which: str, dtype: torch.dtype):
    ao, x = peer("torchao.prototype.mx_formats.mx_tensor"), TENSORS[which].to(dtype)
    element = torch.float8_e4m3fn if fmt == "MXFP8" else torch.float4_e2m1fn_x2
    scales, codes = ao.to_mx(x, element, 32, ao.ScaleCalculationMode[mode])
    assert_bytes(name, x, unpacked(codes) if fmt == "MXFP4" else codes.view(torch.uint8), scales, fmt)


# ---- ModelOpt --------------------------------------------------------------------------------------------------------


@cases
def test_modelopt(which: str, dtype: torch.dtype):
    module, x = peer("modelopt.torch.quantization.qtensor.nvfp4_tensor"), TENSORS[which].to(dtype)
    tensor, scales, outer = module.NVFP4QTensor.quantize(x.clone(), 16)
    q = assert_bytes("modelopt", x, unpacked(tensor._quantized_data), scales)
    assert_outer(q, outer)
    decoded = tensor.dequantize(torch.float32, scale=scales, double_scale=outer, block_sizes={-1: 16})
    assert_values("modelopt", q, unpacked(tensor._quantized_data), decoded)


# ---- compressed-tensors ----------------------------------------------------------------------------------------------


def arguments(bits: int, group: int) -> Any:
    scale = torch.float8_e4m3fn if group == 16 else torch.uint8
    return peer("compressed_tensors.quantization").QuantizationArgs(
        num_bits=bits,
        type="float",
        strategy="tensor_group" if group == 16 else "group",
        symmetric=True,
        group_size=group,
        scale_dtype=scale,
        zp_dtype=scale,
    )


@cases
def test_compressed_tensors(which: str, dtype: torch.dtype):
    helpers, x = peer("compressed_tensors.quantization.utils.helpers"), TENSORS[which].to(dtype)
    forward = peer("compressed_tensors.quantization.lifecycle.forward")
    packing = peer("compressed_tensors.compressors.nvfp4.helpers")
    args, blocks = arguments(4, 16), x.unflatten(-1, (-1, 16))
    outer = helpers.generate_gparam(x.min(), x.max())
    scales, _ = helpers.calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, global_scale=outer)
    packed = packing.quantize_and_pack_fp4(x, scales, global_scale=outer, group_size=16)
    q = assert_bytes("compressed_tensors", x, unpacked(packed), scales.to(torch.float8_e4m3fn))
    assert_outer(q, outer)
    values = forward.quantize(x.float(), scales.float(), None, args, global_scale=outer)
    decoded = forward.dequantize(values, scales.float(), None, args, global_scale=outer)
    assert_values("compressed_tensors", q, unpacked(packed), decoded)


@cases
@pytest.mark.parametrize(("fmt", "bits"), [("MXFP4", 4), ("MXFP8", 8)])
def test_compressed_tensors_mx(fmt: str, bits: int, which: str, dtype: torch.dtype):
    helpers, x = peer("compressed_tensors.quantization.utils.helpers"), TENSORS[which].to(dtype)
    forward = peer("compressed_tensors.quantization.lifecycle.forward")
    args, blocks = arguments(bits, 32), x.unflatten(-1, (-1, 32))
    scales, _ = helpers.calculate_qparams(blocks.amin(-1), blocks.amax(-1), args)
    codes = nm.encode(forward.quantize(x, scales, None, args).float(), LAYOUTS[fmt].element)
    largest = blocks.abs().amax(-1).float()
    claimed = torch.isfinite(largest) & ((largest == 0) | (largest > 2.0**-118))
    assert_bytes("compressed_tensors_mx", x, codes, nm.encode(scales.float(), nm.E8M0), fmt, claimed)


# ---- fouroversix -----------------------------------------------------------------------------------------------------


@cases
@pytest.mark.parametrize("rule", ["mse", "mae", "abs_max", "static_6", "static_4"])
def test_fouroversix(rule: str, which: str, dtype: torch.dtype):
    """The order of torch.sum is not claimed: blocks are left out where it could decide between 4 and 6."""
    reference, x = peer("fouroversix.quantize.pytorch.reference"), TENSORS[which].to(dtype)
    chosen = reference.ScaleRule(rule)
    packed, scales, amax = reference.quantize_to_fp4(x, scale_rule=chosen, use_blackwell_scale_layout=False)
    name = "fouroversix" if rule == "mse" else f"fouroversix_{rule}"
    claimed = True if rule.startswith("static") or rule == "abs_max" else ~close(x, rule)
    assert_outer(assert_bytes(name, x, unpacked(packed), scales, where=claimed), amax)


def close(x: torch.Tensor, rule: str) -> torch.Tensor:
    """Blocks whose errors with 4 and 6 differ by so little that the order of summation may decide.

    A sum of 16 positive numbers in any order is within 15 * 2^-24 of its size: two of them, 2^-19 with room.
    """
    d = nm.scales.DIALECTS["fouroversix"]
    blocks = d.blocks(x, 16, nm.E2M1)
    outer, sums = d.own_outer(blocks).stored, []
    for expand in (1.0, 1.5):
        steps = dialects_nv.fouroversix_candidate(blocks, outer, 6.0, 256.0, expand)
        gaps = dialects_nv.fouroversix_gaps(blocks, steps, outer).double()
        sums.append((gaps.abs() if rule == "mae" else gaps * gaps).sum(-1))
    return (sums[0] - sums[1]).abs() <= 2.0**-19 * torch.maximum(*sums)


@cases
def test_fouroversix_mx(which: str, dtype: torch.dtype):
    """1.0.5 makes 0 / 0 of a block whose scale byte is 0, which later code makes 0; NaN and infinity: not claimed."""
    reference, x = peer("fouroversix.quantize.pytorch.reference"), TENSORS[which].to(dtype)
    packed, scales, _ = reference.quantize_to_fp4(
        x,
        scale_rule=reference.ScaleRule.static_6,
        fp4_format=reference.DataType.mxfp4,
        use_blackwell_scale_layout=False,
    )
    scales = scales.view(torch.uint8).reshape(x.shape[0], -1)
    claimed = torch.isfinite(x.unflatten(-1, (-1, 32)).abs().amax(-1)) & (scales != 0)
    assert_bytes("fouroversix_mx", x, unpacked(packed), scales, "MXFP4", claimed)


# ---- qwix ------------------------------------------------------------------------------------------------------------


@cases
def test_qwix(which: str, dtype: torch.dtype):
    """Its compiler's maximum does not always see a NaN: blocks that hold one are left out."""
    jnp, qarray = peer("jax.numpy"), peer("qwix._src.core.qarray")
    x = TENSORS[which].to(dtype)
    array = jnp.asarray(x.float().numpy()).astype(jnp.bfloat16 if dtype == torch.bfloat16 else jnp.float32)
    how = qarray.HowToQuantize(qtype="nvfp4", channelwise_axes=(0,), tiled_axes={1: 16})
    made = qarray.quantize(array, how)
    codes = torch.from_numpy(np.array(np.asarray(made.qvalue).view(np.uint8)))
    scales = nm.encode(torch.from_numpy(np.array(made.scale.astype(jnp.float32))), nm.E4M3)
    claimed = ~torch.isnan(x.unflatten(-1, (-1, 16)).abs().amax(-1))
    q = assert_bytes("qwix", x, codes, scales, where=claimed)
    decoded = torch.from_numpy(np.array(qarray.dequantize(made).astype(jnp.float32)))
    if which != "a NaN":
        ours = nm.scales.DIALECTS["qwix"].dequantize(q).to(dtype).float()
        assert torch.equal(ours, decoded)


# ---- MLX and GGML ----------------------------------------------------------------------------------------------------


def ordinary(least: float) -> Any:
    """Blocks of 32 that are zeros or have a finite maximum above `least`: mask over blocks."""

    def mask(x: torch.Tensor) -> torch.Tensor:
        largest = x.unflatten(-1, (-1, 32)).float().abs().amax(-1)
        return torch.isfinite(largest) & ((largest == 0) | (largest > least))

    return mask


@cases
@pytest.mark.parametrize("mode", ["nvfp4", "mxfp4", "mxfp8"])
def test_mlx_on_a_cpu(mode: str, which: str, dtype: torch.dtype):
    """NaN, infinities and scales below 2^-126 are not claimed of MX, whose rule #4353 changed after 0.32.0."""
    mlx, x = peer("mlx.core"), TENSORS[which].to(dtype)
    if mode != "nvfp4" and mlx.__version__ != "0.32.0":
        pytest.skip(f"mlx {mlx.__version__} rounds scales of MX up: install 0.32.0")
    array = mlx.array(x.float().numpy()).astype(mlx.bfloat16 if dtype == torch.bfloat16 else mlx.float32)
    packed, scales = mlx.quantize(array, mode=mode, stream=mlx.cpu)
    codes, scales = (torch.from_numpy(np.array(t).view(np.uint8)) for t in (packed, scales))
    codes = codes if mode == "mxfp8" else unpacked(codes)
    if mode == "nvfp4":
        assert_bytes("mlx_nvfp4_cpu", x, codes, scales)
    else:
        assert_bytes(f"mlx_{mode}_cpu_before", x, codes, scales, mode.upper(), ordinary(2.0**-117)(x))


@cases
def test_ggml(which: str, dtype: torch.dtype):
    """Its file keeps the first half of a block in the low nibbles."""
    quants, x = peer("gguf.quants"), TENSORS[which].to(dtype)
    with np.errstate(all="ignore"):
        made = torch.from_numpy(quants.MXFP4.quantize_blocks(x.float().numpy().reshape(-1, 32)).copy())
    codes = torch.cat((made[:, 1:] & 15, made[:, 1:] >> 4), -1)
    assert_bytes("ggml_mxfp4", x, codes, made[:, :1], "MXFP4", ordinary(2.0**-125)(x))
