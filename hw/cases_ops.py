"""Cases of `validate --ops`: every function of the seam, in every path's formats, over shapes and kinds of data.

A case runs the same calls twice, with the functions of `numerics.ops` and with those of the implementation that is
judged. Where bits are defined they are compared: under accumulator="exact" for products. Sums of an order that is not
defined (`router_gradient`, products under "library") are judged by the intervals of `bounds`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

import numerics as nm
from numerics import ops

from .cases import DATA, EXPERTS, Cut, Draw, Inputs, Operation, Outputs, Shape, parts
from .cases_edges import TURNS, edge_operations, edges
from .cases_seam import ExpertPath, expert_paths, glu_backward_operation, path_operations, stored

Kind = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

SHAPES = (
    Shape("ragged", lambda n: (0, n // 3 + 1, n // 2 + 2, n // 2 + 5, n - 1, n)),
    Shape("empty experts", lambda n: (0, 0, n // 3 + 1, n // 3 + 1, n, n), model=64, hidden=32),
    Shape("one expert", lambda n: (0, 0, n, n, n, n), model=64, hidden=32, top=3),
    Shape("one token", lambda n: (0, 0, 0, n, n, n), rows=1, top=1),
    Shape("no token", lambda n: (0,) * (EXPERTS + 1), rows=0, model=64, hidden=32),
    # 72 and 40 are no multiples of 16 or 32: the last block of each row is short
    Shape("odd widths", lambda n: (0, n // 4 + 3, n // 2 + 1, n // 2 + 1, n - 5, n), model=72, hidden=40, top=3),
)


def _ties(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Ties as in `fourbit validate`; in every other pair of rows for outer scales of amax / 1536, four-over-six's."""
    x = DATA["ties"](rng, shape)
    x[..., :1] = np.where(np.arange(shape[-2])[:, None] % 4 < 2, 2688.0, 1536.0)
    return x


def _outliers(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """A few features a hundred times as large in every row, and a few values ten thousand times."""
    x = rng.standard_normal(shape) * np.where(rng.random(shape[-1]) < 0.03, 100.0, 1.0)
    return np.where(rng.random(shape) < 0.0005, x * 1e4, x)


RECORDED = "recorded"
PRODUCTS = ("gate_up_glu", "down_to_wire", "grad_products")
KINDS: dict[str, Kind] = DATA | {"ties": _ties, "outliers": _outliers, "edges": edges}
FEW = ("normal", "ties", "denormals", "NaN, Inf")  # with --fast, of the oracle and of the paths but the first
LATER, STREAMS, SIZES, DRAWS, LARGE, HUGE = "later calls", "streams", "sizes", "draws", "2^16", "2^31"
# instead of a kind of data: other ways to pass it, see `ways`
WAYS = ("layouts", "settings", LATER, STREAMS, SIZES)
SUMMED = ("normal", "outliers", "row scales", "holes", "denormals")  # of intervals: no sum overflows
ROUTED = (*SUMMED, "NaN, Inf")  # where nothing is rounded before the sum but the transform


@dataclass(frozen=True)
class SeamCase:
    """A function of the seam in the formats of a path (None: it has none).

    Args:
        ours, theirs: the same inputs and calls, with the functions of either side. accumulator: of its products.
        bounded: outputs are judged by intervals. again: another case has the same calls with inputs of another dtype.
    """

    function: str
    path: ExpertPath | None
    ours: Operation
    theirs: Operation
    accumulator: str = "exact"
    bounded: bool = False
    again: bool = False

    @property
    def name(self) -> str:
        return self.ours.name

    @property
    def exact(self) -> bool:
        """Whether it multiplies under accumulator="exact"."""
        return self.accumulator == "exact" and self.function in PRODUCTS

    @property
    def words(self) -> list[str]:
        """The words of its name."""
        return self.name.split()

    def data(self, fast: bool) -> tuple[str, ...]:
        """Kinds of data, recorded ones apart, and of ways to pass it."""
        few = fast and (self.again or (self.path is not None and self.path.name != "NVFP4"))
        return tuple(kind for kind in (*self.ours.data, *WAYS) if kind in (*FEW, WAYS[0]) or not few)


def seam_cases(reference: Any, judged: Any) -> list[SeamCase]:
    """Every case, with functions as attributes of two objects; what `judged` lacks is an error only when it is run."""
    found = []
    for path in expert_paths():
        found += _pairs(path, partial(path_operations, path), reference, judged)
        found += _pairs(path, partial(_more, path), reference, judged)
        found += _pairs(path, partial(_summed, path), reference, judged, "library")
    found += _pairs(None, lambda o: [glu_backward_operation(o)], reference, judged)
    order = ("quantize_tokens", "gate_up_glu", "down_to_wire", "aggregate", "router_gradient", "grad_to_wire")
    order += ("row_scale", "requantize_transpose", "grad_products", "glu_backward")
    return sorted(found, key=lambda case: order.index(case.function))


def _pairs(
    path: ExpertPath | None,
    make: Callable[[Any], list[Operation]],
    reference: Any,
    judged: Any,
    accumulator: str = "exact",
) -> list[SeamCase]:
    found = []
    for ours, theirs in zip(make(reference), make(judged), strict=True):
        function = ours.name.split()[0]
        bounded = accumulator == "library" or function == "router_gradient"
        kinds = (
            ROUTED
            if function == "router_gradient"
            else SUMMED
            if bounded
            else TURNS
            if ours.data == TURNS
            else tuple(KINDS)
        )
        for place, dtype in enumerate(ours.dtypes):
            name = ours.name + f" {dtype}".replace("torch.", "") * (place > 0)
            pair = (replace(side, name=name, data=kinds, dtypes=(dtype,)) for side in (ours, theirs))
            found.append(SeamCase(function, path, *pair, accumulator, bounded, place > 0))
    return found


def _summed(p: ExpertPath, o: Any) -> list[Operation]:
    """Products whose sums have the library's order. In pieces the order may be another."""
    found = [operation for operation in path_operations(p, o, "library") if operation.name.split()[0] in PRODUCTS]
    return [replace(operation, name=f"{operation.name} library", cut=None) for operation in found]


def _more(p: ExpertPath, o: Any) -> list[Operation]:
    """What `fourbit validate` leaves out: weights, random words by expert rows, the router, scales that move."""
    bf16, fp32, sums = (torch.bfloat16,), (torch.float32,), Cut(0, ("slots", "weights"))
    both, returned = (*bf16, *fp32), Cut(0, ("slots",))
    found = [
        Operation(f"quantize_tokens {p.name} weight", partial(_weight, p), partial(_cast_weight, p, o), dtypes=both),
        Operation(f"router_gradient {p.name}", partial(_routed, p), partial(_router, p, o), dtypes=both),
        Operation(
            f"aggregate {p.name} cancelling", partial(_cancelling, p), partial(_aggregate, p, o), sums, dtypes=fp32
        ),
        Operation(f"aggregate {p.name} returned", partial(_sent, p), partial(_returned, o), returned, dtypes=fp32),
        Operation(f"row_scale {p.name}", partial(_saved, p), partial(_row_scale, o), dtypes=bf16),
    ]
    if p.grad.fmt is not None:
        rows = Cut(0, ("x",), ())
        found.insert(
            1, Operation(f"quantize_tokens {p.name} rows", _rows, partial(_cast_rows, p, o), rows, dtypes=both)
        )
        moved = Operation(
            f"requantize_transpose {p.name} moved", partial(_saved, p), partial(_moved, p, o), dtypes=fp32
        )
        drawn = Operation(f"grad_to_wire {p.name} drawn", _gradient, partial(_drawn, p, o), dtypes=fp32)
        found += [moved, drawn]
    return found + edge_operations(p, o) + (_rotated_operations(p, o) if p.name == "NVFP4" else [])


def _weight(p: ExpertPath, d: Draw) -> Inputs:
    return {"x": d.tested(d.experts, d.shape.hidden, d.shape.model)}


def _cast_weight(p: ExpertPath, o: Any, i: Inputs) -> Outputs:
    """Matrices with a scale each, and some in two axes with a scale for each row."""
    pairs = o.quantize_tokens(i["x"][:4].unflatten(0, (-1, 2)), p.activation)
    return parts("weight", o.quantize_tokens(i["x"], p.weight)) | parts("pairs", pairs)


def _rows(d: Draw) -> Inputs:
    return {"x": d.tested(d.rows, d.shape.model), "groups": d.groups, "random": nm.Random((4, 1), (67, 20), d.groups)}


def _cast_rows(p: ExpertPath, o: Any, i: Inputs) -> Outputs:
    random = replace(i["random"], rows=i["groups"])
    grad = o.quantize_tokens(i["x"], replace(p.grad, rounding=nm.Rounding.STOCHASTIC), random)
    nearest = o.quantize_tokens(i["x"], p.grad, groups=i["groups"], axis=-2)
    return parts("grad", grad) | parts("nearest along rows", nearest)


def _gradient(d: Draw) -> Inputs:
    tokens = torch.from_numpy(d.rng.integers(0, max(d.tokens, 1), d.rows))
    random = nm.Random((-8, 1 << 40 | 5), (1 << 31, (1 << 32) - 2), d.groups)  # words are taken modulo 2^32
    return {"g": d.tested(d.tokens, d.shape.model), "tokens": tokens, "weights": d.beside(d.rows, 1), "random": random}


def _drawn(p: ExpertPath, o: Any, i: Inputs) -> Outputs:
    cast = replace(p.grad, rounding=nm.Rounding.STOCHASTIC)
    return parts("payload", o.grad_to_wire(i["g"], i["tokens"], i["weights"], cast, i["random"]))


def _routed(p: ExpertPath, d: Draw) -> Inputs:
    n = d.shape.top * d.tokens
    slots = torch.from_numpy(d.rng.permutation(n)).view(-1, d.shape.top)
    decoded = d.beside(n, p.wire_width(d))
    return {"g": d.tested(d.tokens, p.wire_width(d)), "decoded": decoded, "slots": slots}


def _router(p: ExpertPath, o: Any, i: Inputs) -> Outputs:
    return {"d_weights": o.router_gradient(i["g"], i["decoded"], i["slots"], p.wire)}


def _saved(p: ExpertPath, d: Draw) -> Inputs:
    x, g = d.tested(d.rows, d.shape.model), d.beside(d.rows, d.shape.model)
    return {
        "q": ops.quantize_tokens(x, p.activation),
        "dy": stored(d, ops.quantize_tokens(g, p.grad)),
        "groups": d.groups,
        "random": nm.Random((2, 7), (132, 40)),
    }


def _cancelling(p: ExpertPath, d: Draw) -> Inputs:
    """Four experts a token, of which the first and the third cancel: what is left depends on the order of the sum."""
    t, width = d.tokens, p.wire_width(d)
    x = d.tested(t, width)
    x = torch.cat([x, d.beside(t, width), x, d.beside(t, width)])
    weights = d.beside(t, 4) * torch.tensor([65536.0, 1.0, 65536.0, 1.0])
    weights[:, 2] = -weights[:, 0]
    payload = x.to(torch.bfloat16) if p.wire.fmt is None else nm.quantize(x, p.wire.fmt)
    return {"payload": payload, "slots": torch.arange(4 * t).view(4, t).mT.contiguous(), "weights": weights}


def _aggregate(p: ExpertPath, o: Any, i: Inputs) -> Outputs:
    return {"out": o.aggregate(i["payload"], i["slots"], i["weights"], p.wire)[0]}


def _sent(p: ExpertPath, d: Draw) -> Inputs:
    n = d.shape.top * d.tokens
    slots = torch.from_numpy(d.rng.permutation(n)).view(-1, d.shape.top)
    return {"payload": ops.quantize_tokens(d.tested(n, d.shape.model), p.grad), "slots": slots}


def _returned(o: Any, i: Inputs) -> Outputs:
    """Gradients of dispatched tokens come back as they are: without weights, signs or the wire's format."""
    return {"out": o.aggregate(i["payload"], i["slots"], None, ops.Wire(None))[0]}


def _row_scale(o: Any, i: Inputs) -> Outputs:
    """The outer scales that move, and whether there are any."""
    scales = {outer: o.row_scale(i["q"], ops.Recast(nm.MXFP8, outer)) for outer in ("gradient", "multiply")}
    out = {f"{outer} is None": torch.tensor([scale is None], device="cpu") for outer, scale in scales.items()}
    return out | {outer: scale for outer, scale in scales.items() if scale is not None}


def _moved(p: ExpertPath, o: Any, i: Inputs) -> Outputs:
    """A token's outer scale leaves the operand and multiplies the gradient's rows; and the operand's values in BF16."""
    stochastic = nm.Rounding.STOCHASTIC
    saved, tokenwise = ops.Recast(nm.MXFP8, "gradient", stochastic), ops.Recast(nm.MXFP8, rounding=stochastic)
    rows = i["q"].outer if isinstance(i["q"], nm.BlockTensor) else None
    operand = o.requantize_transpose(i["q"], saved, i["groups"], i["random"])
    gradient = o.requantize_transpose(i["dy"], tokenwise, i["groups"], i["random"], rows)
    values = o.requantize_transpose(i["q"], ops.Recast(None), i["groups"])
    return parts("operand", operand) | parts("gradient", gradient) | parts("values", values)


# Operands that are rotated along their blocks, group by group, and then quantized with outer scales of their own.

TOKENS = ops.Cast(nm.NVFP4, "tensor", nm.Rounding.STOCHASTIC)
FEATURES = ops.Cast(nm.NVFP4, "row", outer_rounding="pow2")
SAVED = ops.Recast(nm.NVFP4, "multiply", nm.Rounding.STOCHASTIC, "tensor")
TILED = ops.Recast(nm.NVFP4_2D, "multiply", scope="leading")


def rotation() -> torch.Tensor:
    """The signs of the cases named rotated."""
    return nm.hadamard_signs(16, (3, 3))


def _rotated_operations(p: ExpertPath, o: Any) -> list[Operation]:
    bf16 = (torch.bfloat16,)

    def tokens(d: Draw) -> Inputs:
        width = -(-d.shape.model // 16) * 16
        return {"x": d.tested(d.rows, width), "groups": d.groups, "random": nm.Random((6, 2), (68, 25))}

    def quantize(i: Inputs) -> Outputs:
        along = o.quantize_tokens(i["x"], TOKENS, i["random"], i["groups"], -2, rotation())
        return parts("along rows", along) | parts("features", o.quantize_tokens(i["x"], FEATURES, signs=rotation()))

    def saved(d: Draw) -> Inputs:
        w = ops.quantize_tokens(d.tested(d.experts, d.shape.hidden, d.shape.model), p.weight)
        return _saved(p, d) | {"w": w}

    def requantize(i: Inputs) -> Outputs:
        q = o.requantize_transpose(i["q"], SAVED, i["groups"], i["random"], None, rotation())
        return parts("input", q) | parts("weight", o.requantize_transpose(i["w"], TILED))

    def operands(d: Draw) -> Inputs:
        g, x = d.tested(d.rows, d.shape.hidden), d.beside(d.rows, d.shape.model)
        w = ops.quantize_tokens(d.beside(d.experts, d.shape.hidden, d.shape.model), p.weight)
        tensor = ops.Cast(nm.NVFP4, "tensor")
        along = (ops.quantize_tokens(t, tensor, None, d.groups, -2, rotation()) for t in (g, x))
        named = dict(zip(("g_tokens", "x"), along, strict=True))
        return {
            "g": ops.quantize_tokens(g, FEATURES),
            "w": ops.requantize_transpose(w, TILED),
            "groups": d.groups,
        } | named

    def products(i: Inputs) -> Outputs:
        dx, dw = o.grad_products(i["g"], i["g_tokens"], i["w"], i["x"], i["groups"], "exact")
        return {"dx": dx, "dw": dw}

    return [
        Operation(f"quantize_tokens {p.name} rotated", tokens, quantize, dtypes=(torch.bfloat16, torch.float32)),
        Operation(f"requantize_transpose {p.name} rotated", saved, requantize, dtypes=bf16),
        Operation(f"grad_products {p.name} rotated", operands, products, dtypes=(torch.float32,)),
    ]
