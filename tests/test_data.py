"""Contract of reference.data: which bytes are read, how they are split, and that batches are pure functions.

Oracles: files written here, hashlib, and loops over single sequences. Everything is exact.
"""

import hashlib
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from reference.data import Corpus, batch, heldout_batch, load_corpus, require_sequences
from reference.text import standard_library


@pytest.fixture(scope="module")
def library() -> Corpus:
    return load_corpus()


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return folder


def test_the_default_corpus_is_the_standard_library(library: Corpus) -> None:
    root = Path(sysconfig.get_path("stdlib"))
    both = library.train.tobytes() + library.heldout.tobytes()
    assert (root / "argparse.py").read_bytes() in both
    assert (root / "json" / "decoder.py").read_bytes() in both
    assert len(both) > 4_000_000
    assert b"\0" not in both
    assert 0.04 < len(library.heldout) / len(both) < 0.11
    assert library.files_train > 10 * library.files_heldout > 0
    assert "standard library of Python 3" in library.description


def test_the_default_corpus_leaves_out_installed_packages_and_tests(library: Corpus) -> None:
    root = Path(sysconfig.get_path("stdlib"))
    named = [path.relative_to(root) for path in standard_library()[1]]
    assert len(named) == library.files_train + library.files_heldout + sum(not (root / n).stat().st_size for n in named)
    for part in ("site-packages", "dist-packages", "test", "tests", "__pycache__"):
        assert not any(part in path.parts for path in named)
    assert all(path.suffix == ".py" for path in named)


def test_loading_twice_gives_the_same_corpus(library: Corpus) -> None:
    again = load_corpus()
    assert again.digest == library.digest
    assert np.array_equal(again.train, library.train) and np.array_equal(again.heldout, library.heldout)


def test_files_come_in_the_order_of_their_names_and_the_hash_of_the_name_splits(tmp_path: Path) -> None:
    names = [f"{folder}/{i:02}.txt" for folder in ("b", "a") for i in range(40)]
    write(tmp_path, {name: f"<{name}>".encode() for name in names})
    corpus = load_corpus(str(tmp_path))
    chosen = {name for name in names if int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) % 13 == 0}
    assert 0 < len(chosen) < 20
    assert corpus.heldout.tobytes() == "".join(f"<{name}>" for name in sorted(chosen)).encode()
    assert corpus.train.tobytes() == "".join(f"<{name}>" for name in sorted(set(names) - chosen)).encode()
    assert (corpus.files_train, corpus.files_heldout) == (80 - len(chosen), len(chosen))


def test_digest_covers_names_and_contents_but_not_the_place(tmp_path: Path) -> None:
    files = {"one.txt": b"abc", "two.txt": b"defg"}
    first = load_corpus(str(write(tmp_path / "x", files))).digest
    assert load_corpus(str(write(tmp_path / "elsewhere", files))).digest == first
    others = [
        {"one.txt": b"abd", "two.txt": b"defg"},
        {"one.txt": b"abc", "tw0.txt": b"defg"},
        {"one.txt": b"abcd", "two.txt": b"efg"},
    ]
    # The end of a text and the beginning of the next name do not run into each other.
    near = [{"a": b"xb", "c": b"z"}, {"a": b"x", "bc": b"z"}]
    assert len({load_corpus(str(write(tmp_path / f"near{i}", pair))).digest for i, pair in enumerate(near)}) == 2
    digests = {load_corpus(str(write(tmp_path / str(i), other))).digest for i, other in enumerate(others)}
    assert len({first} | digests) == 4


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_files_still_fill_both_parts(tmp_path: Path, count: int) -> None:
    for trial in range(30):
        corpus = load_corpus(str(write(tmp_path / str(trial), {f"{trial}-{i}": b"text" for i in range(count)})))
        assert corpus.files_train >= 1 and corpus.files_heldout >= 1
        assert corpus.files_train + corpus.files_heldout == count


def test_all_names_falling_on_the_held_out_side_leaves_one_to_train(tmp_path: Path) -> None:
    names = [str(i) for i in range(200) if int(hashlib.sha256(str(i).encode()).hexdigest()[:16], 16) % 13 == 0][:3]
    corpus = load_corpus(str(write(tmp_path, {name: b"text" for name in names})))
    assert (corpus.files_train, corpus.files_heldout) == (1, 2)


def test_a_single_file_is_split_by_position(tmp_path: Path) -> None:
    text = bytes(range(1, 131))
    path = write(tmp_path, {"a.txt": text}) / "a.txt"
    corpus = load_corpus(str(path))
    assert corpus.train.tobytes() == text[:120] and corpus.heldout.tobytes() == text[120:]


def test_globs_match_and_hidden_and_empty_files_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": b"aa", "s/b.txt": b"bb", "s/c.md": b"cc"})
    write(tmp_path, {".git/x.txt": b"\0", "s/.h.txt": b"\0", "e": b""})
    assert {load_corpus(str(tmp_path)).files_train, load_corpus(str(tmp_path)).files_heldout} == {1, 2}
    every = load_corpus(str(tmp_path / "**" / "*.txt"))
    assert sorted(every.train.tobytes() + every.heldout.tobytes()) == sorted(b"aabb")
    assert load_corpus(str(tmp_path / "*.t?t")).train.tobytes() == b"a"
    brackets = write(tmp_path / "[1]", {"z.txt": b"zz"})
    assert load_corpus(str(brackets / "z.txt")).train.tobytes() == b"z"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.txt", "cannot be found"),
        ("", "cannot be found"),
        ("nothing", "is a folder with no file in it"),
        ("*.nope", "is a glob with no file in it"),
        ("empty.txt", "holds no text"),
        ("one.txt", "has 1 byte"),
        ("binary.bin", "is binary"),
        ("mixed", "binary.bin' is binary"),
        ("dangling", "neither a file nor a folder|cannot be found"),
    ],
)
def test_bad_paths_end_in_one_sentence(tmp_path: Path, name: str, says: str) -> None:
    write(
        tmp_path,
        {"empty.txt": b"", "one.txt": b"x", "binary.bin": b"a\0b", "mixed/a.txt": b"a", "mixed/binary.bin": b"\0"},
    )
    (tmp_path / "nothing").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(ValueError, match=says) as caught:
        load_corpus(str(tmp_path / name) if name else "")
    assert "\n" not in str(caught.value) and "data" in str(caught.value) and ";" in str(caught.value)


def test_an_unreadable_file_or_folder_ends_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, {"a.txt": b"text"}) / "a.txt"

    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    # Patched, because a test that runs as root can read everything.
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ValueError, match=r"a\.txt' cannot be read \(Permission denied\)"):
        load_corpus(str(path))
    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(ValueError, match=r"cannot be read \(Permission denied\)"):
        load_corpus(str(tmp_path))


def test_batch_cuts_windows_and_targets_are_one_byte_further() -> None:
    split = np.random.default_rng(0).integers(0, 256, 1000).astype(np.uint8)
    tokens, targets = batch(split, 3, 7, 5, 20)
    assert tokens.shape == targets.shape == (5, 20) and tokens.dtype == targets.dtype == torch.int64
    words = np.random.Philox(key=np.array([3, 7], dtype=np.uint64)).random_raw(5)
    for b in range(5):
        start = int(words[b]) % 980
        assert tokens[b].tolist() == split[start : start + 20].tolist()
        assert targets[b].tolist() == split[start + 1 : start + 21].tolist()


def test_batch_is_frozen() -> None:
    # Known answer, so that no version of numpy or of ours changes the batches of a given seed unnoticed.
    split = np.arange(251, dtype=np.uint8)
    assert batch(split, 1, 2, 6, 1)[0].flatten().tolist() == [127, 50, 183, 234, 13, 234]


def test_batch_depends_on_seed_and_step_alone_and_not_on_its_size() -> None:
    split = np.random.default_rng(1).integers(0, 256, 5000).astype(np.uint8)
    whole = batch(split, 0, 5, 8, 16)[0]
    assert torch.equal(batch(split, 0, 5, 8, 16)[0], whole)
    assert torch.equal(batch(split, 0, 5, 3, 16)[0], whole[:3])
    assert not torch.equal(batch(split, 0, 6, 8, 16)[0], whole)
    assert not torch.equal(batch(split, 1, 5, 8, 16)[0], whole)
    assert not torch.equal(batch(split, 5, 0, 8, 16)[0], whole)


def test_batch_reaches_every_start() -> None:
    split = np.arange(12, dtype=np.uint8)
    starts = {start for step in range(40) for start in batch(split, 0, step, 8, 4)[0][:, 0].tolist()}
    assert starts == set(range(8))  # the last start has its last target at byte 11


def test_heldout_batch_is_spread_and_predicts_no_token_twice() -> None:
    split = np.arange(201, dtype=np.uint8)
    for sequences in (1, 3, 7, 20):
        tokens, targets = heldout_batch(split, sequences, 10)
        assert torch.equal(targets, tokens + 1)
        assert len(set(targets.flatten().tolist())) == sequences * 10
        assert tokens[:, 0].diff().unique().numel() <= 1
        assert sequences == 1 or tokens[-1, 0] >= 200 * (sequences - 1) // sequences - sequences


def test_sequences_that_do_not_fit_are_refused_with_what_would() -> None:
    split = np.arange(57, dtype=np.uint8)
    require_sequences(split, "held-out part", 1, 56)
    with pytest.raises(
        ValueError,
        match=r"sequence 57 is longer than the held-out part \(57 bytes\) of my text; use "
        r"--model\.sequence 56 or less",
    ):
        require_sequences(split, "held-out part", 1, 57, "my text")
    require_sequences(split, "held-out part", 5, 11)
    with pytest.raises(ValueError, match=r"eval_sequences 6 of 11 tokens do not fit into .*; use at most 5"):
        heldout_batch(split, 6, 11)
    with pytest.raises(ValueError, match="sequence 57 is longer than the corpus"):
        batch(split, 0, 1, 1, 57)
