"""Perplexity by sliding windows, per word, and over blocks as the usual scripts have it."""

import json
import math

import numpy as np
import pytest
import torch

from diffattn.lab.evaluation.perplexity.perplexities import (
    BlockPerplexity,
    SlidingPerplexity,
    WordPerplexity,
)
from evaluation_folders import evaluated


@pytest.fixture(scope="module")
def texts(tmp_path_factory, sentences):
    folder = tmp_path_factory.mktemp("texts")
    for seed in range(3):
        (folder / f"{seed}.txt").write_text(sentences(100 * seed, 30 + 20 * seed))
    return folder


def test_sliding_perplexity(models, texts, tmp_path):
    model = models["diff"]
    protocol = SlidingPerplexity(windows=(32, 64), stride=16, tokens=150, texts=str(texts))
    result, _ = evaluated(model, protocol, tmp_path / "out")
    assert (result.num_items, result.num_failed) == (6, 0)
    for window in (32, 64):
        losses = [
            model.sliding_losses(
                np.array(model.encode((texts / f"{i}.txt").read_text()))[:150],
                window=window - 1, stride=16, given=model.start(),
            ).mean()
            for i in range(3)
        ]  # fmt: skip
        (metric,) = [m for m in result.headline() if m.where == {"window": window}]
        assert metric.value == pytest.approx(math.exp(np.mean(losses)))
        assert metric.low < metric.value < metric.high


def test_a_window_over_the_whole_text_gives_every_token_its_whole_prefix(models, texts, tmp_path):
    model, text = models["diff"], (texts / "0.txt").read_text()
    protocol = WordPerplexity(window=1024, stride=512, texts=str(texts / "0.txt"))
    result, _ = evaluated(model, protocol, tmp_path / "a")
    (losses,) = model.prefix_losses([np.array(model.encode(text))], model.start())
    assert len(losses) < 1023
    expected = math.exp(losses.sum() / len(text.split()))
    assert result.headline()[0].value == pytest.approx(expected)


def test_word_perplexity_is_a_ratio_of_totals(models, texts, tmp_path):
    model = models["diff"]
    result, _ = evaluated(
        model, WordPerplexity(window=64, stride=32, texts=str(texts)), tmp_path / "out"
    )
    totals = result.tables["totals"]
    documents = [(texts / f"{i}.txt").read_text() for i in range(3)]
    assert totals["words"] == sum(len(text.split()) for text in documents)
    assert totals["bytes"] == sum(len(text.encode()) for text in documents)
    assert totals["tokens"] == sum(len(model.encode(text)) for text in documents)
    by_name = {metric.name: metric for metric in result.metrics}
    assert by_name["word_perplexity"].value == pytest.approx(
        math.exp(totals["nll"] / totals["words"])
    )
    assert by_name["bits_per_byte"].value == pytest.approx(
        totals["nll"] / math.log(2) / totals["bytes"]
    )
    assert by_name["word_perplexity"].n == 3


def test_the_words_do_not_depend_on_bos(build, texts, tmp_path):
    """Without BOS the end token stands in, so that every word is predicted."""
    protocol = WordPerplexity(window=64, stride=32, texts=str(texts))
    (with_bos, _), (without, _) = (
        evaluated(build("softmax", add_bos=bos), protocol, tmp_path / str(bos))
        for bos in (True, False)
    )
    assert with_bos.tables["totals"]["tokens"] == without.tables["totals"]["tokens"]


LINES = [" ", " = The King = ", " ", " The old king and the river . ", " ", " A house . "]


def usual_script(model, text, block):
    """The loop of the usual scripts: loss by the network itself, times and by the block's size."""
    ids = torch.tensor([model.tokenizer(text)["input_ids"]])
    count = ids.shape[1] // block
    total = 0.0
    for i in range(count):
        part = ids[:, i * block : (i + 1) * block]
        with torch.no_grad():
            total += float(model.network(part, labels=part).loss) * block
    return math.exp(total / (count * block)), count


@pytest.fixture(scope="module")
def rows(text):
    """Rows as the data set has them: a line with its end, or nothing."""
    lines = [*LINES, *(f" {sentence} . " for sentence in text.split(". ")[:120])]
    return [f"{line}\n" if line.strip() else "" for line in lines]


def test_it_is_the_usual_number(models, rows, tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    protocol = BlockPerplexity(block=128, texts=str(tmp_path / "rows.jsonl"), layout="wikitext")
    result, _ = evaluated(models["diff"], protocol, tmp_path / "out")
    expected, count = usual_script(models["diff"], "\n\n".join(rows), 128)
    assert count > 3
    assert result.num_items == count
    (metric,) = result.headline()
    assert metric.value == pytest.approx(expected, rel=1e-5)
    assert metric.where == {"block": 128}
    assert result.tables["totals"]["tokens"] == count * 127


def test_the_raw_file_gives_the_rows_of_the_data_set(rows, tmp_path):
    raw = "".join(row or " \n" for row in rows)
    (tmp_path / "wiki.test.raw").write_text(raw)
    protocol = BlockPerplexity(texts=str(tmp_path / "wiki.test.raw"), layout="wikitext")
    # The file begins with a blank line, and load_corpus keeps it.
    assert protocol._text() == "\n\n".join(rows)
    assert BlockPerplexity(texts=str(tmp_path / "wiki.test.raw"))._text() != protocol._text()
    assert BlockPerplexity(texts="hub:wikitext", split="train").split == "train"


def test_documents_are_joined_and_the_block_is_the_models(build, text, tmp_path):
    for i in range(2):
        (tmp_path / f"{i}.txt").write_text(text[i * 3_000 : (i + 1) * 3_000].strip())
    model = build("softmax", max_length=64)
    result, _ = evaluated(model, BlockPerplexity(texts=str(tmp_path), blocks=5), tmp_path / "out")
    whole = "\n\n".join((tmp_path / f"{i}.txt").read_text() for i in range(2))
    ids = torch.tensor(model.encode(whole)[: 5 * 64]).view(5, 64)
    with torch.no_grad():
        loss = model.network(ids, labels=ids).loss
    assert result.headline()[0].value == pytest.approx(math.exp(float(loss)), rel=1e-5)
    assert result.num_items == 5
