"""What the tests of block-scaled products share: both branches of a kernel, and operands whose sums are exact."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import numerics as nm
from hw.device import is_blackwell
from numerics.blocks import made
from numerics.partition import Partition

GROUPS = (0, 0, 130, 131, 131, 150)  # two experts without rows, one of them first; one with one row; two tiles

# codes whose values, and their products under these scales, are small multiples of 1/16: sums of a few hundred of them
# are exact in FP32 in any order, and within what every tensor core keeps
CODES = {"E2M1": range(16), "E4M3": [nm.encode(torch.tensor(float(v)), nm.E4M3).item() for v in range(-6, 7)]}
SCALES = {"E4M3": [0x30, 0x38, 0x40], "E8M0": [126, 127, 128]}  # 1/2, 1, 2


@pytest.fixture(params=["portable", "native"])
def branch(request: pytest.FixtureRequest, device: torch.device) -> Iterator[str]:
    """The branch of a kernel that runs inside: "native" in the interpreter, with its product put right, or on a
    Blackwell."""
    from hw.interpret_products import block_scaled_products
    from hw.launches import forced

    native = request.param == "native"
    if native and device.type == "cuda" and not is_blackwell(device):
        pytest.skip("not run: the chip has no block-scaled products")
    with forced(native):
        if native and device.type == "cpu":
            with block_scaled_products():
                yield request.param
        else:
            yield request.param


def exact_operand(
    fmt: nm.BlockFormat, *shape: int, axis: int = -1, groups: tuple[int, ...] | None = None, seed: int = 0
) -> nm.BlockTensor:
    """Random codes and scales of which every sum is exact."""
    rng, axis = np.random.default_rng(seed), axis % len(shape)
    assert fmt.scale is not None
    codes = torch.from_numpy(rng.choice(list(CODES[fmt.element.name]), shape).astype(np.uint8))
    size = list(shape)
    size[axis] = Partition.of(shape[axis], fmt.block, groups).blocks
    scales = torch.from_numpy(rng.choice(SCALES[fmt.scale.name], size).astype(np.uint8))
    return made(codes, scales, None, fmt, fmt.rule.name, axis, groups, None)


def on(q: nm.BlockTensor, device: torch.device) -> nm.BlockTensor:
    return q.derived(codes=q.codes.to(device), scales=q.scales.to(device))


def expected(a: nm.BlockTensor, b: nm.BlockTensor, groups: tuple[int, ...]) -> Tensor:
    """The exact sums, rounded once."""
    return nm.matmul(a, b, "exact", groups=groups)


def bound(a: nm.BlockTensor, b: nm.BlockTensor, groups: tuple[int, ...], branch: str, there: torch.device) -> Tensor:
    """How far sums may be from these: FP32 sums of any order, cut or rounded, or those of the chip."""
    chip = "blackwell_nvfp4" if a.fmt.element is nm.E2M1 else "blackwell_mxfp8"
    return nm.matmul_bound(a, b, chip if branch == "native" and there.type == "cuda" else "library", groups=groups)
