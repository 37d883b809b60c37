"""What the tests of `hw.ops` share: the same call on both sides, and what equal or refused means."""

from typing import Any

import pytest
from kernel_cases import assert_bits
from torch import Tensor

import numerics as nm
from hw.calls import described
from numerics import ops as emulated

pytest.importorskip("triton", reason="not run: triton is not installed (fourbit[hw])")

from hw import ops


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, tuple):
        return [t for part in result for t in tensors(part)]
    if isinstance(result, nm.BlockTensor):
        return [result.codes, result.scales, *([] if result.outer is None else [result.outer])]
    return [] if result is None else [result]


def same(function: str, *args: Any, **kwargs: Any) -> None:
    """Both sides' results have the same kind, shapes and bits."""
    expected, found = getattr(emulated, function)(*args, **kwargs), getattr(ops, function)(*args, **kwargs)
    assert described(found) == described(expected)
    for f, e in zip(tensors(found), tensors(expected), strict=True):
        assert_bits(f, e)


def same_or_refused(function: str, *args: Any, **kwargs: Any) -> None:
    """The emulator's bits, or words that say that there is no kernel."""
    try:
        same(function, *args, **kwargs)
    except (ValueError, NotImplementedError) as error:
        assert "hw has no Triton kernel for " in str(error) or "this kernel" in str(error), error


def refused(message: str, function: str, *args: Any, error: type[Exception] = ValueError, **kwargs: Any) -> None:
    with pytest.raises(error, match=message):
        getattr(ops, function)(*args, **kwargs)
