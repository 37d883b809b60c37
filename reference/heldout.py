"""What is held out of fine-tuning and of reinforcement learning: by content, never by place.

    content     the text that is asked: a problem's prompt, an example's; of a chat, what the user has said before the
                first learned message that answers it. Unicode's normal form NFC, all white space taken out.
    held out    where the first 8 bytes of the content's sha256 are a multiple of 10, one in 10

Equal content is on one side, however often it comes, however it is answered and however it is spaced; adding, removing
or reordering examples moves no other. `fourbit sft` and `fourbit rl` share the rule: a problem that one holds out the
other does not learn from either.

`held_out_keys` bends the rule where examples are few: at least one content is held out, and more than one only if they
are at most a quarter of the examples. Exact: hashes are integers.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Sequence

ONE_IN = 10


def content(text: str) -> str:
    """What two texts have in common that ask the same."""
    return "".join(unicodedata.normalize("NFC", text).split())


def is_held_out(key: str) -> bool:
    """Whether a content is held out."""
    return _rank(key) % ONE_IN == 0


def held_out_keys(keys: Sequence[str]) -> set[str]:
    """Which contents of examples are held out. keys: the content of each example, two different ones or more.

    A content of more than half of the examples is learned. If the rule holds out none of the others, that of the lowest
    hash is; if it holds out several that are more than a quarter of the examples, those of the highest hashes are
    learned.
    """
    count = Counter(keys)
    left = sorted((key for key in count if 2 * count[key] <= len(keys)), key=_rank)
    chosen = [key for key in left if is_held_out(key)] or left[:1]
    while len(chosen) > 1 and 4 * sum(count[key] for key in chosen) > len(keys):
        chosen.pop()
    return set(chosen)


def _rank(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8], "big")
