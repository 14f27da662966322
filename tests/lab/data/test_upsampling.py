"""Long documents are read more often, and every source as much as before."""

import numpy as np
import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import Document
from diffattn.lab.data.packing import pack
from diffattn.lab.data.tokens import PackedTokens, TokenDataset, UpsampledTokens, source_of

LONG = 40


@pytest.fixture(scope="module")
def split(tokenizer, tmp_path_factory):
    """Three sources of 40 documents with other shares of long ones, and two files of their own."""
    rng = np.random.default_rng(0)
    documents = [
        Document(name=name, text=f"{name} " + "ab cd\n" * int(lines))
        for source, most in (("books", 60), ("web", 15), ("code", 30))
        for name, lines in ((f"{source}/{i}.txt", rng.integers(1, most)) for i in range(40))
    ]
    documents += [Document(name=f"{name}.txt", text="ab " * 30) for name in ("a", "b")]
    out = tmp_path_factory.mktemp("sources")
    pack(documents, tokenizer, out, validation_fraction=0.05)
    return PackedTokens(out, "train")


def drawn(split, **changes):
    settings = {"longer_than": LONG, "factor": 10.0, "num_tokens": 20 * split.num_tokens, "seed": 3}
    return UpsampledTokens(split, **settings | changes)


def facts(split):
    lengths = np.diff(split.document_offsets)
    return lengths, np.array([source_of(name) for name in split.document_names()])


def test_every_source_keeps_its_share_of_tokens_in_every_pass(split):
    lengths, sources = facts(split)
    assert set(sources) == {"books", "web", "code", ""}
    stream = drawn(split)
    ends = np.searchsorted(stream.document_offsets, stream.pass_ends)
    for first, last in zip([0, *ends[:-1]], ends, strict=True):
        documents = stream.documents[first:last]
        assert lengths[documents].sum() == pytest.approx(split.num_tokens, rel=0.06)
        for source in set(sources):
            before = lengths[sources == source].sum()
            after = lengths[documents[sources[documents] == source]].sum()
            # Whole documents: two of the longest at most are too many or missing.
            assert abs(after - before) < 2 * lengths[sources == source].max()


def test_long_documents_are_drawn_by_the_factor_more_often(split):
    lengths, sources = facts(split)
    counts = np.bincount(drawn(split, num_tokens=200 * split.num_tokens).documents)
    for source in ("books", "web", "code"):
        long = counts[(sources == source) & (lengths > LONG)].mean()
        short = counts[(sources == source) & (lengths <= LONG)].mean()
        assert long / short == pytest.approx(10, rel=0.05)
    share = lengths[lengths > LONG].sum() / lengths.sum()
    stream = drawn(split)
    after = lengths[stream.documents]
    now = after[after > LONG].sum() / after.sum()
    assert now > share + 0.1
    of_tokens = f"{share:.1%} of tokens, now {now:.1%}"
    assert stream.summary == f"long documents, up-sampled within each of 4 sources: {of_tokens}"


def test_draws_follow_from_the_seed_and_a_longer_run_begins_alike(split):
    first, again, other = drawn(split), drawn(split), drawn(split, seed=4)
    assert np.array_equal(first.documents, again.documents)
    assert not np.array_equal(first.documents[:50], other.documents[:50])
    longer = drawn(split, num_tokens=40 * split.num_tokens)
    assert np.array_equal(longer.documents[: len(first.documents)], first.documents)
    starts = first.document_offsets[:-1]
    once, twice = (first.documents[starts < end] for end in first.pass_ends[:2])
    assert not np.array_equal(once, twice[len(once) :])  # a pass is drawn anew


def test_windows_are_the_drawn_documents_one_after_the_other(split):
    stream = drawn(split, num_tokens=split.num_tokens // 2)
    offsets = split.document_offsets
    whole = np.concatenate([split.tokens[offsets[d] : offsets[d + 1]] for d in stream.documents])
    assert len(whole) == stream.num_tokens
    joined = TokenDataset(stream, 13)
    read = torch.cat([item["input_ids"] for item in joined])
    assert read.tolist() == whole[: 13 * len(joined)].tolist()
    for item in TokenDataset(stream, 13, apart=True):
        starts = item["position_ids"] == 0
        assert (item["labels"] == -100).tolist() == starts.tolist()
    end = int(whole[-1])
    apart = TokenDataset(stream, stream.num_tokens, apart=True)[0]["position_ids"].numpy()
    assert (np.flatnonzero(apart == 0)[1:] == np.flatnonzero(whole == end)[:-1] + 1).all()


@pytest.mark.parametrize("longer_than", [1, 10**6])
def test_nothing_or_everything_long_is_refused(split, longer_than):
    with pytest.raises(ConfigError, match="upsample_longer_than must lie between the lengths of"):
        drawn(split, longer_than=longer_than)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("books/a/1.txt", "books"),
        ("arxiv.jsonl:7", "arxiv.jsonl"),
        ("owner/name:en:train:3", "owner"),
        ("a.txt", ""),
    ],
)
def test_the_source_of_a_document_is_in_its_name(name, source):
    assert source_of(name) == source
