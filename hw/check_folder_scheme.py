"""What the config of a checkpoint says against its tensors: format, block, exceptions, sizes, what should be there.

A matrix that is quantized and left out by the config is read as BF16 by a server, and one that is BF16 and not left out
as codes. Sizes: hidden_size is a width of every projection into and out of the residual stream, layers and experts are
counted, a tied head is not stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import torch

from .check_folder_config import JUDGED, Plan
from .check_folder_files import FLOATS, Entry
from .check_folder_kin import EXPERT, expert_count, role
from .check_folder_parts import Matrix, Module
from .check_folder_report import Finding
from .check_folder_values import beyond

# matrices that every method quantizes unless told otherwise: a class "Linear" is all that most configs name
LINEAR = re.compile(
    r"\.([qkvo]_proj|gate_proj|up_proj|down_proj|gate_up_proj|qkv_proj|o_proj|[qkv]_[ab]_proj|kv_a_proj_with_mqa|"
    r"kv_b_proj|w[123]|fc[12]|out_proj|dense_h_to_4h|dense_4h_to_h|query_key_value|c_attn|c_proj|c_fc)$"
)
INTO = re.compile(r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj|w1|w3|q_a_proj|kv_a_proj_with_mqa)$")
OUT = re.compile(r"\.(o_proj|down_proj|w2)$")
DTYPES = {"bfloat16": "BF16", "float16": "F16"}
NARROW = "its width is not hidden_size, {}"
NORM = re.compile(r"(\.(input|post_attention)_layernorm|^model\.norm)\.weight$")
PAD = 256  # a width is padded to a multiple of a power of two up to this one


def against_scheme(m: Matrix, plan: Plan) -> list[Finding]:
    """Format and block of a matrix beside what the config says of it."""
    name, scheme = m.module.name, plan.scheme(m.module.name)
    left_out = plan.exempt(name, strict=True)
    if left_out is not None:
        text = f"it is quantized ({m.fmt}), and {left_out!r} of the config leaves it out"
        return [Finding("config", text, (name,))]
    if scheme is None:
        if plan.named and plan.exact:
            return [Finding("config", f"it is quantized ({m.fmt}), and no target of the config names it", (name,))]
        return []
    if scheme.fmt != m.fmt:
        return [Finding("config", f"the config says {scheme.fmt}, and the tensors are {m.fmt}", (name,))]
    if scheme.group and m.block[1] != scheme.group:
        text = f"the config says groups of {scheme.group}, and the tensors have {m.block[1]} values to a scale"
        return [Finding("config", text, (name,))]
    wanted = replace(m, block=scheme.tile).grid if m.fmt == "FP8" and scheme.tile else m.grid
    if wanted != m.grid:
        text = f"the config says tiles of {list(scheme.tile or ())}, and the scales are those of others"
        return [Finding("config", text, (name,), f"{m.block[0]} x {m.block[1]}")]
    return []


def unquantized(plain: Iterable[Entry], modules: list[Module], plan: Plan) -> list[Finding]:
    """Plain matrices that the config has quantized."""
    if not plan.named or not any(scheme.fmt in JUDGED for _, scheme in plan.named):
        return []
    roles = {role(module.name) for module in modules}
    findings = []
    for entry in plain:
        name = entry.name.removesuffix(".weight")
        if name == entry.name or len(entry.shape) != 2 or entry.dtype not in FLOATS or plan.exempt(name):
            continue
        scheme = plan.scheme(name)
        if scheme is None or scheme.fmt not in JUDGED:
            continue
        head = name.rpartition(".")[2] == "lm_head" and plan.method in ("compressed-tensors", "modelopt")
        if role(name) in roles or plan.exact or LINEAR.search("." + name) or head:
            text = f"it is {entry.dtype}, and the config says {scheme.fmt} and does not leave it out"
            findings.append(Finding("config", text, (name,)))
    return findings


def sizes(matrices: list[Matrix], names: set[str], entries: dict[str, Entry], plan: Plan) -> list[Finding]:
    """Counts and widths of config.json beside the tensors. names: of modules."""
    model, findings = plan.model, []
    layers = {int(m[1]) for n in names if (m := re.match(r"(?:.*\.)?layers\.(\d+)\.", n))}
    count = model.get("num_hidden_layers")
    if isinstance(count, int) and layers:
        lost = sorted(set(range(count)) - layers)
        if lost:
            text = f"{len(lost)} of {count} layers of the config have no tensor"
            findings.append(Finding("missing", text, tuple(f"layers.{n}" for n in lost)))
    hidden, inner = model.get("hidden_size"), model.get("moe_intermediate_size", model.get("intermediate_size"))
    if isinstance(hidden, int) and hidden:
        findings += [finding for m in matrices for finding in _width(m, hidden)]
    if isinstance(inner, int) and inner:
        findings += [finding for m in matrices for finding in _inner(m, inner)]
    findings += [finding for m in matrices for finding in _bias(m, entries)]
    experts = expert_count(plan)
    for m in matrices:
        if m.lead > 1 and experts and m.lead != experts and ".experts." in m.module.name:
            text = f"{m.lead} matrices are stacked, and the config has {experts} experts"
            findings.append(Finding("config", text, (m.module.name,)))
    tails = {n.rpartition(".")[2] for n in names}
    if model.get("tie_word_embeddings") is False and "embed_tokens" in tails and "lm_head" not in tails:
        text = "it is missing, and config.json does not tie it to the embedding (tie_word_embeddings is false)"
        findings.append(Finding("missing", text, ("lm_head.weight",)))
    return findings


def _width(m: Matrix, hidden: int) -> list[Finding]:
    """A width that is not hidden_size, nor that size padded with columns that decode to zero (rows may hold what
    they like)."""
    name = m.module.name
    if "visual" in name or "vision" in name or not re.search(r"(^|\.)layers\.\d+\.", name):
        return []
    for pattern, width, side in ((INTO, m.columns, "columns"), (OUT, m.rows, "rows")):
        if not pattern.search(name) or width == hidden:
            continue
        if not _padded(width, hidden):
            return [Finding("config", NARROW.format(hidden), (name,), f"{width} {side}")]
        stale = sum(beyond(m, of, hidden) for of in range(m.lead)) if side == "columns" else 0
        if stale:
            text = f"{width} columns, and hidden_size is {hidden}: those beyond it do not decode to zero"
            return [Finding("padding", text, (name,), f"{stale:,} values")]
    return []


def _bias(m: Matrix, entries: dict[str, Entry]) -> list[Finding]:
    """A bias with another length than its matrix has rows."""
    bias = entries.get(f"{m.module.name}.bias") or entries.get(f"{m.module.name}_bias")
    if bias is None or bias.numel == m.lead * m.rows:
        return []
    return [Finding("shape", f"a bias of {list(bias.shape)} for {m.lead * m.rows} rows", (bias.name,))]


def _inner(m: Matrix, inner: int) -> list[Finding]:
    """A width of an expert that is not what the config says."""
    if not EXPERT.match(m.module.name):
        return []
    width = m.rows if INTO.search(m.module.name) else m.columns if OUT.search(m.module.name) else inner
    if width == inner or _padded(width, inner):
        return []
    return [Finding("config", f"experts are {width} wide, and the config says {inner}", (m.module.name,))]


def plain_sizes(plain: Iterable[Entry], plan: Plan) -> list[Finding]:
    """Embedding and head beside config.json: sizes, whether they are tied, and the dtype."""
    model, findings = plan.model, []
    of = {e.name.rpartition(".weight")[0].rpartition(".")[2]: e for e in plain if e.name.endswith(".weight")}
    vocab, hidden = model.get("vocab_size"), model.get("hidden_size")
    ends = [of[name] for name in ("embed_tokens", "lm_head") if name in of and len(of[name].shape) == 2]
    for entry in ends:
        if isinstance(hidden, int) and entry.shape[1] != hidden:
            findings.append(Finding("config", NARROW.format(hidden), (entry.name,), f"{entry.shape[1]} columns"))
        if isinstance(vocab, int) and entry.shape[0] < vocab:
            text = f"it has fewer rows than vocab_size, {vocab}"
            findings.append(Finding("config", text, (entry.name,), f"{entry.shape[0]} rows"))
    if len(ends) == 2 and model.get("tie_word_embeddings") is True and ends[0].shape == ends[1].shape:
        if ends[0].dtype != ends[1].dtype or not torch.equal(ends[0].read(), ends[1].read()):
            text = "it is stored, and is not the embedding, to which the config ties it (tie_word_embeddings is true)"
            findings.append(Finding("config", text, (ends[1].name,)))
    if isinstance(hidden, int):
        norms = [e for e in plain if NORM.search(e.name) and e.numel != hidden]
        findings += [Finding("config", NARROW.format(hidden), (e.name,), f"{e.numel} values") for e in norms]
    told = DTYPES.get(str(model.get("dtype", model.get("torch_dtype"))).removeprefix("torch."))
    stored = {e.dtype for e in plain if len(e.shape) == 2 and e.dtype in ("BF16", "F16")}
    if told and stored and told not in stored:
        findings.append(
            Finding("config", f"the config says {told}, and matrices that are not quantized are others", ())
        )
    return findings


def _padded(width: int, wanted: int) -> bool:
    """Whether a width is another one, padded."""
    pads = (2**n for n in range(1, PAD.bit_length()))
    return width > wanted and any(-(-wanted // pad) * pad == width for pad in pads)
