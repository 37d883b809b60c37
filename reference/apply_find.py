"""What of a model can follow a recipe: its linear layers and grouped experts, and in words why others cannot.

A candidate is an nn.Linear or a module that owns stacked matrices, (E, .., ..), whatever its class is called. Its
number in the order of `named_modules` is its `layer` in random counters, whatever `where` selects. Its place is its
index in the outermost numbered list around it (nn.ModuleList, or an nn.ModuleDict with the keys 0, 1, ..; a list of
experts is none), by which a recipe tells most layers from the last ones.

Some candidates are left alone unless they are asked for (the output head, a router), some cannot follow any recipe
(quantized weights, modules whose weights somebody else multiplies), which is an error where they are asked for.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from numerics.arguments import require_kind

from .apply_routers import CONVOLUTIONS, is_expert_list, numbered, routers, stacked

Where = str | list[str] | tuple[str, ...] | Callable[[str, nn.Module], bool] | None
HEADS = ("lm_head", "embed_out", "head", "classifier", "score")
MASTERS = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A module that a recipe could be applied to.

    Attributes:
        name: as in `named_modules`. number: among candidates. experts: whether it stacks experts, else a linear layer.
        place: (list, index, depth) of the outermost numbered list around it, or None.
        left: why it is left alone unless asked for, or "". unfit: why it cannot follow a recipe, or "".
        names: every name that it is registered under, `name` first.
    """

    name: str
    module: Any
    number: int
    experts: bool
    place: tuple[str, int, int] | None = None
    left: str = ""
    unfit: str = ""
    tied: tuple[str, ...] = field(default=())
    names: tuple[str, ...] = field(default=())

    @property
    def shape(self) -> tuple[int, ...]:
        """(outputs, inputs), or (experts, width, expert width)."""
        if self.experts and not self.unfit:
            return tuple((self.module.w2 if sorted_rows(self.module) else self.module.down_proj).shape)
        return () if self.experts else (self.module.out_features, self.module.in_features)


def candidates(model: nn.Module) -> list[Candidate]:
    """Every candidate, in the order of `named_modules`.

    Raises: ValueError for a model that is compiled, sharded or replicated: it is wrapped after `apply`, not before.
    """
    modules = dict(model.named_modules())
    for name, module in modules.items():
        _require_unwrapped(name, module)
    every = dict(model.named_modules(remove_duplicate=False))
    names: dict[int, list[str]] = {}
    for name, module in every.items():
        names.setdefault(id(module), []).append(name)
    found: list[Candidate] = []
    owners = _owners(modules)
    heads = _heads(model)
    routing = routers(modules)
    lists = {n: len(list(m.children())) for n, m in every.items() if numbered(m) and not is_expert_list(n, every)}
    for name, module in modules.items():
        experts = not isinstance(module, nn.Linear) and stacked(module)
        if not isinstance(module, nn.Linear) and not experts:
            continue
        parent = modules[name.rpartition(".")[0]] if name else None
        others = tuple(other for other in owners.get(id(getattr(module, "weight", None)), ()) if other != name)
        reason = parent_reason(parent)
        own = unfit_experts(module) if experts else _left(name, module, parent, heads, others, routing)
        places = (place(other, lists) for other in names[id(module)])
        found.append(
            Candidate(
                *(name, module, len(found), experts, next(filter(None, places), None)),
                names=tuple(names[id(module)]),
                left=reason or own,
                unfit=reason or (unfit_experts(module) if experts else unfit_linear(module)),
                tied=others,
            )
        )
    return found


def _require_unwrapped(name: str, module: nn.Module) -> None:
    kinds = {kind.__name__ for kind in type(module).__mro__}
    where = f"model.{name}" if name else "model"
    if "OptimizedModule" in kinds or getattr(module, "_compiled_call_impl", None) is not None:
        raise ValueError(f"{where} is compiled: apply the recipe first, then torch.compile (or model.compile())")
    if isinstance(module, torch.jit.ScriptModule):
        raise ValueError(f"{where} is scripted, so its products cannot be replaced: pass the module it was made of")
    if isinstance(module, nn.DataParallel):
        raise ValueError(f"{where} is nn.DataParallel: apply to {where}.module, and use DistributedDataParallel")
    sharded = any(type(p).__name__ == "DTensor" for p in module.parameters(recurse=False))
    if sharded or kinds & {"FullyShardedDataParallel", "FSDPModule"}:
        raise ValueError(f"{where} is sharded: apply the recipe first, then fully_shard or FullyShardedDataParallel")


def _owners(modules: dict[str, nn.Module]) -> dict[int, list[str]]:
    """Parameter by id -> the modules that own it."""
    owners: dict[int, list[str]] = {}
    for name, module in modules.items():
        for p in module.parameters(recurse=False):
            owners.setdefault(id(p), []).append(name)
    return owners


def _heads(model: nn.Module) -> set[int]:
    """Ids of the output embeddings that the model, or a part of it, names itself."""
    heads = set()
    for module in model.modules():
        named = getattr(module, "get_output_embeddings", None)
        if callable(named):
            try:
                heads.add(id(named()))
            except (AttributeError, NotImplementedError):
                continue  # a model without a head
    return heads


def place(name: str, lists: dict[str, int]) -> tuple[str, int, int] | None:
    """(name of the outermost numbered list of layers around a module, its index there, its length), or None.

    Args: lists: lengths of the numbered lists of layers, by name.
    """
    parts = name.split(".")
    for i, part in enumerate(parts):
        around = ".".join(parts[:i])  # "" is the model itself
        if around in lists and part.isdecimal():  # add_module gives any name
            return around, int(part), lists[around]
    return None


def parent_reason(parent: nn.Module | None) -> str:
    """Why the parent would not call its children, or ""."""
    if isinstance(parent, nn.MultiheadAttention):
        return "nn.MultiheadAttention multiplies by its weights itself"
    if isinstance(parent, nn.TransformerEncoderLayer) and torch.backends.mha.get_fastpath_enabled():
        return (
            "nn.TransformerEncoderLayer multiplies by its weights itself in evaluation, unless "
            "torch.backends.mha.set_fastpath_enabled(False) was called"
        )
    return ""


def _left(
    name: str,
    module: nn.Linear,
    parent: nn.Module | None,
    heads: set[int],
    others: tuple[str, ...],
    routing: dict[str, str],
) -> str:
    last = name.rpartition(".")[2]
    if name in routing:
        return routing[name]
    if id(module) in heads or last in HEADS:
        return "the output head"
    if others and parent is not None:
        return f"its weight is also that of {', '.join(others)}"
    return ""


def unfit_linear(module: nn.Linear) -> str:
    """Why a linear layer cannot follow a recipe, or ""."""
    kind = type(module)
    weight = module.weight
    if isinstance(weight, nn.parameter.UninitializedTensorMixin):
        return "its weight has no shape yet: run one forward first"
    if "_fourbit" in module.__dict__:
        return ""  # it follows one
    if kind.forward is not nn.Linear.forward:
        return f"{kind.__module__}.{kind.__qualname__} multiplies in its own way (a quantized or adapted layer)"
    return _unfit_module(module, {"weight": weight})


def others(model: nn.Module) -> list[tuple[str, str]]:
    """(name, reason) of modules that own parameters of three axes or more and are no candidates."""
    found = []
    for name, module in model.named_modules():
        three = [n for n, p in module.named_parameters(recurse=False) if p.ndim >= 3]
        if three and not stacked(module):
            kind = "a convolution" if isinstance(module, CONVOLUTIONS) else f"{', '.join(three)}: no experts"
            found.append((name, f"{kind}, which no recipe has"))
    return found


def sorted_rows(module: nn.Module) -> bool:
    """Whether stacked experts have torchtitan's form: w1 and w3 (E, F, D), w2 (E, D, F), rows sorted by expert."""
    return sorted(name for name, _ in module.named_parameters(recurse=False)) == ["w1", "w2", "w3"]


def _unfit_sorted(module: Any) -> str:
    """Why experts of that form are none that `apply` knows, or ""."""
    (experts, width, dim), arguments = module.w1.shape, list(inspect.signature(type(module).forward).parameters)[1:]
    own = type(module).forward is not nn.Module.forward
    shapes = module.w3.shape == module.w1.shape and module.w2.shape == (experts, dim, width)
    if not shapes or (own and arguments != ["x", "num_tokens_per_expert"]):
        return "stacked experts of an unknown form (w1, w2, w3)"
    return _unfit_module(module, {name: getattr(module, name) for name in ("w1", "w2", "w3")})


def unfit_experts(module: Any) -> str:
    """Why stacked experts are none that `apply` knows, or "".

    Known: y = sum_k weight_k down_proj_k (silu(gate) * up), (gate, up) = gate_up_proj_k x, with gate_up_proj
    (E, 2F, D), gate above up, down_proj (E, D, F), and forward(hidden_states (T, D), top_k_index (T, K),
    top_k_weights (T, K)), as `transformers` 5 has them for Mixtral, Qwen, DeepSeek and others. And
    y = w2_e (silu(w1_e x) * w3_e x), with forward(x (R, D), num_tokens_per_expert (E,)) of rows sorted by expert, as
    torchtitan's GroupedExperts.
    """
    if "_fourbit" in module.__dict__:
        return ""  # it follows one
    names = [name for name, _ in module.named_parameters(recurse=False)]
    if sorted_rows(module) and module.w1.ndim == module.w2.ndim == module.w3.ndim == 3:
        return _unfit_sorted(module)
    shape = f"stacked experts of an unknown form ({', '.join(names)})"
    if sorted(names) != ["down_proj", "gate_up_proj"] or module.down_proj.ndim != 3:
        return shape
    (experts, wide, dim), down = module.gate_up_proj.shape, module.down_proj.shape
    arguments = list(inspect.signature(type(module).forward).parameters)[1:]
    if down != (experts, dim, wide // 2) or arguments != ["hidden_states", "top_k_index", "top_k_weights"]:
        return shape
    layout = {"is_transposed": False, "is_concatenated": True, "has_bias": False, "has_gate": True}
    layout |= {"has_post_expert_norm": False, "_is_expert_parallel": False}
    if odd := [name for name, value in layout.items() if getattr(module, name, value) != value]:
        return f"stacked experts of an unknown form ({', '.join(odd)})"
    gate = getattr(type(module), "_apply_gate", None)
    if gate is not None and gate.__name__ != "_default_apply_gate":
        return "experts with a gate of their own, which the seam has not"
    if not _is_silu(getattr(module, "act_fn", None)):
        return "experts whose activation is not silu, the only one that the seam has"
    return _unfit_module(module, {"gate_up_proj": module.gate_up_proj, "down_proj": module.down_proj})


def _unfit_module(module: nn.Module, weights: dict[str, Tensor]) -> str:
    if "forward" in module.__dict__:
        return "somebody replaced its forward (offloading hooks, for instance)"
    for name, weight in weights.items():
        if not isinstance(weight, Tensor) or type(weight.detach()) is not Tensor:
            return f"its {name} is a {type(weight).__name__}, which holds no plain numbers"
        if weight.dtype not in MASTERS:
            return f"its {name} is {weight.dtype}: use float32 or bfloat16"
    return ""


def _is_silu(act: Any) -> bool:
    """By its values: many classes are silu."""
    x = torch.linspace(-4, 4, 33)
    return callable(act) and torch.allclose(act(x), F.silu(x))


def select(found: list[Candidate], where: Where) -> list[Candidate]:
    """The candidates that `where` selects.

    Raises: TypeError for another kind of `where`; ValueError if it, or one of its patterns, selects none.
    """
    if where is None:
        chosen = [c for c in found if not c.left]
        if not chosen:
            left = "; ".join(f"{c.name or 'the model itself'}: {c.left}" for c in found) or "it has none"
            raise ValueError(f"the model has no nn.Linear or experts that a recipe applies to by default ({left})")
        return chosen
    if isinstance(where, (str, list, tuple)):
        return list(_matched(found, [where] if isinstance(where, str) else list(where)))
    if not callable(where):
        require_kind(where, (str, list), "where", "pass a glob, a list of globs or a function (name, module) -> bool")
    chosen = [c for c in found if where(c.name, c.module)]
    if not chosen:
        raise ValueError(f"where={where!r} selects none of {_some([c.name for c in found])}")
    return chosen


def _matched(found: list[Candidate], patterns: list[str]) -> Iterator[Candidate]:
    names = [name for c in found for name in c.names]
    if not patterns:
        raise ValueError("where=[] selects nothing: pass patterns, or leave it out")
    for pattern in patterns:
        require_kind(pattern, str, "a pattern of where", "pass a glob such as '*.mlp.*'")
        if not any(fnmatchcase(name, pattern) for name in names):
            below = [name for name in names if fnmatchcase(name, f"{pattern}.*")]
            near = below or get_close_matches(pattern, names, 3, 0.3) or names
            raise ValueError(f"where={pattern!r} matches no linear layer or experts; near: {_some(near)}")
    return (c for c in found if any(fnmatchcase(name, pattern) for name in c.names for pattern in patterns))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return (", ".join(repr(name) for name in names[:4]) or "no candidates") + more
