"""Row numbers checked once: whether they lie inside is a question to the device, and waiting for its answer costs more
than a small kernel. A tensor that was right stays so until something is written to it.

Who makes row numbers that are right by construction may say so: `index.vouched = (index._version, rows)`, for numbers
below `rows`. It is believed until something is written to the tensor.
"""

from __future__ import annotations

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from numerics.ops_arguments import require_index as check

_right: WeakIdKeyDictionary = WeakIdKeyDictionary()  # tensor -> (its version, axes, rows)


def require_index(index: Tensor, name: str, axes: int, rows: int) -> None:
    """As `numerics.ops_arguments.require_index`; nothing for a tensor that passed and was not written to since."""
    followed = isinstance(index, Tensor) and not index.is_inference()  # others have no version
    state = (index._version, axes, rows) if followed else None
    if state is not None and _right.get(index) == state:
        return
    if followed and index.ndim == axes and getattr(index, "vouched", None) == (index._version, rows):
        return
    check(index, name, axes, rows)
    if state is not None:
        _right[index] = state
