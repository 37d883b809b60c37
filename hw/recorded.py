"""Recorded activations: matrices of a safetensors file that take the place of drawn data in `validate --ops`.

Any names, at least one floating tensor with values; leading axes are folded into rows. Such a file is one line:

    safetensors.torch.save_file({"layer 3, expert input": x}, "activations.safetensors")
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def load(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, as float32 matrices, in the order of their names.

    Raises: ValueError: no such file, another format, no tensor that can be used.
    """
    asked = f"activations={str(path)!r}"
    if not path.is_file():
        raise ValueError(f"{asked}: there is no such file; name a safetensors file")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"{asked} cannot be read as safetensors ({reason}); write it with save_file") from error
    usable = {name: x for name, x in sorted(tensors.items()) if x.dtype in FLOATS and x.numel() and x.ndim}
    if not usable:
        found = ", ".join(f"{name} {x.dtype} {tuple(x.shape)}" for name, x in sorted(tensors.items())[:3]) or "nothing"
        raise ValueError(f"{asked} holds {found}; pass bfloat16, float16 or float32 tensors with values")
    return {name: x.to(torch.float32).reshape(-1, x.shape[-1]) for name, x in usable.items()}
