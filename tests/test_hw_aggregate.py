"""The kernel that combines experts' rows, in the interpreter and compiled.

Contract: `hw.kernel_aggregate.aggregate` is the first result of `numerics.ops.aggregate`, bit for bit, signs of zeros
too; any NaN equals any NaN. Oracle: the emulator.
"""

import pytest
import torch
from kernel_cases import assert_bits, data
from kernel_cases import device as device
from torch import Tensor

import numerics as nm
from hw.cases import DATA
from numerics import ops

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw.kernel_aggregate import aggregate

# numpy, which interprets kernels, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

SIGNS = nm.hadamard_signs(32, (3, 1))
PAYLOADS = (nm.MXS2F6, nm.MXFP8, torch.bfloat16, torch.float32)


def check(payload: ops.Operand, slots: Tensor, weights: Tensor | None, signs: Tensor | None, there: torch.device):
    """The kernel's output on a device against the emulator's on the CPU."""
    expected, _ = ops.aggregate(payload, slots, weights, ops.Wire(None, signs))
    coded = isinstance(payload, nm.BlockTensor)
    rows, scales = (payload.codes, payload.scales.to(there)) if coded else (payload, None)
    weights, signs = (None if x is None else x.to(there) for x in (weights, signs))
    found = aggregate(rows.to(there), slots.to(there), weights, signs, scales, payload.fmt.element if coded else None)
    assert_bits(found, expected)


def made(x: Tensor, kind: nm.BlockFormat | torch.dtype) -> ops.Operand:
    return x.to(kind) if isinstance(kind, torch.dtype) else nm.quantize(x, kind)


def drawn(tokens: int, top: int, rows: int) -> tuple[Tensor, Tensor]:
    """Slots, some of them more than once, and weights of both signs, a token's zero."""
    draw = torch.Generator().manual_seed(tokens + top)
    weights = torch.randn(tokens, top, generator=draw)
    weights[1:2] = 0.0
    return torch.randint(rows, (tokens, top), generator=draw), weights


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", PAYLOADS, ids=lambda kind: getattr(kind, "name", str(kind)))
@pytest.mark.parametrize("name", DATA)
def test_every_kind_of_data(name: str, kind: nm.BlockFormat | torch.dtype, device: torch.device) -> None:
    """Rotated or not, weighted or not; one program, the last rows of which are empty, for one to four experts."""
    payload = made(data(name, 11, 160), kind)
    for top in (1, 2, 3, 4):
        slots, weights = drawn(9, top, 11)
        check(payload, slots, weights, SIGNS, device)
    check(payload, slots, None, SIGNS, device)
    check(payload, slots, weights, None, device)
    check(payload, slots, None, None, device)


@pytest.mark.parametrize("kind", PAYLOADS, ids=lambda kind: getattr(kind, "name", str(kind)))
def test_programs_and_ragged_rows(kind: nm.BlockFormat | torch.dtype, device: torch.device) -> None:
    """Two programs along both axes, the last of them partly empty; widths that are no whole blocks; few tokens."""
    slots, weights = drawn(5, 2, 7)
    check(made(data("normal", 7, 33 * 32), kind), slots, weights, SIGNS, device)
    for width in (1, 45, 1030):
        check(made(data("normal", 7, width), kind), slots, weights, None, device)
    for tokens in (0, 1):
        check(made(data("normal", 7, 64), kind), slots[:tokens], weights[:tokens], SIGNS, device)


@pytest.mark.parametrize("fmt", [nm.MXS2F6, nm.MXFP8], ids=lambda kind: getattr(kind, "name", str(kind)))
def test_every_code_under_scales_at_the_ends(fmt: nm.BlockFormat, device: torch.device) -> None:
    """Saturation beyond FLT_MAX, subnormal products, NaN codes and scales; a weight brings huge values into reach."""
    codes = torch.arange(256, dtype=torch.uint8).expand(9, 256).contiguous()
    scales = torch.tensor([0, 1, 2, 120, 127, 247, 253, 254, 255], dtype=torch.uint8)[:, None].expand(9, 8).contiguous()
    payload = nm.BlockTensor(codes, scales, None, fmt, "rceil", 1)
    slots = torch.arange(9)[:, None]
    for weight in (None, 0.3, -(2.0**-30), 2.0**100):
        check(payload, slots, None if weight is None else torch.full((9, 1), weight), None, device)


def test_the_rounding_to_bf16(device: torch.device) -> None:
    """Every BF16 pattern with bits behind it on either side of a tie, NaN whose bits would carry over among them."""
    behind = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int32)
    bits = (torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32) << 16)[:, None] | behind
    check(bits.view(torch.float32).view(96, 4096), torch.arange(96)[:, None], None, None, device)


def test_the_order_of_experts_is_that_of_the_sum(device: torch.device) -> None:
    x = data("normal", 4, 64)
    payload = torch.cat([x, 2.0**-20 * data("normal", 4, 64, seed=1), -x, data("tails", 4, 64, seed=2)])
    slots = torch.arange(16).view(4, 4).mT  # not contiguous
    weights = torch.tensor([65536.0, 1.0, 65536.0, 1.0]).expand(4, 4)
    for signs in (None, SIGNS):
        check(payload, slots, weights, signs, device)
        check(payload, slots.flip(1), weights, signs, device)


def test_parts_that_are_not_contiguous(device: torch.device) -> None:
    q, (slots, weights) = nm.quantize(data("normal", 64, 12).mT, nm.MXS2F6), drawn(6, 2, 12)
    transposed = q.derived(codes=q.codes.mT.contiguous().mT, scales=q.scales.mT.contiguous().mT)
    check(transposed, slots, weights.mT.contiguous().mT, SIGNS, device)


def test_what_it_does_not_support(device: torch.device) -> None:
    codes, scales = torch.zeros(2, 64, dtype=torch.uint8, device=device), torch.zeros(2, 2, dtype=torch.uint8)
    slots = torch.zeros(1, 1, dtype=torch.int64, device=device)
    with pytest.raises(
        NotImplementedError, match=r"signs has length 16: this kernel inverts Hadamard transforms of 32"
    ):
        aggregate(codes.to(torch.float32), slots, None, torch.ones(16))
    with pytest.raises(NotImplementedError, match=r"element=E5M2: this kernel decodes S2F6 and E4M3"):
        aggregate(codes, slots, None, None, scales, nm.E5M2)
