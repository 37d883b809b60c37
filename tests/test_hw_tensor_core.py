"""The Triton kernel that asks the tensor cores: indices, formats, instructions, arguments.

Contract: d = a @ b.T + c of codes for any M and N, chained over K; compiled for an H200 it is wgmma of the format and
nothing beside it adds. Oracles: sums of small integers, which every order computes exactly, in Triton's interpreter;
the PTX that the compiler makes ahead of time for sm_90. Bitwise. What the instruction computes: tests/test_products.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import numerics as nm
from hw.device import INTERPRET

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")
from hw import tensor_core

ROOT = Path(tensor_core.__file__).resolve().parent.parent
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def whole(shape: tuple[int, ...], seed: int, most: int = 3) -> torch.Tensor:
    """Small integers, float32."""
    return torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


# Triton's interpreter multiplies bfloat16 patterns as integers: only a GPU can be asked
@pytest.mark.parametrize("fmt", [f for f in tensor_core.FORMATS if DEVICE.type == "cuda" or f is not nm.BF16])
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 32), (3, 70, 96), (130, 65, 256), (1, 1, 32)])
def test_sums_of_small_integers(fmt: nm.Format, m: int, n: int, k: int) -> None:
    a, b, c = whole((m, k), 1), whole((n, k), 2), whole((m, n), 3, 1000)
    x, y = (nm.encode(t, fmt).to(DEVICE) for t in (a, b))
    d, _ = tensor_core.product(x, y, None, fmt)
    assert torch.equal(d.cpu(), a @ b.T)
    d, made = tensor_core.product(x, y, c.to(DEVICE), fmt)
    assert torch.equal(d.cpu(), a @ b.T + c) and (made == "interpreted") == (os.environ.get(INTERPRET) == "1")


def test_codes_as_tensors() -> None:
    """Every code of the narrow formats, and TF32 codes, as the numbers that the emulator decodes."""
    for fmt in (nm.E4M3, nm.E5M2, nm.BF16, nm.FP16):
        codes = torch.arange(1 << fmt.bits).to(torch.int32).to(fmt.code_dtype)
        assert torch.equal(
            tensor_core.operand(codes, fmt).float().nan_to_num(9e9), nm.decode(codes, fmt).nan_to_num(9e9)
        )
    codes = torch.arange(0, 1 << 19, 97, dtype=torch.int32)
    assert torch.equal(tensor_core.operand(codes, nm.TF32).nan_to_num(9e9), nm.decode(codes, nm.TF32).nan_to_num(9e9))


def test_blocks_of_k() -> None:
    assert [tensor_core.block_k(nm.E4M3, k) for k in (32, 96, 128, 4096)] == [32, 32, 128, 128]
    assert [tensor_core.block_k(nm.BF16, k) for k in (16, 48, 64, 4096)] == [16, 16, 64, 64]
    assert [tensor_core.block_k(nm.TF32, k) for k in (16, 48, 32, 4096)] == [16, 16, 32, 32]


@pytest.mark.parametrize(
    ("ptx", "words"),
    [
        (
            "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%f1}, %rd1;" * 2,
            "wgmma m64n64k32 f32.e4m3.e4m3",
        ),
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1};", "mma.sync m16n8k16 f32.bf16.bf16.f32"),
        ("tcgen05.mma.cta_group::1.kind::f8f6f4 [ %r1 + 0 ], %rd1;", "tcgen05.mma cta_group::1 kind::f8f6f4"),
        ("fma.rn.f32 %f1, %f2, %f3, %f1;", "none"),
        ("wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 {%f1};\nadd.f32 %f1, %f2, %f3;",
         "wgmma m64n64k32 f32.e4m3.e4m3, add.f32"),
    ],
)  # fmt: skip
def test_the_instruction_is_read_off_the_ptx(ptx: str, words: str) -> None:
    assert tensor_core.instruction(ptx) == words


COMPILE = """
from hw import tensor_core
for fmt in tensor_core.FORMATS:
    for k in (3 * tensor_core.least_k(fmt), 4096):
        for has_c in (False, True):
            print(fmt.name, tensor_core.instruction(tensor_core.build(fmt, k, has_c, (9, 0)).asm["ptx"]))
"""


@pytest.mark.exhaustive
def test_every_format_is_wgmma_alone_on_an_h200(tmp_path: Path) -> None:
    """Ahead of time, in a process where triton compiles; an addition beside wgmma would be in the words."""
    env = {name: value for name, value in os.environ.items() if name != INTERPRET}
    env |= {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", COMPILE], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr[-2000:]
    kinds = {"E4M3": "k32 f32.e4m3", "E5M2": "k32 f32.e5m2", "BF16": "k16 f32.bf16", "FP16": "k16 f32.f16"}
    expected = []
    for fmt in tensor_core.FORMATS:
        kind = kinds.get(fmt.name, "k8 f32.tf32")
        expected += [f"{fmt.name} wgmma m64n64{kind}.{kind.split('.')[1]}"] * 4
    assert run.stdout.splitlines() == expected


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"fmt": nm.E2M1}, ValueError, r"fmt=E2M1.*: tl.dot takes E4M3, E5M2, BF16, FP16, TF32"),
        ({"fmt": nm.BF16}, TypeError, "a has dtype torch.uint8: pass codes of BF16, torch.uint16"),
        (
            {"a": torch.zeros(4, 48, dtype=torch.uint8)},
            ValueError,
            r"a has shape \(4, 48\).*K a multiple of 32 for E4M3",
        ),
        ({"b": torch.zeros(4, 96, dtype=torch.uint8)}, ValueError, r"a has shape \(4, 64\) and b \(4, 96\)"),
        ({"b": torch.zeros(0, 64, dtype=torch.uint8)}, ValueError, r"b \(0, 64\)"),
        ({"c": torch.zeros(4, 5)}, ValueError, r"c is torch.float32 \(4, 5\): pass float32 \(4, 4\)"),
        ({"c": torch.zeros(4, 4, dtype=torch.float64)}, ValueError, "c is torch.float64"),
    ],
)
def test_what_cannot_be_multiplied(change: dict, error: type[Exception], message: str) -> None:
    codes = torch.zeros(4, 64, dtype=torch.uint8)
    good = {"a": codes, "b": codes, "c": None, "fmt": nm.E4M3}
    with pytest.raises(error, match=re.compile(message)):
        tensor_core.product(**(good | change))
