"""Philox-4x32-10 in Triton: the words and fields of `numerics.philox`, bit for bit.

    words   philox_words(k0, k1, c0, c1, c2, c3)            four uint32 tensors, for use inside other kernels
    fields  group_fields(w0, w1, w2, w3, NARROW)            (n, 16) random fields of 16 bits, one per element of a group

Both are device functions of uint32 arithmetic alone, so compiled kernels and Triton's interpreter give the same bits.
`philox` and `fields` launch them on tensors and keep the contracts of `numerics.philox.philox` and `Random.fields`.
How a word is cut into fields is told in `numerics.philox`.

This module needs Triton: ask `hw.device.triton_absent` before importing it. On a CPU it runs in Triton's interpreter,
TRITON_INTERPRET=1, which must be in the environment before triton is imported.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from numerics import Random
from numerics.philox import GROUP, as_words, require_broadcast

from .contracts import Case, Contract, meta
from .device import require_launch
from .kernel_casts import INTERPRETED
from .launches import launch

BLOCK = 256  # counters of one program

_M0 = tl.constexpr(0xD2511F53)
_M1 = tl.constexpr(0xCD9E8D57)
_W0 = tl.constexpr(0x9E3779B9)
_W1 = tl.constexpr(0xBB67AE85)
_GROUP = tl.constexpr(GROUP)


@triton.jit
def philox_words(k0, k1, c0, c1, c2, c3, ROUNDS: tl.constexpr = 10):
    """The rounds on separate words: uint32 tensors of one shape in, four uint32 tensors of it out."""
    # Python numbers from 2^31 on become what their size suggests; adding a zero of uint32 fixes the type and the shape.
    zero = (c0 ^ c0).to(tl.uint32)
    m0 = zero + tl.full((), _M0, tl.uint32)
    m1 = zero + tl.full((), _M1, tl.uint32)
    w0 = zero + tl.full((), _W0, tl.uint32)
    w1 = zero + tl.full((), _W1, tl.uint32)
    for _ in tl.static_range(ROUNDS):
        high0 = tl.umulhi(c0, m0)
        high1 = tl.umulhi(c2, m1)
        low0 = c0 * m0
        low1 = c2 * m1
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = k0 + w0
        k1 = k1 + w1
    return c0, c1, c2, c3


@triton.jit
def reverse16(x):
    """The low 16 bits of each uint32 in reverse order."""
    x = ((x >> 1) & 0x5555) | ((x & 0x5555) << 1)
    x = ((x >> 2) & 0x3333) | ((x & 0x3333) << 2)
    x = ((x >> 4) & 0x0F0F) | ((x & 0x0F0F) << 4)
    return ((x >> 8) & 0x00FF) | ((x & 0x00FF) << 8)


@triton.jit
def reverse32(x):
    """The bits of each uint32 in reverse order: by the instruction where there is one."""
    if INTERPRETED:
        return (reverse16(x & 0xFFFF) << 16) | reverse16(x >> 16)
    else:
        return tl.inline_asm_elementwise("brev.b32 $0, $1;", "=r,r", [x], dtype=tl.uint32, is_pure=True, pack=1)


@triton.jit
def group_fields(w0, w1, w2, w3, NARROW: tl.constexpr):
    """Fields of the 16 elements of each group from its four words.

    w0 .. w3: uint32 (n,). NARROW: the elements have up to 4 bits. Returns uint32 (n, 16), each below 2^16: for every
    word the fields of f, e, b, a.
    """
    words = tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (w0.shape[0], 4))
    if NARROW:
        low = ((words >> 8) & 0xFF00) | (words & 0xFF)
        high = ((words >> 16) & 0xFF00) | ((words >> 8) & 0xFF)
    else:
        low = words & 0xFFFF
        high = words >> 16
    pair = tl.join(low, high)  # (n, 4, 2)
    return tl.reshape(tl.join(pair, reverse32(pair) >> 16), (w0.shape[0], _GROUP))


@triton.jit
def _words_kernel(key, counter, out, n, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    """key int64 (n, 2), counter int64 (n, 4) -> out int64 (n, 4)."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    k0 = tl.load(key + 2 * i, mask=inside, other=0).to(tl.uint32)
    k1 = tl.load(key + 2 * i + 1, mask=inside, other=0).to(tl.uint32)
    c0 = tl.load(counter + 4 * i, mask=inside, other=0).to(tl.uint32)
    c1 = tl.load(counter + 4 * i + 1, mask=inside, other=0).to(tl.uint32)
    c2 = tl.load(counter + 4 * i + 2, mask=inside, other=0).to(tl.uint32)
    c3 = tl.load(counter + 4 * i + 3, mask=inside, other=0).to(tl.uint32)
    c0, c1, c2, c3 = philox_words(k0, k1, c0, c1, c2, c3, ROUNDS)
    tl.store(out + 4 * i, c0.to(tl.int64), mask=inside)
    tl.store(out + 4 * i + 1, c1.to(tl.int64), mask=inside)
    tl.store(out + 4 * i + 2, c2.to(tl.int64), mask=inside)
    tl.store(out + 4 * i + 3, c3.to(tl.int64), mask=inside)


@triton.jit
def _fields_kernel(key, counter, out, n, NARROW: tl.constexpr, BLOCK: tl.constexpr):
    """key int64 (2,), counter int64 (n, 4) -> out int32 (n, 16)."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    zero = i.to(tl.uint32) * 0
    k0 = zero + tl.load(key).to(tl.uint32)
    k1 = zero + tl.load(key + 1).to(tl.uint32)
    c0 = tl.load(counter + 4 * i, mask=inside, other=0).to(tl.uint32)
    c1 = tl.load(counter + 4 * i + 1, mask=inside, other=0).to(tl.uint32)
    c2 = tl.load(counter + 4 * i + 2, mask=inside, other=0).to(tl.uint32)
    c3 = tl.load(counter + 4 * i + 3, mask=inside, other=0).to(tl.uint32)
    w0, w1, w2, w3 = philox_words(k0, k1, c0, c1, c2, c3)
    fields = group_fields(w0, w1, w2, w3, NARROW).to(tl.int32)
    place = i[:, None] * _GROUP + tl.arange(0, _GROUP)[None, :]
    tl.store(out + place, fields, mask=inside[:, None])


def philox(key: Any, counter: Any, rounds: int = 10) -> Any:
    """Four 32-bit words per counter: `numerics.philox` with its arguments, results and errors, computed by Triton.

    Args:
        key: integers in [0, 2^32), shape (..., 2). counter: likewise, shape (..., 4); leading shapes broadcast.
            Torch tensors on a CUDA device, or anything that `numerics.philox` takes under Triton's interpreter.
        rounds: 10 in Philox-4x32-10.

    Returns:
        int64 words in [0, 2^32), shape (..., 4): torch on the counter's device; numpy if `counter` is.

    Raises:
        TypeError, ValueError: as there; ValueError for a CPU tensor without the interpreter.
    """
    key_words, _ = as_words(key, "key", 2)
    counter_words, is_numpy = as_words(counter, "counter", 4)
    require_broadcast(key_words, counter_words)
    require_launch(_words_kernel, counter_words, "counter")
    lead = torch.broadcast_shapes(key_words.shape[:-1], counter_words.shape[:-1])
    key_words = key_words.to(counter_words.device).expand(*lead, 2).contiguous()
    counter_words = counter_words.expand(*lead, 4).contiguous()
    out = torch.empty_like(counter_words)
    n = math.prod(lead)
    if n:
        launch(_words_kernel, (triton.cdiv(n, BLOCK),), key_words, counter_words, out, n, ROUNDS=rounds, BLOCK=BLOCK)
    return out.numpy() if is_numpy else out


def fields(random: Random, expert: Tensor | int, line: Tensor, group: Tensor, element_bits: int) -> Tensor:
    """`random.fields(expert, line, group, element_bits)`, computed by Triton.

    Args:
        expert, line, group: int64 tensors that broadcast to (...,). element_bits: up to 4: the E2M1 split of a word.

    Returns:
        int32 in [0, 65536), shape (..., 16), on the device of `group`.

    Raises:
        ValueError: a CPU tensor without the interpreter.
    """
    require_launch(_fields_kernel, group, "group")
    key = torch.tensor([int(word) & 0xFFFFFFFF for word in random.key], dtype=torch.int64, device=group.device)
    base = [int(word) & 0xFFFFFFFF for word in random.counter]
    first = torch.full_like(group, base[0])
    counter = torch.stack(torch.broadcast_tensors(first, expert + base[1] + 0 * group, line, group), dim=-1)
    out = torch.empty(*counter.shape[:-1], GROUP, dtype=torch.int32, device=group.device)
    n = counter[..., 0].numel()
    if n:
        blocks = (triton.cdiv(n, BLOCK),)
        launch(_fields_kernel, blocks, key, counter.contiguous(), out, n, NARROW=element_bits <= 4, BLOCK=BLOCK)
    return out


def _drawn(bits: int) -> Tensor:
    return fields(Random((0, 1)), 0, meta(4096, dtype=torch.int64), meta(4096, dtype=torch.int64), bits)


CONTRACT = Contract(
    (
        Case("words", lambda: philox(meta(4096, 2, dtype=torch.int64), meta(4096, 4, dtype=torch.int64))),
        Case("fields of E2M1", lambda: _drawn(4)),
        Case("fields of E4M3", lambda: _drawn(8)),
    ),
    ran="h200_tests.json",
    interpreted="test_hw_philox.py",
)
