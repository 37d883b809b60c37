"""Examples to fine-tune on: prompts and completions, or chats, as tokens of which some are to be learned.

    {"prompt": "7+8=", "completion": "15"}
    {"messages": [{"role": "user", "content": "7+8="}, {"role": "assistant", "content": "15"}]}

A completion, and each message of a chat, is followed by the end token. Learned are completions and the assistant's
messages with the end after them, but for those of "weight" 0; nothing else (`messages` has the rules). A chat is
written as

    "user: 7+8=" end "\\nassistant: 15" end

Held out is what asks something that no learned example asks, see `heldout`: of a chat, what the user has said before
the first learned message that answers it. So examples with one prompt and different completions are on one side, and a
chat is on the side of all that ask as it does first, whatever the system says, whoever greets and whatever follows.
Where all examples ask the same, all that is asked in a chat decides, then whole texts; where all are equal nothing is
held out.

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
from .environments import EXERCISES, drawn
from .heldout import content, held_out_keys
from .messages import messages_of, other_fields
from .notice import notice


@dataclass(frozen=True)
class Example:
    """`tokens` of a text, and whether each is `learned`: predicted, and counted in the loss."""

    tokens: tuple[int, ...]
    learned: tuple[bool, ...]


@dataclass(frozen=True, eq=False)
class Examples:
    """`train`, and `heldout` without repetitions, empty if all examples are equal; `digest`: sha256, hex, of all;
    `description`: where they are from, and what is held out."""

    train: list[Example]
    heldout: list[Example]
    digest: str
    description: str


@dataclass(frozen=True)
class _Asked:
    """An example, and what decides whether it is held out, see `heldout`: `keys`, the content of what it asks first, of
    all that it asks, and of its whole text."""

    example: Example
    keys: tuple[str, ...]


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
        """A chat, whose last message should be the assistant's. ValueError as `messages_of`."""
        tokens: list[int] = []
        learned: list[bool] = []
        for place, message in enumerate(messages_of(messages)):
            head = self.encode(("\n" if place else "") + f"{message.role}: ")
            body = (*self.encode(message.content), self.end)
            tokens += head + body
            learned += [False] * len(head) + [message.learned] * len(body)
        return Example(tuple(tokens), tuple(learned))


def load_examples(data: str | None, codec: Codec, sequence: int, count: int, seed: int) -> Examples:
    """The examples of a JSON Lines file, or generated ones.

    Args:
        data: a file; None for the exercises of `environments`, in turn.
        codec: of the model.
        sequence: tokens that the model sees.
        count, seed: of generated examples.

    Raises:
        ValueError: the file cannot be read, a line is malformed (its number is named) or too long, or there are fewer
            than two.
    """
    if data is None:
        found = [_fits(asked, sequence, f"example {i}") for i, asked in enumerate(_exercises(codec, count, seed))]
        description = f"{count} generated exercises of seed {seed}"
    else:
        found, description = list(_lines(Path(data), codec, sequence)), data
    if len(found) < 2:
        raise ValueError(f"data {description!r} has {len(found)} examples; two or more are needed, one to hold out")
    digest = hashlib.sha256()
    for asked in found:
        digest.update(json.dumps([asked.example.tokens, asked.example.learned]).encode())
    train, heldout, by = _split(found)
    return Examples(train, heldout, digest.hexdigest(), f"{description} ({len(found)} examples, {by})")


_BY = "what they ask", "all that they ask, since all ask the same first", "their whole text, since all ask the same"


def _split(found: list[_Asked]) -> tuple[list[Example], list[Example], str]:
    """What is learned, what is held out, and a phrase about it."""
    level = next((i for i in range(len(_BY)) if len({asked.keys[i] for asked in found}) > 1), None)
    if level is None:
        return [asked.example for asked in found], [], "nothing held out, since all are equal"
    held_out = held_out_keys([asked.keys[level] for asked in found])
    parts: tuple[list[Example], list[Example]] = ([], [])
    for asked in found:
        parts[asked.keys[level] in held_out].append(asked.example)
    heldout = list(dict.fromkeys(parts[1]))
    return parts[0], heldout, f"{len(heldout)} different ones held out by {_BY[level]}"


def _exercises(codec: Codec, count: int, seed: int) -> Iterator[_Asked]:
    if count < 1:
        raise ValueError(f"examples {count} cannot be used; use 1 or more")
    for number in range(count):
        asked = drawn(EXERCISES[number % len(EXERCISES)], seed, number)
        assert asked.solution is not None
        yield _pair(codec, asked.prompt, asked.solution)


def _lines(path: Path, codec: Codec, sequence: int) -> Iterator[_Asked]:
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise ValueError(f"data {str(path)!r} cannot be read ({error.strerror}); name a .jsonl file") from None
    if b"\0" in contents:
        raise ValueError(f"data {str(path)!r} has NUL bytes, as parquet and UTF-16 have; name JSON Lines in UTF-8")
    others: dict[str, int] = {}
    for number, line in enumerate(contents.splitlines(), 1):
        if not line.strip():
            continue
        where = f"data {str(path)!r}, line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            record = json.loads(text, object_pairs_hook=_object)
            if not isinstance(record, dict):
                raise ValueError(f"it holds a {type(record).__name__}, no object")
            for name in other_fields(record):
                others[name] = others.get(name, 0) + 1
            asked = _example(codec, record)
        except RecursionError:
            raise ValueError(f"{where}, is nested too deep; correct the line or leave it out") from None
        except json.JSONDecodeError as error:  # its own words count lines from the first of this one
            told = f"{error.msg} at column {error.colno}"
            raise ValueError(f"{where}: {told}; correct the line or leave it out") from None
        except ValueError as error:
            remedy = "" if ";" in str(error) else "; correct the line or leave it out"
            raise ValueError(f"{where}: {error}{remedy}") from None
        yield _fits(asked, sequence, where)
    if others:
        named = ", ".join(f'"{name}" in {count} line{"s" * (count > 1)}' for name, count in others.items())
        notice(f"data {str(path)!r} has fields that are not read: {named}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. ValueError for a field that is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f'it has "{next(name for name in names if names.count(name) > 1)}" twice')
    return found


def _example(codec: Codec, record: dict[str, Any]) -> _Asked:
    if record.get("messages") is None:
        texts = [record.get(name) for name in ("prompt", "completion")]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError('it needs "messages", or "prompt" and "completion" that are texts')
        return _pair(codec, *texts)
    example, messages = codec.chat(record["messages"]), messages_of(record["messages"])
    text = content("\n".join(message.content for message in messages))
    asked = [place for place, message in enumerate(messages) if message.role == "user"]
    asked = asked or [place for place, message in enumerate(messages) if not message.learned]
    answers = (place for place, message in enumerate(messages) if message.learned and asked and place > asked[0])
    ends = next(answers, len(messages)), len(messages)
    keys = (content("\n".join(messages[place].content for place in asked if place < end)) or text for end in ends)
    return _Asked(example, (*keys, text))


def _pair(codec: Codec, prompt: str, completion: str) -> _Asked:
    return _Asked(codec.pair(prompt, completion), (content(prompt),) * 2 + (content(f"{prompt}\n{completion}"),))


def _fits(asked: _Asked, sequence: int, where: str) -> _Asked:
    """Inputs are all tokens but the last. Raises ValueError for more than the model sees."""
    example = asked.example
    if len(example.tokens) - 1 <= sequence:
        return asked
    first = example.learned.index(True)
    what = f"its prompt alone has {first} tokens" if first > sequence else f"it has {len(example.tokens)} tokens"
    raise ValueError(
        f"{where}: {what}, and the model sees {sequence}; shorten it, or use a model with a longer sequence"
    )
