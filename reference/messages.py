"""The fields of a line of examples: which are read, which say nothing, and which are refused.

    {"prompt": TEXT, "completion": TEXT}
    {"messages": [{"role": ROLE, "content": TEXT, "weight": 0 or 1}, ..]}

`weight` 0, of OpenAI's and Mistral's format, marks a message that is not learned; messages of the assistant are learned
without it. A field that could change what is learned is refused by its name, with a remedy. In a message that is every
field that is not known to say nothing; beside "messages" or "prompt" it is one that formats of other tools give a
meaning, or whose name speaks of weights, losses or masks, and the rest is returned, to be named to the user. A field
that is empty (null, "", [], {}) says nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

ROLES = ("system", "user", "assistant")
_NOTES = ("id", "index", "idx", "uuid", "created", "created_at", "timestamp", "date", "model", "source", "metadata")
_AS_TEXT = "write what it says into the text, or leave the line out"
_LEAVE = "take it out, or leave the line out"
_WEIGHT = 'say "weight": 0 in a message that is not learned'
_COLUMNS = 'call the texts "prompt" and "completion"'
_CHAT = 'call it "messages", a list of objects with "role" and "content"'
# of a message, and of a line beside "messages" or "prompt"
_REMEDIES = (
    dict.fromkeys(("tool_calls", "tool_call_id", "function_call", "name", "reasoning_content", "thinking"), _AS_TEXT)
    | {"refusal": 'write it into "content"'}
    | dict.fromkeys(("train", "mask", "loss", "loss_mask", "trainable", "learn"), _WEIGHT)
    | {"from": 'call it "role"', "value": 'call it "content"'}
)
_LINE_REMEDIES = (
    dict.fromkeys(("tools", "functions", "tool_choice", "parallel_tool_calls", "documents"), _AS_TEXT)
    | dict.fromkeys(("images", "image", "audio", "audios", "video", "videos"), _LEAVE)
    | dict.fromkeys(("chosen", "rejected", "label", "score", "reward", "rating", "ranking", "advantage"), _LEAVE)
    | dict.fromkeys(("instruction", "input", "output", "response", "question", "answer", "context", "query"), _COLUMNS)
    | dict.fromkeys(("conversations", "conversation", "dialog", "history", "turns", "chat"), _CHAT)
    | {"system": 'make it a message of the role "system", or the beginning of "prompt"', "text": _COLUMNS}
    | dict.fromkeys(("response_format", "chat_template", "chat_template_kwargs", "add_generation_prompt"), _LEAVE)
)
_LEARNING = {"weight", "weights", "loss", "mask", "train"}  # words in names that say what is learned, and how much
_ROLE_REMEDIES = {
    "developer": "system",
    "model": "assistant",
    "bot": "assistant",
    "gpt": "assistant",
    "human": "user",
    "tool": "user, with what it said as text",
    "function": "user, with what it said as text",
}


@dataclass(frozen=True)
class Message:
    """`learned`: whether its content is."""

    role: str
    content: str
    learned: bool


def messages_of(value: Any) -> list[Message]:
    """The messages of a chat.

    Raises:
        ValueError: it is none, a field or role of a message is not understood, or nothing in it is to be learned.
    """
    if not isinstance(value, list) or not value:
        raise ValueError("messages is no list of messages")
    found = [_message(place, message) for place, message in enumerate(value, 1)]
    if not any(message.learned for message in found):
        which = ", whose weight is not 0" if any(m.role == "assistant" for m in found) else ""
        raise ValueError(f"messages has none of the assistant{which}, so there is nothing to learn")
    return found


def other_fields(record: dict[str, Any]) -> list[str]:
    """The fields of a line that are not read, those left out that are known to say nothing.

    Raises:
        ValueError: one of them may change what is learned.
    """
    texts = [name for name in ("messages", "prompt", "completion") if record.get(name) is not None]
    if "messages" in texts and len(texts) > 1:
        raise ValueError(f'it has "messages" and "{texts[1]}" too; leave one of them out')
    given = [name for name in record if name not in (*texts, *_NOTES) and not _is_empty(record[name])]
    for name in given:
        remedy = _LINE_REMEDIES.get(name, _WEIGHT if _LEARNING & set(re.split("[_-]", name.lower())) else None)
        if remedy is not None:
            raise ValueError(f'it has "{name}", which is not understood; {remedy}')
    return given


def _message(place: int, message: Any) -> Message:
    role, content = (message.get(name) if isinstance(message, dict) else None for name in ("role", "content"))
    for name in message if isinstance(message, dict) else ():
        if name not in ("role", "content", "weight", *_NOTES) and not _is_empty(message[name]):
            raise ValueError(f'message {place} has "{name}", which is not understood; {_REMEDIES.get(name, _LEAVE)}')
    if isinstance(role, str) and role in _ROLE_REMEDIES:
        raise ValueError(f'message {place} has the role "{role}", which is not understood; use {_ROLE_REMEDIES[role]}')
    if isinstance(content, list):
        raise ValueError(f"message {place} has content that is a list of parts; write its text as one string")
    if role not in ROLES or not isinstance(content, str):
        raise ValueError(f"message {place} lacks a role of {', '.join(ROLES)}, or content that is text")
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
        raise ValueError(f'message {place} has "weight" {weight!r}; use 0 for not learned, or 1')
    if weight == 1 and role != "assistant":
        raise ValueError(f'message {place} of the {role} has "weight" 1, and the assistant\'s alone are learned; use 0')
    return Message(role, content, role == "assistant" and weight != 0)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)
