"""Philox-4x32-10: random words as a pure function of a key and a counter.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.3. One round
multiplies two of the four counter words by constants and mixes the high halves with the other two words and the
key; the key advances by Weyl constants; ten rounds. No state: any slice of a stream can be drawn alone, in any
order, on any device, with the same bits.

`Random` names the words that stochastic rounding consumes. The counter of an element is

    (c0, c1 + expert, line, group of 16 along the quantized axis)

and word w of the four serves the group's elements 4w .. 4w+3, which are the operands f, e, b, a of one
`cvt.rs...x4` instruction. An instruction gives each pair of its operands one 16-bit field of the word: the second
operand of the pair (f, b) takes it straight, the first (e, a) bit-reversed. For 8-bit elements the fields are the
word's halves; for E2M1 they are {byte 2, byte 0} for (e, f) and {byte 3, byte 1} for (a, b).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .arguments import broadcasts, integer, require_integers, require_kind, require_tensor, shown
from .codes import as_tensor, chunks

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
GROUP = 16  # elements that one counter serves


def philox(key: Any, counter: Any, rounds: int = 10) -> Any:
    """Four 32-bit words per counter.

    Args:
        key: integers of any size, taken modulo 2^32, shape (..., 2). counter: likewise, shape (..., 4); leading shapes
            broadcast. Torch tensors, numpy arrays or nested sequences of ints.
        rounds: 10 in Philox-4x32-10.

    Returns:
        int64 words in [0, 2^32), shape (..., 4): torch on the counter's device; numpy if `counter` is.

    Raises:
        TypeError: words that are no integers. ValueError: a last dimension that is not 2 (key) or 4 (counter); leading
        shapes that do not broadcast; lists of unequal lengths.
    """
    key_words, _ = as_words(key, "key", 2)
    counter_words, is_numpy = as_words(counter, "counter", 4)
    require_broadcast(key_words, counter_words)
    if integer(rounds, "rounds", "pass a number of rounds, 10 as a rule") < 0:
        raise ValueError(f"rounds={rounds}: use 0 or more, 10 as a rule")
    key_words = key_words.to(counter_words.device)
    words = philox_words(tuple(key_words.unbind(-1)), tuple(counter_words.unbind(-1)), rounds)
    out = torch.stack(torch.broadcast_tensors(*words), dim=-1)
    return out.numpy() if is_numpy else out


def as_words(value: Any, name: str, count: int) -> tuple[Tensor, bool]:
    """`value` (..., count) modulo 2^32 as int64 words, and whether it came as numpy. Errors as `philox`."""
    if isinstance(value, (list, tuple)):
        _require_nested(value, name)
        value = torch.tensor(_wrapped(value), dtype=torch.int64)
    tensor, is_numpy = as_tensor(value, name)
    require_integers(tensor, name, "pass integers in [0, 2^32)")
    if tensor.ndim == 0 or tensor.shape[-1] != count:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: its last dimension must hold {count} words")
    return tensor.to(torch.int64) & _MASK, is_numpy


def require_broadcast(key: Tensor, counter: Tensor) -> None:
    """Raises ValueError unless the leading shapes of key (..., 2) and counter (..., 4) broadcast."""
    if not broadcasts(key.shape[:-1], counter.shape[:-1]):
        raise ValueError(
            f"key has shape {tuple(key.shape)} and counter {tuple(counter.shape)}: their leading shapes must broadcast"
        )


def _require_nested(value: Any, name: str) -> tuple[int, ...]:
    """The shape of nested sequences of ints. Raises TypeError for other contents, ValueError for unequal lengths."""
    if not isinstance(value, (list, tuple)):
        integer(value, f"a word of {name}", "pass integers in [0, 2^32)")
        return ()
    shapes = {_require_nested(part, name) for part in value}
    if len(shapes) > 1:
        raise ValueError(f"{name} is {shown(value)}: its parts have unequal shapes {sorted(shapes)}")
    return (len(value), *(shapes.pop() if shapes else ()))


def _wrapped(value: Any) -> Any:
    """Nested sequences of ints modulo 2^32: larger ints than int64's have a place in no tensor."""
    return [_wrapped(part) for part in value] if isinstance(value, (list, tuple)) else int(value) & _MASK


def philox_words(key: Sequence[Any], counter: Sequence[Any], rounds: int = 10) -> tuple[Tensor, ...]:
    """The ten rounds on separate words in [0, 2^32): ints or int64 tensors that broadcast; gives four int64 tensors."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(rounds):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # 64-bit products; wrap-around keeps every bit
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def reverse16(field: Tensor) -> Tensor:
    """The low 16 bits of each integer in reverse order."""
    for shift, mask in ((1, 0x5555), (2, 0x3333), (4, 0x0F0F), (8, 0x00FF)):
        field = ((field >> shift) & mask) | ((field & mask) << shift)
    return field


@dataclass(frozen=True)
class Random:
    """The random words of one tensor.

    Args:
        key: (seed, step). counter: (layer * 64 + role, grain * experts); see the module docstring. Integers, taken
            modulo 2^32.
        rows: offsets of the experts' rows when the quantized axis runs along features: a row then counts within its
            expert. None: all lines belong to expert 0, or to the leading index of a tensor with three axes.
    """

    key: tuple[int, int]
    counter: tuple[int, int] = (0, 0)
    rows: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, pair in (("key", self.key), ("counter", self.counter)):
            require_kind(pair, (tuple, list), name, "pass a pair of integers, such as (seed, step)")
            if len(pair) != 2:
                raise ValueError(f"{name}={pair}: pass a pair of integers")
            for word in pair:
                integer(word, f"a word of {name}", "pass a pair of integers")
        if self.rows is not None:
            require_kind(
                self.rows, (tuple, list), "rows", "pass offsets of the experts' rows, such as (0, 128), or None"
            )

    def fields(self, expert: Tensor | int, line: Tensor, group: Tensor, element_bits: int) -> Tensor:
        """One 16-bit field per element of every group.

        Args:
            expert, line, group: int64 tensors that broadcast to (...,): one counter per group of 16 elements. Modulo
                2^32, like the sum of expert and counter[1]; expert may be an int.
            element_bits: width of an element's code: up to 4 takes the E2M1 split of a word, else the 8-bit one.

        Returns:
            int32 in [0, 65536), shape (..., 16), on the device of `group`.

        Raises:
            TypeError: anything else than these tensors and integers.
        """
        integer(element_bits, "element_bits", "pass the width of a code, such as 4")
        require_tensor(group, "group", (torch.int64,))
        require_tensor(line, "line", (torch.int64,))
        if not isinstance(expert, Tensor):
            expert = integer(expert, "expert", "pass an integer or an int64 tensor") & _MASK
        experts, line, group = torch.broadcast_tensors(torch.as_tensor(expert, device=group.device), line, group)
        parts = chunks(group.numel(), 4, group.device)
        if len(parts) <= 1:
            return self._fields(experts, line, group, element_bits)
        e, m, g = experts.reshape(-1), line.reshape(-1), group.reshape(-1)
        out = torch.empty(group.numel(), GROUP, dtype=torch.int32)
        for part in parts:
            out[part] = self._fields(e[part], m[part], g[part], element_bits)
        return out.view(*group.shape, GROUP)

    def _fields(self, expert: Tensor, line: Tensor, group: Tensor, element_bits: int) -> Tensor:
        # int: numpy's narrow integers cannot be masked
        key, (first, second) = [int(word) & _MASK for word in self.key], [int(word) & _MASK for word in self.counter]
        c0, c1 = torch.full_like(group, first), (expert + second) & _MASK
        words = torch.stack(philox_words(key, (c0, c1, line & _MASK, group & _MASK)), dim=-1)
        if element_bits <= 4:
            low = ((words >> 8) & 0xFF00) | (words & 0xFF)
            high = ((words >> 16) & 0xFF00) | ((words >> 8) & 0xFF)
        else:
            low, high = words & 0xFFFF, words >> 16
        pair = torch.stack((low.to(torch.int32), high.to(torch.int32)), dim=-1)  # (..., 4, 2)
        return torch.stack((pair, reverse16(pair)), dim=-1).flatten(-3)  # f, e, b, a per word
