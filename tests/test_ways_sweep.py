"""Every tensor of every argument of the seam, read wrongly in each way: the layouts of `validate --ops` find them all.

Contract: a function that reads one tensor of one argument as if it lay otherwise in memory fails a line "layouts",
unless no layout could show it: every read was right, or the result does not depend on the tensor. A function that
changes one tensor of an argument fails. Oracle: the emulation behind arguments that were read with other strides.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import numerics as nm
from hw.calls import Calls, mapped, tensors
from hw.cases_ops import SHAPES, seam_cases
from hw.compare import OpsRow, Sides
from hw.judge import Judge
from hw.seam import seam
from hw.validate_config import ValidateConfig
from hw.validate_ops import LINES

pytestmark = pytest.mark.exhaustive
CPU = torch.device("cpu")
CONFIG = ValidateConfig(device="cpu", rows=40, seeds=(0,), ops="x", fast=True)
PARTS = ("codes", "scales", "outer")
UNREAD = {("row_scale", "q", part) for part in ("codes", "scales", "")}  # its result is the outer scale
Place = tuple[str, str, str]  # function, argument, tensor


def with_strides(x: Tensor, stride: tuple[int, ...], offset: int) -> Tensor:
    """What is read with these strides, zeros beyond the end of memory."""
    if x.numel() == 0:
        return x
    need = offset + sum((n - 1) * s for n, s in zip(x.shape, stride, strict=True)) + 1
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return torch.cat([memory, memory.new_zeros(max(need - len(memory), 0))]).as_strided(x.shape, stride, offset)


def contiguous(x: Tensor) -> tuple[int, ...]:
    return torch.empty(x.shape, device="meta").stride()


def replaced(x: Tensor, axis: int, stride: int) -> tuple[int, ...]:
    return tuple(stride if d == axis % x.ndim else s for d, s in enumerate(x.stride()))


def rows_beside(x: Tensor) -> tuple[int, ...]:
    return replaced(x, -2, x.shape[-1] * x.stride(-1)) if x.ndim > 1 else x.stride()


def matrices_beside(x: Tensor) -> tuple[int, ...]:
    return replaced(x, 0, x.shape[1] * x.stride(1)) if x.ndim > 2 else x.stride()


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: with_strides(x, contiguous(x), x.storage_offset()),
    "no offset": lambda x: with_strides(x, x.stride(), 0),
    "columns beside each other": lambda x: with_strides(x, replaced(x, -1, 1), x.storage_offset()) if x.ndim else x,
    "rows beside each other": lambda x: with_strides(x, rows_beside(x), x.storage_offset()),
    "matrices beside each other": lambda x: with_strides(x, matrices_beside(x), x.storage_offset()),
}


def parts(value: Any) -> dict[str, Tensor]:
    if isinstance(value, nm.BlockTensor):
        return {name: getattr(value, name) for name in PARTS if getattr(value, name) is not None}
    return dict(zip(("",), tensors(value), strict=False))  # one at most


def put(value: Any, part: str, x: Tensor) -> Any:
    return value.derived(**{part: x}) if part else mapped(value, lambda _: x)


def watched(function: Callable[..., Any], see: Callable[[str, Any], Any]) -> Callable[..., Any]:
    """`function` with what `see` makes of each argument."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            bound.arguments[name] = see(name, value)
        return function(*bound.args, **bound.kwargs)

    return run


def judged(functions: dict[str, Callable[..., Any]], operation: str, data: str) -> bool:
    """Whether a line of an operation fails."""
    judge = Judge(CONFIG, Sides.of(CPU, 1, lambda run: run), Calls(seam()), Calls(functions, careful=True), {})
    cases = (case for case in seam_cases(judge.ours, judge.theirs) if case.function == operation)
    return any(judge.row(case, data, LINES.get(data)).failed for case in cases if data in case.data(True))


@pytest.fixture(scope="module")
def places() -> list[Place]:
    """Every tensor that any case passes."""
    found: dict[Place, None] = {}

    def noting(function: str) -> Callable[[str, Any], Any]:
        def see(name: str, value: Any) -> Any:
            found.update(dict.fromkeys((function, name, part) for part in parts(value)))
            return value

        return see

    calls = Calls({name: watched(f, noting(name)) for name, f in seam().items()})
    judge = Judge(CONFIG, Sides.of(CPU, 1, lambda run: run), calls, calls, {})
    for case in seam_cases(calls, calls):
        _, inputs = judge.drawn(OpsRow(case.name, "normal", ""), case, SHAPES[0], "normal")
        case.ours.run(inputs)
    return list(found)


def faulty(place: Place, fault: Callable[[Any, str], Any]) -> dict[str, Callable[..., Any]]:
    function, argument, part = place

    def see(name: str, value: Any) -> Any:
        return fault(value, part) if name == argument and part in parts(value) else value

    return {**seam(), function: watched(seam()[function], see)}


def survivors(places: list[Place], name: str) -> Iterator[Place]:
    """The places where a wrong read was one, and no layout showed it."""
    for place in places:
        wrong = False

        def fault(value: Any, part: str) -> Any:
            nonlocal wrong
            x = parts(value)[part]
            read = FAULTS[name](x.detach())
            wrong |= not torch.equal(read.nan_to_num(7.0), x.detach().nan_to_num(7.0))
            return put(value, part, read)

        if not judged(faulty(place, fault), place[0], "layouts") and wrong:
            yield place


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_read_of_any_tensor_is_found(name: str, places: list[Place]) -> None:
    assert len(places) > 40 and {place[0] for place in places} == set(seam())
    assert set(survivors(places, name)) <= UNREAD


def test_a_change_of_any_tensor_is_found(places: list[Place]) -> None:
    def fault(value: Any, part: str) -> Any:
        x = parts(value)[part]
        x.copy_(x.clone().flip(-1) if x.dtype == torch.int64 else 1 - x)
        return value

    missed = [place for place in places if not judged(faulty(place, fault), place[0], "normal")]
    assert missed == []
