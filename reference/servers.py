"""What servers refuse, or compute otherwise than the folder says: notices for whoever exports.

    Marlin     the kernels of vLLM and SGLang for weights that alone are quantized. Of a product of N outputs and K
               inputs they take tiles (K, N) of 64 x 128, for a matrix that is no expert's also of 128 x 64, and refuse
               one that no tile divides ("Invalid thread config"). Gate and up are one matrix. Some versions pad N.
    windows    vLLM's qwen2_moe has one window for all layers, or none; SGLang has none in qwen2_moe and mixtral
    dense      SGLang's qwen2_moe has experts in every layer

Sources: vllm-project/vllm, csrc/moe/marlin_moe_wna16/ops.cu, csrc/quantization/marlin/marlin.cu and
model_executor/models/qwen2_moe.py; sgl-project/sglang, srt/models/qwen2_moe.py and mixtral.py. What they hard-code and
a folder can meet, ours meets: zeros for the biases of qwen2_moe (see `architectures.zeros`), no module without a list.
"""

from __future__ import annotations

from collections.abc import Collection

from .architectures import architecture_of
from .sizes import ModelConfig

_EXPERTS = ((64, 128),)
_OTHERS = ((64, 128), (128, 64))


def notices(c: ModelConfig, quantized: Collection[str]) -> list[str]:
    """Sentences about an export. quantized: its packed modules. Raises ValueError as `architecture_of`."""
    kind = architecture_of(c).kind
    told = []
    if refused := _refused(c, quantized):
        told.append(
            "the Marlin kernels of vLLM and SGLang take inputs K in multiples of 64 and outputs N in multiples of 128, "
            f"and will refuse {', '.join(refused)}; for them train with such widths, or export --to bf16"
        )
    if c.window is not None:
        theirs = "SGLang has no window"
        if kind == "qwen2_moe":
            theirs = "vLLM has one window for all layers or none, SGLang none"
        told.append(f"in a {kind} {theirs}: texts of more than {c.window} tokens are computed otherwise")
    if c.dense_layers and kind == "qwen2_moe":
        told.append(f"SGLang takes every layer of a {kind} for one with experts, and cannot load this model")
    return told


def _refused(c: ModelConfig, quantized: Collection[str]) -> list[str]:
    """The packed matrices that no tile divides, each once for all layers and experts."""
    found = architecture_of(c)
    plain = "gate_proj", "up_proj", "down_proj"
    groups = [(f"{found.block}.experts", found.matrices, c.expert_dim, _EXPERTS)]
    groups += [(f"{found.block}.{found.shared}", plain, c.shared_dim, _OTHERS)] if found.shared else []
    told = []
    for name, (gate, up, down), width, tiles in groups:
        for names, outputs, inputs in ((f"{gate} with {up}", 2 * width, c.dim), (down, c.dim, width)):
            fits = any(inputs % k == 0 == outputs % n for k, n in tiles)
            if not fits and any(f".{name}." in module for module in quantized):
                told.append(f"{name}: {names} (K {inputs}, N {outputs})")
    return told
