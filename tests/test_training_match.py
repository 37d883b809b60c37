"""Contract: `fourbit validate training` sees what differs between two implementations of the seam, and only that.

Oracle: the emulation beside itself, where nothing differs, and beside itself with one deliberate fault.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from numerics import ops
from reference.model import ModelConfig
from studies import training_match
from studies.training_match import MatchConfig, compare, report

TINY = ModelConfig(dim=32, depth=6, heads=1, experts=2, top_k=1, expert_dim=32, shared_dim=32, sequence=16)


def _run(monkeypatch: pytest.MonkeyPatch, faults: dict[str, Any], **fields: Any) -> tuple[str, bool, dict[str, Any]]:
    kernels = SimpleNamespace(**vars(ops) | faults)
    monkeypatch.setattr(training_match, "operations", lambda name, device: kernels)
    config = MatchConfig("cpu", steps=2, batch=2, model=TINY, **fields)
    found = compare(config)
    return *report(config, found), found


@pytest.mark.parametrize("products", ["exact", "library"])
def test_the_emulation_beside_itself(monkeypatch: pytest.MonkeyPatch, products: Any):
    text, holds, found = _run(monkeypatch, {}, products=products)
    assert holds and found["unequal_losses"] == found["unequal_parameters"] == 0 and text.count("\n") == 10
    assert all(case["compared"] or case["judged"] for case in found["cases"])
    assert {c["operation"] for c in found["cases"] if c["judged"]} == (
        {"router_gradient"} | ({"gate_up_glu", "down_to_wire", "grad_products"} if products == "library" else set())
    )


@pytest.mark.every(3)
@pytest.mark.parametrize("products", ["exact", "library"])
@pytest.mark.parametrize("name", ["quantize_tokens", "gate_up_glu", "grad_products", "router_gradient", "aggregate"])
def test_a_fault_is_seen(monkeypatch: pytest.MonkeyPatch, products: Any, name: str):
    def wrong(*args: Any, **kwargs: Any) -> Any:
        result = getattr(ops, name)(*args, **kwargs)
        if name == "quantize_tokens":
            if result.axis == 1 and result.codes.numel():
                return result.derived(codes=result.codes.clone().index_fill_(0, torch.tensor([0]), 1))
            return result
        if isinstance(result, tuple):
            return (result[0], result[1] * 1.01) if name != "aggregate" else (result[0] * 1.01, result[1])
        return result * 1.01

    text, holds, found = _run(monkeypatch, {name: wrong}, products=products)
    assert not holds and text.splitlines()[-1].startswith("FAILED")
    assert [c["operation"] for c in found["cases"] if c["differing"]] == [name]


def test_bad_input():
    with pytest.raises(ValueError, match="steps=0"):
        compare(MatchConfig("cpu", steps=0))
    assert training_match.main(["--device", "cuda:9"]) == 2 or torch.cuda.device_count() > 9
