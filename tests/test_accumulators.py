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
