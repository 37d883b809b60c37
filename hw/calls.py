"""Calls of an implementation's functions, watched: what each returns, and what it must leave as it was.

After each call of a judged function must be unchanged, bit for bit:

    its arguments    shape, strides, and the whole memory behind every tensor, what lies outside of a view included
    torch            default dtype and device, precision of products, autograd, autocast, flushing, threads, current
                     device and stream
    earlier results  of the last `KEPT` calls, and of each function's first: their elements; what else lies in the
                     same memory is the implementation's

What changed is put back, so that it spoils no other comparison, and `Wrong` says what it was.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import numerics as nm
from numerics import ops

KEPT = 24  # results that are looked at again: those of two lines of the table and more


class Wrong(Exception):
    """A result of another kind than the contract's, or a change that it does not allow, in words."""


def tensors(x: Any) -> list[Tensor]:
    """The tensors of an argument or a result of the seam."""
    if isinstance(x, tuple):
        return [t for part in x for t in tensors(part)]
    if isinstance(x, nm.BlockTensor):  # of a kind that makes its codes at the first look, what it makes them of
        return [t for t in vars(x).values() if isinstance(t, Tensor)]
    if isinstance(x, ops.Wire):
        return tensors(x.signs)
    return [x] if isinstance(x, Tensor) else []


def mapped(x: Any, f: Callable[[Tensor], Tensor]) -> Any:
    """An argument of the seam with `f` of its tensors in their place."""
    if isinstance(x, nm.BlockTensor):
        outer = None if x.outer is None else f(x.outer)
        return x.derived(codes=f(x.codes), scales=f(x.scales), outer=outer)
    if isinstance(x, ops.Wire):
        return x if x.signs is None else replace(x, signs=f(x.signs))
    return f(x) if isinstance(x, Tensor) else x


def described(result: Any) -> str:
    """The kind of a result; values, shapes and dtypes are compared elsewhere."""
    if isinstance(result, tuple):
        return " and ".join(map(described, result))
    if isinstance(result, nm.BlockTensor):
        groups = result.groups or (0, result.shape[result.axis])
        return f"{result.fmt.name} with blocks along axis {result.axis} in groups {groups}"
    if isinstance(result, torch.Tensor):
        return "a tensor"
    return "None" if result is None else f"an object of type {type(result).__name__}"


# What a call must leave as it was.


def memory(x: Tensor) -> Tensor:
    """All bytes behind a tensor, a view of them."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def _elements(x: Tensor) -> Tensor:
    """The bytes of a tensor's own elements."""
    return memory(x.detach().clone())


def _place(x: Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, x.data_ptr()


@dataclass
class _Kept:
    """A tensor with its memory as it is now. name: of the argument."""

    name: str
    tensor: Tensor
    place: tuple[Any, ...]
    copy: Tensor

    @staticmethod
    def of(name: str, x: Tensor) -> _Kept:
        return _Kept(name, x, _place(x), memory(x).clone())

    def change(self) -> str | None:
        """What is otherwise now, in words, after putting it back; None: nothing."""
        now, moved = memory(self.tensor), _place(self.tensor) != self.place
        if not moved and torch.equal(now, self.copy):
            return None
        shape, stride, offset, dtype, _ = self.place
        then = torch.empty(0, dtype=dtype, device=self.copy.device)
        then.set_(self.copy.untyped_storage(), offset, shape, stride)
        same = not moved and torch.equal(_elements(then), _elements(self.tensor))
        if not moved:
            now.copy_(self.copy)
        elif self.tensor.dtype == dtype:
            with torch.no_grad():
                self.tensor.set_(self.copy.untyped_storage(), offset, shape, stride)
        return f"writes outside of its argument {self.name}" if same else f"changes its argument {self.name}"


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "default device": (
        torch.get_default_device,
        lambda device: torch.set_default_device(None if device.type == "cpu" else device),
    ),
    "precision of FP32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "precision of sums in products": (lambda: [getattr(*flag) for flag in _SUMS], lambda v: _put_sums(v)),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": (lambda: [torch.is_autocast_enabled(d) for d in _DEVICES], lambda v: _put_autocast(v)),
    "flushing of subnormals": (lambda: _flushed(), torch.set_flush_denormal),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
    "choice of deterministic algorithms": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "seed of random numbers": (torch.initial_seed, torch.manual_seed),
    "current device": (lambda: _on_gpu(torch.cuda.current_device), lambda n: _on_gpu(torch.cuda.set_device, n)),
    "current stream": (lambda: _on_gpu(torch.cuda.current_stream), lambda s: _on_gpu(torch.cuda.set_stream, s)),
}
_DEVICES = ("cpu", "cuda")
_SUMS = (
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
)
_TINY = 2.0**-1022  # the least normal number of Python's floats, halved where it is used


def _flushed() -> bool:
    return _TINY * 0.5 == 0.0


def _put_autocast(enabled: list[bool]) -> None:
    for device, on in zip(_DEVICES, enabled, strict=True):
        torch.set_autocast_enabled(device, on)


def _put_sums(values: list[bool]) -> None:
    for flag, value in zip(_SUMS, values, strict=True):
        setattr(*flag, value)


def _on_gpu(call: Callable[..., Any], *args: Any) -> Any:
    """What `call` gives where a GPU is in use, else None."""
    return call(*args) if torch.cuda.is_initialized() else None


def _settings() -> list[Any]:
    return [get() for get, _ in SETTINGS.values()]


def _put_back(before: list[Any]) -> str | None:
    """The first setting of torch that is no more what it was, after setting it again."""
    changed = None
    for (name, (get, put)), value in zip(SETTINGS.items(), before, strict=True):
        if get() != value:
            put(value)
            changed = changed or name
    return changed


class Calls:
    """The functions of an implementation as attributes; each call is written down and, if `careful`, watched.

    Attributes:
        returned: in words, what each call since `expect` gave. expected: what the calls must give, in their order, else
            they raise `Wrong`; None: whatever they do.
        passed: how tensors are passed: what stands in the place of each. looks: whether arguments and settings are
            compared, which waits for a GPU.
    """

    def __init__(self, functions: dict[str, Callable[..., Any]], careful: bool = False) -> None:
        self.returned: list[str] = []
        self.expected: list[str] | None = None
        self.passed: Callable[[Tensor], Tensor] | None = None
        self.careful = self.looks = careful
        self._results: deque[tuple[str, list[tuple[Tensor, Tensor]]]] = deque(maxlen=KEPT)
        self._firsts: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for name, function in functions.items():
            setattr(self, name, self._watched(name, function))

    def expect(self, returned: list[str] | None) -> None:
        """Start anew: the next calls are the first ones."""
        self.returned, self.expected = [], returned

    def reused(self) -> str | None:
        """The function of an earlier result that is no more what it was; None: all are."""
        for name, pairs in (*self._results, *self._firsts.items()):
            if any(not torch.equal(_elements(x), copy) for x, copy in pairs):
                self._results.clear()
                self._firsts.pop(name, None)
                return name
        return None

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters)

        def watched(*args: Any, **kwargs: Any) -> Any:
            if self.passed is not None:
                f = self.passed
                args = tuple(mapped(x, f) for x in args)
                kwargs = {key: mapped(x, f) for key, x in kwargs.items()}
            result = self._careful(name, function, args, kwargs, parameters)
            self.returned.append(described(result))
            at = len(self.returned) - 1
            if self.expected is not None and self.returned[at] != self.expected[at]:
                raise Wrong(f"{name} returned {self.returned[at]} instead of {self.expected[at]}")
            return result

        return watched

    def _careful(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, parameters: list[str]) -> Any:
        if not self.looks:
            return function(*args, **kwargs)
        named = [*zip(parameters, args, strict=False), *kwargs.items()]
        kept = [_Kept.of(key, x) for key, value in named for x in tensors(value)]
        before = _settings()
        try:
            result = function(*args, **kwargs)
        finally:
            setting = _put_back(before)
            changes = next(filter(None, [k.change() for k in kept]), None)
        if changes is not None:
            raise Wrong(f"{name} {changes}")
        if setting is not None:
            raise Wrong(f"{name} changes torch's {setting}")
        devices = {k.tensor.device for k in kept}
        for x in tensors(result):
            if x.device not in devices:
                raise Wrong(
                    f"{name} returned a tensor on {x.device}: its arguments are on {', '.join(map(str, devices))}"
                )
        inputs = {k.tensor.untyped_storage().data_ptr() for k in kept}
        own = [x for x in tensors(result) if x.untyped_storage().data_ptr() not in inputs]
        pairs = [(x, _elements(x)) for x in own]
        self._results.append((name, pairs))
        self._firsts.setdefault(name, pairs)
        return result
