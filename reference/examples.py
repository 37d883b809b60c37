"""Examples to fine-tune on: prompts and completions, or chats, as tokens of which some are to be learned.

    {"prompt": "7+8=", "completion": "15"}
    {"messages": [{"role": "user", "content": "7+8="}, {"role": "assistant", "content": "15"}]}

A completion, and each message of a chat, is followed by the end token. Learned are completions and the assistant's
messages with the end after them, nothing else. A chat is written as

    "user: 7+8=" end "\\nassistant: 15" end

The end of a model of bytes is byte 3, the ASCII character ETX, which no text may hold.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .alphabet import Alphabet
from .environments import EXERCISES, problem

HELD_OUT_ONE_IN = 20
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Example:
    """`tokens` of a text, and whether each is `learned`: predicted, and counted in the loss."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class Examples:
    """`train` and `heldout`; `digest`: sha256, hex, of all; `description`: where they are from."""

    train: list[Example]
    heldout: list[Example]
    digest: str
    description: str


class Codec:
    """Text to a model's tokens and back, with an end.

    Args: alphabet: with an end; `alphabet_of` a tuned run's has one.
    """

    def __init__(self, alphabet: Alphabet) -> None:
        if alphabet.end is None:
            raise ValueError("alphabet has no end token; name one with --end-token")
        self.alphabet, self.end = alphabet, alphabet.end

    def encode(self, text: str) -> tuple[int, ...]:
        """ValueError for a text that holds the end or has no tokens."""
        tokens = tuple(self.alphabet.encode(text.encode()))
        if self.end in tokens:
            raise ValueError(f"text {text[:40]!r} holds the token {self.end}, which ends texts; take it out")
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """What is no UTF-8 becomes U+FFFD; a token that means nothing is left out."""
        return self.alphabet.decode(tokens)

    def pair(self, prompt: str, completion: str) -> Example:
        """A prompt and what should follow."""
        before, after = self.encode(prompt), (*self.encode(completion), self.end)
        if not before:
            raise ValueError("prompt is empty; write what the completion follows")
        return Example(before + after, (False,) * len(before) + (True,) * len(after))

    def chat(self, messages: Any) -> Example:
        """A chat, whose last message should be the assistant's."""
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages is no list of messages")
        tokens: list[int] = []
        learned: list[bool] = []
        for place, message in enumerate(messages):
            role, content = (message.get(name) if isinstance(message, dict) else None for name in ("role", "content"))
            if role not in _ROLES or not isinstance(content, str):
                raise ValueError(f"message {place + 1} lacks a role of {', '.join(_ROLES)}, or content that is text")
            head = self.encode(("\n" if place else "") + f"{role}: ")
            body = (*self.encode(content), self.end)
            tokens += head + body
            learned += [False] * len(head) + [role == "assistant"] * len(body)
        if not any(learned):
            raise ValueError("messages has none of the assistant, so there is nothing to learn")
        return Example(tuple(tokens), tuple(learned))


def load_examples(data: str | None, codec: Codec, sequence: int, count: int, seed: int) -> Examples:
    """The examples of a JSON Lines file, or generated ones.

    Args:
        data: a file; None for the exercises of `environments`, in turn.
        codec: of the model.
        sequence: tokens that the model sees.
        count, seed: of generated examples.

    Raises:
        ValueError: the file cannot be read, a line is malformed (its number is told) or too long, or there are fewer
            than two.
    """
    if data is None:
        found = [_fits(example, sequence, f"example {i}") for i, example in enumerate(_exercises(codec, count, seed))]
        description = f"{count} generated exercises of seed {seed}"
    else:
        found, description = list(_lines(Path(data), codec, sequence)), data
    if len(found) < 2:
        raise ValueError(f"data {description!r} has {len(found)} examples; two or more are needed, one to hold out")
    digest = hashlib.sha256()
    for example in found:
        digest.update(json.dumps([example.tokens, example.learned]).encode())
    parts: tuple[list[Example], list[Example]] = ([], [])
    for place, example in enumerate(found):
        # one of every twenty, a place further each time: kinds that take turns are all held out
        turn, inside = divmod(place, HELD_OUT_ONE_IN)
        parts[inside == turn % HELD_OUT_ONE_IN].append(example)
    return Examples(*parts, digest.hexdigest(), f"{description} ({len(found)} examples)")


def _exercises(codec: Codec, count: int, seed: int) -> Iterator[Example]:
    if count < 1:
        raise ValueError(f"examples {count} cannot be used; use 1 or more")
    for number in range(count):
        asked = problem(EXERCISES[number % len(EXERCISES)], seed, number)
        assert asked.solution is not None
        yield codec.pair(asked.prompt, asked.solution)


def _lines(path: Path, codec: Codec, sequence: int) -> Iterator[Example]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"data {str(path)!r} cannot be read ({error.strerror}); name a .jsonl file") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"data {str(path)!r}, line {number}"
        try:
            example = _example(codec, json.loads(line))
        except RecursionError:
            raise ValueError(f"{where}, is nested too deep; correct the line or leave it out") from None
        except json.JSONDecodeError as error:  # its own words count lines from the first of this one
            told = f"{error.msg} at column {error.colno}"
            raise ValueError(f"{where}: {told}; correct the line or leave it out") from None
        except ValueError as error:
            raise ValueError(f"{where}: {error}; correct the line or leave it out") from None
        yield _fits(example, sequence, where)


def _example(codec: Codec, record: Any) -> Example:
    if not isinstance(record, dict):
        raise ValueError(f"it holds a {type(record).__name__}, no object")
    if "messages" in record:
        return codec.chat(record["messages"])
    texts = [record.get(name) for name in ("prompt", "completion")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError('it needs "messages", or "prompt" and "completion" that are texts')
    return codec.pair(*texts)


def _fits(example: Example, sequence: int, where: str) -> Example:
    """Inputs are all tokens but the last. Raises ValueError for more than the model sees."""
    if len(example.tokens) - 1 <= sequence:
        return example
    first = example.learned.index(True)
    what = f"its prompt alone has {first} tokens" if first > sequence else f"it has {len(example.tokens)} tokens"
    raise ValueError(
        f"{where}: {what}, and the model sees {sequence}; shorten it, or use a model with a longer sequence"
    )
