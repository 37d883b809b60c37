"""The derivation that `validate --ops` prints under a wrong line: the contract's own law, and the law that was taken.

Contract: the element before rounding that is printed is the number that the emulation rounds, of every rule of the
seam, of zero blocks too; a kernel that divides where the contract multiplies, or the reverse, is told so. Oracle: the
codes of `nm.quantize`, and kernels that round the other law's number.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import numerics as nm
from hw.cases_ops import KINDS
from hw.derive_blocks import Source, block_lines
from hw.derive_laws import BY_RULE, QUOTIENT, RECIPROCAL
from numerics.ops import Cast

CASTS = {
    "nvfp4": Cast(nm.NVFP4, "tensor"),
    "four over six": Cast(nm.NVFP4_46, "row"),
    "power of two outer": Cast(nm.NVFP4, "row", outer_rounding="pow2"),
    "tiles": Cast(nm.NVFP4_2D, "tensor"),
    "mxfp8": Cast(nm.MXFP8),
    "mxs2f6": Cast(nm.MXS2F6),
    "stochastic": Cast(nm.NVFP4, "tensor", nm.Rounding.STOCHASTIC),
}


def source(cast: Cast, kind: str, axis: int = -1) -> Source:
    x = torch.from_numpy(KINDS[kind](np.random.default_rng(5), (20, 40)).astype(np.float32))
    return Source(x, cast, axis, None, nm.Random((1, 2)) if cast.rounding is nm.Rounding.STOCHASTIC else None)


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "holes", "denormals", "huge", "row scales"])
@pytest.mark.parametrize("name", CASTS)
def test_the_number_that_is_printed_is_the_one_that_is_rounded(name: str, kind: str) -> None:
    """Encoded, it is the code; along either axis."""
    for axis in (-1, -2):
        s = source(CASTS[name], kind, axis)
        q = s.quantized()
        assert isinstance(q, nm.BlockTensor) and q.fmt.scale is not None
        for at in [(0, 0), (3, 17), (11, 38), (19, 39), (6, 31)]:
            lines = block_lines(s, "x", "codes", at, {"x.codes": q.codes, "x.scales": q.scales})
            assert not any("nan" in line for line in lines)
            (before,) = (line for line in lines if line.startswith("element before rounding = "))
            value = torch.tensor([float.fromhex(before.split("(")[-1].split(")")[0])])
            drawn = [line for line in lines if line.startswith("random field = ")]
            bits = torch.tensor([int(drawn[0].split()[3])]) if drawn else None
            assert int(nm.encode(value, q.fmt.element, CASTS[name].rounding, bits)) == int(q.codes[at]), lines
            assert BY_RULE[q.rule].split(" * outer")[0].rstrip(")") in before


def many(cast: Cast, axis: int = -1) -> Source:
    """BF16 values, of which some lie at ties of one law and not of another."""
    x = KINDS["normal"](np.random.default_rng(5), (2000, 64)).astype(np.float32)
    return Source(torch.from_numpy(x).bfloat16().float(), cast, axis)


def other_codes(s: Source, law: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[nm.BlockTensor, Tensor]:
    """The emulation's operand, and the codes of `law` of x, scales and outer."""
    q = s.quantized()
    assert isinstance(q, nm.BlockTensor) and q.outer is not None
    scales = nm.decode(q.scales_per_value(), nm.E4M3)
    return q, nm.encode(law(s.values, scales, q.outer), q.fmt.element)


def wrong_lines(s: Source, law: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[str]:
    """The derivation of the first code that differs by a law, and does not saturate."""
    q, codes = other_codes(s, law)
    at = tuple(((q.codes != codes) & (q.codes & 7 > 0)).nonzero()[0].tolist())
    return block_lines(s, "x", "codes", at, {"x.codes": codes, "x.scales": q.scales})


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("name", ["nvfp4", "tiles"])
def test_a_kernel_that_divides_where_the_contract_multiplies_is_told_so(name: str, axis: int) -> None:
    lines = wrong_lines(many(CASTS[name], axis), lambda x, scale, outer: x / (scale * outer))
    (told,) = (line for line in lines if "this contract multiplies" in line)
    assert told.startswith(f"{QUOTIENT} = ")
    assert f"element before rounding = {RECIPROCAL} = " in "\n".join(lines)


def test_a_kernel_that_multiplies_where_the_contract_divides_is_told_so() -> None:
    one = torch.ones(())

    def law(x: Tensor, scale: Tensor, outer: Tensor) -> Tensor:
        amax = x.abs().amax(-1, keepdim=True)  # without zeros the encode scale is 1536 / amax
        return x * (one / (scale * (one / (torch.full((), 1536.0) / amax))))

    lines = wrong_lines(many(CASTS["four over six"]), law)
    assert any(line.startswith(f"{RECIPROCAL} = ") and "this contract divides" in line for line in lines), lines


def test_a_kernel_with_another_fault_is_told_neither() -> None:
    lines = wrong_lines(source(CASTS["nvfp4"], "normal"), lambda x, scale, outer: 0.7 * x / (scale * outer))
    assert not any("this contract" in line for line in lines)


def test_the_outer_scale_is_derived_from_the_rules_own_limit() -> None:
    for name, limit in (("nvfp4", "2688"), ("four over six", "1536")):
        s = source(CASTS[name], "normal")
        q = s.quantized()
        assert isinstance(q, nm.BlockTensor) and q.outer is not None
        lines = block_lines(s, "x", "outer", (0, 0), {"x.outer": q.outer * 2})
        assert any(f"amax / {limit}," in line for line in lines)
