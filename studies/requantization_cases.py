"""What `requantization_kinds` measures; each function is a part of its own, for one seed.

Data are standard normal. With x what is quantized and x_1 .. x_n independent results, d_i = x_i - x,

    variance       V   = (sum |d_i|^2 - |sum d_i|^2 / n) / (n - 1)       noise of one draw
    squared bias   B^2 = |sum d_i / n|^2 - V / n                         what no average takes away, value by value
    bias                 <sum d_i / n, x> / <x, x>                       along x: -0.01 is 1 % too short

V and B^2, over |x|^2, are estimates without bias of their own: their sum is the mean squared error of one draw.

Exact means need no draws: a random field r rounds a magnitude up from some least r on, which `expected` finds by
bisection of the encoder itself. w random bits are the upper w of the field; 8 are the upper half of 16, the rest zero.

The saved tensors are the forward's: activations by four-over-six with one outer scale per token, weights plain with one
for the expert. Backward blocks run along the other axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
import torch

import numerics as nm
from numerics.scales import RULES, Rule, static

HADAMARD = 128  # of MS-EDEN
PUBLISHED = Rule("headroom", partial(static, largest=6 * 16 / 17), 448 * 16 / 17, "arXiv 2601.22813, section 3")
HEADROOMS = {"6": RULES["static_6"], "6 x 16/17": PUBLISHED, "6 x 16/17, subnormal scales up": RULES["unbiased"]}
WIDTHS = (8, 16, 32)
OUTERS = ("FP32, multiplied in", "FP32, outside", "power of two, multiplied in")
SEEDS_APART = 1000  # between the seeds of a study's several tensors


def by_rule(rule: str) -> nm.BlockFormat:
    """NVFP4 with another rule."""
    return replace(nm.NVFP4, name=f"NVFP4 {rule}", rule=RULES[rule])


@dataclass(frozen=True)
class Kind:
    """A way to requantize: format, rounding, and for MS-EDEN the rotation before."""

    name: str
    fmt: nm.BlockFormat
    stochastic: bool
    rotated: bool = False

    @property
    def draws(self) -> bool:
        return self.stochastic or self.fmt.rule.draws


KINDS = (
    Kind("MXFP8, nearest", nm.MXFP8, False),
    Kind("MXFP8, stochastic", nm.MXFP8, True),
    Kind("NVFP4, nearest", nm.NVFP4, False),
    Kind("NVFP4, four-over-six", nm.NVFP4_46, False),
    Kind("NVFP4, stochastic to 6", by_rule("static_6"), True),
    Kind("NVFP4, stochastic to 6 x 16/17", by_rule("unbiased"), True),
    Kind("NVFP4, four-over-six, stochastic", nm.NVFP4_46, True),
    Kind("NVFP4, MS-EDEN", by_rule("eden"), False, rotated=True),
    Kind("NVFP4, MS-EDEN, not rotated", by_rule("eden"), False),
)
STOCHASTIC, NEAREST = nm.Rounding.STOCHASTIC, nm.Rounding.NEAREST_EVEN


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def saved(operand: str, seed: int, size: int, outer_rounding: str | None = None) -> nm.BlockTensor:
    """The forward's tensor, (size, size): "activations" or "weights"."""
    fmt, scope = {"activations": (nm.NVFP4_46, "row"), "weights": (nm.NVFP4, "tensor")}[operand]
    return nm.quantize(normal(seed, size, size), fmt, outer=scope, outer_rounding=outer_rounding)


def random_of(seed: int, draw: int, role: int = 0) -> nm.Random:
    return nm.Random((seed, draw), (role, 0))


def once(kind: Kind, x: torch.Tensor | nm.BlockTensor, seed: int, draw: int) -> torch.Tensor:
    """One quantization of the values of `x` along axis -2, decoded. An outer scale that is one number stays outside of
    MXFP8; all others are multiplied in, and NVFP4 gets a new one for the tensor."""
    rounding = STOCHASTIC if kind.stochastic else NEAREST
    random = random_of(seed, draw) if kind.draws else None
    if kind.fmt is nm.MXFP8 and isinstance(x, nm.BlockTensor):
        outer = "keep" if x.outer is not None and x.outer.numel() == 1 else "multiply"
        return nm.requantize(x, nm.MXFP8, axis=-2, outer=outer, rounding=rounding, random=random).dequantize()
    values = _values(x)
    signs = nm.hadamard_signs(HADAMARD, (seed, draw)) if kind.rotated else None
    if signs is not None:
        values = nm.hadamard(values, HADAMARD, signs, axis=-2)
    new = nm.quantize(values, kind.fmt, axis=-2, outer=kind.fmt.outer, rounding=rounding, random=random).dequantize()
    return new if signs is None else nm.hadamard_inverse(new, HADAMARD, signs, axis=-2)


def _values(x: torch.Tensor | nm.BlockTensor) -> torch.Tensor:
    return x.dequantize() if isinstance(x, nm.BlockTensor) else x


def moments(x: torch.Tensor, draw: Callable[[int], torch.Tensor], draws: int) -> dict[str, float]:
    """error, variance, squared_bias and bias of `draw(0) .. draw(draws - 1)` against x, see above; one draw of what
    is not random has no variance."""
    x = x.to(torch.float64)
    total, squares = torch.zeros_like(x), 0.0
    for i in range(draws):
        d = draw(i).to(torch.float64) - x
        total, squares = total + d, squares + float(d.square().sum())
    energy = float(x.square().sum())
    mean = float(total.square().sum()) / draws**2
    variance = (squares - draws * mean) / (draws - 1) if draws > 1 else 0.0
    return {
        "error": squares / draws / energy,
        "variance": variance / energy,
        "squared_bias": (mean - variance / draws) / energy,
        "bias": float((total * x).sum()) / draws / energy,
    }


def kinds(operand: str, seed: int, size: int, draws: int) -> pd.DataFrame:
    """Bias and variance of every kind; one row each. operand: of `saved`, or "originals", which were not quantized."""
    x = normal(seed, size, size) if operand == "originals" else saved(operand, seed, size)
    rows = []
    for kind in KINDS:
        found = moments(_values(x), lambda i, kind=kind: once(kind, x, seed, i), draws if kind.draws else 1)
        rows.append({"operand": operand, "kind": kind.name, "seed": seed, "n": size * size} | found)
    return pd.DataFrame(rows)


# ---- exact means ----------------------------------------------------------------------------------------------------


def expected(v: torch.Tensor, fmt: nm.Format, bits: int) -> torch.Tensor:
    """Mean of `v` rounded stochastically to `fmt` with `bits` random bits, float64: exact."""
    width = 32 if bits > 16 else 16
    unit = width - bits  # low bits that stay zero

    def rounded(r: torch.Tensor) -> torch.Tensor:
        return nm.decode(nm.encode(v, fmt, STOCHASTIC, r << unit, random_width=width), fmt).to(torch.float64)

    low = torch.zeros(v.shape, dtype=torch.int64)
    high = low + (1 << bits)
    down = rounded(low)
    for _ in range(bits):
        middle = (low + high) >> 1
        up = rounded(middle) != down
        low, high = torch.where(up, low, middle), torch.where(up, middle, high)
    share = ((1 << bits) - high).to(torch.float64) / (1 << bits)
    return down + (rounded(torch.full_like(low, (1 << bits) - 1)) - down) * share


def expected_of(x: torch.Tensor, rule: Rule, outer: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean of x in NVFP4 along the last axis, and the scaled elements before rounding (infinite under scale 0)."""
    fmt = replace(nm.NVFP4, name="NVFP4", rule=rule)
    q = nm.quantize(x, fmt, outer=outer)
    step = nm.decode(q.scales, nm.E4M3).repeat_interleave(16, -1) * q.outer
    scaled = x / torch.where(step == 0, float("inf"), step)
    return expected(scaled, nm.E2M1, bits) * step, scaled


def _length(x: torch.Tensor, mean: torch.Tensor) -> dict[str, float]:
    """bias: along x. shrinkage: of the mean magnitude. Signs are kept, so |mean| is the mean of magnitudes."""
    x = x.to(torch.float64)
    bias = float(((mean - x) * x).sum() / x.square().sum())
    return {"bias": bias, "shrinkage": float(mean.abs().sum() / x.abs().sum()) - 1}


def lengths(seed: int, size: int) -> pd.DataFrame:
    """Exact bias of stochastic NVFP4 on normal data: headroom and random bits; `top`: of each block's largest."""
    x, rows = normal(seed, size, size), []
    largest = x.abs().unflatten(-1, (-1, 16)).argmax(-1, keepdim=True)

    def tops(t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (-1, 16)).gather(-1, largest)

    for name, rule in HEADROOMS.items():
        assert rule.scale_max is not None
        outer = (x.abs().max() / (6 * rule.scale_max)).view(1, 1)
        for bits in WIDTHS:
            mean, scaled = expected_of(x, rule, outer, bits)
            top = _length(tops(x), tops(mean))["shrinkage"]
            clipped = float((tops(scaled).abs() > 6 * (1 + 2**-20)).double().mean())
            case = {"seed": seed, "n": x.numel(), "headroom": name, "bits": bits}
            rows.append(case | _length(x, mean) | {"top": top, "clipped": clipped})
    return pd.DataFrame(rows)


def small_scales(seed: int, size: int, block: str, ratios: list[float]) -> pd.DataFrame:
    """Exact bias of stochastic NVFP4 where the largest magnitude of the "median" or of "every" block is `ratio` of the
    tensor's."""
    x, rows = normal(seed, size, size // 16, 16), []
    largest = x.abs().amax(-1, keepdim=True)
    x = x / {"median": largest.median(), "every": largest}[block]
    for ratio in ratios:
        values = (x * ratio).flatten(1)
        for name, rule in HEADROOMS.items():
            assert rule.scale_max is not None
            outer = torch.full((1, 1), 1 / (6 * rule.scale_max))  # of a tensor whose largest magnitude is 1
            mean, _ = expected_of(values, rule, outer, 16)
            case = {"seed": seed, "headroom": name, "block": block, "ratio": ratio}
            rows.append(case | _length(values, mean))
    return pd.DataFrame(rows)


def mxfp8_bits(seed: int, size: int) -> pd.DataFrame:
    """Exact bias of stochastic MXFP8, random bits against where the saved outer scale is; `exact`: share of non-zero
    values whose mean is the value itself."""
    rows = []
    for outer in OUTERS:
        q = saved("weights", seed, size, "pow2" if outer.startswith("power") else None)
        values = q.values() if outer == "FP32, outside" else q.dequantize()
        new = nm.quantize(values, nm.MXFP8, axis=-2, rounding=NEAREST)
        step = nm.decode(new.scales, nm.E8M0).repeat_interleave(32, -2)
        for bits in WIDTHS:
            mean = expected(values / step, nm.E4M3, bits) * step
            exact = float((mean == values)[values != 0].double().mean())
            rows.append({"seed": seed, "outer": outer, "bits": bits} | _length(values, mean) | {"exact": exact})
    return pd.DataFrame(rows)


# ---- the outer scale, and what is quantized --------------------------------------------------------------------------


def outers(operand: str, seed: int, size: int) -> pd.DataFrame:
    """Where the outer scale is when a saved tensor becomes MXFP8: error of one draw, share of non-zero values kept."""
    rows = []
    for outer in OUTERS:
        x, q = normal(seed, size, size), saved(operand, seed, size, "pow2" if outer.startswith("power") else None)
        values = q.values() if outer == "FP32, outside" else q.dequantize()
        how = "drop" if outer == "FP32, outside" else "multiply"
        nearest = nm.requantize(q, nm.MXFP8, outer=how, rounding=NEAREST).dequantize()
        drawn = nm.requantize(q, nm.MXFP8, outer=how, random=random_of(seed, 0)).dequantize()
        kept = float((nearest == values)[values != 0].double().mean())
        case = {"operand": operand, "outer": outer, "seed": seed, "n": x.numel(), "exact": kept}
        case |= {"forward": nm.metrics.error(x, q.dequantize()).rel_mse}
        case |= {"nearest": nm.metrics.error(values, nearest).rel_mse}
        rows.append(case | {"stochastic": nm.metrics.error(values, drawn).rel_mse})
    return pd.DataFrame(rows)


def products(seed: int, size: int, spread: float) -> pd.DataFrame:
    """Relative squared error of both backward products, one row per place of the outer scale.

    The gradient (tokens, features) becomes MXFP8 by nearest rounding; saved operands by stochastic rounding. The
    products that they are compared with use the unrounded gradient and the saved values. spread: standard deviation
    of the logarithm of the tokens' scales. "FP32, outside" of wgrad is folded into the gradient before its blocks.
    """
    g, rows = normal(seed + SEEDS_APART, size, size), []
    scale = torch.exp(spread * normal(seed + 2 * SEEDS_APART, size, 1))
    for outer in OUTERS:
        how = {"outer_rounding": "pow2" if outer.startswith("power") else None}
        weight, token = saved("weights", seed, size, how["outer_rounding"]), None
        act = nm.quantize(normal(seed, size, size) * scale, nm.NVFP4_46, outer="row", **how)
        if outer == "FP32, outside":
            token = act.outer
        w = nm.requantize(weight, nm.MXFP8, outer="multiply" if token is None else "keep", random=random_of(seed, 0))
        a = nm.requantize(act, nm.MXFP8, outer="multiply" if token is None else "drop", random=random_of(seed, 1))
        g_rows = nm.quantize(g, nm.MXFP8, axis=-1)
        g_columns = nm.quantize(g if token is None else g * token, nm.MXFP8, axis=-2)
        pairs = {
            "dgrad": (_product(g, weight.dequantize()), _product(g_rows.dequantize(), w.dequantize())),
            "wgrad": (_product(g.mT, act.dequantize()), _product(g_columns.dequantize().mT, a.dequantize())),
        }
        for name, (exact, found) in pairs.items():
            error = nm.metrics.error(exact, found).rel_mse
            rows.append({"product": name, "outer": outer, "spread": spread, "seed": seed, "error": error})
    return pd.DataFrame(rows)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.to(torch.float64) @ b.to(torch.float64)


def sources(operand: str, seed: int, size: int) -> pd.DataFrame:
    """The saved tensor requantized, or the originals quantized again along the other axis: error against what the
    forward multiplied and against the originals, and the share of values that are not the forward's."""
    x, q = normal(seed, size, size), saved(operand, seed, size)
    forward, random = q.dequantize(), random_of(seed, 0)
    found = {"saved": forward}
    for name, fmt in (("MXFP8", nm.MXFP8), ("the forward's NVFP4", q.fmt)):
        found[f"originals again, {name}, nearest"] = nm.quantize(x, fmt, axis=-2).dequantize()
        found[f"requantized, {name}, nearest"] = nm.quantize(forward, fmt, axis=-2).dequantize()
    for name, fmt in (("MXFP8", nm.MXFP8), ("NVFP4 to 6 x 16/17", by_rule("unbiased"))):
        drawn = nm.quantize(forward, fmt, axis=-2, rounding=STOCHASTIC, random=random)
        found[f"requantized, {name}, stochastic"] = drawn.dequantize()
    rows = []
    for route, values in found.items():
        errors = [nm.metrics.error(reference, values).rel_mse for reference in (forward, x)]
        case = {"operand": operand, "route": route, "seed": seed, "to_forward": errors[0], "to_originals": errors[1]}
        rows.append(case | {"differ": float((values != forward).double().mean())})
    return pd.DataFrame(rows)
