"""Rows of ragged experts times their matrices from codes, in the interpreter and compiled, by both branches.

Contract: `hw.kernel_product.rows_by_matrices` sums what `numerics.matmul` does: bit for bit where every order of sums
is exact, else within `matmul_bound`; what belongs to one expert, or to one row, reaches no other. Oracle: "exact". The
native branch runs in the interpreter with `interpret_products`, and on a Blackwell.
"""

import pytest
import torch
from kernel_cases import data
from kernel_cases import device as device
from product_samples import GROUPS, bound, exact_operand, expected, on
from product_samples import branch as branch
from torch import Tensor

import numerics as nm
from hw.packed import packed_bytes

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_product import rows_by_matrices

# numpy, which interprets kernels, tells of NaN
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

FORMATS = pytest.mark.parametrize("fmt", [nm.NVFP4, nm.MXFP8], ids=lambda fmt: fmt.name)
KINDS = pytest.mark.parametrize("name", ["normal", "tails", "row scales"])


def product(
    a: nm.BlockTensor, b: nm.BlockTensor, groups: tuple[int, ...], there: torch.device, axis: int = 2
) -> Tensor:
    """Of the kernel; with `axis` 1, b (E, K, N)."""
    parts = []
    for q in (on(a, there), on(b, there)):
        codes = packed_bytes(q) if q.fmt.element is nm.E2M1 else q.codes
        parts += [codes.contiguous(), q.scales.contiguous()]
    return rows_by_matrices(*parts, groups, a.fmt.element.name, axis).cpu()


SHAPES = [
    (GROUPS, 144, 320),  # ragged in every direction, two steps of the contraction and more
    ((0, 1), 16, 32),  # one row of one expert
    ((0, 128, 384), 256, 256),  # whole tiles
    ((0, 5, 5, 9), 129, 544),  # one column beyond a tile; a few values beyond two steps
    (tuple(range(0, 1280, 127)), 40, 64),  # more tiles of rows than share columns
]


@pytest.mark.every(4)
@FORMATS
@pytest.mark.parametrize("groups, columns, width", SHAPES, ids=str)
def test_exact_sums(
    groups: tuple[int, ...], columns: int, width: int, fmt: nm.BlockFormat, branch: str, device: torch.device
) -> None:
    a, b = exact_operand(fmt, groups[-1], width), exact_operand(fmt, len(groups) - 1, columns, width, seed=1)
    assert torch.equal(product(a, b, groups, device), expected(a, b, groups))


@pytest.mark.parametrize(
    "groups, columns, width", [(g, -(-n // 16) * 16, k) for g, n, k in SHAPES] + [((0, 3, 7), 48, 80)], ids=str
)
def test_matrices_with_blocks_along_axis_1(
    groups: tuple[int, ...], columns: int, width: int, branch: str, device: torch.device
) -> None:
    """As dgrad has them; 80 ends within a block."""
    a = exact_operand(nm.MXFP8, groups[-1], width)
    b = exact_operand(nm.MXFP8, len(groups) - 1, width, columns, axis=1, seed=1)
    assert torch.equal(product(a, b, groups, device, 1), expected(a, b.mT, groups))


@pytest.mark.parametrize("width", [16, 48, 144])
def test_a_short_last_block(width: int, branch: str, device: torch.device) -> None:
    a, b = exact_operand(nm.MXFP8, 9, width), exact_operand(nm.MXFP8, 2, 16, width, seed=1)
    assert torch.equal(product(a, b, (0, 4, 9), device), expected(a, b, (0, 4, 9)))


@FORMATS
@KINDS
def test_sums_of_data(name: str, fmt: nm.BlockFormat, branch: str, device: torch.device) -> None:
    a = nm.quantize(data(name, GROUPS[-1], 320), fmt, outer=None)
    b = nm.quantize(data(name, len(GROUPS) - 1, 136, 320, seed=1), fmt, outer=None)
    found, limit = product(a, b, GROUPS, device).double(), bound(a, b, GROUPS, branch, device)
    assert bool(((found - expected(a, b, GROUPS).double()).abs() <= limit).all())
    assert bool((limit < found.abs().amax()).any())


@FORMATS
def test_nan_stays_where_it_belongs(fmt: nm.BlockFormat, branch: str, device: torch.device) -> None:
    """In its row of a, in its column of b and in no other expert's rows, wherever tiles, boxes and atoms end."""
    a, b = exact_operand(fmt, GROUPS[-1], 96), exact_operand(fmt, len(GROUPS) - 1, 136, 96, seed=1)
    clean = expected(a, b, GROUPS)
    for row, expert, column in ((130, 1, 135), (129, 3, 0), (131, 2, 127)):
        sa, sb = a.scales.clone(), b.scales.clone()
        sa[row, -1] = sb[expert, column, 0] = 0xFF if fmt is nm.MXFP8 else 0x7F
        dirty = torch.zeros_like(clean, dtype=torch.bool)
        dirty[row], dirty[GROUPS[expert] : GROUPS[expert + 1], column] = True, True
        found = product(a.derived(scales=sa), b.derived(scales=sb), GROUPS, device)
        assert torch.equal(found.isnan(), dirty)
        assert torch.equal(found[~dirty], clean[~dirty])


def test_codes_beyond_the_contraction_take_no_part(branch: str, device: torch.device) -> None:
    """The next matrix of E4M3 NaN begins where a box of this one's rows goes on."""
    a, b = exact_operand(nm.MXFP8, 7, 80), exact_operand(nm.MXFP8, 3, 80, 32, axis=1, seed=1)
    codes = b.codes.clone()
    codes[1] = 0x7F
    b = b.derived(codes=codes)
    found = product(a, b, (0, 3, 3, 7), device, 1)
    assert torch.equal(found, expected(a, b.mT, (0, 3, 3, 7))) and not bool(found.isnan().any())


@pytest.mark.parametrize("rows, columns, width", [(0, 32, 64), (5, 0, 64), (5, 32, 0)])
def test_nothing(rows: int, columns: int, width: int, branch: str, device: torch.device) -> None:
    for fmt in (nm.NVFP4, nm.MXFP8):
        a, b = exact_operand(fmt, rows, width), exact_operand(fmt, 2, columns, width)
        assert torch.equal(product(a, b, (0, 0, rows), device), torch.zeros(rows, columns))
