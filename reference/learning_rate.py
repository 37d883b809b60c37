"""The learning rate of a step: linear warm-up, then half a cosine, or stable and then a decay (WSD).

    warm-up       lr = peak * step / warmup                                       step <= warmup
    cosine        lr = peak * (r + (1 - r) * (1 + cos(pi * p)) / 2)               p = (step - warmup) / (steps - warmup)
    wsd, stable   lr = peak                                                       step <= steps - decay
    wsd, decay    lr = peak * (r + (1 - r) * (1 - f(p)))                          p = (step - (steps - decay)) / decay

with r = min_lr_ratio, decay = round(decay_share * steps), at least one step, and f(p) = sqrt(p) or p. WSD: Hu et al.,
MiniCPM (arXiv 2404.06395). sqrt falls fast at first, and ended at lower losses than a line in Haegele et al. (arXiv
2405.18392, section 4), hence the default. Python floats; the last step of either schedule has peak * r.
"""

import math

from .config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of `step`, 1 <= step <= config.steps, under `config.schedule`."""
    warmup = config.warmup_steps
    if step <= warmup:
        return config.lr * step / warmup
    low = config.min_lr_ratio
    if config.schedule == "wsd":
        start = config.steps - config.decay_steps
        if step <= start:
            return config.lr
        progress = (step - start) / config.decay_steps
        gone = math.sqrt(progress) if config.decay_shape == "sqrt" else progress
        return config.lr * (low + (1 - low) * (1 - gone))
    progress = (step - warmup) / (config.steps - warmup)
    return config.lr * (low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress)))
