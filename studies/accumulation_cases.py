"""What `accumulation` measures; each function is a part of its own, for one seed.

Operands have `size` rows each, so that a product has size squared results and long contractions stay cheap. They are
quantized to the format that an accumulator takes before anything is compared: the error here is of summation alone,
against the exact sum of the same products, rounded once to FP32. Data:

    random            standard normal
    one sign          magnitudes of normal numbers: all products are positive, the sum grows as K
    cancelling, near  one sign, but of two neighbours in k the second is the first's negative, 1/8 of it uncertain
    cancelling, far   the same with k and k + K/2: the sum grows over half of K and falls back over the other half

The recipe's products take operands as `reference.presets` "fourbit" does, see `_forward`, `_dgrad` and `_wgrad`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

import numerics as nm

CASES = (
    *("fp32", "library", "volta_fp16", "ampere_bf16", "ampere_tf32", "ada_fp8", "hopper_bf16", "hopper_tf32"),
    *("hopper_fp8", "blackwell_fp8", "blackwell_mxfp8", "blackwell_mxfp4", "blackwell_nvfp4", "mma_sync_fp8_as_fp16"),
)
DATA = ("random", "one sign", "cancelling, near", "cancelling, far")
PRODUCTS = ("forward", "dgrad", "wgrad")
BLOCK = nm.MXFP8.block


@dataclass(frozen=True)
class Route:
    """How a product of the recipe's operands is summed. name: for readers. accumulator: a row of `nm.ACCUMULATORS`.
    per_block: each block of 32 alone in the tensor core, its result scaled and added in FP32."""

    name: str
    accumulator: str
    per_block: bool = False


HOPPER_BF16 = Route("Hopper BF16, decoded", "hopper_bf16")
FORWARD_ROUTES = (HOPPER_BF16, Route("Blackwell NVFP4", "blackwell_nvfp4"))
BACKWARD_ROUTES = (
    HOPPER_BF16,
    Route("Blackwell MXFP8", "blackwell_mxfp8"),
    Route("Hopper FP8, scaled per block", "hopper_fp8", per_block=True),
)


def arithmetic(name: str) -> tuple[Any, ...]:
    """What decides an accumulator's results: rows that agree in it, and in the width of operands, sum alike."""
    row = nm.ACCUMULATORS[name]
    first = row.operands[0] if row.operands else None
    kind = first.bits if isinstance(first, nm.Format) else first and first.name
    return row.rule, row.length, row.fraction_bits, row.output, row.zero_exponent, row.group, kind


def make(data: str, seed: int, size: int, k: int) -> tuple[Tensor, Tensor]:
    """Two (size, k) matrices of a kind of `DATA`."""
    generator = torch.Generator().manual_seed(seed)
    a, b, noise = (torch.randn(size, k, generator=generator) for _ in range(3))
    if data == "random":
        return a, b
    a, b = a.abs(), b.abs()
    if data == "one sign":
        return a, b
    half = k // 2
    first, second = (slice(0, k, 2), slice(1, k, 2)) if data == "cancelling, near" else (slice(half), slice(half, k))
    a[:, second] = -a[:, first] * (1 + noise[:, second] / 8)
    b[:, second] = b[:, first]
    return a, b


def operand(x: Tensor, accumulator: str) -> nm.BlockTensor | Tensor:
    """`x` in the first format that an accumulator takes; BF16 where it takes all. NVFP4 without an outer scale."""
    taken = nm.ACCUMULATORS[accumulator].operands
    fmt = taken[0] if taken else nm.BF16
    return nm.round_to(x, fmt) if isinstance(fmt, nm.Format) else nm.quantize(x, fmt, outer=None)


def growth(seed: int, size: int, lengths: list[int]) -> pd.DataFrame:
    """For each accumulator, kind of data and K: the error of the sums."""
    rows = []
    for k in lengths:
        pairs = [make(data, seed, size, k) for data in DATA]
        a, b = (torch.stack([pair[i] for pair in pairs]) for i in range(2))
        for name in CASES:
            x, y = operand(a, name), operand(b, name)
            case = {"accumulator": name, "k": k, "seed": seed}
            rows += _errors(x, y, nm.matmul(x, y, accumulator=name), case)
    return pd.DataFrame(rows)


def _errors(a: Any, b: Any, found: Tensor, case: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per kind of data: rms error over rms product, signed along the product, and over the sum of sizes."""
    exact = nm.matmul(a, b)
    sizes = _float64(a).abs() @ _float64(b).abs().mT
    rows = []
    for i, data in enumerate(DATA):
        error = nm.metrics.error(exact[i], found[i])
        off = (found[i].double() - exact[i].double()).square().mean().sqrt()
        backward = float(off / sizes[i].square().mean().sqrt())
        measured = {"rms": error.rel_mse**0.5, "bias": error.bias, "backward": backward, "n": error.n}
        rows.append({"data": data, **case, **measured})
    return rows


def _float64(x: Any) -> Tensor:
    return (x.values() if isinstance(x, nm.BlockTensor) else x).to(torch.float64)


def promotion(seed: int, size: int, k: int) -> pd.DataFrame:
    """hopper_fp8 promoted after 32, 64, .. k products (k: never); and whether K in k / n parts gives the same bits."""
    pairs = [make(data, seed, size, k) for data in DATA]
    a, b = (operand(torch.stack([pair[i] for pair in pairs]), "hopper_fp8") for i in range(2))
    rows, every = [], 32
    while every <= k:
        found = nm.matmul(a, b, accumulator="hopper_fp8", promote=every)
        split = nm.matmul(a, b, accumulator="hopper_fp8", splits=k // every)
        case = {"every": every, "k": k, "seed": seed, "split_equals": torch.equal(found, split)}
        rows += _errors(a, b, found, case)
        every *= 2
    return pd.DataFrame(rows)


UNIFORM: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda u: torch.special.ndtri(u.clamp(1e-6, 1 - 1e-6)),
    "uniform in -1 to 1": lambda u: 2 * u - 1,
    "uniform in 0 to 1": lambda u: u,
}


def largest(seed: int, size: int, k: int) -> pd.DataFrame:
    """The largest errors of hopper_fp8's results, by three definitions, for three kinds of random matrices."""
    generator = torch.Generator().manual_seed(seed)
    u, v = (torch.rand(size, k, generator=generator) for _ in range(2))
    rows = []
    for data, shape in UNIFORM.items():
        a, b = (operand(shape(x), "hopper_fp8") for x in (u, v))
        exact = nm.matmul(a, b).double()
        for promote in (None, 128):
            off = (nm.matmul(a, b, accumulator="hopper_fp8", promote=promote).double() - exact).abs()
            measured = {
                "of_result": float((off / exact.abs()).max()),
                "of_largest": float(off.max() / exact.abs().max()),
                "of_rms": float(off.max() / exact.square().mean().sqrt()),
                "mean": float(off.mean() / exact.abs().mean()),
            }
            rows.append({"data": data, "promote": promote or k, "k": k, "seed": seed, **measured})
    return pd.DataFrame(rows)


def significant_bits(accumulator: str) -> int:
    """How many bits below and with a leading 1 a register of FP8 keeps: the products 1 and 2^-n, for growing n."""
    bits = 1
    for n in range(1, 19):
        a, b = torch.tensor([[1.0, 2.0 ** -(n // 2)]]), torch.tensor([[1.0, 2.0 ** (n // 2 - n)]])
        if float(nm.matmul(a, b, accumulator=accumulator)) != 1:
            bits = n + 1
    return bits


def sanity(accumulator: str) -> float:
    """2^23 - 2^23 - 1/2 - 1/4 - 1/8, -0.875 when exact: the register starts from 2^23, the others are products."""
    a = torch.tensor([[-(2.0**15), -0.5, -0.25, -0.125]])
    b = torch.tensor([[2.0**8, 1.0, 1.0, 1.0]])
    return float(nm.matmul(a, b, accumulator, torch.tensor([[2.0**23]])))


def recipe(seed: int, size: int, k: int, data: str) -> pd.DataFrame:
    """Errors of the recipe's three products against those of unquantized operands, by route."""
    rows = []
    for product in PRODUCTS:
        a, b, true = _PRODUCTS[product](*make(data, seed, size, k), seed)
        exact = nm.matmul(a, b)
        for route in FORWARD_ROUTES if product == "forward" else BACKWARD_ROUTES:
            case = {"product": product, "route": route.name, "data": data, "k": k, "seed": seed}
            rows.append(case | parts(true, exact, summed(a, b, route)))
    return pd.DataFrame(rows + _row_scaled(seed, size, k, data))


def _row_scaled(seed: int, size: int, k: int, data: str) -> list[dict[str, Any]]:
    """The contrast: plain E4M3, no block scales, so that Hopper's register can run over all of K."""
    a, b = (nm.round_to(x, nm.BF16) for x in make(data, seed, size, k))
    x, y = (nm.round_to(x, nm.E4M3) for x in (a, b))
    true, exact = a.double() @ b.double().mT, nm.matmul(x, y)
    rows = []
    for route, promote in (("Hopper FP8, never promoted", None), ("Hopper FP8, promoted every 128", 128)):
        found = nm.matmul(x, y, accumulator="hopper_fp8", promote=promote)
        case = {"product": "plain FP8", "route": route, "data": data, "k": k, "seed": seed}
        rows.append(case | parts(true, exact, found))
    return rows


def parts(true: Tensor, exact: Tensor, found: Tensor) -> dict[str, float]:
    """Squared errors relative to the energy of `true`: total = quantization + accumulation + cross, and the share
    that accumulation has of the total."""
    true, exact, found = (x.to(torch.float64) for x in (true, exact, found))
    energy, rounded, summed = true.square().sum(), exact - true, found - exact
    total, quantization, accumulation = (float(x.square().sum() / energy) for x in (found - true, rounded, summed))
    return {
        "total": total,
        "quantization": quantization,
        "accumulation": accumulation,
        "cross": float(2 * (rounded * summed).sum() / energy),
        "share": accumulation / total,
        "increase": total / quantization - 1,
    }


def summed(a: nm.BlockTensor, b: nm.BlockTensor, route: Route) -> Tensor:
    """a @ b.T by a route. Outer scales, which do not vary along K here, multiply the sum in FP32."""
    if not route.per_block and nm.ACCUMULATORS[route.accumulator].takes(a.fmt):
        return nm.matmul(a, b, accumulator=route.accumulator)
    if route.per_block:
        found = _per_block(a, b, route.accumulator)
    else:  # BF16 holds every value: 6 bits at most, in range
        found = nm.matmul(a.values(), b.values(), accumulator=route.accumulator)
    for outer in (a.outer, None if b.outer is None else b.outer.mT):
        found = found if outer is None else found * outer
    return found


def _per_block(a: nm.BlockTensor, b: nm.BlockTensor, accumulator: str) -> Tensor:
    """One step of the tensor core for each block of 32, from zero; times both scales; added to an FP32 register in
    order of k. Powers of two scale exactly, so this is promotion after every 32 products."""
    scales = [nm.decode(x.scales, x.fmt.scale).to(torch.float32) for x in (a, b)]
    elements = [
        nm.decode(x.codes, x.fmt.element).to(torch.float32).unflatten(-1, (-1, x.fmt.block)).movedim(-2, 0)
        for x in (a, b)
    ]
    blocks = nm.matmul(*elements, accumulator=accumulator)
    register = torch.zeros_like(blocks[0])
    for i, block in enumerate(blocks):
        register += block * (scales[0][:, i, None] * scales[1][None, :, i])
    return register


def _stochastic(q: nm.BlockTensor, outer: str, seed: int) -> nm.BlockTensor:
    return nm.requantize(q, nm.MXFP8, axis=-2, outer=outer, random=nm.Random((seed, 0))).mT


def _forward(x: Tensor, w: Tensor, seed: int) -> tuple[nm.BlockTensor, nm.BlockTensor, Tensor]:
    """y = x w^T: activations NVFP4, four-over-six, an outer scale per token; weights NVFP4, one outer scale."""
    x, w = nm.round_to(x, nm.BF16), nm.round_to(w, nm.BF16)
    return (
        nm.quantize(x, nm.NVFP4_46, outer="row"),
        nm.quantize(w, nm.NVFP4, outer="tensor"),
        x.double() @ w.double().mT,
    )


def _dgrad(dy: Tensor, w: Tensor, seed: int) -> tuple[nm.BlockTensor, nm.BlockTensor, Tensor]:
    """dx = dy w: gradients MXFP8 along features; saved weights (k, size) requantized along k, outer scale outside."""
    dy, w = nm.round_to(dy, nm.BF16), nm.round_to(w.mT.contiguous(), nm.BF16)
    saved = nm.quantize(w, nm.NVFP4, outer="tensor")
    return nm.quantize(dy, nm.MXFP8), _stochastic(saved, "keep", seed), dy.double() @ w.double()


def _wgrad(dy: Tensor, x: Tensor, seed: int) -> tuple[nm.BlockTensor, nm.BlockTensor, Tensor]:
    """dw = dy^T x over k tokens: the gradient's MXFP8 requantized to nearest, saved activations stochastically with
    the tokens' outer scales multiplied in."""
    dy, x = (nm.round_to(each.mT.contiguous(), nm.BF16) for each in (dy, x))
    sent = nm.requantize(
        nm.quantize(dy, nm.MXFP8), nm.MXFP8, axis=-2, outer="multiply", rounding=nm.Rounding.NEAREST_EVEN
    )
    saved = nm.quantize(x, nm.NVFP4_46, outer="row")
    return sent.mT, _stochastic(saved, "multiply", seed), dy.double().mT @ x.double()


_PRODUCTS = {"forward": _forward, "dgrad": _dgrad, "wgrad": _wgrad}
