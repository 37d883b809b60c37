"""`fourbit export RUN --to compressed-tensors|modelopt|bf16`: a trained model as a folder that other tools load.

    config.json             the model as an architecture of `transformers`, see `architectures`
    model.safetensors       its weights
    hf_quant_config.json    for modelopt: which matrices have which format
    tokenizer.json          the run's tokens, and
    tokenizer_config.json   the class that AutoTokenizer needs to read them, see `folder_tokens`

Nothing is calibrated: what the recipe quantizes leaves with the codes and scales of the run's own forward, see
`packed`. Attention, router, embeddings and head, and layers in BF16, are BF16, as the forward reads them; gains of
norms and biases of routers stay FP32. Under bf16 everything is BF16, quantized matrices the values that their codes
stand for, rounded once; exact in MXFP8, and in NVFP4 where the outer scale is a power of two. The format of activations
is not exported: a server would need calibrated scales for it, and the run's own are made anew for every token.

The library transformers 5.24 by itself stacks the experts of compressed-tensors without their outer scales, and says
nothing; the package's `CompressedTensorsDequantizer` does not, and makes a folder that transformers loads.

config.json is removed first and written last, so that a folder that has it is whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from safetensors.torch import save
from torch import Tensor

from numerics import BlockTensor
from numerics.ops import Cast

from .architectures import Place, library_config, places, zeros
from .checkpoint import make_folder, write_atomic, write_json
from .flags import named_flags
from .folder_config import CONFIG, MODELOPT_CONFIG
from .folder_files import WEIGHTS
from .folder_tokens import TOKENIZER, TOKENIZER_CONFIG, tokenizer_contents
from .load import Loaded, load_run
from .packed import (
    COMPRESSED_TENSORS,
    MODELOPT,
    Kind,
    compressed_config,
    kind_of,
    matrix,
    modelopt_config,
    modelopt_entry,
    scaled,
    stored,
)
from .servers import notices

PROGRAM = "fourbit export"
# config.json first: without it the folder is no model
_FILES = (CONFIG, WEIGHTS, MODELOPT_CONFIG, TOKENIZER, TOKENIZER_CONFIG)


@dataclass(frozen=True)
class ExportConfig:
    """Write a trained model as a folder that other tools load; nothing is calibrated."""

    run: tyro.conf.Positional[Path]
    """Run folder, as `fourbit train` left it."""
    to: Literal["compressed-tensors", "modelopt", "bf16"]
    """The layout: packed weights as compressed-tensors or modelopt write them, or plain BF16."""
    out: Path
    """Folder to write; made if missing."""
    force: bool = False
    """Replace an export that is there already."""
    step: int | None = None
    """Checkpoint to use; the newest if left out."""


@dataclass(frozen=True, eq=False)
class Exported:
    """The contents of an export. config: of config.json. tensors: of the weights' file. modelopt: of
    hf_quant_config.json. kinds: the format of each quantized matrix, by module."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    modelopt: dict[str, Any] | None
    kinds: dict[str, Kind]


@named_flags(ExportConfig)
def main(argv: list[str]) -> int:
    """Run `fourbit export` with `argv`; return the exit code, or raise ValueError in one sentence."""
    config = tyro.cli(ExportConfig, args=argv, prog=PROGRAM)
    require_free(config.out, config.force)
    run = load_run(config.run, step=config.step)
    found = export(run, config.to)
    write(found, run, config.out)
    names = [name for name in found.tensors if name.rpartition(".")[0] in found.kinds]
    quantized = f"{len(found.kinds)} quantized matrices, {_bytes(found, names) / 1e6:.2f} MB, " if names else ""
    print(
        f"{found.config['model_type']} in {config.out}: step {run.step} of {config.run}, {quantized}"
        f"{_bytes(found, found.tensors) / 1e6:.2f} MB in all"
    )
    for notice in notices(run.model.config, found.kinds):
        print(f"notice: {notice}")
    return 0


def require_free(out: Path, force: bool) -> None:
    """Raises ValueError if `out` is a file, or a folder with something in it that may not be replaced."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"out {str(out)!r} is a file; name a folder")
    there = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    if not there:
        return
    if not _is_export(out, there):
        raise ValueError(f"out {str(out)!r} holds something that is no export ({there[0]}); name another folder")
    if not force:
        raise ValueError(
            f"out {str(out)!r} holds an export already; give --force to replace it, or name another folder"
        )


def _is_export(out: Path, there: list[str]) -> bool:
    """Whether it holds nothing but files of an export, finished or not."""
    try:
        config = json.loads((out / CONFIG).read_bytes()) if CONFIG in there else {"architectures": []}
    except ValueError:
        return False
    return set(there) <= set(_FILES) and isinstance(config, dict) and "architectures" in config


@torch.no_grad()
def export(run: Loaded, to: Literal["compressed-tensors", "modelopt", "bf16"]) -> Exported:
    """The run's model in one of the layouts.

    Raises:
        ValueError: no architecture computes what the model does, the layout has no place for a format, or there is
            nothing quantized to pack.
    """
    model = run.model
    config = library_config(model.config, run.alphabet.end)
    kinds, tensors = {}, {z.theirs: torch.zeros(z.shape, dtype=torch.bfloat16) for z in zeros(model.config)}
    state = model.state_dict()
    quantized = _Quantized(run)
    for place in places(model.config):
        cast = _cast(run, place)
        kind = None if to == "bf16" else kind_of(cast, to)
        if cast.fmt is None:
            tensors[place.theirs] = _plain(place, state[place.ours])
        elif kind is None:
            tensors[place.theirs] = _plain(place, quantized.values(place.ours, cast))
        else:
            part = matrix(quantized.codes(place.ours, cast), kind, place.expert or 0, place.start, place.stop)
            tensors |= stored(scaled(part, place.factor, place.module), to, place.module)
            kinds[place.module] = kind
    if to != "bf16" and not kinds:
        raise ValueError(f"recipe {model.recipe.name} quantizes no weights, so there is nothing to pack; use --to bf16")
    return _described(run, to, config, tensors, kinds)


def _described(
    run: Loaded, to: str, config: dict[str, Any], tensors: dict[str, Tensor], kinds: dict[str, Kind]
) -> Exported:
    """With what tells a reader how the weights are stored, and where they came from."""
    modelopt = None
    plain = [p.module for p in places(run.model.config) if not p.vector and p.module not in kinds]
    others = [*plain, *(z.module for z in zeros(run.model.config) if not z.bias)]
    if to == COMPRESSED_TENSORS:
        config["quantization_config"] = compressed_config(kinds, others)
    elif to == MODELOPT:
        modelopt = modelopt_config(kinds, others, version("fourbit"))
        config["quantization_config"] = modelopt_entry(modelopt)
    config["fourbit"] = {
        **{"version": version("fourbit"), "recipe": run.model.recipe.name, "step": run.step, "corpus": run.corpus},
    }
    return Exported(config, {n: t.cpu().contiguous() for n, t in tensors.items()}, modelopt, kinds)


def write(found: Exported, run: Loaded, out: Path) -> None:
    """Write an export, in place of one that is there.

    Raises:
        OSError: the disk refuses.
    """
    contents = save(found.tensors, metadata={"format": "pt"})
    make_folder(out)
    for name in _FILES:
        (out / name).unlink(missing_ok=True)
    write_atomic(out / WEIGHTS, contents)
    if found.modelopt is not None:
        write_json(out / MODELOPT_CONFIG, found.modelopt)
    for name, data in tokenizer_contents(run.alphabet, run.config.model.sequence).items():
        write_atomic(out / name, data)
    write_json(out / CONFIG, found.config)


def _cast(run: Loaded, place: Place) -> Cast:
    """How the forward quantizes what lies at a place; BF16 where it does not."""
    owner, _, name = place.ours.rpartition(".moe.")
    if not place.quantized or (name.startswith("shared") and not run.model.recipe.shared):
        return Cast(None)
    return run.model.recipes[int(owner.removeprefix("layers."))].weight


class _Quantized:
    """Weights of a run's model (E, N, K) as its forward quantizes them, a shared expert as one of one; those of one
    layer are kept, because its matrices come expert by expert."""

    def __init__(self, run: Loaded) -> None:
        self._run, self._state, self._kept = run, run.model.state_dict(), {}
        self._decoded: dict[str, Tensor] = {}

    def codes(self, name: str, cast: Cast) -> BlockTensor:
        if name not in self._kept:
            layer = name.partition(".moe.")[0]
            for kept in (self._kept, self._decoded):
                for other in [n for n in kept if n.partition(".moe.")[0] != layer]:
                    del kept[other]
            weight = self._state[name]
            self._kept[name] = self._run.model.ops.quantize_tokens(weight if weight.ndim == 3 else weight[None], cast)
        return self._kept[name]

    def values(self, name: str, cast: Cast) -> Tensor:
        """What the codes stand for, FP32, in the weight's own shape."""
        codes = self.codes(name, cast)
        if name not in self._decoded:
            self._decoded[name] = codes.dequantize().view(self._state[name].shape)
        return self._decoded[name]


def _plain(place: Place, source: Tensor) -> Tensor:
    """Rows of a matrix in BF16, or a vector in FP32."""
    found = source if place.expert is None else source[place.expert]
    found = found[place.start : place.stop]
    return found.clone() if place.vector else (found.to(torch.bfloat16) * place.factor)


def _bytes(found: Exported, names: Any) -> int:
    return sum(found.tensors[name].nbytes for name in names)
