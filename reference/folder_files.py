"""Tensors of a folder of `transformers`, by the names that `architectures` gives them.

Weights lie in model.safetensors, or in the files that model.safetensors.index.json lists; like the library, all that
these files hold is read, whatever the index says of which file holds what. Names may lack the prefix "model."; the
block of a mixtral may be called mlp; experts may be stacked, as the library keeps them in memory:

    experts.gate_up_proj (E, 2 F, D)     gate over up of every expert
    experts.down_proj    (E, D, F)       down of every expert

Values are BF16, FP16 or FP32, or packed as `fourbit export` (or compressed-tensors, or modelopt) packs them, see
`packed`. Shapes: D width, E experts, F their width.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from numerics.layout import unpack_nibbles

from .architectures import Place
from .checkpoint import read_json
from .folder_config import Described
from .masters import masters
from .packed import MXFP4, MXFP8, NVFP4, Matrix

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_PARTS = ("weight", "weight_packed", "weight_scale", "weight_scale_2", "weight_global_scale")
# what a file may have that this model computes without: scales of activations, and what follows from the sizes
_UNREAD = (".input_scale", ".input_global_scale", ".weight_shape", "rotary_emb.inv_freq")
_FLOATS = (torch.bfloat16, torch.float16, torch.float32)
_KINDS = {
    (torch.uint8, torch.float8_e4m3fn): NVFP4,
    (torch.float8_e4m3fn, torch.uint8): MXFP8,
    (torch.uint8, torch.uint8): MXFP4,
}
_HEAD, _EMBED = "lm_head.weight", "model.embed_tokens.weight"


def files_of(folder: Path) -> list[Path]:
    """The files with the folder's weights.

    Raises:
        ValueError: there are none, or it is not said which of two kinds counts.
    """
    single, index, told = folder / WEIGHTS, folder / INDEX, f"init_from {str(folder)!r}"
    if (folder / "adapter_config.json").exists():
        raise ValueError(f"{told} has an adapter beside its weights; merge the two, and take adapter_config.json out")
    listed: list[Path] = []
    if index.is_file():
        entries = read_json(index, "weight_map")["weight_map"]
        if not (isinstance(entries, dict) and entries and all(isinstance(file, str) for file in entries.values())):
            raise ValueError(f"{str(index)!r} is damaged: weight_map names no files; restore it")
        listed = sorted({folder / Path(file).name for file in entries.values()})
    if single.is_file():
        if any(path.is_file() for path in listed if path != single):
            raise ValueError(
                f"{told} has {WEIGHTS} and the shards of {INDEX}, and tools differ in which they read; take one out"
            )
        return [single]
    if not listed:
        other = "; convert its *.bin with save_pretrained" if any(folder.glob("*.bin")) else ""
        raise ValueError(f"{told} has no {WEIGHTS}{other or '; name a folder of transformers'}")
    return listed


class Files:
    """Tensors of a folder by name, and which of them have been read.

    Args: folder: with weights. block: what the architecture calls a layer's experts. said: what config.json says.
    """

    def __init__(self, folder: Path, block: str, said: Described) -> None:
        self._told, self._said, self._read, self._packs = f"{str(folder)!r}", said, set[str](), False
        self._of: dict[str, tuple[Path, str]] = {}  # file, and the name there
        paths = files_of(folder)
        found = [(path, name) for path in paths for name in names_of(path)]
        prefix = "" if any(name.startswith("model.") for _, name in found) else "model."
        for path, name in found:
            own = name if name == _HEAD else prefix + name.replace(".mlp.", f".{block}.")
            if own in self._of:
                where = ", ".join(sorted({repr(str(self._of[own][0])), repr(str(path))}))
                raise ValueError(f"init_from {self._told} has {own} twice ({where}); take one of the two out")
            self._of[own] = path, name
        if len(paths) > 1 or paths[0].name != WEIGHTS:
            self._require_listed(folder, {name for _, name in found})

    def _require_listed(self, folder: Path, there: set[str]) -> None:
        missing = sorted(set(read_json(folder / INDEX)["weight_map"]) - there)
        if missing:
            raise ValueError(f"init_from {self._told} has no {missing[0]}, which {INDEX} lists; restore it")

    def tensor(self, name: str) -> Tensor:
        """Raises ValueError if it is not there."""
        if name not in self._of:
            raise ValueError(f"init_from {self._told} has no {name}; restore it, or name another folder")
        return self._get(name, lambda file, own: file.get_tensor(own).clone())  # not a map of the file

    def _get(self, name: str, how: Any) -> Tensor:
        self._read.add(name)
        path, own = self._of[name]
        try:
            with safe_open(path, framework="pt") as file:
                found: Tensor = how(file, own)
                return found
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{str(path)!r} cannot be read ({error}): it is damaged; restore it") from None

    def matrix(self, place: Place, shape: tuple[int, ...], experts: int) -> tuple[Tensor, float]:
        """FP32 values of a place, and their outer scale; 0 if they have none.

        Args: shape: of the values. experts: how many the layer has.

        Raises:
            ValueError: not there, of another shape or format, or not finite.
        """
        name, outer = place.theirs, 0.0
        if f"{place.module}.weight_scale" in self._of:
            packed = self._packed(place.module)
            values, outer = masters(packed), float(packed.outer) if packed.kind is NVFP4 else 0.0
        elif name not in self._of and (stack := _stack(place)) in self._of:
            values = self._slice(stack, place, shape, experts)
        else:
            values = self.tensor(_EMBED if self._said.tied and name == _HEAD and name not in self._of else name)
        if values.dtype not in _FLOATS:
            raise ValueError(f"{name} of {self._told} is {values.dtype}; it needs BF16, FP16 or FP32")
        if tuple(values.shape) != shape:
            raise ValueError(f"{name} of {self._told} is {tuple(values.shape)}, not {shape}; restore it")
        if not bool(values.isfinite().all()):
            raise ValueError(f"{name} of {self._told} has a NaN or an infinity; use another folder")
        if values.numel() and (most := float(values.abs().max())) > self._said.largest:
            raise ValueError(f"{name} of {self._told} has {most:g}, beyond the dtype of config.json; correct the dtype")
        factor = torch.full((), place.factor)
        return values.to(torch.float32) / factor, outer / place.factor

    def _slice(self, stack: str, place: Place, shape: tuple[int, ...], experts: int) -> Tensor:
        """An expert's rows of a stack. Raises ValueError if that is of another shape."""
        rows = shape[0] if stack.endswith("down_proj") else 2 * shape[0]
        whole = (experts, rows, shape[1])

        def part(file: Any, own: str) -> Tensor:
            found = file.get_slice(own)
            if tuple(found.get_shape()) != whole:
                raise ValueError(f"{stack} of {self._told} is {tuple(found.get_shape())}, not {whole}; restore it")
            taken: Tensor = found[place.expert, place.start : rows if place.stop is None else place.stop].clone()
            return taken

        return self._get(stack, part)

    def _packed(self, module: str) -> Matrix:
        """A packed matrix. Raises ValueError for a format that is not known, and for a lost or a spare part."""
        self._packs = True
        parts = {name: self.tensor(f"{module}.{name}") for name in _PARTS if f"{module}.{name}" in self._of}
        told, scales = f"{module} of {self._told}", parts["weight_scale"]
        for pair in (("weight", "weight_packed"), ("weight_scale_2", "weight_global_scale")):
            if set(pair) <= set(parts):
                raise ValueError(f"{told} has {pair[0]} and {pair[1]}; take one of the two out")
        codes = parts.get("weight_packed", parts.get("weight"))
        scales = scales.view(torch.uint8) if scales.dtype == torch.float8_e8m0fnu else scales
        kind = None if codes is None else _KINDS.get((codes.dtype, scales.dtype))
        if codes is None or kind is None or codes.ndim != 2:
            raise ValueError(f"{told} is in a format that fourbit cannot read; use BF16")
        codes = codes.view(torch.uint8) if kind is MXFP8 else unpack_nibbles(codes)
        if scales.shape != (codes.shape[0], -(-codes.shape[1] // kind.block)):
            raise ValueError(f"{told} has scales of shape {tuple(scales.shape)}; restore it")
        outer = torch.ones(())
        given = parts.get("weight_scale_2", parts.get("weight_global_scale"))
        if (given is None) == (kind is NVFP4):
            lost = "no weight_scale_2 or weight_global_scale" if given is None else "a scale of the whole matrix"
            raise ValueError(f"{told} has {lost}, unlike {kind.compressed}; restore it, or use BF16")
        if given is not None:
            if given.numel() != 1 or not 0 < float(given) < torch.inf:
                raise ValueError(f"{told} has a scale of the whole matrix that is no positive number; restore it")
            outer = given.reshape(()).to(torch.float32)
            outer = outer if "weight_scale_2" in parts else torch.ones(()) / outer
        return Matrix(kind, codes, scales.view(torch.uint8), outer)

    def require_equal_if_tied(self) -> None:
        """Raises ValueError for a head that is tied to the embedding and differs from it: tools take either."""
        if self._said.tied and _HEAD in self._of and not torch.equal(self.tensor(_HEAD), self.tensor(_EMBED)):
            raise ValueError(
                f"{_HEAD} of {self._told} is not the embedding, and tie_word_embeddings is true; make that false, or "
                f"take {_HEAD} out"
            )

    def require_nothing_else(self, zero: dict[str, str]) -> None:
        """Raises ValueError for tensors that were not read, and for any of `zero` that is not: name, and what our model
        lacks."""
        for name, lacks in zero.items():
            if bool(self.tensor(name).any()):
                raise ValueError(f"{name} of {self._told} is not zero: our {lacks}")
        if self._packs != self._said.packed:
            what = "packed matrices and no" if self._packs else "no packed matrix and a"
            raise ValueError(f"init_from {self._told} has {what} quantization_config; correct config.json")
        odd = sorted(name for name in set(self._of) - self._read if not name.endswith(_UNREAD))
        if odd:
            more = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            raise ValueError(f"init_from {self._told} has what our model has no place for: {', '.join(odd[:3])}{more}")


def names_of(path: Path) -> list[str]:
    """The tensors in a file. Raises ValueError for one that is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{str(path)!r} cannot be read ({error}): it is missing or damaged; restore it") from None


def _stack(place: Place) -> str:
    """The tensor that has a place's rows if the experts are stacked; of no expert, none."""
    if place.expert is None:
        return ""
    head = place.theirs.partition(f".experts.{place.expert}.")[0]
    return f"{head}.experts.{'down_proj' if place.ours.endswith('w2') else 'gate_up_proj'}"
