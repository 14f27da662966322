"""AR-hit slices: which tokens are hits, exact sums, where data lies."""

from collections import Counter

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import Document, load_corpus
from diffattn.lab.data.packing import pack
from diffattn.lab.data.tokenizer import train_tokenizer
from diffattn.lab.data.tokens import PackedTokens
from diffattn.lab.evaluation.perplexity.ar_hits import ArHits, hit_threshold
from evaluation_folders import evaluated, values


@pytest.fixture(scope="module")
def packed(tmp_path_factory, text, tokenizer):
    """A run directory with packed tokens of eight documents."""
    folder = tmp_path_factory.mktemp("run")
    sentences = text.split(". ")
    documents = [
        Document(name=str(i), text=". ".join(sentences[50 * i : 50 * i + 50])) for i in range(8)
    ]
    pack(documents, tokenizer, folder / "data", validation_fraction=0.2)
    return folder


def run(model, folder, **parameters):
    return evaluated(model, ArHits(**parameters), folder)


def test_a_corpus_gives_what_its_packing_gives_with_a_cluster_per_document(
    models, tokenizer, tmp_path, text
):
    """By the document in which a sequence begins."""
    (tmp_path / "corpus").mkdir()
    for i in range(8):
        part = text[i * len(text) // 8 : (i + 1) * len(text) // 8]
        (tmp_path / "corpus" / f"{i}.txt").write_text(part)
    documents = load_corpus(str(tmp_path / "corpus"))
    pack(documents, tokenizer, tmp_path / "packed", validation_fraction=0.5)
    offsets = PackedTokens(tmp_path / "packed", "validation").document_offsets
    results = []
    for data in ("packed", "corpus"):
        settings = {"length": 64, "validation_fraction": 0.5, "data": str(tmp_path / data)}
        items = [item for batch in ArHits(**settings).batches(models["diff"]) for item in batch]
        clusters = [item.cluster for item in items]
        assert 1 < len(set(clusters)) < len(items)
        begins = [max(np.flatnonzero(offsets <= int(item.id))) for item in items]
        assert clusters == [f"document-{document}" for document in begins]
        results.append(run(models["diff"], tmp_path / f"of-{data}", **settings)[0])
    packed, corpus = results
    assert (packed.metrics, packed.tables) == (corpus.metrics, corpus.tables)
    # A document without hits says nothing of their loss.
    assert next(m.n for m in corpus.metrics if m.name == "nll") == len(set(clusters))


def test_slices_equal_a_walk_with_sets(models, packed, tmp_path):
    model, threshold = models["diff"], 3
    result, _ = run(model, tmp_path / "out", data=str(packed), length=128, threshold=threshold)
    train, validation = (
        PackedTokens(packed / "data", split).tokens for split in ("train", "validation")
    )
    for n in (2, 3):
        seen_in_training = Counter(
            tuple(train[i : i + n].tolist()) for i in range(len(train) - n + 1)
        )
        hits, others = [], []
        for start in range(0, len(validation) - 127, 128):
            tokens = np.array(validation[start : start + 128], dtype=np.int64)
            (losses,) = model.prefix_losses([tokens], model.start())
            seen = set()
            for t in range(128):
                gram = tuple(tokens[max(0, t - n + 1) : t + 1].tolist())
                hit = t >= n - 1 and gram in seen and seen_in_training[gram] <= threshold
                (hits if hit else others).append(losses[t])
                seen.add(gram)
        assert hits
        assert values(result, "ar_hit_nll", "n")[n] == pytest.approx(np.mean(hits))
        assert values(result, "other_nll", "n")[n] == pytest.approx(np.mean(others))
        share = len(hits) / (len(hits) + len(others))
        assert values(result, "ar_hit_share", "n")[n] == pytest.approx(share)
        by_gap = result.tables["by_gap"][str(n)]
        assert sum(one["tokens"] for one in by_gap) == len(hits)
        if n == 2:
            charted = [m for m in result.metrics if m.name == "ar_hit_nll_by_gap"]
            assert [m.where["gap"] for m in charted] == [one["from"] for one in by_gap]
            assert [m.value for m in charted] == pytest.approx([one["nll"] for one in by_gap])
        bins = [*result.tables["by_count_repeated"][str(n)], *result.tables["by_count_new"][str(n)]]
        sequences = len(validation) // 128
        assert sum(one["tokens"] for one in bins) == (128 - n + 1) * sequences
    assert result.tables["train_tokens"] == len(train)
    assert [m.name for m in result.headline()] == ["nll", "ar_hit_nll", "other_nll"]


def test_without_bos_the_first_token_does_not_count(build, packed, tmp_path):
    result, rows = run(build("diff", add_bos=False), tmp_path / "out", data=str(packed), length=64)
    assert {row["tokens"] for row in rows} == {63}
    values = {(m.name, m.where.get("n")): m.value for m in result.metrics}
    parts = [
        values[f"{x}_share", 2] * values.get((f"{x}_nll", 2), 0.0) for x in ("ar_hit", "other")
    ]
    assert sum(parts) == pytest.approx(values["nll", None])


def test_sequences_are_spaced_evenly(models, packed):
    model = models["softmax"]
    few = ArHits(data=str(packed), length=32, sequences=4).batches(model)
    every = ArHits(data=str(packed), length=32).batches(model)
    ids = [int(item.id) for batch in few for item in batch]
    total = sum(map(len, every))
    assert ids == [32 * (i * total // 4) for i in range(4)]


def test_the_threshold_is_in_proportion():
    assert hit_threshold(10_000_000_000) == 1_250
    assert hit_threshold(8_000_000_001) == 1_001
    assert hit_threshold(1_900_000) == 1


def test_a_run_of_a_study_uses_the_study_s_tokens(models, packed):
    study = packed / "runs" / "diff-seed0"
    study.mkdir(parents=True)
    (study / "run.json").write_text("{}")
    protocol = ArHits(data=str(study), length=64, sequences=2)
    assert len(protocol.batches(models["diff"])[0]) == 2


def test_bad_input_is_told_before_the_first_item(models, tmp_path):
    model = models["diff"]
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"must have packed tokens.*got none"):
        run(model, tmp_path / "a", data=str(bare), length=64)
    other = train_tokenizer([Document(name="a", text="other words here " * 9)], vocab_size=300)
    document = Document(name="a", text="a text to be packed " * 200)
    pack([document], other, tmp_path / "other")
    with pytest.raises(ConfigError, match="must come from the tokenizer of diff"):
        run(model, tmp_path / "b", data=str(tmp_path / "other"), length=64)
    (tmp_path / "small.txt").write_text("few words " * 20)
    with pytest.raises(ConfigError, match=r"validation split .* must have 1024 tokens, got \d+"):
        run(model, tmp_path / "d", data=str(tmp_path / "small.txt"), length=1024)
