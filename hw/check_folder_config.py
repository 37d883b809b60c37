"""What a checkpoint's config says of its matrices: format, block, scale of activations, and what is left alone.

    config.json             quantization_config; sizes of the model
    hf_quant_config.json    ModelOpt: quantization.quant_algo, group_size, exclude_modules, quantized_layers

A `Scheme` is what one matrix should be, a `Plan` finds it by name. Names match as the tools of each method match them:
compressed-tensors exactly, or by a regular expression after "re:", or by class (Linear); ModelOpt by wildcards; the
others by a part of the name. Sources: compressed-tensors 0.20.1, utils/match.py; nvidia-modelopt 0.47.0,
export/convert_hf_config.py and quant_utils.py; transformers, utils/quantization_config.py.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from .check_folder_report import Finding

CONFIG, MODELOPT_CONFIG = "config.json", "hf_quant_config.json"


@dataclass(frozen=True)
class Scheme:
    """What a matrix should be.

    Args:
        fmt: NVFP4, MXFP4, MXFP8, FP8, or another name, which is not judged. group: values that share a scale along a
            row. tile: of FP8, rows and columns that do. inputs: whether activations need a stored scale. wide: whether
            groups larger than the format's are the method's own.
    """

    fmt: str
    group: int | None = None
    tile: tuple[int, int] | None = None
    inputs: bool = False
    wide: bool = False


JUDGED = ("NVFP4", "MXFP4", "MXFP8", "FP8")
ALGORITHMS = {  # ModelOpt's quant_algo
    "NVFP4": Scheme("NVFP4", 16, None, True),
    "NVFP4_AWQ": Scheme("NVFP4", 16, None, True),
    "NVFP4_SVD": Scheme("NVFP4", 16, None, True),
    "W4A16_NVFP4": Scheme("NVFP4", 16),
    "W4A8_NVFP4_FP8": Scheme("NVFP4", 32, None, True, True),
    "W4A8_MXFP4_FP8": Scheme("MXFP4", 32),
    "MXFP4": Scheme("MXFP4", 32),
    "MXFP8": Scheme("MXFP8", 32),
    "FP8": Scheme("FP8", inputs=True),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme("FP8"),
    "FP8_PB_WO": Scheme("FP8", tile=(128, 128)),
    "FP8_PB_REAL": Scheme("FP8", tile=(128, 128)),
}
FOREIGN = {  # algorithms and methods of formats that are not judged
    *("W4A16_AWQ", "W4A8_AWQ", "W8A16", "W8A8_SQ_PER_CHANNEL", "INT4_AWQ", "INT8_SQ"),
    *("awq", "gptq", "bitsandbytes", "aqlm", "hqq", "eetq", "higgs", "spqr", "vptq", "quanto", "auto-round", "bitnet"),
}
FORMATS = {  # compressed-tensors' format
    "nvfp4-pack-quantized": "NVFP4",
    "mxfp4-pack-quantized": "MXFP4",
    "mxfp8-quantized": "MXFP8",
    "float-quantized": "FP8",
}
METHODS = ("modelopt", "compressed-tensors", "fp8", "fbgemm_fp8", "mxfp4", "mxfp8", "quark", "torchao")
EXPERTS = r"re:.*\.experts\..*"


@dataclass
class Plan:
    """What the config says. method: quant_method, or None. named: (pattern, scheme); a pattern that names a class
    matches every matrix. ignored: patterns. model: config.json's sizes, those of a text model inside it included."""

    method: str | None = None
    named: list[tuple[str, Scheme]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    words: str = "no quantization config"

    def scheme(self, module: str) -> Scheme | None:
        """What the module should be; None if the config names no such module."""
        ranked = [(_rank(pattern, module, self.method), scheme) for pattern, scheme in self.named]
        best = max((rank for rank, _ in ranked), default=0)
        return next((scheme for rank, scheme in ranked if rank == best), None) if best else None

    def exempt(self, module: str, strict: bool = False) -> str | None:
        """The pattern that leaves a module alone, or None. strict: only one that every reader takes so."""
        return next((p for p in self.ignored if _left_out(p, module, self.method, strict)), None)

    @property
    def exact(self) -> bool:
        """Whether the modules are named, not their class."""
        return bool(self.named) and not any(_is_class(pattern) for pattern, _ in self.named)


def _is_class(pattern: str) -> bool:
    return pattern == "*" or (pattern[:1].isupper() and "." not in pattern)


def _rank(pattern: str, module: str, method: str | None) -> int:
    """How well a target names a module: 3 exactly, 2 by a pattern, 1 by its class, 0 not."""
    if pattern == module:
        return 3
    if pattern.startswith("re:"):
        return 2 * bool(_search(pattern[3:], module))
    return 1 if _is_class(pattern) else 2 * (method != "compressed-tensors" and fnmatchcase(module, pattern))


def _search(pattern: str, module: str) -> bool:
    try:
        return re.match(pattern, module) is not None
    except re.error:
        return False


def _left_out(pattern: str, module: str, method: str | None, strict: bool) -> bool:
    if pattern.startswith("re:"):
        return _search(pattern[3:], module)
    if pattern == module or fnmatchcase(module, pattern):
        return True
    plain = pattern.strip("*").strip(".")
    inside = bool(plain) and f".{plain}." in f".{module}."
    if strict:
        return inside and method != "compressed-tensors" and f".{module}.".startswith(f".{plain}.")
    return inside or fnmatchcase(module, f"*{pattern}*")


def plan_of(folder: Path) -> tuple[Plan, list[Finding]]:
    """What the config of a folder says, and what is wrong with it by itself."""
    config, findings = _json(folder / CONFIG)
    own, found = _json(folder / MODELOPT_CONFIG)
    findings += found
    inner = [v for k, v in config.items() if k.endswith("_config") and isinstance(v, dict) and "hidden_size" in v]
    model = {**(inner[0] if "hidden_size" not in config and inner else {}), **config}
    entry = config.get("quantization_config") or (inner[0].get("quantization_config") if inner else None)
    entry = entry or config.get("compression_config")
    if entry is not None and not isinstance(entry, dict):
        findings.append(Finding("config", f"quantization_config is {entry!r}, not an object", (CONFIG,)))
        entry = None
    details = own.get("quantization")
    plan = Plan(model=model)
    if entry is None and isinstance(details, dict):
        entry = {"quant_method": "modelopt", **details}
        plan.words = MODELOPT_CONFIG
    elif entry is not None:
        plan.words = CONFIG
        if isinstance(details, dict):
            plan.words += f" and {MODELOPT_CONFIG}"
            findings += _two(entry, details)
            entry = details | entry  # the former says what the latter leaves out, such as a group size
    if entry is not None:
        findings += _read(plan, entry)
    return plan, findings


def _json(path: Path) -> tuple[dict[str, Any], list[Finding]]:
    if not path.is_file():
        return {}, []
    try:
        found = json.loads(path.read_bytes())
        if isinstance(found, dict):
            return found, []
        error: Exception | str = f"it holds a {type(found).__name__}, not an object"
    except ValueError as e:
        error = e
    return {}, [Finding("config", f"{path.name} cannot be read: {error}", ())]


def _read(plan: Plan, entry: dict[str, Any]) -> list[Finding]:
    """Fill a plan from a quantization_config."""
    method = plan.method = str(entry.get("quant_method", "modelopt" if "quant_algo" in entry else None))
    left: list[str] = []
    for key in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers", "exclude"):
        patterns = entry.get(key)
        left += [str(p) for p in patterns] if isinstance(patterns, list) else []
    plan.ignored = list(dict.fromkeys(left))
    try:
        if method.startswith("modelopt"):
            return _modelopt(plan, entry)
        if method == "compressed-tensors":
            return _compressed(plan, entry)
        if method == "quark":
            return _quark(plan, entry)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        return [Finding("config", f"quantization_config cannot be read: {type(error).__name__} {error}", ())]
    if method in ("fp8", "fbgemm_fp8"):
        tile = entry.get("weight_block_size")
        tile = tuple(tile) if isinstance(tile, list) and len(tile) == 2 else None
        plan.named = [("*", Scheme("FP8", tile=tile, inputs=entry.get("activation_scheme") == "static"))]
        if str(plan.model.get("expert_dtype")).lower() in ("fp4", "mxfp4"):  # DeepSeek V4
            plan.named.append((EXPERTS, Scheme("MXFP4", 32)))
    elif method in ("mxfp4", "mxfp8"):
        plan.named = [("*", Scheme(method.upper(), 32))]
    elif method == "torchao":
        pass  # the tensors' own metadata says what they are
    elif method in FOREIGN:
        plan.named = [("*", Scheme(method))]
    else:
        known = ", ".join((*METHODS, *sorted(m for m in FOREIGN if m.islower())))
        return [Finding("config", f"quant_method {method!r} is unknown; known are {known}", ())]
    return []


def _modelopt(plan: Plan, entry: dict[str, Any]) -> list[Finding]:
    layers = entry.get("quantized_layers") or {}
    plan.named = [(name, scheme) for name, e in layers.items() if (scheme := _algorithm(e))]
    algo = entry.get("quant_algo")
    findings = []
    if algo not in (None, "MIXED_PRECISION"):
        scheme = _algorithm(entry)
        plan.named += [("*", scheme)] if scheme else []
    elif not layers:
        groups = entry.get("config_groups") or {}
        plan.named = [(t, _arguments(g, None)) for g in groups.values() for t in g.get("targets", ["Linear"])]
        if not plan.named:
            findings.append(Finding("config", f"quant_algo is {algo!r}, and no layers are named", ()))
    for name, algorithm in {str(e.get("quant_algo")): e for e in (*layers.values(), entry)}.items():
        if algorithm.get("quant_algo") and name.upper() not in {*ALGORITHMS, *FOREIGN, "MIXED_PRECISION"}:
            text = f"quant_algo {name!r} is unknown; known are {', '.join(ALGORITHMS)}"
            findings.append(Finding("config", text, ()))
    return findings


def _algorithm(entry: dict[str, Any]) -> Scheme | None:
    """The scheme of an algorithm; None if it is unknown."""
    name = str(entry.get("quant_algo")).upper()
    found = ALGORITHMS.get(name, Scheme(name) if name in FOREIGN else None)
    if found is None:
        return None
    group = entry.get("group_size") if found.group else None
    return replace(found, group=int(group) if group else found.group)


def _compressed(plan: Plan, entry: dict[str, Any]) -> list[Finding]:
    findings = []
    for name, group in entry["config_groups"].items():
        fmt = group.get("format") or entry.get("format")
        scheme = _arguments(group, FORMATS.get(str(fmt)))
        plan.named += [(str(target), scheme) for target in group["targets"]]
        told = FORMATS.get(str(fmt))
        if told not in (None, scheme.fmt) and scheme.fmt in JUDGED:
            text = f"{name} of quantization_config has format {fmt!r}, and its weights are those of {scheme.fmt}"
            findings.append(Finding("config", text, ()))
    return findings


def _arguments(group: dict[str, Any], hint: str | None) -> Scheme:
    """A scheme from weights and input_activations as compressed-tensors spells them."""
    w, a = group.get("weights") or {}, group.get("input_activations") or {}
    bits, kind, size = w.get("num_bits"), w.get("type"), w.get("group_size")
    static = bool(a) and a.get("dynamic") in (False, None, "local")
    if kind != "float" or bits not in (4, 8):
        return Scheme(f"{kind}{bits}")
    if bits == 4:
        fmt = {16: "NVFP4", 32: "MXFP4"}.get(int(size or 16)) or hint or "NVFP4"
        fmt = "NVFP4" if w.get("strategy") == "tensor_group" else hint if hint in ("NVFP4", "MXFP4") else fmt
        return Scheme(fmt, int(size) if size else None, None, static)
    if size == 32 and w.get("strategy") in (None, "group"):
        return Scheme("MXFP8", 32)
    tile = w.get("block_structure")
    return Scheme("FP8", None, tuple(tile) if w.get("strategy") == "block" and tile else None, static)


def _quark(plan: Plan, entry: dict[str, Any]) -> list[Finding]:
    """AMD Quark: a config for all, and others for layers by wildcards."""
    groups = {"*": entry.get("global_quant_config") or {}, **(entry.get("layer_quant_config") or {})}
    for pattern, group in groups.items():
        w, a = group.get("weight") or {}, group.get("input_tensors") or {}
        w, a = (t[-1] if isinstance(t, list) else t for t in (w, a))
        dtype, inputs = str(w.get("dtype")), bool(a) and a.get("is_dynamic") is False
        if dtype == "fp4":
            power = w.get("scale_format") == "e8m0"
            scheme = Scheme("MXFP4" if power else "NVFP4", 32 if power else 16, None, inputs and not power)
        else:
            scheme = Scheme("FP8", inputs=inputs) if dtype.startswith("fp8") else Scheme(dtype)
        plan.named.append((pattern, scheme))
    return []


def _two(entry: dict[str, Any], details: dict[str, Any]) -> list[Finding]:
    """What config.json and hf_quant_config.json disagree about."""
    pairs = {
        "quant_algo": (entry.get("quant_algo"), details.get("quant_algo")),
        "ignored modules": tuple(
            sorted(map(str, found or ())) if isinstance(found, (list, type(None))) else found
            for found in (entry.get("ignore", entry.get("exclude_modules")), details.get("exclude_modules"))
        ),
        "group_size": (entry.get("group_size"), details.get("group_size")),
    }
    said = {key: pair for key, pair in pairs.items() if None not in pair and pair[0] != pair[1]}
    return [
        Finding("config", f"{CONFIG} and {MODELOPT_CONFIG} disagree about {key}", (), f"{one} and {other}"[:120])
        for key, (one, other) in said.items()
    ]
