"""What a configuration of several ranks may be: rules of `config.check`."""

from __future__ import annotations

import math
from typing import Any

_OF_ONE = ("optimizer", "moments", "activations", "monitor_reference")
_ALONE = "it is for one process; leave it out with several ranks"


def rank_rules(c: Any) -> list[tuple[str, bool, str]]:
    """Field, whether its value is good, and what would do. c: a `TrainConfig`, of any values."""
    ranks, own = c.ranks, c.model.experts // max(1, c.ep)
    passed = max(1, c.grain) if c.deterministic else c.micro_batch or max(1, c.grain)
    together = max(1, ranks * passed)
    return [
        *((name, getattr(c, name) >= 1, "use 1 or more") for name in ("ep", "fsdp", "dp")),
        ("waves", c.waves == 1 or c.ep != 1, "rows travel where experts are shared out: leave it out, or use ep"),
        ("waves", 1 <= c.waves <= max(1, own), f"a rank has {own} experts of a layer; use 1 to {own}"),
        ("timeout", 0 < c.timeout < math.inf, "use a positive number of seconds"),
        ("ep", c.ep < 1 or c.model.experts % c.ep == 0, f"use a divisor of model.experts {c.model.experts}"),
        (
            "batch",
            ranks <= 1 or c.batch % together == 0,
            f"use a multiple of {together}: {ranks} ranks pass {passed} sequences at a time",
        ),
        *((name, ranks <= 1 or getattr(c, name) == getattr(type(c), name), _ALONE) for name in _OF_ONE),
        *((name, ranks <= 1, _ALONE) for name in c.thresholds),
    ]
