"""What the tensors of a dump are called: one table of the names that libraries use, and what each name implies.

    library                        codes            scales                outer (its direction)
    ModelOpt                       weight           weight_scale          weight_scale_2 (decode)
    compressed-tensors             weight_packed    weight_scale          weight_global_scale (encode)
    Transformer Engine             rowwise_data     rowwise_scale_inv     amax_rowwise (amax)
    vLLM                           weight           weight_scale,         weight_scale_2 (decode),
                                                    blockscale_swizzled   weight_global_scale (encode)
    torchao                        qdata            scale                 per_tensor_scale (decode)
    FlashInfer                     x_q              sf                    global_sf (encode)
    gpt-oss                        *_blocks         *_scales
    DeepSeek, Qwen (FP8)           weight           weight_scale_inv

decode: a factor to multiply by; encode: one to divide by; amax: the tensor's largest magnitude. A name counts with what
stands before it up to a dot, and with one leading underscore; names of several words also after an underscore, such as
`w13_weight_scale`. `weight` is the original where it is floating point, codes where it is bytes. Columns of Transformer
Engine (`columnwise_data`, ..) are read where blocks run along axis -2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

QUANTIZATION = ("x", "codes", "scales")
PRODUCT = ("a_codes", "a_scales", "b_codes", "b_scales", "output")
OPTIONAL = ("outer", "values", "groups", "signs", "a_outer", "b_outer")
IGNORED = ("input_scale", "input_global_scale", "activation_scale", "k_scale", "v_scale")


@dataclass(frozen=True)
class Key:
    """What a name stands for.

    Args:
        role: the name here. direction: of an outer that is called so, "decode", "encode" or "amax"; None if the name
            does not say. axis: along which blocks run, where the name says it. layout: of scales that are called so:
            "padded" (padded as for the 128x4 layout, but row-major) or "128x4"; None if the name does not say.
    """

    role: str
    direction: str | None = None
    axis: int | None = None
    layout: str | None = None


KEYS: dict[str, Key] = {
    **{name: Key(name) for name in (*QUANTIZATION, *PRODUCT, *OPTIONAL)},
    **{name: Key("x") for name in ("input", "original")},
    **{name: Key("codes") for name in ("qdata", "data", "x_q", "weight_packed", "weight", "blocks")},
    **{name: Key("scales") for name in ("scale", "block_scale", "sf", "weight_scale", "weight_scale_inv")},
    **{name: Key("outer") for name in ("global_scale",)},
    **{name: Key("outer", "decode") for name in ("per_tensor_scale", "weight_scale_2")},
    **{name: Key("outer", "encode") for name in ("weight_global_scale", "global_sf")},
    "amax": Key("outer", "amax"),
    "rowwise_data": Key("codes", axis=-1),
    "rowwise_scale_inv": Key("scales", axis=-1, layout="padded"),
    "amax_rowwise": Key("outer", "amax", axis=-1),
    "columnwise_data": Key("codes", axis=-2),
    "columnwise_scale_inv": Key("scales", axis=-2, layout="padded"),
    "amax_columnwise": Key("outer", "amax", axis=-2),
    "blockscale_swizzled": Key("scales", layout="128x4"),
    "dequantized": Key("values"),
}
_LATER = ("blocks", "scales", "blockscale_swizzled", *(name for name in KEYS if name.startswith("weight")))


def key_of(name: str) -> Key | None:
    """What a name stands for, None if it is not known."""
    last = str(name).rsplit(".", 1)[-1].removeprefix("_")
    if last in KEYS:
        return KEYS[last]
    if last in IGNORED or last.endswith(tuple(f"_{ignored}" for ignored in IGNORED)):
        return None
    return next((KEYS[known] for known in sorted(_LATER, key=len, reverse=True) if last.endswith(f"_{known}")), None)


def named(tensors: Mapping[str, Any], axis: int) -> Iterator[tuple[str, str, Key]]:
    """(name, role, key) of the tensors that are known. `axis`: along which blocks run; other axes' are left out."""
    for name, value in tensors.items():
        key = key_of(name)
        if key is None or (key.axis is not None and key.axis != axis):
            continue
        yield name, "x" if key is KEYS["weight"] and _wide(value) else key.role, key


def _wide(value: Any) -> bool:
    """Whether it holds floating-point numbers of more than a byte."""
    if isinstance(value, Tensor):
        return value.is_floating_point() and value.dtype.itemsize > 1
    return isinstance(value, np.ndarray) and value.dtype.kind in "fV" and value.dtype.itemsize > 1
