"""The quantized matrices of a checkpoint: which tensors belong together, and how codes and scales lie.

    name                                    part        values = codes * scale * outer
    weight, weight_packed, *_blocks         codes       E2M1, two to a byte, the even index low; or FP8
    weight_scale, weight_scale_inv,         scale       one per block of a row (NVFP4 16, MX 32), per tile, row or
    *_scales, scale                                     tensor; all of them are factors to multiply by
    weight_scale_2                          outer       a factor to multiply by (ModelOpt)
    weight_global_scale                     outer       a factor to divide by (compressed-tensors)
    input_scale, input_global_scale         input       of the activations
    _weight_qdata, _weight_scale,           codes, scale, outer, a factor to multiply by (torchao)
    _weight_per_tensor_scale

The parts of stacked experts hang on an underscore (`gate_up_proj_blocks`), or the codes have no suffix. Sources:
compressed-tensors 0.20.1, compressors/; nvidia-modelopt 0.47.0, torch/export/; transformers, integrations/mxfp4.py
and finegrained_fp8.py; torchao 0.18.0, prototype/safetensors. Shapes: L matrices, N rows (outputs), K values
along the contraction.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

from numerics.layout import padded_scales

from .check_folder_config import Scheme
from .check_folder_files import FLOATS, Entry
from .check_folder_report import Finding

PARTS = {
    **{"weight": "codes", "weight_packed": "codes", "blocks": "codes"},
    **{"weight_scale": "scale", "weight_scale_inv": "scale", "scales": "scale", "scale": "scale"},
    **{"weight_scale_2": "outer", "weight_global_scale": "outer"},
    **{"input_scale": "input", "input_global_scale": "input", "activation_scale": "input"},
    **{"_weight_qdata": "codes", "_weight_scale": "scale", "_weight_per_tensor_scale": "outer"},
}
CODES = {suffix for suffix, part in PARTS.items() if part == "codes"}
ENCODE = ("weight_global_scale", "input_global_scale")  # what is stored is one over the factor
_SPLIT = re.compile(rf"(.+?)([._])({'|'.join(sorted(PARTS, key=len, reverse=True))})$")
PACKED, EIGHT = ("U8", "I8"), ("F8_E4M3", "F8_E5M2")
POWERS = ("U8", "F8_E8M0")  # E8M0 scales
BLOCK = {"NVFP4": 16, "MXFP4": 32, "MXFP8": 32}
DTYPE = {"NVFP4": ("F8_E4M3",), "MXFP4": POWERS, "MXFP8": POWERS, "FP8": (*FLOATS, "F8_E8M0")}
TILES = ((128, 128), (1, 128), (64, 64), (32, 32), (16, 16), (1, 32), (1, 64))  # of FP8, the usual first


@dataclass(frozen=True)
class Module:
    """The tensors of one module by part, `PARTS`. suffix: of each part, as the file spells it."""

    name: str
    parts: dict[str, Entry] = field(default_factory=dict)
    suffix: dict[str, str] = field(default_factory=dict)

    @property
    def quantized(self) -> bool:
        """Whether its codes are such, or a scale says so."""
        codes = self.parts.get("codes")
        return bool({"scale", "outer"} & set(self.parts)) or (codes is not None and codes.dtype in (*PACKED, *EIGHT))


@dataclass(frozen=True)
class Matrix:
    """How a quantized module lies: `lead` matrices of N x K, a scale per `block` = (rows, columns) of each.

    reading: of the scales: "linear", "transposed", "padded" (to whole tiles of a swizzle), "swizzled" (128x4) or
    "flat". turned: whether codes and scales lie as K x N, as ModelOpt leaves stacked experts.
    """

    module: Module
    fmt: str
    lead: int
    rows: int
    columns: int
    block: tuple[int, int]
    reading: str = "linear"
    turned: bool = False

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of one matrix's scales."""
        return -(-self.rows // self.block[0]), -(-self.columns // self.block[1])

    @property
    def packed(self) -> bool:
        """Whether a byte holds two codes."""
        return self.module.parts["codes"].dtype in PACKED


def modules_of(entries: dict[str, Entry]) -> tuple[list[Module], list[Entry]]:
    """Modules with something quantized, in the files' order, and the other tensors."""
    split = {n: m.groups() if (m := _SPLIT.match(n)) and e.numel else None for n, e in entries.items()}
    suffixed: dict[str, dict[str, str]] = defaultdict(dict)  # module -> suffix -> name
    for name, found in split.items():
        if found is not None and (found[1] == "." or found[2] not in ("weight", "scale")):
            suffixed[found[0]][found[2]] = name
    modules, used = [], set()
    for head, own in suffixed.items():
        if head in entries and not CODES & set(own):
            own[""] = head  # stacked experts, codes without a suffix
        if "scale" in own and entries[own["scale"]].dtype in FLOATS and not _codes(own, entries):
            continue  # of a norm, or the like
        module = Module(head)
        for suffix, name in own.items():
            part = PARTS.get(suffix, "codes")
            module.parts.setdefault(part, entries[name])
            module.suffix.setdefault(part, suffix)
        if module.quantized:
            modules.append(module)
            used |= set(own.values())
    return modules, [entry for name, entry in entries.items() if name not in used]


def _codes(own: dict[str, str], entries: dict[str, Entry]) -> bool:
    """Whether a module has bytes that are codes."""
    return any(entries[n].dtype in (*PACKED, *EIGHT) for s, n in own.items() if PARTS.get(s, "codes") == "codes")


def matrix_of(module: Module, scheme: Scheme | None, metadata: dict[str, str]) -> tuple[Matrix | None, list[Finding]]:
    """How a module lies, and what shapes and dtypes say against it. None where it cannot be read.

    scheme: what the config says of it, or None. metadata: of its file, in which torchao says whether it swizzles.
    """
    codes, scale = module.parts.get("codes"), module.parts.get("scale")
    if codes is None or scale is None:
        return None, []  # told by the comparison with siblings and scheme
    if codes.dtype not in (*PACKED, *EIGHT):
        text = f"codes are {codes.dtype}, beside a scale ({module.suffix['scale']}): not quantized, or cast back"
        return None, [Finding("dtype", text, (codes.name,))]
    if len(codes.shape) < 2:
        return None, [Finding("shape", f"codes have shape {list(codes.shape)}, which is no matrix", (codes.name,))]
    lead, rows, columns = _shape(codes, module.suffix["codes"])
    fmt, findings = _format(module, scheme, columns)
    found = _laid(module, fmt, (lead, rows, columns), scheme)
    if isinstance(found, Finding):
        return None, [*findings, found]
    if '"is_swizzled_scales": true' in metadata.get(f"{module.name}.weight", ""):
        return replace(found, reading="swizzled"), findings
    return found, findings + _reading(found, scheme)


def _shape(codes: Entry, suffix: str) -> tuple[int, int, int]:
    """(L, N, K) of codes; blocks of gpt-oss are (L, N, K / 32, 16)."""
    shape = codes.shape
    if suffix == "blocks" and len(shape) > 2:
        shape = (*shape[:-2], shape[-2] * shape[-1])
    width = 2 if codes.dtype in PACKED else 1
    lead = 1
    for n in shape[:-2]:
        lead *= n
    return lead, shape[-2], shape[-1] * width


def _format(module: Module, scheme: Scheme | None, columns: int) -> tuple[str, list[Finding]]:
    """The format's name: by the dtypes, or by the config where it explains them better; and dtypes that differ."""
    codes, scale = module.parts["codes"], module.parts["scale"]
    if codes.dtype in PACKED:
        fine = scale.dtype == "F8_E4M3" or "outer" in module.parts
        fmt = "NVFP4" if fine else "MXFP4"
        if scale.dtype in FLOATS and not fine:
            fmt = scheme.fmt if scheme and scheme.fmt in ("NVFP4", "MXFP4") else fmt
    else:
        along = scale.shape[-1] if scale.shape else 1
        fmt = "MXFP8" if scale.dtype in POWERS and along * BLOCK["MXFP8"] == columns else "FP8"
        if scheme and scheme.fmt == "MXFP8" and fmt == "FP8" and along * BLOCK["MXFP8"] == columns:
            fmt = "MXFP8"
    if scale.dtype in DTYPE[fmt]:
        return fmt, []
    text = f"scales are {scale.dtype}, where {fmt} stores {' or '.join(DTYPE[fmt])}"
    if scale.dtype in FLOATS and fmt != "NVFP4":
        text += ": powers of two as numbers, or the exponents' bytes as numbers, which a reader of bytes cuts off"
    if fmt == "NVFP4" and scale.dtype in POWERS:
        text += ": a reader that copies them into float8 converts the bytes as numbers"
    return fmt, [Finding("dtype", text, (scale.name,))]


def _laid(module: Module, fmt: str, shape: tuple[int, int, int], scheme: Scheme | None) -> Matrix | Finding:
    """The matrix with the block and the reading of scales that the shapes allow."""
    lead, rows, columns = shape
    scale = module.parts["scale"]
    if fmt == "FP8":
        return _fp8(module, shape, scheme)
    blocks = dict.fromkeys([BLOCK[fmt], *([scheme.group] if scheme and scheme.group else []), 16, 32, 64, 128])
    found = _fitting([Matrix(module, fmt, lead, rows, columns, (1, block)) for block in blocks])
    if found is not None:
        return found
    m = Matrix(module, fmt, lead, rows, columns, (1, BLOCK[fmt]))
    turned = _turned(m)
    if turned is not None:
        return turned
    n, k = m.grid
    padded = padded_scales(n, k)
    if scale.numel == lead * padded[0] * padded[1]:
        return replace(m, reading="padded")
    if scale.numel == lead * n * k:
        return replace(m, reading="flat")
    text = f"scales have shape {list(scale.shape)}, which explains no block: {fmt} has {lead * n} x {k} for these codes"
    return Finding("shape", text, (scale.name, module.parts["codes"].name))


def _fp8(module: Module, shape: tuple[int, int, int], scheme: Scheme | None) -> Matrix | Finding:
    """FP8 with a scale per tensor, row or tile."""
    lead, rows, columns = shape
    scale = module.parts["scale"]
    if scale.numel in (1, lead):
        return Matrix(module, "FP8", lead, rows, columns, (rows, columns))
    bare = tuple(n for n in scale.shape if n > 1)
    if scale.numel == lead * rows and (bare[-1:] == (rows,) or rows == 1):
        return Matrix(module, "FP8", lead, rows, columns, (1, columns))
    tiles = dict.fromkeys([*([scheme.tile] if scheme and scheme.tile else []), *TILES])
    found = _fitting([Matrix(module, "FP8", lead, rows, columns, tile) for tile in tiles])
    if found is not None:
        return found
    text = f"scales have shape {list(scale.shape)}, which is none per tensor, row or tile of {lead * rows} x {columns}"
    return Finding("shape", text, (scale.name, module.parts["codes"].name))


def _turned(m: Matrix) -> Matrix | None:
    """A stack whose matrices lie as K x N, two codes of a column to a byte, if the scale's shape says so."""
    width = 2 if m.packed else 1
    rows, columns = m.columns // width, m.rows * width
    shape = (columns // m.block[1], rows)
    fits = m.lead > 1 and columns % m.block[1] == 0 and m.module.parts["scale"].shape[-2:] == shape
    return replace(m, rows=rows, columns=columns, turned=True) if fits else None


def _fitting(candidates: list[Matrix]) -> Matrix | None:
    """The first whose grid is the scale's shape, else the first whose transposed grid is."""
    scale = candidates[0].module.parts["scale"]
    shape = scale.shape
    if len(shape) == 4 and shape[1] == shape[3] == 1:  # ModelOpt's tiles, with an axis for each of their sides
        shape = (shape[0], shape[2])
    suffix, codes = candidates[0].module.suffix["codes"], candidates[0].module.parts["codes"].shape
    lead = codes[: -3 if suffix == "blocks" and len(codes) > 2 else -2]
    for reading, step in (("linear", 1), ("transposed", -1)):
        for m in candidates:
            if shape == (*lead, *m.grid[::step]):
                return replace(m, reading=reading)
    return None


def _reading(m: Matrix, scheme: Scheme | None) -> list[Finding]:
    """What is wrong with the shape of scales, and with the block beside the format's."""
    scale, (n, k) = m.module.parts["scale"], m.grid
    faults = []
    if m.reading != "linear":
        words = {
            "transposed": f"the scale is transposed: {list(scale.shape)} is stored",
            "padded": f"the scale has the padded shape of the 128x4 swizzle: {list(scale.shape)} is stored",
            "flat": f"the scale has another shape: {list(scale.shape)} is stored",
        }[m.reading]
        text = f"{words}, and readers take one row of scales per row of codes"
        faults.append(Finding("scale layout", text, (scale.name,), f"{n} x {k} for the first"))
    usual = BLOCK.get(m.fmt)
    if usual and m.block[1] != usual and not (scheme and scheme.wide):
        text = f"{m.block[1]} values share a scale, where {m.fmt} has blocks of {usual}"
        faults.append(Finding("group size", text, (scale.name,)))
    return faults
