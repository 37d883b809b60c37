"""Contract of reference.architectures: a model's export computes, in the library transformers, what the model computes,
but for BF16 roundings; a model that no architecture computes is refused with what stands in the way.

Oracle: the library's own classes, on the exported weights in FP32. The tolerance is theirs too: in BF16 they round
wherever we do and in the residual stream besides, so that our logits are nearer to those in FP32 than theirs. Experts
are the same for every token, which rounding could change only near a tie: the seeds have none.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from export_models import GLM4_MOE, MIXTRAL, MODELS, QWEN2_MOE, SIZES, assert_same_function, loaded

from reference.architectures import architecture_of, library_config, places
from reference.export import export, write
from reference.model import ModelConfig
from reference.pretrained import sizes_of


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


SEEDS = {"qwen2_moe": 22, "mixtral": 22, "glm4_moe": 4}  # of tokens that BF16 sends to the same experts


@pytest.mark.parametrize("kind", MODELS)
def test_transformers_computes_the_same(kind: str, tmp_path: Path) -> None:
    run = loaded("bf16", MODELS[kind])
    write(export(run, "bf16"), run, tmp_path)
    assert_same_function(run.model, tmp_path, SEEDS[kind])


@pytest.mark.parametrize("kind", MODELS)
def test_every_parameter_has_one_place_and_the_sizes_come_back(kind: str, tmp_path: Path) -> None:
    sizes = MODELS[kind]
    run = loaded("bf16", sizes)
    count = sum(t.numel() for t in run.model.state_dict().values())
    found = export(run, "bf16")
    # of qwen2_moe alone: a gate in each layer with experts, biases of q, k and v in every layer
    head = sizes.dim // sizes.heads
    zero = (sizes.depth - sizes.dense_layers) * sizes.dim + sizes.depth * (sizes.heads + 2 * sizes.key_heads) * head
    assert sum(t.numel() for t in found.tensors.values()) == count + (zero if kind == "qwen2_moe" else 0)
    names = [place.theirs for place in places(sizes)]
    assert len(set(names)) == len(names)
    write(found, run, tmp_path)
    trained = {"sequence": sizes.sequence, "balance": sizes.balance, "bias_speed": sizes.bias_speed}
    assert ModelConfig(**sizes_of(tmp_path), **trained) == sizes


REFUSED = [
    (replace(SIZES, convolution=4), "model.convolution 4 (use 0)"),
    (replace(SIZES, positions="none"), "model.positions none (use rotary)"),
    (replace(GLM4_MOE, shared_dim=48), "model.shared_dim 48 (use a multiple of 32)"),
    (replace(GLM4_MOE, shared_dim=0), "model.shared_dim 0 (use a multiple of 32)"),
    (replace(GLM4_MOE, window=8), "model.window 8 (leave it out, or use the softmax router)"),
    (replace(GLM4_MOE, experts=1, top_k=1), "model.experts 1 (use 2 or more)"),
    (replace(MIXTRAL, dense_layers=1), "model.dense_layers 1 (use 0, or give a shared_dim)"),
    (replace(MIXTRAL, full_every=3), "model.full_every 3 (use 7, no full layer, or give a shared_dim)"),
    (replace(QWEN2_MOE, convolution=2, positions="none"), "model.convolution 2 (use 0), model.positions none"),
]


@pytest.mark.parametrize("sizes, told", REFUSED, ids=[told for _, told in REFUSED])
def test_what_no_architecture_has_is_refused(sizes: ModelConfig, told: str) -> None:
    for function in (architecture_of, lambda c: library_config(c, None), lambda c: list(places(c))):
        with pytest.raises(ValueError, match=re.escape(told)) as error:
            function(sizes)
        assert "fourbit knows mixtral, qwen2_moe, glm4_moe" in str(error.value)
