"""`fourbit validate`: does `numerics` give the same bits on the device at hand as on the CPU?

A case is an operation, a kind of data and a dtype. Its inputs are drawn and prepared once, on the CPU, and the same
bits go to both sides. Every output is compared element by element, as integers:

    --device cuda   the CPU against the device
    --device cpu    the CPU on 1 thread against the CPU on all threads, at least 2

and then against pieces computed on the device: ragged ranges of rows or columns, or each expert alone, joined again.
A token's bits must not depend on which other tokens, or experts, are computed beside it.

The claim covers codes, scales, outer scales, random words, Hadamard transforms, SwiGLU, exact products, and the
operations of `numerics.ops` under accumulator="exact". Not promised, hence not compared: FP32 products, which have the
library's order of summation, and `router_gradient`, whose sum has too. Any NaN equals any NaN, since IEEE 754 leaves
sign and payload to the machine; so codes made from a NaN that an operation computed are compared only up to the
block's scale, which is NaN. Codes of NaN and Inf that are in the input are compared, and so is the sign of zero.

Exit status: 0 if something was compared and nothing differs, 1 if not, 2 if there is no such device.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

import numerics as nm
from numerics import ops, swiglu

from .device import DeviceAbsent, describe, resolve

Inputs = dict[str, Any]  # tensors, block tensors, and what is the same on every device
Outputs = dict[str, Tensor]


@dataclass(frozen=True)
class ValidateConfig:
    """Compare the arithmetic of a device with the CPU's, bit for bit; the exit status is 0 if all of it is equal."""

    device: str = "cuda"
    """What to compare with the CPU: cuda or cuda:1; with cpu, 1 thread is compared with several."""
    rows: int | None = None
    """Rows of each input; 384, or 160 with --fast."""
    seeds: tuple[int, ...] = (0, 1)
    """Each draws all inputs anew."""
    fast: bool = False
    """Fewer rows, the first seed and, of each operation, the first dtype only."""
    out: Path | None = None
    """JSON file for versions, device, date and the count of every case."""


# Data: kinds of float32 arrays (rows, ...), by name.


def _ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """BF16 values halfway between two codes: of E2M1 in odd rows, of S2F6 and E4M3 in even ones."""
    odd = np.arange(shape[-2])[:, None] % 2 == 1
    x = np.where(odd, rng.integers(-24, 25, shape) / 4, rng.integers(-255, 256, shape) / 128)
    x *= 2.0 ** rng.integers(0, 9, (*shape[:-1], 1))
    x[..., :1] = 2688.0  # 6 * 448 in every row: the outer scales are 1 and keep the ties
    return x


def _tails(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    x = rng.standard_normal(shape) ** 3
    return np.where(rng.random(shape) < 0.002, np.copysign(3e5, x), x)


def _holes(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Rows and whole blocks of zeros of both signs."""
    x = rng.standard_normal(shape)
    x[..., ::3, :] *= 0.0
    x[..., 32:96] *= 0.0
    return x


def _spread(low: float, high: float, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Magnitudes 10^low to 10^high, uniform in the exponent, of both signs."""
    return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(low, high, shape)


def _not_finite(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    x = rng.standard_normal(shape)
    special = np.copysign(np.where(rng.random(shape) < 0.5, np.nan, np.inf), x)
    return np.where(rng.random(shape) < 0.004, special, x)


DATA: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "ties": _ties,
    "tails": _tails,
    "row scales": lambda rng, shape: rng.standard_normal(shape) * np.exp(np.linspace(-4.5, 4.5, shape[-2]))[:, None],
    "zeros": lambda rng, shape: rng.choice([-0.0, 0.0], shape),
    "holes": _holes,
    "denormals": partial(_spread, -44, -38),
    "huge": partial(_spread, 37, 38.5),
    "NaN, Inf": _not_finite,
}
SOME = ("normal", "tails", "huge", "NaN, Inf")


@dataclass(frozen=True)
class Draw:
    """Makes the inputs of one case. `rows`: of its matrices."""

    rng: np.random.Generator
    data: str
    dtype: torch.dtype
    rows: int

    def tested(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """The case's data in its dtype, or in `dtype`."""
        array = DATA[self.data](self.rng, shape).astype(np.float32)
        return torch.from_numpy(array).to(dtype or self.dtype)

    def normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.standard_normal(shape).astype(np.float32))

    def integers(self, bits: int, *shape: int) -> Tensor:
        return torch.from_numpy(self.rng.integers(0, 1 << bits, shape))

    @property
    def groups(self) -> tuple[int, ...]:
        """Offsets of five experts: ragged, the third one empty, the last with one row."""
        n = self.rows
        return (0, n // 3 + 1, n // 2 + 2, n // 2 + 2, n - 1, n)


EXPERTS = 5


@dataclass(frozen=True)
class Cut:
    """How inputs come apart; what the pieces give joins along the same axis.

    Args:
        axis, names: the inputs to cut, and where. experts: None: at ragged places; else one piece for each expert of
            `groups`, and these inputs are cut along axis 0, one matrix for each.
    """

    axis: int
    names: tuple[str, ...]
    experts: tuple[str, ...] | None = None

    def pieces(self, inputs: Inputs) -> Iterator[Inputs]:
        length = inputs[self.names[0]].shape[self.axis]
        bounds = (0, 1, length // 3 + 1, length - 3, length) if self.experts is None else inputs["groups"]
        for expert, (start, end) in enumerate(pairwise(bounds)):
            piece = inputs | {name: narrow(inputs[name], self.axis, start, end) for name in self.names}
            if self.experts is not None:
                piece |= {name: narrow(inputs[name], 0, expert, expert + 1) for name in self.experts}
                piece["groups"] = (0, end - start)
                if "random" in inputs:  # the counter names the expert, wherever it is computed
                    first, second = inputs["random"].counter
                    piece["random"] = replace(inputs["random"], counter=(first, second + expert))
            yield piece


def narrow(x: ops.Operand, axis: int, start: int, end: int) -> ops.Operand:
    """Indices [start, end) of `axis`, along which a block tensor must not have its blocks."""
    if isinstance(x, Tensor):
        return x.narrow(axis, start, end - start)
    assert axis % len(x.shape) != x.axis
    outer = x.outer
    if outer is not None and outer.shape[axis] != 1:
        outer = outer.narrow(axis, start, end - start)
    codes, scales = (t.narrow(axis, start, end - start) for t in (x.codes, x.scales))
    return replace(x, codes=codes, scales=scales, outer=outer)


@dataclass(frozen=True)
class Operation:
    """What is validated: `make` draws inputs on the CPU, `run` turns them into outputs on any device."""

    name: str
    make: Callable[[Draw], Inputs]
    run: Callable[[Inputs], Outputs]
    cut: Cut | None = None
    data: tuple[str, ...] = tuple(DATA)
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.bfloat16)


def parts(name: str, q: ops.Operand, computed: bool = True) -> Outputs:
    """The tensors of an operand. `computed`: an operation made its input, so the sign of a NaN there means nothing."""
    if isinstance(q, Tensor):
        return {name: q}
    codes = torch.where(torch.isnan(q.values()), 0, q.codes) if computed else q.codes
    found = {f"{name}.codes": codes, f"{name}.scales": q.scales}
    return found if q.outer is None else found | {f"{name}.outer": q.outer}


# Elements, random words, transforms.


def _encode(fmt: nm.Format, i: Inputs) -> Outputs:
    modes = [m for m in nm.Rounding if fmt.kind != "exponent" or m.name not in ("STOCHASTIC", "TOWARD_NEGATIVE")]
    return {
        m.name: nm.encode(i["x"], fmt, m, i["bits"] if m is nm.Rounding.STOCHASTIC else None) for m in modes
    }


def _philox(i: Inputs) -> Outputs:
    random, expert, line, group = nm.Random((7, 3), (65, 2)), i["expert"], i["line"], i["group"]
    fields = {f"fields of {bits} bits": random.fields(expert, line, group, bits) for bits in (4, 8)}
    return {"words": nm.philox(i["key"], i["counter"])} | fields


def _hadamard(i: Inputs) -> Outputs:
    out = {}
    for size in (16, 32, 64, 128):
        signs = nm.hadamard_signs(size, (1, size))
        out[f"{size}"] = nm.hadamard(i["x"], size, signs)
        out[f"{size} inverse"] = nm.hadamard_inverse(i["x"], size, signs)
    return out


def _swiglu(i: Inputs) -> Outputs:
    d_gate, d_up = swiglu.swiglu_backward(i["dh"], i["gate"], i["up"])
    return {"h": swiglu.swiglu(i["gate"], i["up"]), "d_gate": d_gate, "d_up": d_up}


def _all_gates(d: Draw) -> Inputs:
    patterns = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).view(256, 256)
    return {"gate": patterns, "up": d.normal(256, 256).to(torch.bfloat16), "dh": d.normal(256, 256)}


def _element_operations() -> list[Operation]:
    def words(d: Draw) -> Inputs:
        counters = {name: d.integers(32, d.rows) for name in ("expert", "line", "group")}
        return {"key": d.integers(32, d.rows, 2), "counter": d.integers(32, d.rows, 4)} | counters

    def glu(d: Draw) -> Inputs:
        gate, up = d.tested(2, d.rows, 64, dtype=torch.bfloat16)
        return {"gate": gate, "up": up, "dh": d.tested(d.rows, 64, dtype=torch.float32)}

    def bits(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 250), "bits": d.integers(16, d.rows, 250)}

    rows, glu_rows = Cut(0, ("x",)), Cut(0, ("gate", "up", "dh"))
    words_cut, bits_cut = Cut(0, ("key", "counter", "expert", "line", "group")), Cut(0, ("x", "bits"))
    return [
        *(Operation(f"encode {f.name}", bits, partial(_encode, f), bits_cut) for f in nm.FORMATS.values()),
        Operation("philox", words, _philox, words_cut, ("integers",), (torch.int64,)),
        Operation("hadamard", lambda d: {"x": d.tested(d.rows, 256)}, _hadamard, rows),
        Operation("swiglu", _all_gates, _swiglu, glu_rows, ("all gates",), (torch.bfloat16,)),
        Operation("swiglu", glu, _swiglu, glu_rows, dtypes=(torch.bfloat16,)),
    ]


# Block formats.


def _quantize(fmt: nm.BlockFormat, axis: int, options: dict[str, dict[str, Any]], i: Inputs) -> Outputs:
    out: Outputs = {}
    for name, option in options.items():
        given = {"outer": i["outer"]} if name == "given" else option
        out |= parts(name, nm.quantize(i["x"], fmt, axis, groups=i.get("groups"), **given), computed=False)
    return out


def _requantize(fmt: nm.BlockFormat, i: Inputs) -> Outputs:
    out = {"values": i["q"].dequantize(), "values in bfloat16": i["q"].dequantize(torch.bfloat16)}
    for outer in ("multiply", "drop"):
        out |= parts(outer, nm.requantize(i["q"], fmt, -2, i["groups"], outer, random=i["random"]))
    kept = nm.requantize(i["w"], fmt, -2, random=i["random"])
    return out | parts("keep", kept) | {"kept values": kept.dequantize()}


NONE, ROW = {"none": {"outer": None}}, {"row": {"outer": "row"}, "row pow2": {"outer": "row", "outer_rounding": "pow2"}}
WHOLE = {
    "tensor": {"outer": "tensor"},
    "tensor pow2": {"outer": "tensor", "outer_rounding": "pow2"},
    "leading": {"outer": "leading"},
    "stochastic": {"rounding": nm.Rounding.STOCHASTIC, "random": nm.Random((5, 1), (64, 0))},
}
GIVEN: dict[str, dict[str, Any]] = {"given": {}}


def _block_operations() -> list[Operation]:
    def tokens(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 250), "outer": torch.exp(d.normal(d.rows, 1))}

    def columns(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 250), "outer": torch.exp(d.normal(1, 250)), "groups": d.groups}

    def experts(d: Draw) -> Inputs:
        return {"x": d.tested(4, d.rows // 4, 250)}

    def saved(fmt: nm.BlockFormat, d: Draw) -> Inputs:
        q = nm.quantize(d.tested(d.rows, 250), fmt, outer="row")
        w = nm.quantize(d.tested(EXPERTS, 40, 96), fmt, outer="leading")
        return {"q": q, "w": w, "groups": d.groups, "random": nm.Random((9, 4), (130, 10))}

    rows, columns_cut, by_expert = Cut(0, ("x", "outer")), Cut(-1, ("x", "outer")), Cut(0, ("q",), ("w",))
    found = []
    for fmt in nm.BLOCK_FORMATS.values():
        scopes = (NONE if fmt.outer is None else NONE | ROW) | GIVEN
        whole = {k: v for k, v in WHOLE.items() if fmt.outer is not None or k == "stochastic"}
        found += [
            Operation(f"quantize {fmt.name}", tokens, partial(_quantize, fmt, -1, scopes), rows),
            Operation(f"quantize {fmt.name} whole", experts, partial(_quantize, fmt, -1, whole)),
            Operation(f"quantize {fmt.name} groups", columns, partial(_quantize, fmt, -2, scopes), columns_cut),
        ]
    for old, new in ((nm.NVFP4, nm.MXFP8), (nm.NVFP4_46, nm.MXFP8), (nm.NVFP4, nm.MXS2F6), (nm.NVFP4_46, nm.NVFP4)):
        name = f"requantize {old.name} {new.name}"
        found.append(Operation(name, partial(saved, old), partial(_requantize, new), by_expert))
    return found


# Exact products.


def _product(i: Inputs) -> Outputs:
    return {"product": nm.matmul(i["a"], i["b"], "exact", groups=i.get("groups"))}


def _product_operations() -> list[Operation]:
    def plain(d: Draw) -> Inputs:
        return {"a": d.tested(d.rows, 250), "b": d.tested(48, 250)}

    def row_blocks(d: Draw) -> nm.BlockTensor:
        return nm.quantize(d.tested(d.rows, 250), nm.NVFP4_46, outer="row")

    def blocks(d: Draw) -> Inputs:
        return {"a": row_blocks(d), "b": nm.quantize(d.normal(48, 250), nm.NVFP4)}

    def grouped(d: Draw) -> Inputs:
        w = nm.quantize(d.normal(EXPERTS, 48, 250), nm.NVFP4, outer="leading")
        return {"a": row_blocks(d), "b": w, "groups": d.groups}

    def contraction(d: Draw) -> Inputs:
        a, b = (nm.quantize(t, nm.MXFP8, -2, groups=d.groups) for t in (d.tested(d.rows, 96), d.normal(d.rows, 48)))
        # one outer scale for each token, inside the sum
        return {"a": a.mT, "b": replace(b, outer=torch.exp(2 * d.normal(d.rows, 1))).mT, "groups": d.groups}

    def cancelling(d: Draw) -> Inputs:
        """Terms of 1e-36 to 1e36, of which all but a few cancel exactly: float64 sums lose every bit of the rest."""
        a, b = (torch.from_numpy(_spread(-18, 18, d.rng, (n, 125)).astype(np.float32)) for n in (d.rows, 48))
        a = torch.cat((a, -a), dim=1)
        a[:, ::50] = d.normal(d.rows, 5)
        return {"a": a, "b": torch.cat((b, b), dim=1)}

    rows, fp32 = Cut(0, ("a",)), (torch.float32,)
    return [
        Operation("exact product", plain, _product, rows),
        Operation("exact product", cancelling, _product, rows, ("cancelling",), fp32),
        Operation("exact product of blocks", blocks, _product, rows, dtypes=fp32),
        Operation("exact grouped rows", grouped, _product, Cut(0, ("a",), ("b",)), dtypes=fp32),
        Operation("exact grouped contraction", contraction, _product, Cut(-2, ("a",)), dtypes=fp32),
    ]


# The seam: operations of the expert path. D = 128 model width, F = 64 expert width, two experts for each token.


@dataclass(frozen=True)
class ExpertPath:
    """Formats of one expert path, and the data that it meets here."""

    name: str
    activation: ops.Cast
    weight: ops.Cast
    saved_weight: ops.Recast
    saved_input: ops.Recast
    wire: ops.Wire
    data: tuple[str, ...]
    grad: ops.Cast = field(default_factory=lambda: ops.Cast(nm.MXFP8))


def _paths() -> list[ExpertPath]:
    stochastic, signs = nm.Rounding.STOCHASTIC, nm.hadamard_signs(32, (0, 0))
    weight, saved = ops.Recast(nm.MXFP8, "keep", stochastic), ops.Recast(nm.MXFP8, "multiply", stochastic)
    mx, near, coded = ops.Cast(nm.MXFP8), ops.Recast(nm.MXFP8), ops.Wire(nm.MXS2F6, signs)
    activation, plain = ops.Cast(nm.NVFP4_46, "row"), ops.Cast(None)
    return [
        ExpertPath("NVFP4", activation, ops.Cast(nm.NVFP4, "leading"), weight, saved, coded, tuple(DATA)),
        ExpertPath("MXFP8", mx, mx, near, near, coded, SOME),
        ExpertPath("BF16", plain, plain, ops.Recast(None), ops.Recast(None), ops.Wire(None), SOME, plain),
    ]


def _forward_operations(p: ExpertPath) -> list[Operation]:
    def tokens(d: Draw) -> Inputs:
        return {"x": d.tested(d.rows, 128), "groups": d.groups, "random": nm.Random((3, 8), (66, 30))}

    def quantize_tokens(i: Inputs) -> Outputs:
        payload = ops.quantize_tokens(i["x"], p.activation)
        cast = replace(p.grad, rounding=nm.Rounding.STOCHASTIC)
        grad = ops.quantize_tokens(i["x"], cast, i["random"], i["groups"], -2)
        return parts("payload", payload, computed=False) | parts("along rows", grad, computed=False)

    def operands(n: int, k: int, d: Draw) -> Inputs:
        w = ops.quantize_tokens(d.normal(EXPERTS, n, k), p.weight)
        return {"x": ops.quantize_tokens(d.tested(d.rows, k), p.activation), "w": w, "groups": d.groups}

    def gate_up_glu(i: Inputs) -> Outputs:
        h, gate_up = ops.gate_up_glu(i["x"], i["w"], i["groups"], p.activation, "exact")
        return {"gate_up": gate_up} | parts("h", h)

    def down_to_wire(i: Inputs) -> Outputs:
        return parts("payload", ops.down_to_wire(i["x"], i["w"], i["groups"], p.wire, "exact"))

    def payload(d: Draw) -> Inputs:
        n = d.rows // 2 * 2
        fmt, x, slots = p.wire.fmt, d.tested(n, 128), torch.from_numpy(d.rng.permutation(n)).view(-1, 2)
        q = x.to(torch.bfloat16) if fmt is None else nm.quantize(x, fmt)
        return {"payload": q, "slots": slots, "weights": d.normal(n // 2, 2)}

    def aggregate(i: Inputs) -> Outputs:
        out, decoded = ops.aggregate(i["payload"], i["slots"], i["weights"], p.wire)
        unweighted, _ = ops.aggregate(i["payload"], i["slots"], None, p.wire)
        return {"out": out, "unweighted": unweighted, "decoded": decoded.index_select(0, i["slots"].flatten())}

    by_expert, tokens_cut = Cut(0, ("x",), ("w",)), Cut(0, ("slots", "weights"))
    bf16 = (torch.bfloat16,)
    return [
        Operation(f"quantize_tokens {p.name}", tokens, quantize_tokens, Cut(0, ("x",), ()), p.data, bf16),
        Operation(f"gate_up_glu {p.name}", partial(operands, 128, 128), gate_up_glu, by_expert, p.data, bf16),
        Operation(f"down_to_wire {p.name}", partial(operands, 128, 64), down_to_wire, by_expert, p.data, bf16),
        Operation(f"aggregate {p.name}", payload, aggregate, tokens_cut, p.data, (torch.float32,)),
    ]


def _backward_operations(p: ExpertPath) -> list[Operation]:
    rounds = {"random": nm.Random((2, 6), (131, 50))}

    def gradient(d: Draw) -> Inputs:
        tokens = torch.from_numpy(d.rng.integers(0, d.rows // 2, d.rows))
        return {"g": d.tested(d.rows // 2, 128), "tokens": tokens, "weights": d.normal(d.rows, 1)}

    def grad_to_wire(i: Inputs) -> Outputs:
        return parts("payload", ops.grad_to_wire(i["g"], i["tokens"], i["weights"], p.grad))

    def saved(d: Draw) -> Inputs:
        w = ops.quantize_tokens(d.tested(EXPERTS, 64, 128), p.weight)
        return {"q": ops.quantize_tokens(d.tested(d.rows, 128), p.activation), "w": w, "groups": d.groups} | rounds

    def requantize_transpose(i: Inputs) -> Outputs:
        x = ops.requantize_transpose(i["q"], p.saved_input, i["groups"], i["random"])
        return parts("input", x) | parts("weight", ops.requantize_transpose(i["w"], p.saved_weight, None, i["random"]))

    def operands(d: Draw) -> Inputs:
        g, q = d.tested(d.rows, 64), ops.quantize_tokens(d.normal(d.rows, 128), p.activation)
        w = ops.quantize_tokens(d.normal(EXPERTS, 64, 128), p.weight)
        return {
            "g": ops.quantize_tokens(g, p.grad),
            "g_tokens": ops.quantize_tokens(g, p.grad, groups=d.groups, axis=-2),
            "w": ops.requantize_transpose(w, p.saved_weight, None, **rounds),
            "x": ops.requantize_transpose(q, p.saved_input, d.groups, **rounds),
            "groups": d.groups,
        }

    def grad_products(i: Inputs) -> Outputs:
        dx, dw = ops.grad_products(i["g"], i["g_tokens"], i["w"], i["x"], i["groups"], "exact")
        return {"dx": dx, "dw": dw}

    fp32 = (torch.float32,)
    rows, by_expert, by_column = Cut(0, ("tokens", "weights")), Cut(0, ("q",), ("w",)), Cut(-1, ("w", "x"))
    return [
        Operation(f"grad_to_wire {p.name}", gradient, grad_to_wire, rows, p.data, fp32),
        Operation(f"requantize_transpose {p.name}", saved, requantize_transpose, by_expert, p.data, (torch.bfloat16,)),
        Operation(f"grad_products {p.name}", operands, grad_products, by_column, p.data, fp32),
    ]


def operations() -> list[Operation]:
    """Everything that is validated, in the order of the table."""

    def hidden(d: Draw) -> Inputs:
        return {"dh": d.tested(d.rows, 64, dtype=torch.float32), "gate_up": d.tested(d.rows, 128)}

    def glu_backward(i: Inputs) -> Outputs:
        return {"d_gate_up": ops.glu_backward(i["dh"], i["gate_up"])}

    last = Operation("glu_backward", hidden, glu_backward, Cut(0, ("dh", "gate_up")), dtypes=(torch.bfloat16,))
    seam = [operation for path in _paths() for operation in (*_forward_operations(path), *_backward_operations(path))]
    return [*_element_operations(), *_block_operations(), *_product_operations(), *seam, last]


# Running and comparing.


@dataclass(frozen=True)
class Side:
    """Where a case runs: a device, and the number of CPU threads."""

    device: torch.device
    threads: int

    def run(self, operation: Operation, inputs: Inputs) -> Outputs:
        torch.set_num_threads(self.threads)
        there = {name: _move(x, self.device) for name, x in inputs.items()}
        return {name: x.cpu() for name, x in operation.run(there).items()}

    def run_in_pieces(self, operation: Operation, cut: Cut, inputs: Inputs) -> Outputs:
        pieces = [self.run(operation, piece) for piece in cut.pieces(inputs)]
        return {name: torch.cat([piece[name] for piece in pieces], cut.axis) for name in pieces[0]}


@dataclass(frozen=True)
class Sides:
    """The CPU that others are compared with, and where the whole and the pieces run."""

    reference: Side
    whole: Side
    pieces: Side

    @staticmethod
    def of(device: torch.device, threads: int) -> Sides:
        """For --device `device`, with torch's usual number of CPU threads."""
        if device.type == "cpu":
            return Sides(Side(device, 1), Side(device, max(2, threads)), Side(device, 1))
        return Sides(Side(torch.device("cpu"), threads), Side(device, threads), Side(device, threads))


def _move(x: Any, device: torch.device) -> Any:
    if isinstance(x, nm.BlockTensor):
        outer = None if x.outer is None else x.outer.to(device)
        return replace(x, codes=x.codes.to(device), scales=x.scales.to(device), outer=outer)
    return x.to(device) if isinstance(x, Tensor) else x


@dataclass
class Row:
    """A line of the table. `first`: the first difference in words, or why nothing was compared."""

    operation: str
    data: str
    dtype: str
    elements: int = 0
    differing: int = 0
    first: str | None = None

    @property
    def failed(self) -> bool:
        return self.elements == 0 or self.differing > 0 or self.first is not None

    def __str__(self) -> str:
        first = "" if self.first is None else f"  {self.first}"
        return f"{self.operation:<30} {self.data:<10} {self.dtype:<8} {self.elements:>9} {self.differing:>9}{first}"


def compare(row: Row, where: str, expected: Outputs, found: Outputs, x: Tensor | None) -> None:
    """Count every element of `expected` in `row`, and those that `found` lacks or has otherwise.

    Args:
        where: names this comparison. x: the input, for outputs of its shape.
    """
    for name, e in expected.items():
        f = found.get(name)
        row.elements += e.numel()
        if f is None or f.shape != e.shape or f.dtype != e.dtype:
            row.differing += max(e.numel(), 1)
            got = "is missing" if f is None else f"has {f.dtype} {tuple(f.shape)}"
            row.first = row.first or f"{where}: {name} {got} instead of {e.dtype} {tuple(e.shape)}"
            continue
        differs = _bits(e) != _bits(f)
        if e.is_floating_point():
            differs &= ~(torch.isnan(e) & torch.isnan(f))
        count = int(differs.sum())
        row.differing += count
        if count and row.first is None:
            at = tuple(differs.nonzero()[0].tolist())
            value = f", input {x[at].item()!r}" if x is not None and x.shape == e.shape else ""
            row.first = f"{where}: {name}{list(at)} is {_show(f[at])}, should be {_show(e[at])}{value}"
    for name in found.keys() - expected.keys():
        row.differing += found[name].numel()
        row.first = row.first or f"{where}: {name} should not be there"


def _bits(x: Tensor) -> Tensor:
    """`x` as signed integers, for which torch has every operation."""
    if x.is_floating_point():
        return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
    return x.to(torch.int64)


def _show(x: Tensor) -> str:
    pattern = f"0x{int(_bits(x)) & ((1 << 8 * x.element_size()) - 1):0{2 * x.element_size()}x}"
    return f"{x.item()!r} ({pattern})" if x.is_floating_point() else pattern


def run_case(operation: Operation, data: str, dtype: torch.dtype, config: ValidateConfig, sides: Sides) -> Row:
    """One case, for every seed."""
    row = Row(operation.name, data, str(dtype).removeprefix("torch."))
    rows = config.rows or (160 if config.fast else 384)
    for seed in config.seeds[:1] if config.fast else config.seeds:
        rng = np.random.default_rng((seed, zlib.crc32(f"{row.operation}, {row.data}, {row.dtype}".encode())))
        try:
            inputs = operation.make(Draw(rng, data, dtype, rows))
            expected = sides.reference.run(operation, inputs)
            compare(row, f"seed {seed}", expected, sides.whole.run(operation, inputs), inputs.get("x"))
            if operation.cut is not None:
                found = sides.pieces.run_in_pieces(operation, operation.cut, inputs)
                compare(row, f"seed {seed}, in pieces", expected, found, inputs.get("x"))
        except RuntimeError as error:  # an operation that the device lacks, or no memory: the others still count
            row.first = row.first or f"seed {seed}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            break
    return row


def main(argv: list[str]) -> int:
    """Run `fourbit validate` with `argv`; return the exit status of the module's docstring.

    Raises:
        ValueError: a bad argument. OSError: `out` cannot be written.
    """
    config = tyro.cli(ValidateConfig, args=argv, prog="fourbit validate")
    _check(config)
    try:
        device = resolve(config.device)
    except DeviceAbsent as error:
        print(f"not run: {error}")
        _record(config, {"status": "not run", "reason": str(error)})
        return 2
    threads = torch.get_num_threads()
    try:
        rows = list(_table(config, Sides.of(device, threads)))
    finally:
        torch.set_num_threads(threads)
    return _conclude(config, device, max(2, threads), rows)


def _check(config: ValidateConfig) -> None:
    if config.rows is not None and not 16 <= config.rows <= 8192:
        raise ValueError(f"rows={config.rows} cannot be used; use 16 to 8192")
    if not config.seeds or min(config.seeds) < 0:
        raise ValueError(f"seeds={config.seeds} cannot be used; name one or more integers from 0")
    if config.out is not None:
        config.out.parent.mkdir(parents=True, exist_ok=True)


def _table(config: ValidateConfig, sides: Sides) -> Iterator[Row]:
    """Print the table, a line as soon as it is known, and yield its rows."""
    print(f"{'operation':<30} {'data':<10} {'dtype':<8} {'elements':>9} {'differing':>9}  first difference", flush=True)
    for operation in operations():
        for dtype in operation.dtypes[:1] if config.fast else operation.dtypes:
            for data in operation.data:
                row = run_case(operation, data, dtype, config, sides)
                print(row, flush=True)
                yield row


def _conclude(config: ValidateConfig, device: torch.device, threads: int, rows: list[Row]) -> int:
    """Print the summary, write the record, return the exit status."""
    about, failed = describe(device), [row for row in rows if row.failed]
    elements, differing = sum(row.elements for row in rows), sum(row.differing for row in rows)
    passed = elements > 0 and not failed
    against = f"1 thread of the CPU against {threads}" if device.type == "cpu" else f"the CPU against {device}"
    counts = f"{len(rows)} cases, {elements} elements compared"
    found = "none differs" if passed else f"{differing} differ, {len(failed)} cases failed"
    print(f"{'passed' if passed else 'FAILED'}: {against} ({about['name']}): {counts}, {found}")
    result = {"status": "passed" if passed else "failed", "device": about, "compared": against}
    totals = {"elements": elements, "differing": differing, "failed": len(failed)}
    _record(config, result | totals | {"cases": [asdict(row) for row in rows]})
    return 0 if passed else 1


def _record(config: ValidateConfig, result: dict[str, Any]) -> None:
    """Write the JSON record, whole or not at all, if one was asked for."""
    if config.out is None:
        return
    reference = describe(torch.device("cpu"))
    versions = {"python": platform.python_version(), "numpy": np.__version__, "torch": torch.__version__}
    about = {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "versions": versions}
    asked = asdict(config) | {"out": str(config.out)}
    text = json.dumps({"command": "validate", **about, "config": asked, "reference": reference, **result}, indent=1)
    partial_file = config.out.with_name(config.out.name + ".partial")
    partial_file.write_text(text + "\n", "utf-8")
    os.replace(partial_file, config.out)
