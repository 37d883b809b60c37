"""`uncompiled`: a function that a compiler does not enter.

Contract: inside of compiled code the function runs eagerly, with the same result, and the graph breaks around it.
Oracle: what the function itself sees of the compiler, and the number of graphs.
"""

import torch
from torch._dynamo.testing import CompileCounter

from numerics.uncompiled import uncompiled


def test_the_compiler_stops_at_the_function():
    seen = []

    @uncompiled
    def inner(x: torch.Tensor, more: int = 1) -> torch.Tensor:
        seen.append((torch.compiler.is_compiling(), isinstance(x, torch._subclasses.FakeTensor)))
        return x * x + more

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1, more=2) * 3

    counter, x = CompileCounter(), torch.randn(4, generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(outer, backend=counter)
    assert torch.equal(compiled(x), ((x + 1) ** 2 + 2) * 3) and torch.equal(compiled(-x), ((1 - x) ** 2 + 2) * 3)
    assert seen == [(False, False)] * 2
    assert (counter.frame_count, counter.op_count) == (2, 2)
