"""Contract of reference.segments and reference.packing: texts that lie in one sequence see nothing of each other, and
compute what they compute alone.

Oracles: each text alone through the same module; bits of one text while the others change.
"""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from numerics import ops
from reference.attention import Attention
from reference.dense import ShortConvolution
from reference.examples import Example
from reference.expert import Draw
from reference.model import ModelConfig, Transformer
from reference.packing import IGNORED, pack
from reference.presets import preset
from reference.segments import Segments

SIZES = {"dim": 32, "heads": 2, "experts": 4, "expert_dim": 32, "shared_dim": 32, "sequence": 24}
MODELS = {
    "plain": ModelConfig(**SIZES),
    "options": ModelConfig(
        **SIZES, kv_heads=1, window=3, full_every=2, convolution=3, router="sigmoid", dense_layers=1
    ),
    "no positions": ModelConfig(**SIZES, positions="none"),
}
LENGTHS = (5, 1, 7, 11)
IDS = torch.cat([torch.full((n,), i) for i, n in enumerate(LENGTHS)])[None]
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: no CUDA device")),
]
PLACES = [(sum(LENGTHS[:i]), sum(LENGTHS[: i + 1])) for i in range(len(LENGTHS))]


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """Sums depend on them."""


def test_positions_start_with_a_segment_and_a_number_may_come_again() -> None:
    found = Segments(torch.tensor([[4, 4, 4, 0, 0, 4], [1, 2, 3, 3, 3, 3]]))
    assert found.positions_BS.tolist() == [[0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 2, 3]]
    assert found.visible(None)[0].int().tolist() == [
        *([1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0]),
        *([0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]),
    ]
    assert found.visible(2)[1, 5].int().tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["fourbit", "mxfp8", "bf16"])
@pytest.mark.parametrize("device", DEVICES)
def test_no_bit_of_another_segment_matters(model: str, name: str, device: str) -> None:
    """Bit for bit, and it does matter without segments."""
    config = MODELS[model]
    transformer = Transformer(config, preset(name), ops, 0).to(device)
    for module in transformer.modules():
        if isinstance(module, ShortConvolution):
            torch.nn.init.normal_(module.taps)
    tokens = torch.randint(256, (2, 24), generator=torch.Generator().manual_seed(1))
    other = tokens.clone()
    first, last = PLACES[2]
    other[:, :first] += 1
    other[:, last:] += 3
    other %= 256
    with torch.no_grad():
        for segments, equal in ((IDS.expand(2, -1), True), (None, False)):
            segments = segments if segments is None else segments.to(device)
            a, b = (
                transformer.logits(t.to(device), Draw(0, 1, 0), 1, segments)[0][:, first:last] for t in (tokens, other)
            )
            assert torch.equal(a, b) == equal


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("device", DEVICES)
def test_under_parity_each_segment_has_its_own_bits_alone(model: str, device: str) -> None:
    """Sums are exact there, so positions and neighbours are all that could differ."""
    transformer = Transformer(MODELS[model], preset("fourbit"), ops, 0).to(device)
    transformer.keep_parity()
    for module in transformer.modules():
        if isinstance(module, ShortConvolution):
            torch.nn.init.normal_(module.taps)
    tokens = torch.randint(256, (1, 24), generator=torch.Generator().manual_seed(1)).to(device)
    with torch.no_grad():
        together = transformer.logits(tokens, Draw(0, 1, 0), 1, IDS.to(device))[0]
        for first, last in PLACES:
            alone = transformer.logits(tokens[:, first:last], Draw(0, 1, 0))[0]
            assert torch.equal(together[:, first:last], alone)


def test_queries_and_keys_are_turned_from_the_start_of_their_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, under parity. Scores depend on distances alone, so what they become would hardly show it."""
    layer, seen = Attention(32, 4), []
    mix = layer.mix
    monkeypatch.setattr(layer, "mix", lambda q, k, v, visible: seen.append((q, k)) or mix(q, k, v, visible))
    for part in layer.modules():
        part.parity = True
    torch.nn.init.normal_(layer.qkv.weight)
    x = torch.randn(1, sum(LENGTHS), 32).to(torch.bfloat16)
    layer(x, Segments(IDS))
    for first, last in PLACES:
        layer(x[:, first:last])
        for together, alone in zip(seen[0], seen[-1], strict=True):
            assert torch.equal(together[:, :, first:last], alone)


def test_the_convolution_is_that_of_each_segment_alone() -> None:
    """Bit for bit: element by element."""
    layer = ShortConvolution(8, 4)
    torch.nn.init.normal_(layer.taps)
    x = torch.randn(1, sum(LENGTHS), 8).to(torch.bfloat16)
    together = layer(x, Segments(IDS))
    for first, last in PLACES:
        assert torch.equal(together[:, first:last], layer(x[:, first:last]))


@pytest.mark.parametrize(("window", "kv_heads", "rotary"), [(None, None, True), (3, 1, True), (None, 1, False)])
def test_attention_is_that_of_each_segment_alone(window: int | None, kv_heads: int | None, rotary: bool) -> None:
    """Sums have another order there. q, k, v and the result are rounded to BF16, so each can be its neighbour, 2^-8 of
    the largest away; weights sum to 1 and the last product has 32 terms of size 32^-1/2: four roundings, 2^-6."""
    torch.manual_seed(0)
    layer = Attention(32, 4, kv_heads, window, rotary)
    for p in layer.parameters():
        torch.nn.init.normal_(p, std=32**-0.5)
    x = torch.randn(1, sum(LENGTHS), 32).to(torch.bfloat16)
    together = layer(x, Segments(IDS))
    for first, last in PLACES:
        alone = layer(x[:, first:last])
        assert (together[:, first:last] - alone).abs().max() <= 2**-6 * alone.abs().max()


@given(st.lists(st.integers(2, 9), min_size=1, max_size=30), st.integers(8, 20))
def test_every_text_is_found_again_where_it_was_put(lengths: list[int], sequence: int) -> None:
    drawn = random.Random(sum(lengths))
    texts = [
        Example(tuple(drawn.randrange(1, 256) for _ in range(n)), tuple(drawn.random() < 0.5 for _ in range(n)))
        for n in lengths
    ]
    rows = pack(texts, sequence)
    assert len(rows.places) == len(texts) and rows.tokens.shape[1] == sequence
    seen = torch.zeros_like(rows.tokens, dtype=torch.bool)
    for text, (row, column) in zip(texts, rows.places, strict=True):
        inside = (row, slice(column, column + len(text.tokens) - 1))
        assert rows.tokens[inside].tolist() == list(text.tokens[:-1])
        wanted = [t if l else IGNORED for t, l in zip(text.tokens[1:], text.learned[1:], strict=True)]
        assert rows.targets[inside].tolist() == wanted
        assert not seen[inside].any() and len(set(rows.segments[inside].tolist())) == 1
        assert Segments(rows.segments).positions_BS[inside].tolist() == list(range(len(wanted)))
        seen[inside] = True
    assert (rows.targets[~seen] == IGNORED).all() and (rows.segments[~seen] == -1).all()
    assert (rows.segments[seen] >= 0).all()
