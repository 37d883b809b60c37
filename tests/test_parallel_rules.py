"""Contract: what several ranks cannot do is refused before anything is written, in one sentence with the remedy.

Oracle: the sentences. Ranks that differ, or that do not multiply to WORLD_SIZE, are tests/test_ranks.py's.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from reference.config import TrainConfig, check
from reference.parallel_experts import require_placeable
from reference.presets import PRESETS, preset
from tests.test_train import SMALL


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"ep": 3, "batch": 6}, "ep 3 cannot be used; use a divisor of model.experts 4"),
        ({"ep": 0}, "ep 0 cannot be used; use 1 or more"),
        ({"fsdp": -1}, "fsdp -1 cannot be used; use 1 or more"),
        ({"ep": 2, "dp": 2, "batch": 6}, "batch 6 cannot be used; use a multiple of 4: 4 ranks pass 1 sequences at a"),
        ({"dp": 2, "batch": 8, "micro_batch": 8}, "batch 8 cannot be used; use a multiple of 16: 2 ranks pass 8"),
        ({"dp": 2, "optimizer": "muon"}, "optimizer 'muon' cannot be used; it is for one process"),
        ({"ep": 2, "moments": "bf16"}, "moments 'bf16' cannot be used; it is for one process"),
        ({"ep": 2, "activations": Path("a.safetensors")}, "activations 'a.safetensors' cannot be used; it is for one"),
        (
            {"ep": 2, "monitor_reference": Path("bf16")},
            "monitor_reference 'bf16' cannot be used; it is for one process",
        ),
        ({"ep": 2, "raise_error": 0.1}, "raise_error 0.1 cannot be used; it is for one process"),
        ({"ep": 2, "timeout": 0.0}, "timeout 0.0 cannot be used; use a positive number of seconds"),
        ({"waves": 2}, "waves 2 cannot be used; rows travel where experts are shared out: leave it out, or use ep"),
        ({"ep": 2, "waves": 3}, "waves 3 cannot be used; a rank has 2 experts of a layer; use 1 to 2"),
    ],
)
def test_a_configuration_that_ranks_cannot_run_is_refused(tmp_path, fields: dict[str, Any], told: str):
    config = TrainConfig(tmp_path / "run", **{"grain": 1, "batch": 4, "model": SMALL} | fields)
    with pytest.raises(ValueError) as error:
        check(config)
    assert str(error.value).startswith(told)


def test_every_grid_that_divides_is_taken(tmp_path):
    for ep, fsdp, dp in ((1, 1, 1), (4, 1, 1), (2, 2, 2), (1, 4, 2)):
        check(TrainConfig(tmp_path, ep=ep, fsdp=fsdp, dp=dp, grain=2, batch=16, model=SMALL))
    check(TrainConfig(tmp_path, dp=2, grain=1, batch=8, micro_batch=8, deterministic=True, model=SMALL))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_recipes_with_scales_per_tensor_or_originals_need_a_layer_at_one_place(name):
    """The layers of `experts`; which recipes have such scales is read off their words."""
    recipe = preset(name).experts
    words = " ".join(role.words for role in dataclasses.replace(recipe, input=recipe.hidden).roles().values())
    if "per tensor" in words:
        with pytest.raises(
            ValueError, match=rf"preset '{name}' has one outer scale per tensor \(.*with ep above 1; use"
        ):
            require_placeable(name, recipe)
    elif recipe.originals:
        with pytest.raises(
            ValueError, match=f"preset '{name}' starts its backward from originals, which do not travel"
        ):
            require_placeable(name, recipe)
    else:
        require_placeable(name, recipe)
