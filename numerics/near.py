"""Near names: what someone who wrote `TE` or `transformer_engine` for a dialect means.

    did_you_mean("TE", DIALECTS)    ->    "; did you mean te?"

Letters and digits alone count, in any case. A name of `ALIASES` stands for the dialect of its library; failing that,
`difflib` looks for the most similar name.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

ALIASES = {
    "transformerengine": "te",
    "nvidiatransformerengine": "te",
    "nvidia": "te",
    "ao": "torchao",
    "pytorchao": "torchao",
    "nvidiamodelopt": "modelopt",
    "modeloptimizer": "modelopt",
    "tensorrtmodeloptimizer": "modelopt",
    "llmcompressor": "compressed_tensors",
    "ct": "compressed_tensors",
    "4over6": "fouroversix",
    "fourbit4over6": "fourbit_46",
    "appendixb": "app_b",
    "paper": "app_b",
    "quartet": "quartet_ii",
    "quartet2": "quartet_ii",
    "tetrajet": "tetrajet_v2",
    "tk": "thunderkittens",
    "ocp": "ocp_floor",
    "floor": "ocp_floor",
    "gptoss": "triton_up",
    "tritonkernels": "triton_up",
    "llamacpp": "ggml_mxfp4",
    "mlx": "mlx_nvfp4",
    "amdquark": "quark",
    "deepgemm": "deepgemm_fp8",
    "deepseek": "deepgemm_fp8",
    "ceil": "rceil",
}


def near(name: Any, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` most likely stands for, or None."""
    keys = {_key(k): k for k in reversed(list(known))}  # of two names with one key the first
    key = _key(str(name))
    if key in keys:
        return keys[key]
    alias = ALIASES.get(key)
    if alias in keys.values():
        return alias
    close = get_close_matches(key, keys, n=1, cutoff=0.7)
    return keys[close[0]] if close else None


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """The end of an error message on an unknown name: a suggestion, or nothing."""
    found = near(name, known)
    return "" if found is None else f"; did you mean {found}?"


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
