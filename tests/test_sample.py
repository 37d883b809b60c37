"""Contract of reference.sample: completions that are functions of weights, prompt, number and sampling, drawn from the
trainer's own distribution, experts from packed codes.

Oracle: the model's forward over the whole text, without a cache. FP32 sums depend on what passes together, and a code
may flip by them, so log-probabilities are compared here only where nothing is quantized, within a bound; `test_parity`
compares bits.
"""

import pytest
import torch

from numerics import ops
from reference.decode import release_experts
from reference.expert import Draw
from reference.model import ModelConfig, Transformer
from reference.presets import preset
from reference.sample import Completion, Sampler, Sampling

SMALL = ModelConfig(dim=32, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=24, vocab=60)
PROMPTS = [[1, 2, 3], [7] * 11, [4, 5], [1, 2, 3]]


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the trainer has by default."""


def model(recipe: str = "fourbit", config: ModelConfig = SMALL) -> Transformer:
    return Transformer(config, preset(recipe), ops, 0)


def trained(m: Transformer, prompt: list[int], completion: Completion) -> torch.Tensor:
    """Log-probabilities of a completion by a forward over all of it."""
    ids = torch.tensor([prompt + completion.tokens])
    with torch.no_grad():
        logs = m.logits(ids[:, :-1], Draw(0, -1, 0))[0].float().log_softmax(-1)[0, len(prompt) - 1 :]
    return logs.gather(1, ids[0, len(prompt) :, None])[:, 0]


def test_completions_come_from_the_models_distribution() -> None:
    m = model("bf16")
    for prompt, completion in zip(PROMPTS, Sampler(m).sample(PROMPTS, 9, Sampling(1.0, 1.0), None), strict=True):
        assert len(completion.tokens) == 9 and not completion.ended
        # logits are BF16 of about 1: one that rounds the other way moves by 2^-8, and its sum of e^z by less; a few
        # roundings before it may do so too
        assert (torch.tensor(completion.logprobs) - trained(m, prompt, completion)).abs().max() < 16 * 2**-8


def test_greedy_takes_the_likeliest() -> None:
    m = model("bf16")
    (completion,) = Sampler(m).sample([[1, 2, 3]], 6, Sampling(0.0), None)
    with torch.no_grad():
        logits = m.logits(torch.tensor([[1, 2, 3, *completion.tokens]]), Draw(0, -1, 0))[0][0, 2:-1]
    chosen = logits.gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
    assert ((logits.amax(-1) - chosen).abs() <= 2.0**-6).all()  # of equals to a rounding either may come first


def test_completions_are_drawn_together_as_each_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    for size in (3, 60, 257):
        for sampling in (Sampling(1.0, 1.0, 7), Sampling(0.7, 0.5, 8), Sampling(0.0), Sampling(2.0, 0.9)):
            logits = (3 * torch.randn(33, size, generator=generator)).to(torch.bfloat16)
            places, numbers = list(range(33)), [n * n for n in range(33)]
            alone = [sampling.choose(*each) for each in zip(logits, places, numbers, strict=True)]
            assert sampling.choose_each(logits, places, numbers) == alone


def test_a_completion_has_its_own_seed() -> None:
    sampler = Sampler(model())
    first = sampler.sample([[1, 2]] * 3, 8, Sampling(1.0, 1.0, 5), None)
    assert len({tuple(c.tokens) for c in first}) == 3
    again = sampler.sample([[1, 2]] * 2, 8, Sampling(1.0, 1.0, 5), None, numbers=[2, 0])
    assert [c.tokens for c in again] == [first[2].tokens, first[0].tokens]


def test_a_text_ends_with_its_end_token_or_the_context() -> None:
    m, told = model(), []
    (free,) = Sampler(m).sample([[3, 4]], 10, Sampling(1.0, 1.0), None)
    end = free.tokens[4]
    upto = free.tokens.index(end) + 1
    both = [[3, 4], [9]]
    cut, _ = Sampler(m).sample(both, 10, Sampling(1.0, 1.0), end, on_token=lambda i, t: told.append((i, t)))
    assert (cut.tokens, cut.ended) == (free.tokens[:upto], True)
    assert [token for i, token in told if i == 0] == cut.tokens
    (full,) = Sampler(m).sample([[1] * 24], 10, Sampling(), None)
    assert len(full.tokens) == 1 and not full.ended  # its token is drawn, and there is no room to read it
    assert Sampler(m).sample([[1]], 0, Sampling(), None) == [Completion([], [])]
    assert Sampler(m).sample([], 5, Sampling(), None) == []


def test_refresh_takes_new_weights() -> None:
    m = model("bf16")
    sampler = Sampler(m)
    before = sampler.sample([[1, 2]], 5, Sampling(0.0), None)
    with torch.no_grad():
        for p in m.parameters():
            p.mul_(-1.5)
    assert sampler.sample([[1, 2]], 5, Sampling(0.0), None)[0].logprobs == before[0].logprobs
    sampler.refresh()
    assert sampler.sample([[1, 2]], 5, Sampling(0.0), None)[0].logprobs != before[0].logprobs


@pytest.mark.parametrize(("recipe", "bits"), [("fourbit", (5 * 4.5 + 8.25) / 6), ("mxfp8", 8.25), ("bf16", 16.0)])
def test_experts_are_kept_in_their_bits(recipe: str, bits: float) -> None:
    weights = 6 * 4 * (64 * 32 + 32 * 32)
    outers = 5 * 2 * 4 * 4 if recipe == "fourbit" else 0  # one FP32 number an expert and matrix
    assert Sampler(model(recipe)).frozen.expert_bytes == weights * bits / 8 + outers


def test_masters_can_go_once_they_are_packed() -> None:
    m = model()
    sampler = Sampler(m)
    before = sampler.sample(PROMPTS, 4, Sampling(1.0, 1.0), None)
    release_experts(m)
    assert sum(p.numel() for name, p in m.named_parameters() if name.endswith(("w13", "w2"))) == 0
    assert sampler.sample(PROMPTS, 4, Sampling(1.0, 1.0), None) == before


@pytest.mark.parametrize(
    ("prompts", "more", "told"),
    [
        ([[1], []], {}, r"prompts\[1\] is empty"),
        ([[1] * 25], {}, r"prompts\[0\] has 25 tokens, more than the model's context of 24; shorten it"),
        ([[60]], {}, r"prompts\[0\] has token 60; use 0 to 59"),
        ([[1]], {"tokens": -1}, "tokens -1 cannot be used; use 0 or more"),
        ([[1]], {"chunk": 0}, "chunk 0 cannot be used; use 1 or more"),
        ([[1]], {"numbers": [1, 2]}, r"numbers \[1, 2\] cannot be used"),
    ],
)
def test_a_mistake_is_told(prompts: list[list[int]], more: dict, told: str) -> None:
    arguments = {"tokens": 3, "sampling": Sampling(), "end": None} | more
    with pytest.raises(ValueError, match=told):
        Sampler(model("bf16")).sample(prompts, **arguments)
