"""What the fields of a run that concern its optimizer and learning rate may be: see `config.check`."""

from __future__ import annotations

import math
from typing import Any

from .moments import MOMENTS


def learning_rules(c: Any) -> list[tuple[str, bool, str]]:
    """Field, whether its value is good, and what would do. c: a `TrainConfig`, of any values."""
    fits = 0 < c.decay_share <= 1  # not NaN
    warmup = c.warmup_steps if fits else c.warmup
    return [
        ("lr", 0 < c.lr < 1e37, "use a positive number that float32 holds"),
        ("warmup", c.warmup >= 0, "use 0 or more"),
        ("optimizer", c.optimizer in ("adamw", "muon"), "use 'adamw' or 'muon'"),
        ("moments", c.moments in MOMENTS, f"use one of {', '.join(MOMENTS)}"),
        ("muon_momentum", 0 <= c.muon_momentum < 1, "use 0 or more, below 1"),
        ("schedule", c.schedule in ("cosine", "wsd"), "use 'cosine' or 'wsd'"),
        ("decay_shape", c.decay_shape in ("sqrt", "linear"), "use 'sqrt' or 'linear'"),
        ("decay_share", fits, "use a share of the steps, above 0 and at most 1"),
        (
            "decay_share",
            c.schedule != "wsd" or not fits or warmup + c.decay_steps <= c.steps,
            f"of {c.steps} steps {warmup} are warm-up; use a smaller share, or less warmup",
        ),
        ("min_lr_ratio", 0 <= c.min_lr_ratio <= 1, "use 0 to 1"),
        ("weight_decay", 0 <= c.weight_decay < math.inf, "use 0 or more"),
        ("beta1", 0 <= c.beta1 < 1, "use 0 or more, below 1"),
        ("beta2", 0 <= c.beta2 < 1, "use 0 or more, below 1"),
        ("clip", 0 < c.clip < math.inf, "use a positive number"),
    ]
