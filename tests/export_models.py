"""Models to export, without a run: every parameter random, gains and biases too, so that none can be forgotten."""

from dataclasses import replace
from pathlib import Path

import torch

from numerics import ops
from reference.alphabet import Bytes
from reference.load import Loaded
from reference.model import ModelConfig, Transformer
from reference.presets import preset
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
