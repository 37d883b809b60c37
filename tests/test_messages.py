"""Contract of reference.messages: no field that may change what is learned is dropped in silence. Fields are read,
known to say nothing, refused by name with file, line and remedy, or named in one line on stderr.

Oracle: what is learned of lines written by hand.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from reference.alphabet import END_BYTE, Bytes
from reference.examples import Codec, load_examples
from reference.messages import messages_of

CODEC = Codec(Bytes(END_BYTE))
USER, RIGHT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "right"}
CALL = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]


def learned(path: Path, *records: Any) -> list[str]:
    """What is learned of the lines, held out or not, besides a line that is added so that there are two."""
    plain = {"prompt": "plain", "completion": "plain"}
    path.write_text("".join(json.dumps(r) + "\n" for r in (*records, plain)))
    found = load_examples(str(path), CODEC, 256, 0, 0)
    return [text for text in map(said, found.heldout + found.train) if text != "plain\x03"]


def said(example: Any) -> str:
    return bytes(t for t, yes in zip(example.tokens, example.learned, strict=True) if yes).decode()


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [((0, None), "right\x03"), ((0.0, 1), "right\x03"), ((1, 1.0), "WRONG\x03right\x03"), ((1, 0), "WRONG\x03")],
)
def test_a_message_of_weight_0_is_not_learned(weights: tuple, wanted: str, tmp_path: Path) -> None:
    messages = [USER, {"role": "assistant", "content": "WRONG"} | {"weight": weights[0]}, {**USER, "weight": 0}, RIGHT]
    messages[-1] = RIGHT | {"weight": weights[1]}
    assert learned(tmp_path / "x.jsonl", {"messages": messages}) == [wanted]
    # it is still read: what is learned stands behind it
    tokens = bytes(CODEC.chat(messages).tokens)
    assert tokens == b"user: q\x03\nassistant: WRONG\x03\nuser: q\x03\nassistant: right\x03"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"weight": 0.5}, 'message 2 has "weight" 0.5; use 0 for not learned, or 1'),
        ({"weight": "0"}, "message 2 has \"weight\" '0'; use 0"),
        ({"weight": True}, 'message 2 has "weight" True; use 0'),
        ({"weight": 0}, "messages has none of the assistant, whose weight is not 0, so there is nothing to learn"),
        (
            {"tool_calls": CALL, "content": ""},
            'message 2 has "tool_calls", which is not understood; write what it says',
        ),
        ({"tool_calls": CALL, "content": None}, 'message 2 has "tool_calls"'),
        ({"function_call": {"name": "f"}, "content": None}, 'message 2 has "function_call"'),
        ({"refusal": "I will not"}, 'message 2 has "refusal", which is not understood; write it into "content"'),
        ({"reasoning_content": "hm"}, 'message 2 has "reasoning_content"'),
        ({"thinking": "hm"}, 'message 2 has "thinking"'),
        ({"name": "Ann"}, 'message 2 has "name"'),
        ({"train": False}, 'message 2 has "train", which is not understood; say "weight": 0 in a message'),
        ({"loss_mask": [0]}, 'message 2 has "loss_mask"'),
        ({"prefix": True}, 'message 2 has "prefix", which is not understood; take it out'),
        ({"from": "gpt", "value": "x"}, 'message 2 has "from", which is not understood; call it "role"'),
        ({"content": [{"type": "text", "text": "x"}]}, "message 2 has content that is a list of parts; write its text"),
        ({"content": None}, "message 2 lacks a role of system, user, assistant, or content that is text"),
        ({"content": {"a": 1}}, "message 2 lacks a role"),
        ({"role": "tool"}, 'message 2 has the role "tool", which is not understood; use user, with what it said'),
        ({"role": "developer"}, 'message 2 has the role "developer", which is not understood; use system'),
        ({"role": "Assistant"}, "message 2 lacks a role of system, user, assistant"),
        ({"role": ["user"]}, "message 2 lacks a role"),
    ],
)
def test_fields_of_messages_that_are_not_understood_are_refused(changes: dict, told: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with pytest.raises(ValueError) as error:
        learned(path, {"messages": [USER, RIGHT]}, {"messages": [USER, RIGHT | changes]})
    assert f"data {str(path)!r}, line 2: {told}" in str(error.value)
    assert str(error.value).count("leave the line out") <= 1


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"messages": [USER, RIGHT], "tools": [{"type": "function"}]}, 'it has "tools", which is not understood'),
        (
            {"messages": [USER, RIGHT], "system": "be kind"},
            'it has "system", which is not understood; make it a message',
        ),
        ({"messages": [USER, RIGHT], "prompt": "q"}, 'it has "messages" and "prompt" too; leave one of them out'),
        ({"prompt": "a", "completion": "b", "label": False}, 'it has "label"'),
        (
            {"prompt": "a", "completion": "b", "weight": 0.5},
            'it has "weight", which is not understood; say "weight": 0',
        ),
        ({"prompt": "a", "completion": "b", "input": "c"}, 'it has "input", which is not understood; call the texts'),
        ({"prompt": "a", "completion": "b", "rejected": "c"}, 'it has "rejected"'),
        ({"prompt": "a", "completion": "b", "images": ["x.png"]}, 'it has "images"'),
        (
            {"prompt": "a", "completion": "b", "sample_weight": 0},
            'it has "sample_weight", which is not understood; say',
        ),
        ({"messages": [USER, RIGHT], "loss-mask": [0]}, 'it has "loss-mask", which is not understood; say "weight": 0'),
        ({"messages": [USER, RIGHT], "train_on_inputs": True}, 'it has "train_on_inputs"'),
        ({"messages": {"role": "user"}}, "messages is no list of messages"),
        ({"conversations": [{"from": "human", "value": "q"}]}, 'it has "conversations", which is not understood; call'),
        ({"instruction": "a", "output": "b"}, 'it has "instruction", which is not understood; call the texts "prompt"'),
    ],
)
def test_fields_of_lines_that_have_a_meaning_elsewhere_are_refused(fields: dict, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:
        learned(tmp_path / "x.jsonl", fields)
    assert f"line 1: {told}" in str(error.value)


def test_what_says_nothing_is_passed_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty fields, as exports of APIs have them, and notes."""
    idle = {"refusal": None, "tool_calls": [], "function_call": None, "name": "", "annotations": [], "id": "m7"}
    line = {"id": 7, "messages": [USER | idle, RIGHT | idle], "prompt": None, "tools": [], "metadata": {"a": 1}}
    assert learned(tmp_path / "x.jsonl", line) == ["right\x03"]
    line = {"messages": None, "prompt": "a", "completion": "b", "source": "there", "system": None}
    assert learned(tmp_path / "x.jsonl", line) == ["b\x03"]
    assert capsys.readouterr().err == ""


def test_other_fields_are_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"prompt": f"{i}", "completion": "b", "mood": "glad", "lang": "en"} for i in range(9)]
    lines[0]["glossary"] = "no loss"
    learned(tmp_path / "x.jsonl", {"messages": [USER, RIGHT], "mood": "sad"}, *lines)
    said = capsys.readouterr().err
    assert said == (
        f'fourbit: data {str(tmp_path / "x.jsonl")!r} has fields that are not read: "mood" in 10 lines, "lang" in 9 '
        'lines, "glossary" in 1 line\n'
    )


def test_a_field_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"prompt": "a", "completion": "b", "prompt": "c"}\n')
    with pytest.raises(ValueError, match='line 1: it has "prompt" twice; correct the line'):
        load_examples(str(path), CODEC, 48, 0, 0)
    path.write_text(
        '{"messages": [{"role": "user", "content": "a", "content": "b"}, {"role": "assistant", "content": "c"}]}\n'
    )
    with pytest.raises(ValueError, match='line 1: it has "content" twice'):
        load_examples(str(path), CODEC, 48, 0, 0)


@pytest.mark.parametrize(
    ("contents", "told"),
    [
        (b'{"prompt": "caf\xe9", "completion": "b"}', "line 2: 'utf-8' codec can't decode byte 0xe9"),
        ('{"prompt": "a"}'.encode("utf-16-le"), "has NUL bytes, as parquet and UTF-16 have; name JSON Lines in UTF-8"),
        (b"PAR1\0\0\0\0", "has NUL bytes"),
        (b"[1]", "line 2: it holds a list, no object"),
    ],
)
def test_bytes_that_are_no_lines_of_json_name_file_and_line(contents: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "completion": "b"}\r\n' + contents + b"\n")  # a mark is no fault
    with pytest.raises(ValueError) as error:
        load_examples(str(path), CODEC, 48, 0, 0)
    assert str(error.value).startswith(f"data {str(path)!r}") and told in str(error.value)


def test_roles_alone_decide_without_weights() -> None:
    found = messages_of([{"role": "system", "content": "s"}, USER, RIGHT])
    assert [(m.role, m.content, m.learned) for m in found] == [
        ("system", "s", False),
        ("user", "q", False),
        ("assistant", "right", True),
    ]
