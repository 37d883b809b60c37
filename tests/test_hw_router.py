"""The kernel of the router's gradient, in the interpreter and compiled.

Contract: `hw.kernel_router.router_gradient` is `numerics.ops.router_gradient`: a transform of defined bits, then a sum
of FP32 products in any order. Oracles: the interval that `hw.bounds` derives for such sums, and, where a row of the
experts has one entry that is not zero, the transform's own bits.
"""

import pytest
import torch
from kernel_cases import assert_bits, data
from kernel_cases import device as device
from torch import Tensor

import numerics as nm
from hw import bounds
from hw.cases import DATA
from hw.cases_seam import expert_paths

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_router import router_gradient

# numpy, which interprets kernels, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

ROTATED = next(path for path in expert_paths() if path.wire.signs is not None)
SIGNS = ROTATED.wire.signs


def check(g: Tensor, decoded: Tensor, slots: Tensor, rotated: bool, there: torch.device) -> None:
    signs = SIGNS.to(there) if rotated else None
    found = router_gradient(g.to(there), decoded.to(there), slots.to(there), signs).cpu()
    interval = bounds.router({"g": g, "decoded": decoded, "slots": slots}, ROTATED if rotated else None)
    assert found.dtype == torch.float32 and found.shape == slots.shape
    assert bool(interval.holds(found).all())


def drawn(tokens: int, top: int, rows: int) -> Tensor:
    return torch.randint(rows, (tokens, top), generator=torch.Generator().manual_seed(tokens + top))


@pytest.mark.every(3)
@pytest.mark.parametrize("name", DATA)
def test_every_kind_of_data(name: str, device: torch.device) -> None:
    """BF16 and FP32 gradients, one to four experts a token."""
    g, decoded = data(name, 9, 160), data("normal", 11, 160, seed=1)
    for top in (1, 2, 3, 4):
        check(g, decoded, drawn(9, top, 11), True, device)
    check(g.to(torch.bfloat16), decoded, drawn(9, 2, 11), True, device)
    check(g.to(torch.bfloat16), data(name, 11, 160, seed=2), drawn(9, 2, 11), False, device)


def test_programs_and_ragged_rows(device: torch.device) -> None:
    """A row that two programs share, widths that are no whole blocks, few tokens, parts that are not contiguous."""
    for width in (1, 45, 4097):
        check(data("normal", 3, width), data("normal", 7, width, seed=1), drawn(3, 2, 7), False, device)
    g, decoded, slots = data("normal", 3, 4128), data("normal", 7, 4128, seed=1), drawn(3, 2, 7)
    for tokens in (3, 1, 0):
        check(g[:tokens], decoded, slots[:tokens], True, device)
    check(g.mT.contiguous().mT, decoded.mT.contiguous().mT, slots.mT.contiguous().mT, True, device)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["normal", "tails", "huge", "denormals"])
def test_the_transform_has_its_bits(name: str, device: torch.device) -> None:
    """One entry 1 in each of 96 rows picks one value of the transform; all else is zeros."""
    g, slots = data(name, 2, 96).clamp(-1e37, 1e37), torch.arange(96).expand(2, 96)
    found = torch.cat(
        [
            router_gradient(g.to(device), torch.eye(96, device=device), part.to(device), SIGNS.to(device)).cpu()
            for part in slots.split(8, 1)
        ],
        dim=1,
    )
    assert_bits(found + 0.0, nm.hadamard(g, 32, SIGNS) + 0.0)


def test_what_it_does_not_support(device: torch.device) -> None:
    g, slots = torch.zeros(1, 64, device=device), torch.zeros(1, 1, dtype=torch.int64, device=device)
    with pytest.raises(NotImplementedError, match="signs has length 64: this kernel knows Hadamard transforms of 32"):
        router_gradient(g, g, slots, torch.ones(64))
