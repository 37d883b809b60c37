"""Models to export, without a run, and how the library transformers computes with an export.

Every parameter is random, gains and biases too, so that none can be forgotten.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from numerics import ops
from reference import moe
from reference.alphabet import Bytes
from reference.expert import Draw
from reference.load import Loaded
from reference.model import ModelConfig, Transformer
from reference.presets import preset
from reference.router import Choice, choose
from reference.train import TrainConfig

SIZES = ModelConfig(dim=64, heads=4, experts=4, expert_dim=32, shared_dim=32, sequence=24)
QWEN2_MOE = replace(SIZES, kv_heads=2, window=8, full_every=3, dense_layers=1, shared_dim=96)
MIXTRAL = replace(SIZES, shared_dim=0, kv_heads=1, window=8, full_every=7)
GLM4_MOE = replace(SIZES, router="sigmoid", kv_heads=2, dense_layers=2, dense_dim=64, shared_dim=64)
MODELS = {"qwen2_moe": QWEN2_MOE, "mixtral": MIXTRAL, "glm4_moe": GLM4_MOE}


@torch.no_grad()
def loaded(name: str, sizes: ModelConfig, seed: int = 5) -> Loaded:
    """A model of recipe `name`, as `load_run` gives it."""
    model = Transformer(sizes, preset(name), ops, seed)
    generator = torch.Generator().manual_seed(seed)
    for key, tensor in model.state_dict().items():
        if key.endswith("gain"):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
        if key.endswith("bias"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.02)
    model.requires_grad_(False).eval()
    config = TrainConfig(out=Path("nowhere"), preset=name, model=sizes, seed=seed)
    return Loaded(config, model, 7, "0" * 64, Bytes())


def assert_same_function(model: Transformer, folder: Path, seed: int) -> None:
    """The folder computes what the model, of recipe bf16, computes: the same experts for every token, and logits nearer
    to those of FP32 than transformers' own in BF16. seed: of the tokens."""
    tokens_BS = torch.randint(0, 256, (2, 12), generator=torch.Generator().manual_seed(seed))
    logits, chosen = ours(model, tokens_BS)
    exact, same = theirs(folder, tokens_BS, torch.float32)
    rounded, too = theirs(folder, tokens_BS, torch.bfloat16)
    assert len(chosen) == model.config.depth - model.config.dense_layers
    for a, b, c in zip(chosen, same, too, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
    assert (logits - exact).square().mean() <= (rounded - exact).square().mean()
    assert (rounded - exact).square().mean().sqrt() < 0.02 * exact.std()  # so that the first means something


def ours(model: Transformer, tokens_BS: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits, and the experts of every token by layer."""
    chosen: list[Tensor] = []

    def recorded(*arguments: Any) -> Choice:
        found = choose(*arguments)
        chosen.append(found.experts)
        return found

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(moe, "choose", recorded)
        return model.eval().logits(tokens_BS, Draw(0, -1, 0))[0].to(torch.float32), chosen


def theirs(folder: Path, tokens_BS: Tensor, dtype: torch.dtype) -> tuple[Tensor, list[Tensor]]:
    """The same by transformers, every tensor of the folder read and none missing."""
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    model, told = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not any(told.values()), told
    chosen: list[Tensor] = []
    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(lambda *a: chosen.append(a[-1][2].flatten(0, -2).sort(-1).values))
    with torch.no_grad():
        return model.eval()(tokens_BS).logits.to(torch.float32), chosen
