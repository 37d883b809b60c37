"""Contract: BF16 experts without the seam have the seam's values up to the order of sums, and its gradients.

Oracle: `ExpertMLP` in the BF16 recipe, whose sums are FP32 in another order.
"""

import pytest
import torch

import numerics as nm
import numerics.ops as ops
from numerics.swiglu import silu_tables, swiglu, swiglu_backward
from reference import dense, plain_experts
from reference.ablations import PLAIN
from reference.dense import glu, glu_backward
from reference.expert import Draw, ExpertMLP, Setting
from reference.plain_experts import PlainExperts, applies
from reference.routing import Routing, route

T, K, E, D, F = 40, 2, 4, 64, 32
NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", id="gpu", marks=NO_GPU)]


def _operands(device: str, chosen: torch.Tensor) -> tuple[list[torch.Tensor], Routing]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(T, D, generator=generator).bfloat16()
    weights, w13 = torch.rand(T, K, generator=generator), torch.randn(E, 2 * F, D, generator=generator) * D**-0.5
    tensors = [x, weights, w13, torch.randn(E, D, F, generator=generator) * F**-0.5]
    return [t.to(device).requires_grad_() for t in tensors], route(chosen.to(device), E)


def _drawn(token: int) -> torch.Tensor:
    return torch.randperm(E, generator=torch.Generator().manual_seed(token))[:K].sort().values


CHOICES = {
    "all": torch.stack([_drawn(token) for token in range(T)]),
    "one is empty": torch.tensor([[0, 3], [1, 3]] * (T // 2)),
    "two have everything": torch.tensor([[1, 2]] * T),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CHOICES)
def test_values_and_gradients_are_the_seams(device: str, name: str) -> None:
    setting = Setting(ops, PLAIN, {}, 0, Draw(0, 1, 0))
    results = []
    for function, extra in ((ExpertMLP, (setting,)), (PlainExperts, ())):
        tensors, routing = _operands(device, CHOICES[name])
        out = function.apply(*tensors, routing, *extra)
        g = torch.randn(T, D, generator=torch.Generator().manual_seed(2)).bfloat16().to(device)
        results.append([out.detach(), *torch.autograd.grad(out, tensors, g)])
    assert all(a.dtype == b.dtype and a.shape == b.shape for a, b in zip(*results, strict=True))
    for a, b in zip(*results, strict=True):
        # other orders of sums move a BF16 in a hundred by 2^-8 of it at each of three stages
        assert nm.metrics.error(a.cpu(), b.cpu()).rel_mse < 3 * (2.0**-8) ** 2
    absent = results[0][3].abs().amax((1, 2)) == 0
    assert torch.equal(absent, results[1][3].abs().amax((1, 2)) == 0)


def test_which_layers_go_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(4, D, dtype=torch.bfloat16)
    setting = Setting(ops, PLAIN, {}, 0, Draw(0, 1, 0))
    assert not applies(x, setting)  # on a CPU the seam's own FP32 products are the definition

    class OnGpu:
        is_cuda = True

    gpu: torch.Tensor = OnGpu()  # type: ignore[assignment]
    assert applies(gpu, setting)
    for changes in (
        {"accumulator": "exact"},
        {"recipe": plain_experts.PLAIN.__class__(**{**vars(PLAIN), "combine_fmt": nm.MXFP8})},
        {"recompute_glu": True},
        {"observer": object()},
    ):
        assert not applies(gpu, Setting(**(vars(setting) | changes)))


@pytest.mark.parametrize("device", DEVICES)
def test_swiglu_by_tables_has_the_emulators_bits(device: str) -> None:
    """Every pattern of gate; on a GPU in one compiled kernel each."""
    gate = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(256, 256)
    generator = torch.Generator().manual_seed(3)
    up, dh = torch.randn(256, 256, generator=generator).bfloat16(), torch.randn(256, 256, generator=generator)
    both = torch.cat([gate, up], dim=1)
    given = both.to(device)
    tables = silu_tables(str(given.device))
    gradient = torch.cat(swiglu_backward(dh, gate, up), dim=1)
    for found, expected in (
        (glu(given), swiglu(gate, up)),
        (glu_backward(dh.to(device), given), gradient),
        (dense._glu(given, tables[0]), swiglu(gate, up)),
        (dense._glu_backward(dh.to(device), given, *tables), gradient),
    ):
        nan = expected.isnan()
        assert torch.equal(found.cpu().isnan(), nan)
        assert torch.equal(found.cpu().view(torch.int16)[~nan], expected.view(torch.int16)[~nan])


def test_offsets_are_counts_summed() -> None:
    chosen = CHOICES["one is empty"]
    routing = route(chosen, E)
    assert routing.groups == (0, 20, 40, 40, 80) and routing.counts.tolist() == [20, 20, 0, 40]
    assert routing.ends.tolist() == [20, 40, 40, 80] and routing.ends.dtype == torch.int32
    given = Routing(routing.slots, routing.tokens, routing.groups)
    assert torch.equal(given.counts, routing.counts) and torch.equal(given.ends, routing.ends)
    for e in range(E):
        rows = range(routing.groups[e], routing.groups[e + 1])
        assert [int(t) for t in routing.tokens[list(rows)]] == [t for t in range(T) if e in chosen[t].tolist()]
