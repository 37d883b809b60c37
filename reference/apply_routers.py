"""Where a model has experts, and which of its linear layers route tokens to them: by structure, whatever the depth.

A group of experts is a module that owns stacked matrices (E, .., ..), or a list of E modules of one class that is
called experts or stands beside a gate of E outputs; within a numbered layer, beside anything of E outputs. Around it,
up to the numbered layer that holds it, the first module with such a layer has its routers:

    by name     a part of the layer's path is a gate or a router: mlp.gate, mlp.router.layer, moe.router.gate, gate.wg
    by shape    E outputs, one for each expert, under a name that no projection has, and the other layers of the module
                that it ends; the report asks about them

What is called so without experts that are known is a router, too, unless its width is that of its input or of a layer
beside it, or one beside it leads back; the report asks. The gate of a GLU is none: beside it are a layer of its shape
and one that leads back.

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
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
ROUTER = "a router"
_NAME_IT = "name it in where= if it is none"
ASK = f"{{n}} outputs beside {{n}} experts: it looks like a router; {_NAME_IT}"
HIDDEN = f"beside {{last}}, which looks like a router: it looks like a part of it; {_NAME_IT}"
ALONE = f"a gate of width {{n}} without experts that are known: it looks like a router; {_NAME_IT}"


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
    inside = any(numbered(module) for above, module in modules.items() if f"{around}.".startswith(f"{above}."))
    return bool(name) and any(
        linear.out_features == len(children)
        and (_named_gate(path) or (inside and not _in_attention(path) and not PROJECTIONS.fullmatch(path[-1].lower())))
        for other, linear in _linears(modules, around)
        if not other.startswith(name + ".") and (path := _below(other, around))
    )


def routers(modules: Mapping[str, nn.Module]) -> dict[str, str]:
    """Linear layers that route, by name, and why each is left alone: `ROUTER`, or a question."""
    every = groups(modules)
    found = dict(_alone(modules))
    for group in every:
        for around in _upward(group.around, modules):
            outside = [(n, m) for n, m in _linears(modules, around) if not any(g.holds(n) for g in every)]
            own = dict(_routers_of(group, around, outside))
            if own:
                found |= {name: why for name, why in own.items() if found.get(name) != ROUTER}
                break
    return found


def _routers_of(group: Group, around: str, linears: list[tuple[str, nn.Linear]]) -> Iterator[tuple[str, str]]:
    attention = any(_in_attention(_below(own, around)) for own in group.names)
    for name, linear in linears:
        path, block = _below(name, around), name.rpartition(".")[0]
        beside = [(n, m) for n, m in linears if n.rpartition(".")[0] == block]
        if _in_attention(path) or (block != group.around and _is_glu(linear, [m for _, m in beside])):
            continue
        if _named_gate(path):
            yield name, ROUTER
        elif linear.out_features == group.count and not attention and not PROJECTIONS.fullmatch(path[-1].lower()):
            yield name, ASK.format(n=group.count)
            if block not in (group.around, around):
                yield from ((n, HIDDEN.format(last=name)) for n, m in beside if m.out_features != group.count)


def _alone(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, str]]:
    """Layers that are called gates, as if there were no experts."""
    for name, linear in _linears(modules, ""):
        around = next(above for above in _upward(name, modules) if _is_layer(above, modules))
        path, block = _below(name, around), modules[name.rpartition(".")[0]]
        beside = [m for m in block.children() if isinstance(m, nn.Linear)]
        widths = [linear.in_features, *(m.out_features for m in beside if m is not linear)]
        back = _shape(linear)[::-1] in map(_shape, beside)
        if _named_gate(path) and not _in_attention(path) and not back and linear.out_features not in widths:
            yield name, ALONE.format(n=linear.out_features)


def _is_glu(linear: nn.Linear, beside: list[nn.Linear]) -> bool:
    """Whether a layer is gate or up of a GLU by the shapes of those beside it, itself among them."""
    shape, shapes = _shape(linear), [_shape(m) for m in beside if m is not linear]
    if shape not in shapes:
        return False
    shapes.remove(shape)
    return shape[::-1] in shapes


def _shape(linear: nn.Linear) -> tuple[int, int]:
    return linear.out_features, linear.in_features


def _in_attention(path: list[str]) -> bool:
    return any(ATTENTION.search(part.lower()) for part in path)


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
        if _is_layer(name, modules):
            return
        name = name.rpartition(".")[0]


def _is_layer(name: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a module lies in a list, or is the whole model."""
    above = modules[name.rpartition(".")[0]]
    return not name or isinstance(above, (nn.ModuleList, nn.Sequential)) or numbered(above)


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
