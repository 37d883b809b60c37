"""The optimizer over FP32 master weights, and its learning rate."""

import math

import torch
from torch import nn

from .config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of `step`, 1 <= step <= config.steps: linear warm-up, then half a cosine."""
    if step <= config.warmup:
        return config.lr * step / config.warmup
    progress = (step - config.warmup) / (config.steps - config.warmup)
    low = config.min_lr_ratio
    return config.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Make AdamW over the FP32 master weights; weights of two or more dimensions decay."""
    named = list(model.named_parameters())
    assert all(weight.dtype == torch.float32 for _, weight in named), "master weights are FP32"
    groups = [
        {"params": [(name, weight) for name, weight in named if weight.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [(name, weight) for name, weight in named if weight.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=config.lr, betas=betas)
