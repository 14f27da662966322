"""Every token is shown as what it is of the text."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from diffattn.lab.inspection.maps import token_pieces


def joined(pieces):
    return b"".join(p if isinstance(p, bytes) else p.encode() for p in pieces).decode()


@pytest.mark.parametrize(
    "content", ["the city\n\tis  new ", "naïve 🐱 — ✓", "<b>&amp;\0\x1b[0m\x7f", "مرحبا \u202e x"]
)
def test_pieces_make_the_text(tokenizer, content):
    ids = tokenizer(content, add_special_tokens=False)["input_ids"]
    assert joined(token_pieces(tokenizer, ids)) == content


def test_cut_characters_are_bytes_and_special_tokens_are_names(tokenizer):
    ids = [0, *tokenizer("✓", add_special_tokens=False)["input_ids"], len(tokenizer) + 3]
    pieces = token_pieces(tokenizer, ids)
    assert pieces == ["<|endoftext|>", b"\xe2", b"\x9c", b"\x93", f"<id {len(tokenizer) + 3}>"]


def test_sentencepiece_spaces_and_bytes():
    vocabulary = {"<unk>": 0, "▁the": 1, "<0xE2>": 2, "<0x41>": 3, "a": 4}
    backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    assert token_pieces(tokenizer, [1, 2, 3, 4, 0]) == [" the", b"\xe2", "A", "a", "<unk>"]
