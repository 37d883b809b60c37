"""Muon: momentum whose singular values are brought to about 1 before it moves a matrix.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024, kellerjordan.github.io/posts/muon); the
size of its step from Liu et al., "Muon is Scalable for LLM Training" (arXiv 2502.16982, section 2.2). For a weight W
(N, K) with gradient G:

    M = mu M + (1 - mu) G                       first moment; NewtonSchulz does not see its length
    U = mu M + (1 - mu) G                       Nesterov
    O = NewtonSchulz(U)                         about U's orthogonal factor, X Y^T where U = X S Y^T
    W = (1 - lr decay) W - lr 0.2 sqrt(max(N, K)) O

O's root mean square is about 1 / sqrt(max(N, K)), so that a step's is about 0.2 lr, as AdamW's steps have it: one
learning rate, decay and schedule then serve both (Jordan's sqrt(max(1, N / K)) needs a rate of its own).

Newton-Schulz, five times, from X = U / (||U||_F + 1e-7), transposed if N > K so that X X^T is the smaller product:

    A = X X^T,  B = b A + c A A,  X = a X + B X             a, b, c = 3.4445, -4.7750, 2.0315

acts on each singular value s as s <- a s + b s^3 + c s^5 and on nothing else. The coefficients are published for speed:
values do not converge to 1 but wander between about 0.7 and 1.2, and what started below 0.0015 of the norm stays
lower. In exact arithmetic it is an odd polynomial of U; here the products are FP32 on a CPU, BF16 on a GPU as
published, and equal bits are promised on one device at equal shapes and threads only.

Several matrices stored as one are moved as what they are: experts (E, N, K) as E, gate and up as two, queries, keys and
values as three. A matrix without gradient keeps moving along its momentum, at full length until that is below 1e-7.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
_EPS = 1e-7
_RMS = 0.2


def orthogonalize(u: Tensor, dtype: torch.dtype) -> Tensor:
    """NewtonSchulz(U) of the last two axes.

    Args:
        u: (..., N, K), float32 or float64. dtype: of the products, such as float32 or bfloat16.

    Returns:
        Shape and dtype of `u`; zeros where it is zero.
    """
    a, b, c = COEFFICIENTS
    tall = u.shape[-2] > u.shape[-1]
    x = (u.mT if tall else u).reshape(-1, min(u.shape[-2:]), max(u.shape[-2:]))
    x = (x / (torch.linalg.matrix_norm(x, keepdim=True) + _EPS)).to(dtype)
    for _ in range(STEPS):
        square = x @ x.mT  # [N, K] @ [K, N] -> [N, N]
        square = torch.baddbmm(square, square, square, beta=b, alpha=c)  # [N, N] @ [N, N] -> [N, N]
        x = torch.baddbmm(x, square, x, beta=a)  # [N, N] @ [N, K] -> [N, K]
    return (x.mT if tall else x).reshape(u.shape).to(u.dtype)


def parts(name: str, shape: torch.Size) -> list[int]:
    """Rows of the matrices that the weight of this name holds one below the other; they sum to shape[-2].

    Gate and up have half of the rows each. Queries have as many as the model is wide, shape[-1]; keys and values share
    the others, fewer where heads share them.
    """
    rows = shape[-2]
    if name.endswith(("w13", "shared_in.weight", "w_in.weight")):
        return [rows // 2] * 2
    if name.endswith("qkv.weight"):
        return [shape[-1]] + [(rows - shape[-1]) // 2] * 2
    return [rows]


def nesterov(gradient: Tensor, moment: Tensor, momentum: float) -> Tensor:
    """U, after `moment` has taken the gradient in place; float32 of one shape."""
    moment.lerp_(gradient, 1 - momentum)
    return gradient.lerp(moment, momentum)


def move(weights: list[Tensor], directions: list[Tensor], lr: float, weight_decay: float) -> None:
    """Move matrices along their U, in place; those of one shape, or its transpose, are orthogonalized together.

    Args: weights: float32 (..., N, K), parts of weights as `parts` cuts them. directions: U, likewise.
    """
    kinds: dict[tuple[int, ...], list[int]] = {}
    for i, weight in enumerate(weights):
        kinds.setdefault(tuple(sorted(weight.shape[-2:])), []).append(i)
    for kind, members in kinds.items():
        lying = [u.mT if u.shape[-2] > u.shape[-1] else u for u in (directions[i] for i in members)]
        stacked = torch.cat([u.reshape(-1, *kind) for u in lying])
        done = orthogonalize(stacked, torch.bfloat16 if stacked.is_cuda else torch.float32)
        cuts = done.split([u.numel() // (kind[0] * kind[1]) for u in lying])
        for i, o in zip(members, cuts, strict=True):
            weight = weights[i]
            weight.mul_(1 - lr * weight_decay)
            o = o.mT if weight.shape[-2] > weight.shape[-1] else o
            weight.add_(o.reshape(weight.shape), alpha=-lr * _RMS * math.sqrt(kind[1]))
