"""What a module shares with its relatives: the same role in other layers and experts, and what servers fuse.

    role        the name without its numbers: model.layers.*.mlp.experts.*.up_proj
    fused       q, k, v; gate, up; w1, w3: one product in a server, which reads one outer scale for all of them

vLLM, SGLang and TensorRT-LLM multiply a fused product by one outer scale, of the first or the largest: where they
differ, the others decode to wrong values (vllm-project/vllm#54974). A part that nearly all of a role have and one lacks
is missing; so is a number in a row of experts. rms within a role lie between `SMALLER` and `LARGER` times the middle.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable

from .check_folder_config import Plan
from .check_folder_files import Entry
from .check_folder_parts import Matrix, Module
from .check_folder_report import Finding
from .check_folder_values import MAGNITUDE, Seen

LARGER, SMALLER = 64.0, 2.0**-10  # times the median of a role, in rms; experts without tokens decay
RARE = 4  # what at most one in so many lacks is missing
FUSED = (
    *(("q_proj", "k_proj", "v_proj"), ("wq", "wk", "wv"), ("query", "key", "value"), ("to_q", "to_k", "to_v")),
    *(("add_q_proj", "add_k_proj", "add_v_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("in_proj_qkv", "in_proj_z")),
    *(("gate_proj", "up_proj"), ("w1", "w3"), ("in_proj_qkvz", "in_proj_ba")),
)
CROSS = re.compile(r"cross|attn2|encoder_attn")
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.+)$")


def role(name: str) -> str:
    """A name without its numbers."""
    return re.sub(r"(?<![^.\[])\d+(?![^.\]])", "*", name)


def by_role(names: Iterable[str]) -> dict[str, list[str]]:
    """Names of one role together."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in names:
        found[role(name)].append(name)
    return found


def _fused(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Names that a server fuses, together. In a cross attention q reads another input than k and v."""
    of: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for name in names:
        head, _, tail = name.rpartition(".")
        group = next((group for group in FUSED if tail in group), None)
        if group is not None and not (tail.endswith(("q", "q_proj", "query")) and CROSS.search(head)):
            of[head, group].append(name)
    ordered = (sorted(names, key=lambda n: group.index(n.rpartition(".")[2])) for (_, group), names in of.items())
    return [tuple(names) for names in ordered if len(names) > 1]


def fused(matrices: list[Matrix], plain: Iterable[str], seen: dict[str, list[Seen]]) -> list[Finding]:
    """Outer scales or formats that differ where a server has one. plain: modules that are not quantized. seen: by
    module."""
    of = {m.module.name: m for m in matrices}
    findings = []
    for names in _fused([*of, *(name for name in plain if name not in of)]):
        members = [of[name] for name in names if name in of]
        tails = [name.rpartition(".")[2] for name in names]
        formats = {of[name].fmt if name in of else "no format" for name in names}
        if members and len(formats) > 1 and not tails[0].endswith(("_a_proj", "_mqa")):
            text = f"{' and '.join(tails)} have different formats, and a server fuses them"
            findings.append(Finding("fused format", text, names, ", ".join(sorted(formats))))
        members = [m for m in members if "outer" in m.module.parts]
        outers = [[s.outer for s in seen[m.module.name]] for m in members]
        if len({tuple(o) for o in outers}) > 1 and len({len(o) for o in outers}) == 1:
            tails = [m.module.name.rpartition(".")[2] for m in members]
            text = (
                f"{' and '.join(tails)} have different outer scales: a server fuses them under one, the others are lost"
            )
            whose = tuple(m.module.parts["outer"].name for m in members)
            findings.append(Finding("fused outer", text, whose, ", ".join(f"{o[0]:.4g}" for o in outers)))
    return findings


def odd_dtypes(matrices: list[Matrix], told: set[str]) -> list[Finding]:
    """Parts whose dtype is not that of nearly all siblings in the same format. told: tensors with a finding already."""
    of: dict[tuple[str, str, str], list[Entry]] = defaultdict(list)
    for m in matrices:
        for part, entry in m.module.parts.items():
            of[role(m.module.name), m.fmt, part].append(entry)
    findings = []
    for (_, _, part), entries in of.items():
        usual = statistics.mode(e.dtype for e in entries)
        odd = [e for e in entries if e.dtype != usual and e.name not in told]
        text = f"{part} of {{}}, and siblings have {usual}"
        if len(odd) * RARE <= len(entries):
            findings += [Finding("dtype", text.format(e.dtype), (e.name,)) for e in odd]
    return findings


def copies(seen: dict[str, list[Seen]]) -> list[Finding]:
    """Matrices with the bytes of a sibling, where few of a role are such: copied on purpose are all, or none."""
    of = {s.name: s for group in seen.values() for s in group if s.rms > 0}
    findings = []
    for names in by_role(of).values():
        same: dict[str, list[str]] = defaultdict(list)
        for name in names:
            same[of[name].digest].append(name)
        again = [tuple(group) for group in same.values() if len(group) > 1]
        if again and sum(map(len, again)) * 2 <= len(names):
            text = "codes and scales are the same, byte for byte: one is a copy of the other"
            findings += [Finding("copy", text, group) for group in again]
    return findings


def magnitudes(seen: dict[str, list[Seen]], told: set[str]) -> list[Finding]:
    """Matrices whose rms is far from that of their role. told: names whose magnitude is a finding already."""
    of = {s.name: s for group in seen.values() for s in group}
    findings = []
    for names in by_role(of).values():
        alive = [of[n] for n in names if of[n].rms > 0]
        dead = [n for n in names if of[n].rms == 0]
        if len(alive) > len(dead) and dead:
            text = "every decoded value is 0, and those of its siblings are not"
            findings += [Finding("zero", text, (n,)) for n in dead]
        sound = [s for s in alive if s.name not in told]
        if len(sound) < 3:
            continue
        usual = statistics.median_high(s.rms for s in sound)
        outer = statistics.median_high(s.outer for s in sound)
        findings += [_far(s, usual, outer) for s in sound if not SMALLER < s.rms / usual < LARGER]
    return findings


def _far(s: Seen, usual: float, outer: float) -> Finding:
    """In words why a matrix is far from its role: its outer is lost or inverted, or another."""
    plain = s.rms / s.outer  # without the outer
    detail = f"rms {s.rms:.3g}, siblings {usual:.3g}; outer {s.outer:.3g}, siblings {outer:.3g}"
    if s.outer == 1 != outer:
        text = "the outer scale is lost: 1 is stored, and its siblings have others"
    elif SMALLER < plain / s.outer / usual < LARGER:
        text = "the outer scale is inverted: 1 over it gives what its siblings have"
    else:
        text = (
            f"decoded values are {LARGER:g} times larger, or {1 / SMALLER:g} times smaller, than those of its siblings"
        )
    return Finding(MAGNITUDE, text, (s.name,), detail)


def missing_parts(modules: list[Module], formats: dict[str, str], plan: Plan) -> list[Finding]:
    """Codes, scales, outers and scales of activations that are not there, by the scheme or beside the siblings.
    formats: of the modules that can be read; a scheme of another format is a finding of its own."""
    groups: dict[tuple[str, str], list[Module]] = defaultdict(list)  # of one role and one dtype of codes
    for module in modules:
        codes = module.parts.get("codes")
        groups[role(module.name), codes.dtype if codes else ""].append(module)
    findings = []
    for group in groups.values():
        parts = [part for module in group for part in module.parts]
        usual = {part for part in set(parts) if (len(group) - parts.count(part)) * RARE <= len(group)}
        suffix = {part: module.suffix[part] for module in group for part in module.parts}
        for module in group:
            scheme, wanted = plan.scheme(module.name), {"codes", "scale"} | usual
            same = scheme is not None and formats.get(module.name, scheme.fmt) == scheme.fmt
            if scheme is not None and same and plan.exempt(module.name, strict=True) is None:
                wanted |= {"outer"} if scheme.fmt == "NVFP4" else set()
                wanted |= {"input"} if scheme.inputs else set()
            scale = module.parts.get("scale")
            if scale is not None and scale.dtype == "F8_E4M3" and module.suffix["scale"] != "_weight_scale":
                wanted.add("outer")  # torchao's may have one level
            lost = sorted(wanted - set(module.parts))
            findings += [_lacks(module, part, suffix.get(part), plan) for part in lost]
    return findings


def _lacks(module: Module, part: str, suffix: str | None, plan: Plan) -> Finding:
    compressed = plan.method == "compressed-tensors" or "weight_packed" in module.suffix.values()
    named = {
        "codes": ("weight", "weight_packed"),
        "scale": ("weight_scale", "weight_scale"),
        "outer": ("weight_scale_2", "weight_global_scale"),
        "input": ("input_scale", "input_global_scale"),
    }[part][compressed]
    if part == "input" and "outer" not in module.parts:
        named = "input_scale"
    suffix = suffix or named
    what = {
        "codes": "its scales are there, and the weight is not",
        "scale": "the codes are there without it: they cannot be decoded",
        "outer": "the outer scale is lost",
        "input": "the scale of activations, which the scheme needs or its siblings have",
    }[part]
    return Finding("missing", f"{suffix} is missing: {what}", (module.name,))


def expert_count(plan: Plan) -> int | None:
    """Experts of a layer by the config, under any of the names of its key."""
    told = [plan.model.get(key) for key in ("num_local_experts", "n_routed_experts", "num_experts")]
    return next((n for n in told if isinstance(n, int) and n), None)


def missing_experts(names: Iterable[str], plan: Plan) -> list[Finding]:
    """Experts that are not there, or lack a matrix, in one of the layers. names: of modules."""
    of: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    for name in names:
        found = EXPERT.match(name)
        if found:
            of[found[1]][found[3]].add(int(found[2]))
    count = expert_count(plan)
    findings = []
    for head, by_matrix in of.items():
        every = set().union(*by_matrix.values(), range(count or 0))
        for matrix, there in by_matrix.items():
            lost = sorted(every - there)
            if lost:
                text = f"it is missing, of {len(every)} experts that the config or other matrices have"
                findings.append(Finding("missing", text, tuple(f"{head}.{e}.{matrix}" for e in lost)))
        if count and len(every) > count:
            text = f"{len(every)} experts, and the config has {count}"
            findings.append(Finding("config", text, (head,)))
    return findings


def missing_children(names: Iterable[str]) -> list[Finding]:
    """Modules that one parent lacks, and nearly all others of its role have."""
    of: dict[str, set[str]] = defaultdict(set)
    for name in names:
        head, _, tail = name.rpartition(".")
        if not tail.isdigit():
            of[head].add(tail)
    findings = []
    for parents in by_role(of).values():
        for parent in parents:
            larger = [p for p in parents if of[parent] < of[p]]
            lacking = set.intersection(*(of[p] for p in larger)) - of[parent] if larger else set()
            if lacking and (len(parents) - len(larger)) * RARE <= len(parents):
                text = "it is missing, and every other module of its kind has it"
                findings += [Finding("missing", text, (f"{parent}.{child}",)) for child in sorted(lacking)]
    return findings
