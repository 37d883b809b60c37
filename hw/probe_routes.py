"""The ways to a sum of products on this machine that `fourbit probe` asks: Triton's tl.dot and torch's own products.

    tl.dot                  hw.tensor_core: the matrix instruction alone; c is its accumulator
    torch.matmul            the library's GEMM with FP32 results; c by torch.addmm. BF16, FP16, TF32 and FP32 on a GPU;
                            FP32, and BF16 with BF16 results, on a CPU
    torch._scaled_mm        the library's FP8 GEMM, scales 1, FP32 results; takes no c
    torch._scaled_mm, fast  the same with use_fast_accum=True

A route multiplies (size, K) by (size, K), the tests being its rows; the diagonal holds their results. A library chooses
its kernel, and how it cuts K, by these shapes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import numerics as nm
from numerics.accumulators import FP32

from .device import INTERPRET, triton_absent
from .probe_order import Machine, Numbers

FORMATS = {f.name: f for f in (nm.E4M3, nm.E5M2, nm.BF16, nm.FP16, nm.TF32, FP32)}
ROUTES = ("tl.dot", "torch.matmul", "torch._scaled_mm", "torch._scaled_mm, fast")
_FLOAT8 = {nm.E4M3: torch.float8_e4m3fn, nm.E5M2: torch.float8_e5m2}
_DTYPES = {nm.BF16: torch.bfloat16, nm.FP16: torch.float16, nm.TF32: torch.float32, FP32: torch.float32}

# a (size, K), b (size, K) and c (size, size) or None, on the device, to (size, size)
Multiply = Callable[[Tensor, Tensor, Tensor | None], Tensor]


@dataclass(frozen=True)
class Route:
    """One route for one format. not_run: why it is not there."""

    name: str
    fmt: nm.Format
    device: torch.device
    multiply: Multiply | None = None
    takes_c: bool = False
    note: str = ""
    not_run: str | None = None

    def machine(self, size: int) -> Machine:
        """The route as what is probed, `size` rows and columns at a time."""
        assert self.multiply is not None
        multiply = self.multiply

        def dots(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
            out = []
            for start in range(0, len(a), size):
                x, y = (_padded(t[start : start + size], size).to(self.device) for t in (a, b))
                z = None
                if c is not None:
                    z = _padded(c[start : start + size, None], size).to(self.device).expand(size, size).contiguous()
                out.append(multiply(x, y, z).diagonal().to(torch.float32))
            return torch.cat(out)[: len(a)].cpu()

        return Machine(self.fmt, Numbers.of(self.fmt), self.takes_c, dots)


def _padded(x: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, 0, 0, size - len(x)))


def routes(device: torch.device, names: tuple[str, ...], formats: tuple[str, ...]) -> Iterator[Route]:
    """Every route of `names` for every format of `formats`; those that are absent say why."""
    for name in names:
        for fmt in (FORMATS[f] for f in formats):
            if (made := _route(name, fmt, device)) is not None:
                yield made


def _route(name: str, fmt: nm.Format, device: torch.device) -> Route | None:
    """None: a route that does not exist for a format, anywhere."""
    if name == "tl.dot":
        return None if fmt is FP32 else _tl_dot(fmt, device)
    if name == "torch.matmul":
        return None if fmt in _FLOAT8 else _matmul(fmt, device)
    return _scaled_mm(name, fmt, device) if fmt in _FLOAT8 else None


def _tl_dot(fmt: nm.Format, device: torch.device) -> Route:
    absent = "a CPU has no tensor cores; name a CUDA device" if device.type == "cpu" else triton_absent(device)
    if absent is None and os.environ.get(INTERPRET) == "1":
        absent = f"{INTERPRET}=1 has Triton interpret its kernels; unset it"
    if absent is not None:
        return Route("tl.dot", fmt, device, not_run=absent)
    from .tensor_core import product  # needs triton

    def multiply(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        return product(nm.encode(a, fmt), nm.encode(b, fmt), c, fmt)[0]

    zeros = torch.zeros(64, 128, device=device)
    try:
        note = product(nm.encode(zeros, fmt), nm.encode(zeros, fmt), None, fmt)[1]
    except Exception as error:  # the compiler's, of many kinds, for a format that the chip lacks
        return Route("tl.dot", fmt, device, not_run=_reason(error))
    return Route("tl.dot", fmt, device, multiply, True, note)


def _matmul(fmt: nm.Format, device: torch.device) -> Route:
    """TF32 is float32 multiplied so; FP32 float32 that is not."""
    if fmt in (nm.TF32, nm.FP16) and device.type == "cpu":
        return Route("torch.matmul", fmt, device, not_run="probed on GPUs; name a CUDA device")
    dtype, narrow_out = _DTYPES[fmt], device.type == "cuda" and fmt in (nm.BF16, nm.FP16)
    precision = "tf32" if fmt is nm.TF32 else "ieee"

    def multiply(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        x, y = a.to(dtype), b.to(dtype).mT
        if narrow_out:  # not BF16 results, but the accumulator itself
            if c is None:
                return torch.mm(x, y, out_dtype=torch.float32)
            return torch.addmm(c, x, y, out_dtype=torch.float32)
        before = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = precision
        try:
            return torch.mm(x, y) if c is None else torch.addmm(c.to(dtype), x, y)
        finally:
            torch.backends.cuda.matmul.fp32_precision = before

    note = f"{torch.float32 if narrow_out else dtype} results".removeprefix("torch.")
    return _tried("torch.matmul", fmt, device, multiply, True, note)


def _scaled_mm(name: str, fmt: nm.Format, device: torch.device) -> Route:
    if device.type == "cpu":
        return Route(name, fmt, device, not_run="probed on GPUs; name a CUDA device")
    one, dtype = torch.ones((), device=device), _FLOAT8[fmt]
    fast = name.endswith("fast")

    def multiply(a: Tensor, b: Tensor, c: Tensor | None) -> Tensor:
        x, y = (nm.encode(t, fmt).view(dtype) for t in (a, b))
        return torch._scaled_mm(x, y.mT, one, one, out_dtype=torch.float32, use_fast_accum=fast)

    return _tried(name, fmt, device, multiply, False, "float32 results")


def _tried(name: str, fmt: nm.Format, device: torch.device, multiply: Multiply, takes_c: bool, note: str) -> Route:
    """The route if it works on zeros, without c where c does not work; else what torch says."""
    zeros, c = torch.zeros(64, 128, device=device), torch.zeros(64, 64, device=device)
    try:
        multiply(zeros, zeros, None)
    except (RuntimeError, ValueError, TypeError) as error:
        return Route(name, fmt, device, not_run=f"torch refuses: {_reason(error)}")
    if takes_c:
        try:
            multiply(zeros, zeros, c)
        except (RuntimeError, ValueError, TypeError) as error:
            return Route(name, fmt, device, multiply, False, f"{note}; no c: {_reason(error)}")
    return Route(name, fmt, device, multiply, takes_c, note)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
