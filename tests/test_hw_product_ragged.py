"""Products along the rows of ragged experts from codes, in the interpreter and compiled, by both branches.

Contract: `hw.kernel_product_ragged.columns_by_columns` sums what `numerics.matmul` does: bit for bit where every order
of sums is exact, else within `matmul_bound`; rows of one expert take no part in another's sums. Oracle: "exact". The
native branch runs in the interpreter with `interpret_products`, and on a Blackwell.
"""

from itertools import pairwise

import pytest
import torch
from kernel_cases import data
from kernel_cases import device as device
from product_samples import GROUPS, bound, exact_operand, expected, on
from product_samples import branch as branch
from torch import Tensor

import numerics as nm

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_product_ragged import columns_by_columns

# numpy, which interprets kernels, tells of NaN
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")


def product(a: nm.BlockTensor, b: nm.BlockTensor, groups: tuple[int, ...], there: torch.device) -> Tensor:
    parts = [x.contiguous() for q in (on(a, there), on(b, there)) for x in (q.codes, q.scales)]
    return columns_by_columns(*parts, groups).cpu()


def operands(groups: tuple[int, ...], columns: int, width: int) -> tuple[nm.BlockTensor, nm.BlockTensor]:
    rows = groups[-1]
    return (
        exact_operand(nm.MXFP8, rows, columns, axis=0, groups=groups),
        exact_operand(nm.MXFP8, rows, width, axis=0, groups=groups, seed=1),
    )


@pytest.mark.parametrize(
    "groups, columns, width",
    [
        (GROUPS, 144, 272),  # ragged in every direction
        ((0, 1), 16, 16),  # one row of one expert
        ((0, 128, 384), 128, 256),  # whole tiles
        ((0, 31, 63, 96, 225, 225), 16, 48),  # ends within and at the ends of blocks; an atom and a row
        ((0, 0, 300), 272, 32),
    ],
    ids=str,
)
def test_exact_sums(groups: tuple[int, ...], columns: int, width: int, branch: str, device: torch.device) -> None:
    a, b = operands(groups, columns, width)
    assert torch.equal(product(a, b, groups, device), expected(a.mT, b.mT, groups))


@pytest.mark.parametrize("name", ["normal", "tails", "row scales"])
def test_sums_of_data(name: str, branch: str, device: torch.device) -> None:
    rows = GROUPS[-1]
    a = nm.quantize(data(name, rows, 144), nm.MXFP8, 0, groups=GROUPS)
    b = nm.quantize(data(name, rows, 48, seed=1), nm.MXFP8, 0, groups=GROUPS)
    found, limit = product(a, b, GROUPS, device).double(), bound(a.mT, b.mT, GROUPS, branch, device)
    assert bool(((found - expected(a.mT, b.mT, GROUPS).double()).abs() <= limit).all())
    assert bool((limit < found.abs().amax()).any())


@pytest.mark.parametrize("operand", [0, 1])
def test_rows_beyond_an_expert_take_no_part(operand: int, branch: str, device: torch.device) -> None:
    """NaN codes, and NaN scales, of the expert before and after; they reach all of their own results of that column."""
    groups = (0, 40, 170, 171, 200)
    pair = list(operands(groups, 32, 48))
    clean = expected(pair[0].mT, pair[1].mT, groups)
    starts = [0]
    for i, j in pairwise(groups):
        starts.append(starts[-1] + -(-(j - i) // 32))
    for expert, (i, j) in enumerate(pairwise(groups)):
        codes, scales = pair[operand].codes.clone(), pair[operand].scales.clone()
        codes[i:j, 0] = 0x7F
        scales[starts[expert] : starts[expert + 1], 1] = 0xFF
        dirty = torch.zeros_like(clean, dtype=torch.bool)
        dirty[expert].transpose(0, operand)[:2] = True
        both = [q.derived(codes=codes, scales=scales) if q is pair[operand] else q for q in pair]
        found = product(both[0], both[1], groups, device)
        assert torch.equal(found.isnan(), dirty)
        assert torch.equal(found[~dirty], clean[~dirty])


def test_nothing(branch: str, device: torch.device) -> None:
    """Experts without rows have zeros; no columns have no results."""
    for groups, columns, width in (((0, 0, 0), 16, 32), ((0, 3), 0, 16), ((0, 3), 16, 0)):
        a, b = operands(groups, columns, width)
        assert torch.equal(product(a, b, groups, device), torch.zeros(len(groups) - 1, columns, width))
