"""Small tokenizers of the library `tokenizers`, one of each kind that models come with; each has an end of text."""

from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

TEXT = [
    "It's 'fine'  that year is 1999;\n\tdon't  Stop ab ba 15=51 né über 東京",
    "hello world, the cat sat on the mat",
] * 9


def byte_level(decoder: bool = True) -> Any:
    """Byte-level BPE, as GPT-2 and Qwen have it."""
    own = tokenizers.Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(TEXT, trainer("Bpe", 340, ["<|endoftext|>"], initial_alphabet=letters))
    if decoder:
        own.decoder = decoders.ByteLevel()
    return own


def llama(bos: bool = False) -> Any:
    """BPE of SentencePiece with byte fallback, as Llama 2 and Mistral have it: 0 to 2 are special, 3 to 258 bytes. bos:
    with a token before every text, which their files put there."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *"0123456789+-abcdefghijklmnop"]
    vocab = {token: i for i, token in enumerate([*names, *(f"▁{d}" for d in "0123456789")])}
    merges = [("▁", d) for d in "0123456789"]
    own = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    own.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(" ", 1, 0)
    own.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    own.add_special_tokens(["<unk>", "<s>", "</s>"])
    if bos:
        pair = {"single": "<s> $A", "pair": "<s> $A <s> $B"}
        own.post_processor = processors.TemplateProcessing(**pair, special_tokens=[("<s>", 1)])
    return own


def unigram() -> Any:
    """Unigram of SentencePiece, as T5 has it."""
    own = tokenizers.Tokenizer(models.Unigram())
    own.normalizer, own.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    own.decoder = decoders.Metaspace()
    own.train_from_iterator(TEXT, trainer("Unigram", 90, ["<unk>", "</s>"], unk_token="<unk>"))
    return own


def word_pieces() -> Any:
    """WordPiece, as BERT has it, which cuts, pads, and puts tokens around a text."""
    own = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    own.normalizer, own.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    own.decoder = decoders.WordPiece()
    own.train_from_iterator(TEXT, trainer("WordPiece", 120, ["[UNK]", "[SEP]", "[PAD]"]))
    own.post_processor = processors.BertProcessing(("[SEP]", 1), ("[UNK]", 0))
    own.enable_truncation(5)
    own.enable_padding(length=9, pad_id=2, pad_token="[PAD]")
    return own


def trainer(kind: str, vocab: int, special: list[str], **more: Any) -> Any:
    made = getattr(tokenizers.trainers, f"{kind}Trainer")
    return made(vocab_size=vocab, special_tokens=special, show_progress=False, **more)
