"""Cases of `validate --ops` at the edges where scales and choices turn, which random data never meet.

data "edges"          block maxima that are a power of two times the largest element, so that an E8M0 scale is just
                      not raised; blocks whose errors under four-over-six are equal in exact arithmetic, so that
                      the order of the sum decides
down_to_wire sent     a wire without rotation, and matrices that select columns: the wire gets the data as they are
grad_to_wire powers   weights that are powers of two: the products keep the data's edges
requantize_transpose  plain: codes become BF16 values, as they are and times the rows' factors
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from numerics import ops

from .cases import Cut, Draw, Inputs, Operation, Outputs, parts
from .cases_seam import ExpertPath

TURNS = ("ties", "edges")  # the data of these operations
TOPS = (448.0, 6.0, 127 / 64)  # the largest elements of MXFP8, MXFP4 and MXS2F6


def edges(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Even rows: maxima on edges. Odd rows: equal errors. Each row starts with 1536, an outer scale of 1."""
    *lead, rows, columns = shape
    wide = (*lead, rows, -(-columns // 32))
    x = np.where(np.arange(rows)[:, None, None] % 2 == 0, _maxima(rng, wide), _equal_errors(rng, wide))
    x = x.reshape(*lead, rows, wide[-1] * 32)[..., :columns]
    x[..., :1] = 1536.0
    return x


def _maxima(rng: np.random.Generator, blocks: tuple[int, ...]) -> np.ndarray:
    """(*blocks, 32): the first value is top * 2^k, no other is larger."""
    top = rng.choice(TOPS, (*blocks, 1)) * 2.0 ** rng.integers(-8, 3, (*blocks, 1))
    x = top * rng.uniform(-0.98, 0.98, (*blocks, 32))
    x[..., :1] = top
    return x * rng.choice([-1.0, 1.0], x.shape)


def _equal_errors(rng: np.random.Generator, blocks: tuple[int, ...]) -> np.ndarray:
    """(*blocks, 32), of two blocks of 16 in a random order, in units of the scale s that maps the maximum to 6.

    With 6 the codes stand for 0, s/2, s, .., with 4 for 0, 3s/4, 3s/2, ... A pair (a, a + s/4), a between s/2 and 3s/4,
    has the errors (a - s/2, 3s/4 - a) under 6 and (3s/4 - a, a - s/2) under 4; values below s/4 become 0 under both,
    and some are so small that float32 rounds their squares in the sum.
    """
    a = 0.5 + rng.integers(1, 64, (*blocks, 2, 5)) / 256
    small = 2.0 ** rng.uniform(-10, -2, (*blocks, 2, 5))
    x = np.concatenate([np.full((*blocks, 2, 1), 6.0), a, a + 0.25, small], -1)
    x = rng.permuted(x, axis=-1) * 2.0 ** rng.integers(-5, 6, (*blocks, 2, 1))
    return (x * rng.choice([-1.0, 1.0], x.shape)).reshape(*blocks, 32)


def edge_operations(p: ExpertPath, o: Any) -> list[Operation]:
    """Those of a path that has formats for its wire and its gradients."""
    if p.grad.fmt is None:
        return []
    rows, by_expert = Cut(0, ("tokens", "weights")), Cut(0, ("x",), ("w",))
    sent = Operation(
        f"down_to_wire {p.name} sent", _selecting, partial(_sent, p, o), by_expert, TURNS, (torch.bfloat16,)
    )
    powers = Operation(
        f"grad_to_wire {p.name} powers", _powers, partial(_weighted, p, o), rows, TURNS, (torch.float32,)
    )
    values = Operation(
        f"requantize_transpose {p.name} plain", partial(_coded, p), partial(_plain, o), dtypes=(torch.float32,)
    )
    return [sent, powers, values]


def _selecting(d: Draw) -> Inputs:
    w = torch.zeros(d.experts, d.shape.model, d.shape.hidden)
    column = torch.from_numpy(d.rng.integers(0, d.shape.hidden, (d.experts, d.shape.model, 1)))
    w.scatter_(2, column, 1.0)
    return {"x": d.tested(d.rows, d.shape.hidden), "w": w.to(torch.bfloat16), "groups": d.groups}


def _sent(p: ExpertPath, o: Any, i: Inputs) -> Outputs:
    return parts("payload", o.down_to_wire(i["x"], i["w"], i["groups"], ops.Wire(p.wire.fmt), "exact"))


def _powers(d: Draw) -> Inputs:
    tokens = torch.from_numpy(d.rng.integers(0, max(d.tokens, 1), d.rows))
    weights = torch.from_numpy(2.0 ** d.rng.integers(-9, 1, (d.rows, 1))).to(torch.float32)
    return {"g": d.tested(d.tokens, d.shape.model), "tokens": tokens, "weights": weights}


def _weighted(p: ExpertPath, o: Any, i: Inputs) -> Outputs:
    return parts("payload", o.grad_to_wire(i["g"], i["tokens"], i["weights"], p.grad))


def _coded(p: ExpertPath, d: Draw) -> Inputs:
    x = d.tested(d.rows, d.shape.model)
    return {"q": ops.quantize_tokens(x, p.activation), "rows": d.beside(d.rows, 1), "groups": d.groups}


def _plain(o: Any, i: Inputs) -> Outputs:
    values = o.requantize_transpose(i["q"], ops.Recast(None), i["groups"])
    weighted = o.requantize_transpose(i["q"], ops.Recast(None), i["groups"], None, i["rows"])
    return {"values": values, "weighted": weighted}
