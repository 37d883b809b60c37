"""One instruction form: what its text says, and the instruction run on checked operands.

A `Form` is read from the instruction's own text, "cvt.rn.satfinite.relu.e4m3x2.f32"; nothing else describes it. Order:
the source's fields to numbers, the scale, relu, one rounding to codes, the destination's fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import ptx_arithmetic as arithmetic
from .arguments import integer, require_same_device, shown
from .codes import as_tensor
from .formats import S2F6
from .ptx_arithmetic import ROUNDINGS, Packed
from .ptx_questions import assumed
from .subnormals import kept

_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, *_UNSIGNED)


@dataclass(frozen=True)
class Form:
    """One instruction form by its text."""

    text: str

    @property
    def parts(self) -> list[str]:
        return self.text.split(".")

    @property
    def rounding(self) -> str:
        return self.parts[1]

    @property
    def destination(self) -> Packed:
        return Packed(self.parts[-2])

    @property
    def source(self) -> Packed | None:
        """The packed operand's type; None: separate float32 operands."""
        return None if self.parts[-1] == "f32" else Packed(self.parts[-1])

    @property
    def satfinite(self) -> bool:
        return "satfinite" in self.parts

    @property
    def relu(self) -> bool:
        return "relu" in self.parts

    @property
    def scaled(self) -> bool:
        return any(part.startswith("scaled") for part in self.parts)

    @property
    def operands(self) -> list[str]:
        """Names of the source operands, the upper element's first."""
        return ["a"] if self.source else ["a", "b", "e", "f"][: self.destination.count]


@kept
def run(form: Form, operands: tuple[Any, ...], scale: Any = None, rbits: Any = None) -> Any:
    """The instruction on operands as its function takes them; errors as there."""
    if form.source is None:
        tensors, is_numpy = _numbers(form, operands)
        first = tensors[0]
    else:
        first, is_numpy = _integers(operands[0], "a", form.source.width)
        codes = form.source.split(_in_range(first, "a", form.source.width))
        _require_codes(codes, form.source)
        tensors = [arithmetic.values(code, form.source) for code in codes]
    if form.scaled:
        scales = Packed("ue8m0x2").split(_word(scale, "scale", 16, first))
        pairs = list(zip(tensors, scales, strict=True))
        if form.destination.fmt is S2F6:
            tensors = [arithmetic.divided(x, s) for x, s in pairs]
        else:
            assert form.source is not None
            tensors = [arithmetic.multiplied(x, s, form.source) for x, s in pairs]
    if form.relu:
        tensors = [arithmetic.relu(x) for x in tensors]
    random = _word(rbits, "rbits", 32, first) if form.rounding == "rs" else None
    word = form.destination.join(_convert(form, tensors, random))
    return word.numpy() if is_numpy else word


def _numbers(form: Form, operands: tuple[Any, ...]) -> tuple[list[Tensor], bool]:
    """float32 operands, and whether the first came as numpy."""
    checked = [as_tensor(value, name) for name, value in zip(form.operands, operands, strict=True)]
    tensors = [tensor for tensor, _ in checked]
    for name, tensor in zip(form.operands, tensors, strict=True):
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} has dtype {tensor.dtype}: {form.text} takes float32; convert it first")
        _require_like(tensor, name, tensors[0])
    return tensors, checked[0][1]


def _require_like(tensor: Tensor, name: str, first: Tensor) -> None:
    if tensor.shape != first.shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: a has {tuple(first.shape)}; make them equal")
    require_same_device(tensor, name, first, "a")


def _convert(form: Form, tensors: list[Tensor], rbits: Tensor | None) -> list[Tensor]:
    """Codes of every element, the upper first."""
    destination, rounding = form.destination, ROUNDINGS[form.rounding]
    nothing = [None] * len(tensors)
    random = nothing if rbits is None else arithmetic.random_fields(rbits, destination)
    if destination.field < 16:
        pairs = zip(tensors, random, strict=True)
        return [arithmetic.to_narrow(x, destination.fmt, rounding, form.satfinite, r) for x, r in pairs]
    units = None if rbits is None else arithmetic.spare_units(rbits, destination)
    pinned = form.relu or not form.scaled
    nan_code = 0x7FFF if pinned else int(assumed("NaN of a scaled product"), 16)
    triples = zip(tensors, random, units or nothing, strict=True)
    return [arithmetic.to_half(x, destination.fmt, rounding, form.satfinite, r, u, nan_code) for x, r, u in triples]


def _word(value: Any, name: str, width: int, like: Tensor) -> Tensor:
    """The operand's bits as int64, shape of `like`; an int serves every element."""
    if hasattr(value, "__index__") and not isinstance(value, (Tensor, np.ndarray)):
        word = integer(value, name, f"pass {width}-bit words as integers")
        _require_range(word, word, name, width)
        return torch.full(like.shape, word, dtype=torch.int64, device=like.device)
    tensor, _ = _integers(value, name, width)
    _require_like(tensor, name, like)
    return _in_range(tensor, name, width)


def _integers(value: Any, name: str, width: int) -> tuple[Tensor, bool]:
    """A tensor or array of integers as a tensor, and whether it came as numpy."""
    remedy = f"pass {width}-bit words as integers, in a torch tensor or a numpy array"
    if not isinstance(value, (Tensor, np.ndarray)) or (isinstance(value, np.ndarray) and value.dtype.kind not in "iu"):
        raise TypeError(f"{name} is {shown(value)}: {remedy}")
    tensor, is_numpy = as_tensor(value, name)
    if tensor.dtype not in _INTEGERS:
        raise TypeError(f"{name} has dtype {tensor.dtype}: {remedy}")
    return tensor, is_numpy


def _in_range(tensor: Tensor, name: str, width: int) -> Tensor:
    """Words as int64. Raises ValueError for one beyond `width` bits."""
    words = tensor.to(torch.int64)
    if tensor.dtype.is_signed and 8 * tensor.dtype.itemsize == width:
        return words & ((1 << width) - 1)  # a register's bits in a signed type
    if words.numel():
        # the upper half of uint64 is negative in int64: half the range is taken off before, and put back after
        offset = 1 << 63 if tensor.dtype == torch.uint64 else 0
        low, high = (int(end) + offset for end in torch.aminmax(words ^ -(1 << 63) if offset else words))
        _require_range(low, high, name, width)
    return words


def _require_range(low: int, high: int, name: str, width: int) -> None:
    if low < 0 or high >= 1 << width:
        raise ValueError(f"{name} reaches from {low} to {high}: pass {width}-bit words, 0 to {(1 << width) - 1}")


def _require_codes(codes: list[Tensor], source: Packed) -> None:
    """Raises ValueError where the two bits above a 6-bit code are set: the instruction leaves that undefined."""
    for place, code in enumerate(codes):
        if source.fmt.bits < source.field and bool((code >> source.fmt.bits).any()):
            which = "upper" if place == 0 else "lower"
            raise ValueError(
                f"a has bits above its {which} 6-bit code: clear bits 7 and 6 of each byte ({source.name})"
            )
