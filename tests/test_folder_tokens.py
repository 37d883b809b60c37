"""Contract of reference.folder_tokens: AutoTokenizer reads the tokens of a run off its export, and gives back its text;
a run that starts from a folder has the folder's tokens, or is refused.

Oracles: AutoTokenizer of the library transformers, and the library `tokenizers` on the tokenizer as it was made.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from export_models import SIZES, loaded

from numerics import ops
from reference.alphabet import Alphabet, Bytes, Tokens
from reference.architectures import ARCHITECTURES
from reference.command_line import parse
from reference.export import export, write
from reference.folder_tokens import FolderTokens, require_tokens, tokenizer_contents, tokens_of
from reference.load import load_run
from reference.tokenization import parse_tokenizer
from reference.train import train

pytest.importorskip("tokenizers", reason="not run: the extra `data` is not installed")

from tokenizer_kinds import byte_level, llama, unigram, word_pieces

TEXT = "It's 'fine'  that  year is 1999;\n\tdon't ab né  \u0103\u0303 東京 2+3=5. ab\x7f"
KINDS: dict[str, Any] = {
    "byte level": byte_level,
    "no decoder": lambda: byte_level(decoder=False),
    "llama": llama,
    "llama with a token before": lambda: llama(bos=True),
    "unigram": unigram,
    "word pieces, cut and padded": word_pieces,
}


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """As the runs have."""


def alphabet_of(own: Any, end_token: str | None = None) -> Tokens:
    return Tokens(parse_tokenizer(own.to_str().encode(), "t", end_token), Path("t"), end_token)


def placed(alphabet: Alphabet, folder: Path, kind: str = "qwen2_moe") -> Path:
    """A folder with the files of the tokens, and what of config.json AutoTokenizer looks at."""
    folder.mkdir()
    for name, contents in tokenizer_contents(alphabet, 24).items():
        (folder / name).write_bytes(contents)
    (folder / "config.json").write_text(json.dumps({"model_type": kind, "eos_token_id": alphabet.end}))
    return folder


def auto(folder: Path) -> Any:
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("name", KINDS)
def test_auto_tokenizer_reads_the_tokens_of_the_run(name: str, kind: str, tmp_path: Path) -> None:
    alphabet = alphabet_of(KINDS[name]())
    theirs = auto(placed(alphabet, tmp_path / "f", kind))
    ours = alphabet.encode(TEXT.encode())
    assert theirs.encode(TEXT) == ours and theirs(TEXT)["input_ids"] == ours
    assert theirs.decode(ours) == alphabet.decode(ours)
    assert theirs.eos_token_id == alphabet.end and theirs.model_max_length == 24


@pytest.mark.parametrize("end", [None, 3])
def test_auto_tokenizer_reads_bytes(end: int | None, tmp_path: Path) -> None:
    folder = placed(Bytes(end), tmp_path / "f")
    theirs, text = auto(folder), "\x00\x01\t\r\n né\u0103\u0124 東京 \U0001f600\x7f\u00ad\uffff<|endoftext|> ab"
    assert theirs.encode(text) == list(text.encode()) and theirs.decode(theirs.encode(text)) == text
    assert theirs.eos_token_id == end and len(theirs) == 256
    every = "".join(map(chr, range(128)))
    assert theirs.encode(every) == list(range(128))
    if end is not None:
        assert theirs.decode([97, end, 98], skip_special_tokens=True) == "ab"
    theirs.save_pretrained(tmp_path / "again")
    (tmp_path / "again" / "config.json").write_text('{"model_type": "qwen2_moe"}')
    assert tokens_of(folder) == tokens_of(tmp_path / "again") == FolderTokens(None)


@pytest.mark.parametrize("name", KINDS)
def test_what_was_written_is_read_again(name: str, tmp_path: Path) -> None:
    """Also what AutoTokenizer writes after it has read it."""
    alphabet = alphabet_of(KINDS[name]())
    folder = placed(alphabet, tmp_path / "f")
    found = tokens_of(folder)
    assert found == FolderTokens(folder / "tokenizer.json")
    contents = (folder / "tokenizer.json").read_bytes()
    again = Tokens(parse_tokenizer(contents, "t"), folder / "tokenizer.json", None)
    assert again.encode(TEXT.encode()) == alphabet.encode(TEXT.encode()) and again.end == alphabet.end
    assert tokenizer_contents(again, 24)["tokenizer.json"] == contents
    auto(folder).save_pretrained(tmp_path / "again")
    (tmp_path / "again" / "config.json").write_text('{"model_type": "qwen2_moe"}')
    saved = tokens_of(tmp_path / "again")
    assert saved is not None and saved.file is not None
    third = Tokens(parse_tokenizer(saved.file.read_bytes(), "t", saved.end_token), saved.file, saved.end_token)
    assert third.encode(TEXT.encode()) == alphabet.encode(TEXT.encode()) and third.end == alphabet.end


def test_an_end_that_is_a_word_stays_one(tmp_path: Path) -> None:
    """A token of the vocabulary alone that ends documents would cut words if the library made it special."""
    alphabet = alphabet_of(byte_level(), "a")
    folder = placed(alphabet, tmp_path / "f")
    theirs = auto(folder)
    assert theirs.encode("that cat") == alphabet.encode(b"that cat") and theirs.eos_token_id is None
    assert tokens_of(folder) == FolderTokens(folder / "tokenizer.json", "a")


# ---- a run that starts from a folder ---------------------------------------------------------------------------------


def folder_of(alphabet: Alphabet, folder: Path) -> Path:
    """An export of a model with these tokens."""
    run = loaded("bf16", replace(SIZES, vocab=max(alphabet.size, 256)))
    run = replace(run, alphabet=alphabet)
    write(export(run, "bf16"), run, folder)
    return folder


def words(tmp_path: Path, folder: Path, *more: str) -> list[str]:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat; 15=51 ab\n" * 150)
    small = "--steps 1 --batch 1 --grain 1 --warmup 0 --eval-every 1 --eval-sequences 1 --monitor-every 0 --preset bf16"
    given = ["--out", str(tmp_path / "run"), *([] if "--data" in more else ["--data", str(text)])]
    return [*given, *small.split(), "--progress", "hide", "--init-from", str(folder), "--model.sequence", "24", *more]


@pytest.mark.parametrize("name", ["llama with a token before", "bytes"])
def test_a_run_has_the_tokens_of_its_folder_and_its_export_the_same(name: str, tmp_path: Path) -> None:
    alphabet = Bytes() if name == "bytes" else alphabet_of(KINDS[name]())
    folder = folder_of(alphabet, tmp_path / "mine")
    config = parse(words(tmp_path, folder))
    assert config.tokenizer == (None if name == "bytes" else folder / "tokenizer.json") and config.end_token is None
    train(config, ops)
    run = load_run(config.out)
    assert run.alphabet.encode(b"2+3=5") == alphabet.encode(b"2+3=5") and run.alphabet.end == alphabet.end
    write(export(run, "bf16"), run, tmp_path / "again")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / file).read_bytes() == (folder / file).read_bytes()


def test_the_folders_end_counts(tmp_path: Path) -> None:
    """What tokenizer_config.json says before what config.json says before the usual names; given words before all."""
    own = byte_level()
    own.add_special_tokens(["<turn>", "<other>"])
    ids = {name: own.token_to_id(name) for name in ("<turn>", "<other>", "<|endoftext|>")}
    folder = folder_of(alphabet_of(own, "<turn>"), tmp_path / "mine")
    assert parse(words(tmp_path, folder)).end_token == "<turn>"
    assert parse(words(tmp_path, folder, "--end-token", "<other>")).end_token == "<other>"
    given = parse(words(tmp_path, folder, "--tokenizer", "other.json"))
    assert (given.tokenizer, given.end_token) == (Path("other.json"), None)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<other>"}}))
    assert parse(words(tmp_path, folder)).end_token == "<other>"
    (folder / "tokenizer_config.json").unlink()
    config = json.loads((folder / "config.json").read_bytes())
    for end, name in (([ids["<turn>"], 0], "<turn>"), (ids["<|endoftext|>"], None), (None, None), (10**6, None)):
        (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": end}))
        assert parse(words(tmp_path, folder)).end_token == name


def test_other_tokens_than_the_folders_are_refused(tmp_path: Path) -> None:
    folder, other = folder_of(alphabet_of(byte_level()), tmp_path / "mine"), tmp_path / "other.json"
    own = byte_level()
    config = parse(words(tmp_path, folder))
    require_tokens(config)
    other.write_text(own.to_str(pretty=True))  # the same tokens, in another file
    require_tokens(replace(config, tokenizer=other))
    with pytest.raises(
        ValueError, match=r"has a tokenizer, and the data is read as bytes; give --tokenizer .*mine/tok"
    ):
        train(replace(config, tokenizer=None), ops)
    other.write_text(llama().to_str())
    with pytest.raises(ValueError, match=r"token 0 is '<unk>' to '.*other.json' and '<\|endoftext\|>' to init_from"):
        require_tokens(replace(config, tokenizer=other))
    bytes_ = folder_of(Bytes(), tmp_path / "bytes")
    with pytest.raises(
        ValueError, match=r"has bytes for tokens, and the data those of '.*other\.json'; give text instead"
    ):
        require_tokens(replace(config, tokenizer=other, init_from=bytes_))
    (folder / "tokenizer.json").unlink()
    (folder / "merges.txt").touch()
    with pytest.raises(
        ValueError, match=r"has merges\.txt and no tokenizer\.json; write that with AutoTokenizer\.from_pr"
    ):
        parse(words(tmp_path, folder))
    (folder / "merges.txt").unlink()
    described = json.loads((folder / "config.json").read_bytes())
    del described["fourbit"]
    (folder / "config.json").write_text(json.dumps(described))
    with pytest.raises(ValueError, match=r"has 321 tokens and no tokenizer\.json that says which; give --tokenizer"):
        require_tokens(parse(words(tmp_path, folder)))
    require_tokens(parse(words(tmp_path, folder, "--tokenizer", str(other))))


def test_shards_have_tokens_of_their_own(tmp_path: Path) -> None:
    import fourbit

    folder = folder_of(alphabet_of(byte_level()), tmp_path / "mine")
    text = tmp_path / "docs.jsonl"
    text.write_text("".join(json.dumps({"text": f"the cat {i} sat on the mat"}) + "\n" for i in range(90)))
    same = ["--tokenizer", str(folder / "tokenizer.json")]
    for name, more in (("same", same), ("other", ["--vocab", "300"])):
        assert fourbit.main(["tokenize", "--data", str(text), "--out", str(tmp_path / name), *more]) == 0
    config = parse(words(tmp_path, folder, "--data", str(tmp_path / "same")))
    assert config.tokenizer is None
    require_tokens(config)
    with pytest.raises(ValueError, match=r"token \d+ is .* to '.*other/tokenizer\.json' and .* to init_from"):
        require_tokens(parse(words(tmp_path, folder, "--data", str(tmp_path / "other"))))
