"""Where rows go: tokens' copies sorted by expert, and each expert's share of them.

Shapes: T tokens, K experts per token, R = T K rows, E experts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Routing:
    """Where rows go.

    Args:
        slots: int64 (T, K), the row of each token's k-th expert, experts ascending. tokens: int64 (R,), the token of
            each row. offsets: the experts' E + 1 row offsets, int64 on the rows' device or a tuple.
    """

    slots: Tensor
    tokens: Tensor
    offsets: Tensor | tuple[int, ...]

    def __post_init__(self) -> None:
        self._arrival  # noqa: B018  starts to send the offsets to the host

    @property
    def groups(self) -> tuple[int, ...]:
        """The offsets on the host; waits for them, if they are still on their way."""
        return self._arrival()

    @property
    def counts(self) -> Tensor:
        """int64 (E,): rows of each expert, on the rows' device."""
        return torch.as_tensor(self.offsets, device=self.slots.device).diff()

    @cached_property
    def ends(self) -> Tensor:
        """int32 (E,): where each expert's rows end, on the rows' device."""
        return torch.as_tensor(self.offsets, device=self.slots.device)[1:].to(torch.int32)

    @cached_property
    def _arrival(self) -> Callable[[], tuple[int, ...]]:
        """Sends the offsets to the host, without waiting; what is returned waits for them."""
        if isinstance(self.offsets, tuple):
            given = self.offsets
            return lambda: given
        if not self.offsets.is_cuda:
            here = tuple(self.offsets.tolist())
            return lambda: here
        host = torch.empty(self.offsets.shape, dtype=torch.int64, pin_memory=True)
        host.copy_(self.offsets, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(self.offsets.device))

        @cache
        def wait() -> tuple[int, ...]:
            arrived.synchronize()
            return tuple(host.tolist())

        return wait


def route(experts_TK: Tensor, experts: int) -> Routing:
    """Rows sorted by expert, then token. `experts_TK`: int64, ascending along K, no expert twice in a row."""
    tokens, k = experts_TK.shape
    by_expert, order = torch.sort(experts_TK.flatten(), stable=True)
    slots = torch.empty_like(order)
    slots[order] = torch.arange(order.numel(), device=order.device)
    offsets = torch.searchsorted(by_expert, torch.arange(experts + 1, device=order.device))
    routing = Routing(slots.view(tokens, k), order // k, offsets)
    # a permutation of the rows, and tokens: operations that check row numbers need not wait for the device to do so
    for index, rows in ((routing.slots, order.numel()), (routing.tokens, tokens)):
        if not index.is_inference():  # those have no version
            index.vouched = (index._version, rows)  # type: ignore[attr-defined]
    return routing
