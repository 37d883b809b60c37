"""What the tests of the library's products share: a reading of scaled_mm's arguments that is independent of ours.

`scaled_mm` takes the place of torch's: it lets torch itself check the arguments, by its shape inference on the meta
device, then reads codes and scales as cuBLAS documents them and returns the exact sums, rounded once to FP32.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
TORCHS = functional.scaled_mm


def unswizzled(scales: Tensor, lines: int, blocks: int) -> Tensor:
    """Bytes (lines, blocks), each from its address in the layout of cuBLAS's 1D block scaling factors."""
    r, c = np.ogrid[:lines, :blocks]
    address = ((r // 128) * -(-blocks // 4) + c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4
    assert scales.numel() == -(-lines // 128) * 128 * -(-blocks // 4) * 4
    return scales.view(torch.uint8).flatten()[torch.from_numpy(address)]


def read(codes: Tensor, scales: Tensor) -> Tensor:
    """float64 (lines, k) of codes (lines, bytes) and their swizzled scales."""
    if codes.dtype == torch.float4_e2m1fn_x2:
        raw = codes.view(torch.uint8).long()
        values = torch.stack([E2M1[raw & 15], E2M1[raw >> 4]], -1).flatten(1)  # val1 : val0, from the high bits down
        per_block = unswizzled(scales, len(values), values.shape[1] // 16).view(torch.float8_e4m3fn).double()
    else:
        values = codes.double()
        exponent = unswizzled(scales, len(values), values.shape[1] // 32).double() - 127
        per_block = torch.where(exponent == 128, torch.nan, 2.0**exponent)
    return values * per_block.repeat_interleave(values.shape[1] // per_block.shape[1], 1)


def on_meta(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments, tensors without their values."""

    def moved(x: Any) -> Any:
        return x.to("meta") if isinstance(x, Tensor) else [moved(y) for y in x] if isinstance(x, list) else x

    return {name: moved(x) for name, x in arguments.items()}


def scaled_mm(**arguments: Any) -> Tensor:
    inferred = TORCHS(**on_meta(arguments))
    assert all(s.is_contiguous() for name in ("scale_a", "scale_b") for s in arguments[name])
    assert all(float(s) == 1 for name in ("scale_a", "scale_b") for s in arguments[name][1:])
    a = read(arguments["mat_a"], arguments["scale_a"][0])
    b = read(arguments["mat_b"].T, arguments["scale_b"][0])
    out = (a @ b.T).to(torch.float32)  # exact in float64: the data here spans far fewer than 53 bits
    assert (out.shape, out.dtype) == (inferred.shape, inferred.dtype)
    return out
