"""Contract: every accumulator gives the bits of its scalar twin, whatever the codes, scales and c.

Oracle: `numerics.oracle_matmul`, in Fractions, from codes. Random codes of every format with zeros, subnormals, NaN and
infinity among them, scales over their whole range, terms that cancel, c of every kind; chains, promotion and splits.
"""

import math
import struct

import pytest
import torch

import numerics as nm
from numerics import oracle_matmul as oracle
from numerics.oracle_matmul import Line

PLAIN = [row.name for row in nm.ACCUMULATORS.values() if row.steps and row.takes_plain]
BLOCKS = {
    "blackwell_mxfp8": [nm.MXFP8, nm.MXFP8_E5M2, nm.MXFP6_E2M3, nm.MXFP6_E3M2, nm.MXFP4],
    "blackwell_mxfp4": [nm.MXFP4],
    "blackwell_nvfp4": [nm.NVFP4],
}
FLOAT8 = {nm.E4M3: torch.float8_e4m3fn, nm.E5M2: torch.float8_e5m2}
SPECIAL_C = [0.0, -0.0, 1.0, -(2.0**-149), 2.0**-126, 3.4e38, -3.4e38, math.inf, -math.inf, math.nan]


def bits(x: float) -> int:
    return 0x7FFFFFFF if math.isnan(x) else struct.unpack("<I", struct.pack("<f", x))[0]


def found(out: torch.Tensor) -> list[int]:
    return [b & 0xFFFFFFFF for b in out.flatten().view(torch.int32).tolist()]


def codes(fmt: nm.Format, shape: tuple[int, ...], data: str, g: torch.Generator) -> torch.Tensor:
    """int64 codes. uniform: every code; finite: numbers; tiny: subnormals and zeros mostly; near: equal exponents."""
    sign = torch.randint(0, 2, shape, generator=g) << (fmt.bits - 1)
    m = fmt.mantissa_bits
    if data == "uniform":
        return torch.randint(0, 1 << fmt.bits, shape, generator=g)
    if data == "finite":
        return torch.randint(0, fmt.max_code + 1, shape, generator=g) | sign
    if data == "tiny":
        return torch.randint(0, 2 << m, shape, generator=g) * torch.randint(0, 2, shape, generator=g) | sign
    field = fmt.bias + torch.randint(-1, 2, shape, generator=g)
    return (field << m | torch.randint(0, 1 << m, shape, generator=g)) | sign


def starts(n: int, data: str, g: torch.Generator) -> torch.Tensor:
    """c: zero, specials, or of any exponent."""
    c = torch.randint(-(1 << 31), 1 << 31, (n,), generator=g).to(torch.int32).view(torch.float32).clone()
    if data != "uniform":
        c = torch.randn(n, generator=g) * 2.0 ** torch.randint(-40 if data == "near" else -150, 12, (n,), generator=g)
        c[::3] = 0.0
    c[: len(SPECIAL_C)] = torch.tensor(SPECIAL_C if data == "uniform" else [0.0])[: len(c)]
    return c


def compare(kind: str, a: list[Line], b: list[Line], c: torch.Tensor, out: torch.Tensor, **options: int) -> None:
    """Against the twin, row by row."""
    for i, (x, y, got) in enumerate(zip(a, b, found(out), strict=True)):
        expected = bits(oracle.dot(kind, x, y, float(c[i]), **options))
        assert got == expected, f"row {i}: {got:08x}, the twin says {expected:08x}"


@pytest.mark.parametrize("data", ["uniform", "finite", "tiny", "near"])
@pytest.mark.parametrize("kind", PLAIN)
def test_plain_operands(kind: str, data: str):
    """Rows of two steps and a part of a third; of FP8 kinds both formats, mixed."""
    row = nm.ACCUMULATORS[kind]
    g = torch.Generator().manual_seed(len(data) + sum(map(ord, kind)))
    n, k = 24, 2 * row.length + 5
    for first in row.operands:
        for second in row.operands:
            a, b = codes(first, (n, k), data, g), codes(second, (n, k), data, g)
            if data == "near":  # what is left after the sum cancels
                half = k // 2
                a[:, half : 2 * half], b[:, half : 2 * half] = a[:, :half], b[:, :half] ^ (1 << (second.bits - 1))
            values = [_values(x, fmt) for x, fmt in ((a, first), (b, second))]
            c = starts(n, data, g)
            out = nm.matmul(values[0][:, None], values[1][:, None], kind, c[:, None, None])
            lines = [[Line(fmt, line) for line in x.tolist()] for x, fmt in ((a, first), (b, second))]
            compare(kind, *lines, c, out)


def _values(x: torch.Tensor, fmt: nm.Format) -> torch.Tensor:
    """As operands: float8 tensors say which format they are."""
    return x.to(torch.uint8).view(FLOAT8[fmt]) if fmt in FLOAT8 else nm.decode(x.to(torch.int32), fmt)


def _blocks(fmt: nm.BlockFormat, n: int, k: int, data: str, g: torch.Generator) -> nm.BlockTensor:
    shape = n, -(-k // fmt.block)
    if data == "uniform":
        scales = torch.randint(0, 256, shape, generator=g)
        few = torch.rand(shape, generator=g) < 0.9  # NaN scales are rare
        scales = torch.where(few & (scales % 128 == 127), 60, scales)
    else:
        middle = 127 if fmt.scale is nm.E8M0 else 56
        spread = {"finite": 40, "tiny": 56, "near": 3}[data]
        scales = (middle + torch.randint(-spread, spread + 1, shape, generator=g)).clamp(min=0)
    x = codes(fmt.element, (n, k), data, g)
    return nm.BlockTensor(x.to(torch.uint8), scales.to(torch.uint8), None, fmt, fmt.rule.name, 1)


@pytest.mark.every(3)
@pytest.mark.parametrize("data", ["uniform", "finite", "tiny", "near"])
@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks(kind: str, data: str):
    """Every row of one operand with every row of the other; the last block is short."""
    g = torch.Generator().manual_seed(len(data) + sum(map(ord, kind)))
    for first in BLOCKS[kind]:
        for second in BLOCKS[kind][:2]:
            a, b = _blocks(first, 6, 2 * 64 + 21, data, g), _blocks(second, 5, 2 * 64 + 21, data, g)
            c = starts(30, data, g)
            out = nm.matmul(a, b, kind, c.view(6, 5))
            lines = [
                [Line(q.fmt.element, *rest) for rest in zip(
                    q.codes.tolist(), [q.fmt.scale] * len(q.codes), q.scales.tolist(), [q.fmt.block] * len(q.codes),
                    strict=True,
                )] for q in (a, b)
            ]  # fmt: skip
            pairs = [(x, y) for x in lines[0] for y in lines[1]]
            compare(kind, [x for x, _ in pairs], [y for _, y in pairs], c, out)


@pytest.mark.parametrize("kind", ["fp32", *PLAIN])
@pytest.mark.parametrize(("promote", "splits"), [(64, 1), (None, 3), (32, 2), (32, 9)])
def test_promotion_and_splits(kind: str, promote: int | None, splits: int):
    """c comes last."""
    g = torch.Generator().manual_seed(7)
    fmt = (nm.ACCUMULATORS[kind].operands or (nm.BF16,))[0]
    a, b = codes(fmt, (6, 230), "near", g), codes(fmt, (6, 230), "near", g)
    c = starts(6, "near", g)
    values = [_values(x, fmt)[:, None] for x in (a, b)]
    out = nm.matmul(*values, kind, c[:, None, None], promote=promote, splits=splits)
    lines = [[Line(fmt, line) for line in x.tolist()] for x in (a, b)]
    compare(kind, *lines, c, out, promote=promote, splits=splits)
