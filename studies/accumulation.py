"""What a tensor core's way of adding costs, beside the exact sum of the same products.

For operands a (M, K), b (N, K) in the format that a row of `nm.ACCUMULATORS` takes, with y the sums of that row and
e the exact ones,

    error = sqrt(sum (y - e)^2 / sum e^2)          bias = sum (y - e) e / sum e^2

so quantization plays no part. Data, all from standard normal numbers u, v, w:

    random       a = u, b = v: the sum of K products grows as sqrt(K)
    one sign     a = |u|, b = |v|: it grows as K, and every cut toward zero has the same sign
    cancelling   pairs of products v and -v (1 + w / 16): nearly all of each is undone by the next

Then the options, on sums of 4096 in Hopper's FP8: promotion to FP32 every N products (DeepSeek-V3, arXiv 2412.19437,
section 3.3.2) and splits of K. Last the share of a recipe's error: x w^T in NVFP4 and its wgrad in MXFP8, with operands
as the recipe `fourbit` makes them, against the product of the unquantized ones.

Hopper has no block scales. For MXFP8 there, each block of 32 is summed by the FP8 instruction and then scaled and added
in FP32, as kernels for scales along K do.
"""

import json
import math
from dataclasses import dataclass
from itertools import product

import pandas as pd
import torch
from torch import Tensor

import numerics as nm

from . import cache
from .accumulation_draw import draw, draw_options
from .accumulation_find import find, published, summary
from .progress import Progress
from .result import Plate, Result, Study

LONG = 4096  # K of the options
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
FAST = (64, 256, 1024, 4096)
PROMOTE = (32, 64, 128, 256, 512, 1024, 2048, LONG)
SPLITS = (1, 2, 4, 8, 16, 32)
DATA = ("random", "one sign", "cancelling")
OPTION_DATA = ("random", "one sign")
# one row of each arithmetic, and the format of its operands here
ROWS: dict[str, nm.Format | nm.BlockFormat] = {
    "library": nm.BF16,
    "volta_fp16": nm.FP16,
    "ampere_bf16": nm.BF16,
    "hopper_bf16": nm.BF16,
    "ada_fp8": nm.E4M3,
    "hopper_fp8": nm.E4M3,
    "blackwell_fp8": nm.E4M3,
    "mma_sync_fp8_as_fp16": nm.E4M3,
    "blackwell_mxfp8": nm.MXFP8,
    "blackwell_nvfp4": nm.NVFP4,
}


def data(kind: str, seed: int, size: int, k: int) -> tuple[Tensor, Tensor]:
    """Operands (size, k), float32, before they are quantized; k even.

    Raises: ValueError for another kind.
    """
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.randn(2, size, k, generator=generator).unbind()
    if kind == "random":
        return a, b
    if kind == "one sign":
        return a.abs(), b.abs()
    if kind != "cancelling":
        raise ValueError(f"kind={kind!r}: use one of {', '.join(DATA)}")
    w = torch.randn(size, k // 2, generator=generator)
    first = b[:, : k // 2]
    pairs = torch.stack([first, -first * (1 + w * 0.0625)], dim=-1)
    return a[:, : k // 2].repeat_interleave(2, dim=1), pairs.flatten(1)


def operand(x: Tensor, fmt: nm.Format | nm.BlockFormat) -> nm.BlockTensor | Tensor:
    """`x` in a format. FP8 takes it times 16, away from its subnormal numbers; NVFP4 has an outer scale per row."""
    if isinstance(fmt, nm.BlockFormat):
        return nm.quantize(x, fmt, outer="row" if fmt.outer else None)
    return nm.round_to(x * 16 if fmt.bits == 8 else x, fmt)


@dataclass(frozen=True)
class Gap:
    """Sums against the exact ones. largest: the greatest relative error of one sum."""

    error: float
    bias: float
    largest: float

    @staticmethod
    def of(y: Tensor, exact: Tensor) -> "Gap":
        y, exact = y.to(torch.float64), exact.to(torch.float64)
        energy = exact.square().sum()
        relative = ((y - exact) / torch.where(exact == 0, math.inf, exact)).abs().max()
        error = ((y - exact).square().sum() / energy).sqrt()
        return Gap(float(error), float(((y - exact) * exact).sum() / energy), float(relative))


def against_length(seed: int, size: int, lengths: list[int]) -> pd.DataFrame:
    """A row for each accumulator, kind of data and K."""
    rows = []
    for kind, k in product(DATA, lengths):
        a, b = data(kind, seed, size, k)
        for name, fmt in ROWS.items():
            p, q = operand(a, fmt), operand(b, fmt)
            gap = Gap.of(nm.matmul(p, q, name), nm.matmul(p, q))
            rows.append({"accumulator": name, "data": kind, "k": k, "seed": seed} | vars(gap))
    return pd.DataFrame(rows)


def options(seed: int, size: int) -> pd.DataFrame:
    """A row for each promotion interval and each number of splits, of hopper_fp8 at K = LONG."""
    rows = []
    for kind in OPTION_DATA:
        p, q = (operand(x, nm.E4M3) for x in data(kind, seed, size, LONG))
        exact = nm.matmul(p, q)
        for option, values in (("promote", PROMOTE), ("splits", SPLITS)):
            for value in values:
                gap = Gap.of(nm.matmul(p, q, "hopper_fp8", **{option: value}), exact)  # type: ignore[arg-type]
                rows.append({"option": option, "value": value, "data": kind, "seed": seed} | vars(gap))
    return pd.DataFrame(rows)


def shares(seed: int, size: int, k: int) -> pd.DataFrame:
    """A row for each product of the recipe and way to sum it: squared errors, relative to the unquantized product's
    energy, of quantization alone, of the accumulation alone, and of both."""
    x, w = data("random", seed, size, k)
    saved, weight = nm.quantize(x, nm.NVFP4_46, outer="row"), nm.quantize(w, nm.NVFP4, outer="tensor")
    ways = {name: nm.matmul(saved, weight, name) for name in ("library", "blackwell_nvfp4")}
    inner = nm.matmul(saved.values(), weight.values(), "hopper_bf16")  # exact in BF16
    ways["hopper_bf16"] = inner * (saved.outer * weight.outer)
    rows = _split("fprop, NVFP4", seed, k, x, w, nm.matmul(saved, weight), ways)

    tokens, gradient = data("random", seed + 1000, size, k)  # k tokens
    kept = nm.quantize(tokens.mT.contiguous(), nm.NVFP4_46, outer="row")
    random = nm.Random((seed, 0))
    recast = nm.requantize(kept, nm.MXFP8, axis=-2, outer="multiply", random=random).mT
    g = nm.quantize(gradient, nm.MXFP8)
    ways = {name: nm.matmul(g, recast, name) for name in ("library", "blackwell_mxfp8")}
    ways["hopper_fp8, scaled every 32"] = scaled_blocks(g, recast)
    return pd.DataFrame(rows + _split("wgrad, MXFP8", seed, k, gradient, tokens, nm.matmul(g, recast), ways))


def scaled_blocks(a: nm.BlockTensor, b: nm.BlockTensor) -> Tensor:
    """MXFP8 products on an FP8 tensor core: blocks of 32 by `hopper_fp8`, times both scales, added in FP32."""
    total = torch.zeros(a.shape[0], b.shape[0])
    for block in range(a.scales.shape[-1]):
        part = slice(32 * block, 32 * block + 32)
        codes = (nm.decode(t.codes[:, part].contiguous(), nm.E4M3) for t in (a, b))
        scale_a, scale_b = (nm.decode(t.scales[:, block : block + 1].contiguous(), nm.E8M0) for t in (a, b))
        total = total + nm.matmul(*codes, "hopper_fp8") * (scale_a * scale_b.mT)
    return total


def _split(what: str, seed: int, k: int, a: Tensor, b: Tensor, exact: Tensor, ways: dict[str, Tensor]) -> list[dict]:
    true = a.to(torch.float64) @ b.to(torch.float64).mT
    energy = true.square().sum()

    def error(y: Tensor, z: Tensor) -> float:
        return float((y.to(torch.float64) - z.to(torch.float64)).square().sum() / energy)

    case = {"product": what, "k": k, "seed": seed, "quantization": error(exact, true)}
    return [
        case | {"accumulator": name, "accumulation": error(y, exact), "total": error(y, true)}
        for name, y in ways.items()
    ]


def run(fast: bool) -> Result:
    """Measure, draw and conclude: 5 seeds of 24 x 24 sums up to K = 4096, or 8 of 48 x 48 up to 8192."""
    size, lengths, seeds = (24, FAST, tuple(range(5))) if fast else (48, LENGTHS, tuple(range(8)))
    found: dict[str, list[pd.DataFrame]] = {"length": [], "options": [], "shares": []}
    with Progress(3 * len(seeds), "accumulation") as progress:
        for seed in seeds:
            found["length"].append(cache.part(against_length, seed=seed, size=size, lengths=list(lengths)))
            progress.advance(1, f"lengths, seed {seed}")
            found["options"].append(cache.part(options, seed=seed, size=size))
            progress.advance(1, f"promotion, seed {seed}")
            found["shares"].append(cache.part(shares, seed=seed, size=4 * size, k=LONG))
            progress.advance(1, f"recipe, seed {seed}")
    length, option, share = (pd.concat(parts, ignore_index=True) for parts in found.values())
    rows = pd.concat([length, option, share], keys=found.keys(), names=["part"]).reset_index(level=0)
    caption = (
        f"Relative error of sums of K products against the exact sums, root mean square, mean over {len(seeds)} seeds "
        f"of {size} x {size} sums. Operands are already in the format that each accumulator takes."
    )
    told = summary(length, option, share)
    plate = Plate(
        "options",
        draw_options(option, share),
        f"Left: Hopper's FP8 at K = {LONG}, promoted to FP32 every N products, or K in S parts; bars are 95 % "
        "intervals over seeds. Right: squared error of the recipe's products, of quantization and of accumulation.",
    )
    numbers = json.loads(json.dumps(told, default=vars))
    tables = (published(option),)
    return Result(rows, draw(length), caption, find(told), seeds, numbers, tables=tables, plates=(plate,))


STUDY = Study(
    name="accumulation",
    title="How tensor cores add",
    question="How far are the sums of tensor cores from the exact sums of the same products, how does that grow with "
    "the length of the contraction, what do promotion and split-K buy, and does it matter beside quantization?",
    run=run,
)
