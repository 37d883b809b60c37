"""Contract of reference.parity: a token's bits depend on its own sequence alone. The sampler's log-probabilities and
routing are those of the training forward, whatever passes together, in what pieces and from which cache.

Oracle: the training forward over one sequence, alone, without a cache; `torch.equal` throughout, on a CPU and, where
there is one, a GPU. Gradients, which are promised nothing, are held against those of the library's forms.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from nearest import nearest
from torch import Tensor

import fourbit
import numerics as nm
from numerics import ops
from reference import exact, moe, parity
from reference.decode import Frozen
from reference.expert import Draw
from reference.frozen import FrozenLinear
from reference.load import load_run
from reference.model import ModelConfig, Transformer
from reference.presets import preset
from reference.router import choose
from reference.sample import Completion, Sampler, Sampling, log_probabilities
from reference.train import TrainConfig, train

SMALL = ModelConfig(dim=64, heads=2, experts=4, expert_dim=32, shared_dim=32, sequence=40, vocab=90)
MODELS = {
    "softmax": SMALL,
    "sigmoid": dataclasses.replace(
        SMALL, router="sigmoid", kv_heads=1, window=5, full_every=3, convolution=3, dense_layers=1
    ),
    "plain": dataclasses.replace(SMALL, positions="none", shared_dim=0, top_k=3),
}
RECIPES = ("fourbit", "bf16", "mxfp8")
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
]
PROMPTS = [[1, 2, 3], [7] * 13, [4, 5], list(range(20)), [1, 2, 3], [88], [9, 8, 7, 6, 5, 4], [30, 31]]


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the trainer has by default."""


def model(recipe: str = "fourbit", config: ModelConfig = SMALL, device: str = "cpu", seed: int = 0) -> Transformer:
    """One whose convolutions, biases and norms are not what they begin as."""
    made = Transformer(config, preset(recipe), ops, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if name.endswith(("taps", "gain")):
                p.add_(0.3 * torch.randn(p.shape, generator=generator))
        for name, b in made.named_buffers():
            if name.endswith("bias"):
                b.add_(0.1 * torch.randn(b.shape, generator=generator))
    made.keep_parity()
    return made.to(device)


@contextmanager
def routes(into: list[Tensor]) -> Iterator[None]:
    """Notes the experts (T, K) that training's layers choose."""

    def noting(*args: object) -> object:
        choice = choose(*args)
        into.append(choice.experts)
        return choice

    moe.choose = noting
    try:
        yield
    finally:
        moe.choose = choose


def forward(m: Transformer, ids_BS: list[list[int]], grains: int = 1) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B, S, V) and experts (B S, layers, K) of the training forward, its gradients on."""
    found: list[Tensor] = []
    with routes(found):
        logits, _ = m.logits(torch.tensor(ids_BS, device=m.embed.device), Draw(0, 1, 0), grains)
    layers = len(found) // grains
    experts = torch.stack([torch.cat(found[i * grains : (i + 1) * grains]) for i in range(layers)], 1)
    return log_probabilities(logits, True).detach(), experts


def require_equal(m: Transformer, prompt: list[int], completion: Completion) -> None:
    """The sampler's log-probabilities and routing are those of one forward over prompt and completion."""
    logs_BSV, experts = forward(m, [[*prompt, *completion.tokens][:-1]])
    drawn = torch.tensor(completion.tokens, device=logs_BSV.device)
    wanted = logs_BSV[0, len(prompt) - 1 :].gather(1, drawn[:, None])[:, 0]
    assert torch.equal(torch.tensor(completion.logprobs, device=wanted.device), wanted)
    assert completion.routing is not None and torch.equal(completion.routing, experts)


# ------------------------------------------------------------------------------------------------ the sampler


@pytest.mark.every(4)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_sampler_has_the_bits_of_the_training_forward(recipe: str, name: str, device: str) -> None:
    m = model(recipe, MODELS[name], device)
    sampler, sampling = Sampler(m), Sampling(1.0, 1.0, 3)
    together = sampler.sample(PROMPTS, 7, sampling, None, routing=True)
    for i in (0, 1, 3):
        require_equal(m, PROMPTS[i], together[i])
    for size, chunk in ((1, None), (3, 4), (8, 1)):
        for start in range(0, 8 if size > 1 else 3, size):
            some = range(start, min(start + size, 8))
            again = sampler.sample(
                [PROMPTS[i] for i in some], 7, sampling, None, numbers=list(some), chunk=chunk, routing=True
            )
            for i, completion in zip(some, again, strict=True):
                assert (completion.tokens, completion.logprobs) == (together[i].tokens, together[i].logprobs)
                assert torch.equal(completion.routing, together[i].routing)


def test_completions_that_end_leave_the_others_as_they_are() -> None:
    sampler = Sampler(model())
    free = sampler.sample(PROMPTS, 12, Sampling(1.0, 1.0, 4), None)
    end = free[0].tokens[3]
    for completion, whole in zip(sampler.sample(PROMPTS, 12, Sampling(1.0, 1.0, 4), end), free, strict=True):
        count = whole.tokens.index(end) + 1 if end in whole.tokens else 12
        assert (completion.tokens, completion.logprobs) == (whole.tokens[:count], whole.logprobs[:count])


def test_after_an_update_a_refreshed_sampler_has_the_new_weights() -> None:
    m = model()
    sampler, prompt = Sampler(m), [5, 4, 3]
    before = sampler.sample([prompt], 6, Sampling(1.0, 1.0), None)[0].logprobs
    losses = m(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, 3, 4, 5]]), Draw(0, 1, 0))
    losses.total.backward()
    with torch.no_grad():
        for p in m.parameters():
            p.sub_(0.1 * p.grad)
    sampler.refresh()
    (completion,) = sampler.sample([prompt], 6, Sampling(1.0, 1.0), None, routing=True)
    require_equal(m, prompt, completion)
    assert completion.logprobs != before


@pytest.mark.parametrize("device", DEVICES)
def test_a_cache_has_the_bits_of_none(device: str) -> None:
    m = model(config=MODELS["sigmoid"], device=device)
    frozen, text = Frozen(m), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
    wanted = m.logits(torch.tensor([text], device=device), Draw(0, 1, 0))[0][0]
    for cuts in ([1] * 16, [16], [5, 1, 10], [2, 7, 7]):
        cache, at = frozen.cache(2, 40), 0
        for cut in cuts:
            # beside another sequence that grows at another pace, or not at all
            logits, _ = frozen.feed(cache, [text[at : at + cut], [1] * (cut % 3)])
            at += cut
            assert torch.equal(logits[0], wanted[at - 1])


def test_a_copied_cache_goes_its_own_way() -> None:
    m = model()
    frozen = Frozen(m)
    cache = frozen.cache(1, 10)
    frozen.feed(cache, [[1, 2, 3]])
    two = cache.rows([0, 0])
    logits, _ = frozen.feed(two, [[4], [5]])
    again, _ = frozen.feed(two, [[6], [6]])
    for row, text in enumerate(([1, 2, 3, 4, 6], [1, 2, 3, 5, 6])):
        wanted = m.logits(torch.tensor([text]), Draw(0, 1, 0))[0][0]
        assert torch.equal(logits[row], wanted[-2]) and torch.equal(again[row], wanted[-1])
    assert cache.lengths == [3]


# ------------------------------------------------------------------------------------------------ the trainer


@pytest.mark.every(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_training_has_the_bits_of_a_sequence_alone(recipe: str, name: str, device: str) -> None:
    """At batch sizes 1, 3, 8, with what pads it to the right, cut short, and in grains."""
    m = model(recipe, MODELS[name], device)
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(0, 90, (8, 31), generator=generator).tolist()
    alone = [forward(m, [text]) for text in texts]
    for size, grains in ((3, 1), (8, 1), (8, 4)):
        logs_BSV, experts = forward(m, texts[:size], grains)
        assert torch.equal(logs_BSV, torch.cat([logs for logs, _ in alone[:size]]))
        assert torch.equal(experts, torch.cat([own for _, own in alone[:size]]))
    for length in (1, 2, 17):
        logs_BSV, experts = forward(m, [texts[0][:length]])
        assert torch.equal(logs_BSV, alone[0][0][:, :length]) and torch.equal(experts, alone[0][1][:length])
        padded, own = forward(m, [texts[0][:length] + [0] * 9])
        assert torch.equal(padded[:, :length], logs_BSV) and torch.equal(own[:length], experts)


def test_threads_do_not_matter() -> None:
    m, text = model(), list(range(30))
    one = forward(m, [text])[0]
    torch.set_num_threads(2)
    try:
        assert torch.equal(forward(m, [text])[0], one)
    finally:
        torch.set_num_threads(1)


def test_without_parity_bits_depend_on_the_batch() -> None:
    """What all this is for: were it no longer so, the tests above would prove nothing."""
    m = Transformer(SMALL, preset("bf16"), ops, 0)
    text = torch.randint(0, 90, (1, 31), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        whole, _ = m.logits(text, Draw(0, 1, 0))
        cut = [m.logits(text[:, :length], Draw(0, 1, 0))[0] for length in range(1, 31)]
    if all(torch.equal(part, whole[:, : part.shape[1]]) for part in cut):
        pytest.skip("this processor's products of these sizes do not depend on the batch: nothing to compare with")


@pytest.mark.parametrize("name", MODELS)
def test_values_and_gradients_are_those_of_the_librarys_forms(name: str) -> None:
    """BF16 experts, so that no code flips. Activations round to BF16 in many places, where either form may round the
    other way, and a token near a tie may change its expert: gradients agree to a few roundings of 2^-8 as a whole."""
    found = []
    for exactly in (False, True):
        m = Transformer(MODELS[name], preset("bf16"), ops, 0)
        if exactly:
            m.keep_parity()
        ids = torch.randint(0, 90, (4, 32), generator=torch.Generator().manual_seed(1))
        losses = m(ids[:, :-1], ids[:, 1:], Draw(0, 1, 0))
        losses.total.backward()
        found.append((losses.total.item(), {name: p.grad for name, p in m.named_parameters()}))
    (loss, own), (exact_loss, exact) = found
    assert abs(loss - exact_loss) < 2**-8 * loss
    apart, size = (
        sum(float(t.square().sum()) for t in ts) ** 0.5
        for ts in ([g - exact[key] for key, g in own.items()], own.values())
    )
    assert 0 < apart < 8 * 2**-8 * size


def test_functions_have_the_gradients_of_their_formulas() -> None:
    generator = torch.Generator().manual_seed(2)
    x, g, gain = (torch.randn(5, 12, generator=generator) for _ in range(3))
    cases = {
        parity.softmax: lambda t: t.softmax(-1),
        parity.log_softmax: lambda t: t.log_softmax(-1),
        parity.sigmoid: torch.sigmoid,
        lambda t: parity.norm(t, gain[0]): lambda t: torch.rms_norm(t, (12,), gain[0], eps=1e-6).to(torch.bfloat16),
    }
    for own, library in cases.items():
        values, gradients = [], []
        for function in (own, library):
            leaf = x.clone().requires_grad_()
            value = function(leaf)
            value.backward(g.to(value.dtype))
            values.append(value.detach().float())
            gradients.append(leaf.grad)
        torch.testing.assert_close(*values, rtol=2**-7 if value.dtype == torch.bfloat16 else 2**-20, atol=2**-20)
        torch.testing.assert_close(*gradients, rtol=2**-16, atol=2**-18)


def test_forms_are_what_they_say() -> None:
    """Number by number: exact sums by Fraction rounded once, everything else by FP32 operations of numpy."""
    generator = torch.Generator().manual_seed(3)
    x, gain = torch.randn(6, 45, generator=generator) * 3, torch.rand(45, generator=generator)
    f = np.float32
    for row, normed, p in zip(x.numpy(), parity.norm(x, gain), parity.softmax(x).numpy(), strict=True):
        mean = f(nearest(sum(Fraction(float(v * v)) for v in row))) * f(1 / 45)
        r = f(1) / np.sqrt(mean + f(1e-6))
        assert parity.inverse_rms(torch.from_numpy(row)).item() == r
        assert torch.equal(torch.from_numpy((row * r) * gain.numpy()).to(torch.bfloat16), normed)
        e = exact.exp(torch.from_numpy(row - row.max())).numpy()
        total = f(nearest(sum(Fraction(float(v)) for v in e)))
        assert (p == e / total).all()
    q, k, v = (torch.randn(1, 2, n, 24, generator=generator) for n in (3, 40, 40))
    visible = torch.rand(1, 1, 3, 40, generator=generator) < 0.7
    found = parity.attend(q, k, v, visible)
    for h in range(2):
        for i in range(3):
            seen = [s for s in range(40) if visible[0, 0, i, s]]
            scores = [f(product(q[0, h, i], k[0, h, s])) * f(24**-0.5) for s in seen]
            p = exact.exp(torch.tensor(np.array(scores) - max(scores)))
            whole = f(nearest(sum(Fraction(float(w)) for w in p)))
            wanted = [f(product(p, v[0, h, seen, c])) / whole for c in range(24)]
            assert found[0, h, i].tolist() == [float(w) for w in wanted]


def test_dense_products_are_exact() -> None:
    """Sums that cancel, which FP32 loses in any order, through each kind of product of a model."""
    generator = torch.Generator().manual_seed(4)
    row = torch.tensor([2.0**24, 1.0, 2.0**-10, 0.0] * 8 + [-(2.0**24), 0.0, 0.0, 0.0] * 8).to(torch.bfloat16)
    row = row[torch.randperm(64, generator=generator)]  # whatever lanes a vector has
    x = torch.stack([row, torch.randn(64, generator=generator).to(torch.bfloat16)])
    m = model("bf16")
    with torch.no_grad():
        w = m.head.weight.copy_(torch.randn(m.head.weight.shape, generator=generator).sign())
        w[0] = 1.0
        m.layers[0].moe.router.copy_(w[:4])
    exactly = nm.matmul(x.float(), w.to(torch.bfloat16).float(), "exact")
    assert exactly[0, 0] == 8 + 8 * 2.0**-10
    assert torch.equal(m.head(x), exactly.to(torch.bfloat16))
    assert torch.equal(FrozenLinear(m.head)(x), exactly.to(torch.bfloat16))
    choice = choose(x, m.layers[0].moe.router, 2, None, True)
    assert torch.equal(choice.scores, parity.softmax(exactly[:, :4]))
    weights = choice.scores.gather(1, choice.experts)
    assert torch.equal(choice.weights, weights / (weights[:, :1] + weights[:, 1:]))


def product(a: Tensor, b: Tensor) -> float:
    """The exact dot product, rounded once."""
    return nearest(sum(Fraction(x) * Fraction(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)))


def test_equal_scores_choose_the_first() -> None:
    scores = torch.tensor([[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    assert parity.largest(scores, 2).tolist() == [[1, 2], [0, 1]]


# ------------------------------------------------------------------------------------------------ runs


def small_run(folder: Path, **more: object) -> TrainConfig:
    if not (folder / "text").exists():
        (folder / "text").write_bytes(b"the cat sat on the mat; " * 200)
    return TrainConfig(
        **{"out": folder / "run", "data": str(folder / "text"), "steps": 3, "batch": 4, "lr": 0.01, "warmup": 1},
        **{"eval_every": 3, "eval_sequences": 4, "monitor_every": 0, "progress": "hide", "parity": True},
        **more,
        model=dataclasses.replace(SMALL, vocab=256, sequence=16),
    )


def test_a_run_in_parity_is_loaded_in_parity(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_run(tmp_path)
    train(config, ops)
    assert train(config, ops).resumed_from == 3
    run = load_run(config.out)
    assert run.config.parity and run.model.parity and run.model.accumulator == "exact"
    (completion,) = Sampler(run.model).sample([list(b"the cat")], 9, Sampling(0.0), None, routing=True)
    require_equal(run.model, list(b"the cat"), completion)
    assert fourbit.main(["generate", str(config.out), "--prompt=the cat", "--temperature=0", "--tokens=30"]) == 0
    shown = capsys.readouterr().out.encode()
    # beyond the model's context each token is computed from the last `sequence` ones, as without a cache
    seen = list(b"the cat")
    for _ in range(30):
        logits = run.model.logits(torch.tensor([seen[-16:]]), Draw(0, -1, 0))[0][0, -1]
        seen.append(int(logits.argmax()))
    assert shown == bytes(seen).decode(errors="replace").encode() + b"\n"


REFUSED = {
    "nvfp4_nvidia": "layer 0 cannot have parity: the outer scale of its input ('tensor') is that of all tokens",
    "nvfp4_all": "layer 0 cannot have parity: the outer scale of its input ('tensor')",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_recipe_that_mixes_tokens_is_refused(name: str, tmp_path: Path) -> None:
    m = Transformer(SMALL, preset(name), ops, 0)
    with pytest.raises(ValueError) as told:
        m.keep_parity()
    assert REFUSED[name] in str(told.value) and not m.parity and m.accumulator == "library"
    with pytest.raises(ValueError, match="cannot have parity"):
        train(small_run(tmp_path, preset=name), ops)
    with pytest.raises(ValueError, match="layer 2 cannot have parity"):
        train(small_run(tmp_path, layer_presets={2: name}), ops)
    m = model()
    with pytest.raises(ValueError, match="cannot have parity"):
        m.follow((preset(name).experts,) * 6)


def test_a_product_that_mixes_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"products 'library' cannot be used; use one of exact, fp32.*passes together"):
        train(small_run(tmp_path, products="library"), ops)
    m = Transformer(SMALL, preset("bf16"), ops, 0, "hopper_bf16")
    m.keep_parity()
    assert m.accumulator == "hopper_bf16"
    text = [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert torch.equal(forward(m, text)[0][:1], forward(m, text[:1])[0])
