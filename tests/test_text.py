"""Contract of reference.text, and of corpora of JSON Lines and parquet as bytes: which documents there are, in which
order and on which side, and that a bad file is told by name, line and remedy.

Oracles: files written here, their documents joined by hand, and the rule of `token_folders`. Everything is exact.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_folders import documents, held_out, json_lines, sides

from reference.data import Corpus, load_corpus
from reference.text import chooser, find


def joined(texts: list[bytes]) -> bytes:
    return b"".join(text + b"\0" for text in texts)


def check(corpus: Corpus, expected: dict[str, list[bytes]]) -> None:
    """The bytes of both parts, each document ended by 0, and what is told of them."""
    for part, array in (("train", corpus.train), ("heldout", corpus.heldout)):
        assert array.dtype == np.uint8 and array.tobytes() == joined(expected[part])
    assert (corpus.files_train, corpus.files_heldout) == (len(expected["train"]), len(expected["heldout"]))
    assert corpus.bytes_train == sum(map(len, expected["train"]))
    assert corpus.bytes_heldout == sum(map(len, expected["heldout"]))
    assert corpus.vocab == 256 and corpus.token_bytes.tolist() == [0] + [1] * 255


def test_lines_are_documents_ended_by_0(tmp_path: Path) -> None:
    texts = documents(60)
    path = json_lines(tmp_path / "a.jsonl", texts)
    corpus = load_corpus(str(path))
    check(corpus, sides(path, texts))
    assert corpus.description == f"{path} (60 documents)"
    other = json_lines(tmp_path / "docs.ndjson", texts, "content")
    check(load_corpus(str(other), text_field="content"), sides(other, texts))


def test_blank_lines_count_and_empty_documents_do_not(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one"}\r\n\n  \n{"text": ""}\n{"text": "five"}')
    assert list(find(str(path)).documents()) == [("a.jsonl:1", b"one"), ("a.jsonl:5", b"five")]


def test_endings_count_in_any_case(tmp_path: Path) -> None:
    texts = documents(60)
    path = json_lines(tmp_path / "A.JSONL", texts)
    check(load_corpus(str(path)), sides(path, texts))
    (tmp_path / "b.Parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"b\.Parquet' (cannot be read as parquet|is parquet, which needs pyarrow)"):
        load_corpus(str(tmp_path / "b.Parquet"))


def test_a_single_record_is_split_by_position(tmp_path: Path) -> None:
    path = json_lines(tmp_path / "a.jsonl", ["x" * 20 + "y" * 6])
    check(load_corpus(str(path)), {"train": [b"x" * 20 + b"y" * 4], "heldout": [b"yy"]})


def test_a_folder_mixes_kinds_and_each_document_ends(tmp_path: Path) -> None:
    json_lines(tmp_path / "b.jsonl", ["one", "two"])
    (tmp_path / "a.txt").write_bytes(b"plain")
    (tmp_path / "c.md").write_bytes(b"last")
    corpus = load_corpus(str(tmp_path))
    names = ["a.txt", "b.jsonl:1", "b.jsonl:2", "c.md"]
    held = [held_out(name) for name in names]
    assert sorted(corpus.train.tobytes().split(b"\0") + corpus.heldout.tobytes().split(b"\0")) == sorted(
        [b"plain", b"one", b"two", b"last", b"", b""]
    )
    assert [name for name, _ in find(str(tmp_path)).documents()] == names and not any(held)


def test_the_digest_covers_documents(tmp_path: Path) -> None:
    digests = {
        load_corpus(str(json_lines(tmp_path / "a.jsonl", texts))).digest
        for texts in (["ab", "c"], ["a", "bc"], ["ab", "c", "d"], ["ab", "d"])
    }
    assert len(digests) == 4
    again = json_lines(tmp_path / "a.jsonl", ["ab", "c"])
    assert load_corpus(str(again)).digest in digests
    assert load_corpus(str(json_lines(tmp_path / "b.jsonl", ["ab", "c"]))).digest not in digests


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(min_size=1, max_size=6), min_size=2, unique=True))
def test_few_documents_fill_both_sides(names: list[str]) -> None:
    names = [name.encode(errors="replace").decode() for name in names]
    if len(set(names)) < len(names):
        return
    chosen = {name for name in names if chooser(names)(name)}
    by_rule = {name for name in names if held_out(name)}
    assert 0 < len(chosen) < len(names)
    if 0 < len(by_rule) < len(names):
        assert chosen == by_rule


# what is in line 3 of a file, and what is said of it
BAD_LINES = [
    (b'{"text": "x"', r"is not JSON \(Expecting ',' delimiter, column 13\); correct the line"),
    (b"text", r"is not JSON \(Expecting value, column 1\); correct the line or leave it out"),
    (b'{"text": "\xff"}', r"is not JSON \('utf-8' codec can't decode byte 0xff.*\); correct"),
    (b'{"text": "x"} {"text": "y"}', r"is not JSON \(Extra data, column 15\); correct"),
    (b'{"text": ' + b"9" * 5000 + b"}", r"is not JSON \(Exceeds the limit.*\); correct|has a int in 'text'"),
    (b"[" * 200_000, r"is nested too deep; correct|is not JSON"),
    (b'["text"]', r"holds a list, not an object; write one object with the field 'text' a line"),
    (b"null", r"holds a NoneType, not an object"),
    (b'{"content": "x", "id": 7}', r"has no field 'text', only 'content', 'id'; name .* with --text-field"),
    (b"{}", r"has no field 'text', only nothing; name"),
    (b'{"text": null}', r"has a NoneType in 'text', not text; leave it out, or name another with --text-field"),
    (b'{"text": ["x"]}', r"has a list in 'text', not text"),
    (b'{"text": "a\\ud800b"}', r"has half a surrogate pair in 'text' \(.*\); correct the line"),
    (b'{"text": "a\\u0000b"}', r"has a NUL character in 'text'; leave it out"),
]


@pytest.mark.parametrize(("line", "says"), BAD_LINES, ids=[str(line[:20]) for line, _ in BAD_LINES])
def test_a_bad_line_is_told_by_its_number(tmp_path: Path, line: bytes, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b'\n{"text": "fine"}\n')
    with pytest.raises(ValueError, match=rf"^data: file '.*a\.jsonl', line 3, ({says})") as caught:
        load_corpus(str(path))
    assert "\n" not in str(caught.value)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_are_documents_or_one_sentence(tmp_path_factory: pytest.TempPathFactory, line: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_bytes(b'{"text": "one"}\n' + line)
    try:
        found = list(find(str(path)).documents())
    except ValueError as error:
        assert str(error).startswith(f"data: file {str(path)!r}, line ") and "\n" not in str(error)
    else:
        assert found[0] == ("a.jsonl:1", b"one")
        assert all(
            json.loads(line.split(b"\n")[int(name[8:]) - 2])["text"].encode() == text for name, text in found[1:]
        )


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("a.txt", {"text_field": "body"}, r"text_field 'body' does nothing here: .* holds no \.jsonl.*; leave it out"),
        ("a.txt", {"end_token": "</s>"}, r"end_token '</s>' does nothing without a tokenizer; leave it out"),
        ("blank.jsonl", {}, r"data '.*blank\.jsonl' holds no text: every document in it is empty; name files with"),
        ("one.jsonl", {}, r"data: file 'one\.jsonl:1' has 1 byte, too few to hold a part out; use more text"),
        ("binary.txt", {}, r"data: file '.*binary\.txt' is binary"),
        ("binary.parquet", {}, r"data: file '.*binary\.parquet' cannot be read as parquet \(.*\); restore it"),
        ("folder.jsonl", {}, r"is a folder with no file in it"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, name: str, arguments: dict[str, str], says: str) -> None:
    files = {"a.txt": b"text", "blank.jsonl": b'\n{"text": ""}\n', "one.jsonl": b'{"text": "x"}'}
    for own, contents in (files | {"binary.txt": b"a\0", "binary.parquet": b"PAR1 or not"}).items():
        (tmp_path / own).write_bytes(contents)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(ValueError, match=says) as caught:
        load_corpus(str(tmp_path / name), **arguments)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------- parquet


def rows(path: Path, columns: dict[str, list[object]], group: int = 7) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table(columns), path, row_group_size=group)
    return path


def test_rows_are_documents(tmp_path: Path) -> None:
    texts = documents(60)
    path = rows(tmp_path / "a.parquet", {"n": list(range(60)), "body": texts})
    check(load_corpus(str(path), text_field="body"), sides(path, texts))
    read: list[int] = []
    list(find(str(path), "body").documents(read.append))
    assert sum(read) == path.stat().st_size  # a progress bar ends where the file does


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        (["a", "b"], "other", r"has no column 'other', only 'body'; name the one with the text with --text-field"),
        (["a", None], "body", r"row 2, has a NoneType in 'body', not text"),
        ([1, 2], "body", r"row 1, has a int in 'body', not text"),
        (["a", "b\0"], "body", r"row 2, has a NUL character"),
    ],
)
def test_bad_rows_are_told(tmp_path: Path, values: list[object], field: str, says: str) -> None:
    path = rows(tmp_path / "a.parquet", {"body": values})
    with pytest.raises(ValueError, match=rf"^data: file '.*a\.parquet',? {says}"):
        load_corpus(str(path), text_field=field)


@pytest.mark.parametrize("kind", ["string", "large_string"])
def test_a_row_of_other_bytes_than_utf_8_is_told(tmp_path: Path, kind: str) -> None:
    """Parquet does not check what a column of text holds; a writer's binary column, called text, is such a file."""
    pyarrow = pytest.importorskip("pyarrow")
    values = [b"fine"] * 9 + [b"caf\xe9 au lait"] + [b"fine"] * 9
    held = pyarrow.array(values, pyarrow.large_binary() if kind == "large_string" else pyarrow.binary())
    column = pyarrow.Array.from_buffers(getattr(pyarrow, kind)(), len(held), held.buffers())
    path = rows(tmp_path / "a.parquet", {"body": column})
    told = r"row 10, is not UTF-8 in 'body' \(invalid continuation byte, byte 3\); correct the row or leave it out"
    with pytest.raises(ValueError, match=rf"^data: file '.*a\.parquet', {told}"):
        load_corpus(str(path), text_field="body")


def test_a_truncated_parquet_file_is_refused(tmp_path: Path) -> None:
    path = rows(tmp_path / "a.parquet", {"text": documents(30)})
    whole = path.read_bytes()
    for size in (0, 4, 30, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"a\.parquet' cannot be read as parquet|has no column") as caught:
            load_corpus(str(path))
        assert "\n" not in str(caught.value)


def test_without_a_reader_parquet_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"a\.parquet' is parquet, which needs pyarrow; pip install 'fourbit\[data\]'"):
        load_corpus(str(tmp_path))
