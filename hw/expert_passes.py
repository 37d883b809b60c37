"""One expert MLP, forward and backward, twice: on the seam's operations in four bits, and on torch's in BF16.

    x (R, D) -> gate_up = x w13^T -> h = silu(gate) up -> y = h w2^T          R rows, E experts, widths D and F

Rows are sorted by expert, one expert per token. The recipe is the one that the seam was cut for: tokens four-over-six
with an outer scale each, weights NVFP4 with one per expert, gradients MXFP8, saved operands requantized to MXFP8
stochastically along the other axis, outputs in S2F6 after a Hadamard of 32. Weights are quantized once, beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

import numerics as nm
from numerics.hadamard import hadamard_signs
from numerics.ops import Cast, Recast, Wire

NEEDED = (
    *("quantize_tokens", "gate_up_glu", "down_to_wire", "aggregate", "grad_to_wire", "requantize_transpose"),
    *("grad_products", "glu_backward"),
)
TOKEN, WEIGHT, GRAD = Cast(nm.NVFP4_46, "row"), Cast(nm.NVFP4, "leading"), Cast(nm.MXFP8)
SAVED_WEIGHT = Recast(nm.MXFP8, "keep", nm.Rounding.STOCHASTIC)
SAVED_INPUT = Recast(nm.MXFP8, "multiply", nm.Rounding.STOCHASTIC)
RECEIVED = Recast(nm.MXFP8, "multiply")


@dataclass(frozen=True, eq=False)
class Data:
    """x, g (R, D); w13 (E, 2F, D), w2 (E, D, F): bfloat16. groups: E + 1 offsets; offsets: their ends, int32, as
    torch._grouped_mm takes them. slots (R, 1), tokens (R,), weights float32 (R, 1): one expert per token."""

    x: Tensor
    g: Tensor
    w13: Tensor
    w2: Tensor
    groups: tuple[int, ...]
    offsets: Tensor
    slots: Tensor
    tokens: Tensor
    weights: Tensor


def data(rows: int, experts: int, width: int, hidden: int, device: torch.device) -> Data:
    """Normal numbers, weights as a layer starts with them, rows / experts tokens for each expert."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=generator, device=device) * scale).bfloat16()

    r, e, d, f = rows, experts, width, hidden
    ends = torch.arange(1, e + 1, device=device, dtype=torch.int32) * (r // e)
    tokens = torch.arange(r, device=device)
    weights = torch.rand(r, 1, generator=generator, device=device)
    return Data(
        *(normal(r, d), normal(r, d), normal(e, 2 * f, d, scale=d**-0.5), normal(e, d, f, scale=f**-0.5)),
        *(tuple(range(0, r + 1, r // e)), ends, tokens[:, None], tokens, weights),
    )


class Ours:
    """The passes on an implementation of the seam, `ops`: a mapping from names to functions."""

    def __init__(self, ops: dict[str, Callable[..., Any]], data: Data, accumulator: str) -> None:
        self.ops, self.data, self.accumulator = ops, data, accumulator
        self.wire = Wire(nm.MXS2F6, hadamard_signs(32, (1, 2)).to(data.x.device))
        self.w13, self.w2 = (ops["quantize_tokens"](w, WEIGHT) for w in (data.w13, data.w2))

    def forward(self) -> tuple[Any, ...]:
        """out (R, D) and what the backward needs."""
        ops, given = self.ops, self.data
        x = ops["quantize_tokens"](given.x, TOKEN)
        h, gate_up = ops["gate_up_glu"](x, self.w13, given.groups, TOKEN, self.accumulator)
        payload = ops["down_to_wire"](h, self.w2, given.groups, self.wire, self.accumulator)
        out, _ = ops["aggregate"](payload, given.slots, given.weights, self.wire)
        return out, x, h, gate_up

    def weights_again(self) -> tuple[Any, Any]:
        """w13 and w2 with blocks along their other axis."""
        return tuple(  # type: ignore[return-value]
            self.ops["requantize_transpose"](w, SAVED_WEIGHT, None, nm.Random((0, 1), (role, 0)))
            for role, w in enumerate((self.w13, self.w2))
        )

    def backward(self, saved: tuple[Any, ...], again: tuple[Any, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """dx (R, D), dw13 and dw2 float32. saved: of `forward`; again: of `weights_again`."""
        ops, given, (_, x, h, gate_up), (w13, w2) = self.ops, self.data, saved, again
        products, transposed = ops["grad_products"], ops["requantize_transpose"]
        dy = ops["grad_to_wire"](given.g, given.tokens, given.weights, GRAD)
        dy_tokens = transposed(dy, RECEIVED, given.groups)
        h_tokens = transposed(h, SAVED_INPUT, given.groups, nm.Random((0, 1), (2, 0)))
        dh, dw2 = products(dy, dy_tokens, w2, h_tokens, given.groups, self.accumulator)
        dz_wide = ops["glu_backward"](dh, gate_up)
        dz, dz_tokens = ops["quantize_tokens"](dz_wide, GRAD), transposed(dz_wide, RECEIVED, given.groups)
        x_tokens = transposed(x, SAVED_INPUT, given.groups, nm.Random((0, 1), (3, 0)))
        dx, dw13 = products(dz, dz_tokens, w13, x_tokens, given.groups, self.accumulator)
        out, _ = ops["aggregate"](ops["quantize_tokens"](dx, GRAD), given.slots, None, Wire(None))
        return out, dw13, dw2

    def both(self) -> tuple[Tensor, Tensor, Tensor]:
        saved = self.forward()
        return self.backward(saved, self.weights_again())


def _swiglu(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up


def _swiglu_backward(dh: Tensor, gate_up: Tensor) -> Tensor:
    gate, up = (half.float() for half in gate_up.chunk(2, dim=-1))
    s, d = torch.sigmoid(gate), dh.float()
    return torch.cat([d * up * s * (1 + gate * (1 - s)), d * gate * s], dim=-1).to(dh.dtype)


class Plain:
    """The same passes in BF16, on torch's grouped products."""

    def __init__(self, data: Data) -> None:
        self.data = data
        fuse = torch.compile if data.x.device.type == "cuda" else (lambda function: function)
        self.swiglu, self.swiglu_backward = fuse(_swiglu), fuse(_swiglu_backward)

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        given, product = self.data, torch._grouped_mm
        gate_up = product(given.x, given.w13.mT, offs=given.offsets)  # [R, D] @ [E, D, 2F] -> [R, 2F]
        h = self.swiglu(gate_up)
        return product(h, given.w2.mT, offs=given.offsets), h, gate_up  # [R, F] @ [E, F, D] -> [R, D]

    def backward(self, saved: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        given, product, (_, h, gate_up) = self.data, torch._grouped_mm, saved
        dh = product(given.g, given.w2, offs=given.offsets)  # [R, D] @ [E, D, F] -> [R, F]
        dw2 = product(given.g.mT, h, offs=given.offsets)  # [D, R_e] @ [R_e, F] -> [E, D, F]
        dz = self.swiglu_backward(dh, gate_up)
        dx = product(dz, given.w13, offs=given.offsets)  # [R, 2F] @ [E, 2F, D] -> [R, D]
        dw13 = product(dz.mT, given.x, offs=given.offsets)  # [2F, R_e] @ [R_e, D] -> [E, 2F, D]
        return dx, dw13, dw2

    def both(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.backward(self.forward())
