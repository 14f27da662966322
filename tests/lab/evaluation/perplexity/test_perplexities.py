"""Sliding-window and word-level perplexity: two numbers that answer two questions."""

import math

import numpy as np
import pytest

from diffattn.lab.evaluation.perplexity.perplexities import SlidingPerplexity, WordPerplexity
from evaluation_folders import evaluated


@pytest.fixture(scope="module")
def texts(tmp_path_factory, sentences):
    folder = tmp_path_factory.mktemp("texts")
    for seed in range(3):
        (folder / f"{seed}.txt").write_text(sentences(100 * seed, 30 + 20 * seed))
    return folder


def test_sliding_perplexity_of_every_kind_of_model(model, texts, tmp_path):
    protocol = SlidingPerplexity(windows=(64, 128), stride=32, tokens=300, texts=str(texts))
    result, _ = evaluated(model, protocol, tmp_path / "out")
    assert (result.num_items, result.num_failed) == (6, 0)
    for window in (64, 128):
        losses = [
            model.sliding_losses(
                np.array(model.encode((texts / f"{i}.txt").read_text()))[:300],
                window=window - 1, stride=32, given=model.start(),
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


def test_word_perplexity_is_a_ratio_of_totals(model, texts, tmp_path):
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
