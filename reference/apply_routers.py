"""Where a model has experts, and which of its linear layers route tokens to them: by structure, whatever the depth.

A group of experts is a module that owns stacked matrices (E, .., ..), or a list of E modules of one class that is
called experts or stands beside a gate of E outputs. Around it, up to the numbered layer that holds it, the first
module with such a layer has its routers:

    by name     a part of the layer's path is a gate or a router: mlp.gate, mlp.router.layer, moe.router.gate, gate.wg
    by shape    E outputs, one for each expert, under a name that no projection has; the report asks about it

Known so: transformers 4 and 5 (Mixtral, Qwen, DeepSeek, HunYuan, AFMoE, JetMoE, Switch, ..), torchtitan (moe.experts,
moe.router.gate), DeepSpeed (deepspeed_moe.gate.wg, deepspeed_moe.experts.deepspeed_experts). Everything else in an
attention or beside experts is a layer like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

GATES = {"gate", "gates", "gating", "router", "routers", "wg", "switch", "selector"}
# names of projections, which no router has, whatever their width
PROJECTIONS = re.compile(
    r"[qkvo]+_?proj|qkv|[qkv]_?[ab]_proj\w*|out(_proj)?|c_(attn|fc|proj)|in_proj\w*|dense\w*|query|key|value|"
    r"(gate|up|down|gate_up)_proj\w*|w[123vgo]|wi(_\d)?|fc_?\d|lin(ear)?_?[12]|up|down|kv\w*"
)
ATTENTION = re.compile(r"attn|attention")
CONVOLUTIONS = (nn.Conv1d, nn.ConvTranspose1d)
ROUTER = "a router"
ASK = "{n} outputs beside {n} experts: it looks like a router; name it in where= if it is none"


@dataclass(frozen=True)
class Group:
    """Experts. names: of the modules that hold them. around: the name of the module in which they lie. count: E."""

    names: frozenset[str]
    around: str
    count: int

    def holds(self, name: str) -> bool:
        """Whether a module is one of the experts, or in one."""
        return any(name == own or name.startswith(own + ".") for own in self.names)


def stacked(module: nn.Module) -> bool:
    """Whether a module owns matrices of three axes, as stacked experts do: (E, .., ..) with E from 2 on."""
    if isinstance(module, CONVOLUTIONS):
        return False
    return any(p.ndim == 3 and p.shape[0] >= 2 for p in module.parameters(recurse=False))


def groups(modules: Mapping[str, nn.Module]) -> list[Group]:
    """Every group of experts of a model. modules: by name, as `named_modules` has them."""
    found: dict[tuple[str, int], set[str]] = {}
    for name, module in modules.items():
        if name and stacked(module):
            count = next(p.shape[0] for p in module.parameters(recurse=False) if p.ndim == 3)
        elif name and is_expert_list(name, modules):
            count = sum(1 for _ in module.children())
        else:
            continue
        found.setdefault((name.rpartition(".")[0], count), set()).add(name)
    return [Group(frozenset(names), around, count) for (around, count), names in found.items()]


def is_expert_list(name: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a list of modules is one of experts, which is no list of layers."""
    module = modules[name]
    if not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)):
        return False
    children = list(module.children())
    if len(children) < 2 or len({type(child) for child in children}) > 1:
        return False
    last = name.rpartition(".")[2]
    if "expert" in last.lower() or "expert" in type(module).__name__.lower():
        return True
    around = name.rpartition(".")[0]
    beside = _linears(modules, around)
    return bool(name) and any(
        _named_gate(_below(other, around)) and linear.out_features == len(children)
        for other, linear in beside
        if not other.startswith(name + ".")
    )


def routers(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Linear layers that route, by name, and why each is left alone: `ROUTER`, or `ASK` if only its shape says so."""
    every = groups(modules)
    found: dict[str, str] = {}
    for group in every:
        for around in _upward(group.around, modules):
            outside = [(n, m) for n, m in _linears(modules, around) if not any(g.holds(n) for g in every)]
            own = dict(_routers_of(group, around, outside))
            if own:
                found |= {name: why for name, why in own.items() if found.get(name) != ROUTER}
                break
    return found


def _routers_of(group: Group, around: str, linears: list[tuple[str, nn.Linear]]) -> Iterator[tuple[str, str]]:
    for name, linear in linears:
        path = _below(name, around)
        if any(ATTENTION.search(part.lower()) for part in path):
            continue
        if _named_gate(path):
            yield name, ROUTER
        elif linear.out_features == group.count and not PROJECTIONS.fullmatch(path[-1].lower()):
            yield name, ASK.format(n=group.count)


def _named_gate(path: list[str]) -> bool:
    """Whether a part of a path names a gate, as shared_expert_gate does and gate_proj does not."""
    return any(
        not PROJECTIONS.fullmatch(part.lower()) and GATES & set(re.split(r"_|(?<=[a-z])(?=[A-Z])", part.lower()))
        for part in path
    )


def _upward(name: str, modules: Mapping[str, nn.Module]) -> Iterator[str]:
    """A module's name and those around it, as far as the numbered layer that holds it."""
    while True:
        yield name
        above = name.rpartition(".")[0]
        if not name or isinstance(modules[above], (nn.ModuleList, nn.Sequential)) or numbered(modules[above]):
            return
        name = above


def numbered(module: nn.Module) -> bool:
    """Whether a module's children are numbered from 0: a list, or a dictionary with such keys (torchtitan's layers)."""
    if isinstance(module, nn.ModuleDict):
        return len(module) > 0 and list(module.keys()) == [str(i) for i in range(len(module))]
    return isinstance(module, nn.ModuleList)


def _linears(modules: Mapping[str, nn.Module], around: str) -> list[tuple[str, nn.Linear]]:
    prefix = f"{around}." if around else ""
    return [(n, m) for n, m in modules.items() if isinstance(m, nn.Linear) and n.startswith(prefix) and n != around]


def _below(name: str, around: str) -> list[str]:
    """The parts of a name below another."""
    return name[len(around) + 1 if around else 0 :].split(".")
