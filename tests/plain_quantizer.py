"""A quantizer from tables of values, in numpy and float64, with every fault that a test wants: an oracle for `check`.

    codes = rounded(v, E2M1, "even")            to the nearest of the values in the table, ties to the even code
    dump = nvfp4(x, scale="down", code="odd")   x / (scale * outer), outer max |x| / 2688, scale max |block| / 6 outer

Nothing of `numerics` or `hw` is used.
"""

from collections.abc import Callable

import numpy as np
import torch

Array = np.ndarray


def table(exponents: int, mantissas: int, bias: int, top: int) -> Array:
    """Values of the codes 0 to `top` of a small float."""
    code = np.arange(top + 1)
    e, m = code >> mantissas, code & ((1 << mantissas) - 1)
    normal = np.ldexp(1.0 + m / 2.0**mantissas, e - bias)
    return np.where(e == 0, np.ldexp(m / 2.0**mantissas, 1 - bias), normal)


E2M1, E4M3, E5M2 = table(2, 1, 1, 7), table(4, 3, 7, 0x7E), table(5, 2, 15, 0x7B)
E8M0 = 2.0 ** np.arange(-127.0, 128.0)


def rounded(v: Array, values: Array, how: str = "even") -> Array:
    """Codes of numbers that are not negative, saturating: nearest with ties to "even", "odd", "away" or "zero"; "down";
    "up"."""
    v = np.minimum(np.nan_to_num(v, posinf=values[-1]), values[-1])
    low = np.clip(np.searchsorted(values, v, "right") - 1, 0, len(values) - 1)
    high = np.clip(low + 1, 0, len(values) - 1)
    exact, left, right = v == values[low], v - values[low], values[high] - v
    tie = {
        "even": np.where(low % 2 == 0, low, high),
        "odd": np.where(low % 2 == 1, low, high),
        "away": high,
        "zero": low,
    }
    nearest = np.where(left < right, low, np.where(left > right, high, tie.get(how, low)))
    found = low if how == "down" else high if how == "up" else nearest
    return np.where(exact, low, found)


def signed(v: Array, values: Array, how: str = "even") -> Array:
    """Codes of numbers with a sign: as `rounded`; "floor" and "ceil" toward the infinities; "tie up", "tie down"."""
    pairs = {"floor": ("down", "up"), "ceil": ("up", "down"), "tie up": ("away", "zero"), "tie down": ("zero", "away")}
    positive, negative = pairs.get(how, (how, how))
    size, below = np.abs(v), np.signbit(v)
    codes = np.where(below, rounded(size, values, negative), rounded(size, values, positive))
    return codes + np.where(below, sign_bit(values), 0)


def sign_bit(values: Array) -> int:
    """Of a format with these values: the power of two above its codes."""
    return 1 << (len(values) - 1).bit_length()


def decoded(codes: Array, values: Array) -> Array:
    """Values of codes without a sign."""
    return values[np.minimum(codes, len(values) - 1)]


def blocks(x: Array, size: int) -> Array:
    """(.., n, size)."""
    return x.reshape(*x.shape[:-1], -1, size)


def quotient(x: Array, divisor: Array) -> Array:
    """x / divisor; zeros keep their sign, all else is infinite over 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(x == 0, x, x / divisor)


def nvfp4(
    x: torch.Tensor,
    scale: str | Callable[[Array], Array] = "even",
    code: str | Callable[[Array], Array] = "even",
    outer: Array | None = None,
    used: Array | None = None,
    amax: Callable[[Array], Array] = lambda b: np.abs(b).max(-1),
) -> dict[str, torch.Tensor]:
    """A dump of two levels.

    Args:
        scale, code: how they are rounded, or a function from numbers before rounding to codes. outer: that is stored,
            float32, broadcasting to (.., n); None: max / 2688. used: that which scales and codes are made with; None:
            `outer`. amax: of each block.
    """
    cut = blocks(x.double().numpy(), 16)
    outer = np.float32(np.abs(cut).max() / 2688.0) if outer is None else outer
    used = np.asarray(outer if used is None else used, np.float64)
    ratio = amax(cut) / (6.0 * used)
    scales = rounded(ratio, E4M3, scale) if isinstance(scale, str) else scale(ratio)
    q = quotient(cut, (decoded(scales, E4M3) * used)[..., None])
    codes = signed(q, E2M1, code) if isinstance(code, str) else code(q)
    return dump(x, codes, scales) | {"outer": torch.from_numpy(np.array(outer, np.float32))}


def mx(
    x: torch.Tensor,
    values: Array = E4M3,
    scale: str | Callable[[Array], Array] = "up",
    code: str | Callable[[Array], Array] = "even",
    divisor: float | None = None,
) -> dict[str, torch.Tensor]:
    """A dump of one level: scales of max |block| / divisor, the largest element if left out."""
    cut = blocks(x.double().numpy(), 32)
    ratio = np.abs(cut).max(-1) / (values[-1] if divisor is None else divisor)
    scales = rounded(ratio, E8M0, scale) if isinstance(scale, str) else scale(ratio)
    q = quotient(cut, decoded(scales, E8M0)[..., None])
    codes = signed(q, values, code) if isinstance(code, str) else code(q)
    return dump(x, codes, scales)


def dump(x: torch.Tensor, codes: Array, scales: Array) -> dict[str, torch.Tensor]:
    """Tensors by name."""
    flat = torch.from_numpy(codes.reshape(x.shape).astype(np.uint8))
    return {"x": x, "codes": flat, "scales": torch.from_numpy(scales.astype(np.uint8))}
