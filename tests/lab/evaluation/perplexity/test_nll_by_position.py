"""Loss by position: averages, buckets, documents, and the power law."""

import numpy as np
import pytest

from diffattn.lab.evaluation.perplexity.nll_by_position import NllByPosition
from evaluation_folders import evaluated, values

HEADER = "Title: A Book\n\n*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***\n"
FOOTER = "\n*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***\nLicence.\n"


@pytest.fixture(scope="module")
def books(tmp_path_factory, sentences):
    """Two long books with licence, and a short one."""
    folder = tmp_path_factory.mktemp("books")
    for seed, size in enumerate((120, 120, 4)):
        book = f"{HEADER}{sentences(130 * seed, size)}{FOOTER}"
        (folder / f"book{seed}.txt").write_text(book, encoding="utf-8")
    return str(folder)


def run(model, folder, **parameters):
    return evaluated(model, NllByPosition(**parameters), folder)


def test_averages_are_those_of_the_losses(models, books, sentences, tmp_path):
    model = models["diff"]
    result, _ = run(model, tmp_path / "out", texts=books, length=300)
    rows = [
        np.array(model.encode(sentences(130 * seed, 120)))[:300] for seed in (0, 1)
    ]  # without the licence
    mean = np.mean(model.prefix_losses(rows, model.start()), axis=0)
    cumulative = np.cumsum(mean) / np.arange(1, 301)
    for at, value in values(result, "nll", "position").items():
        assert value == pytest.approx(cumulative[at - 1])
    table = result.tables["cumulative"]
    np.testing.assert_allclose(table["mean"], cumulative[np.array(table["position"]) - 1])
    buckets = result.tables["buckets"]
    sizes = np.array(buckets["last"]) - np.array(buckets["first"]) + 1
    assert sizes.sum() == 300
    assert sizes @ np.array(buckets["mean"]) == pytest.approx(mean.sum())
    for first, last, value in zip(*(buckets[k] for k in ("first", "last", "mean")), strict=True):
        assert value == pytest.approx(mean[first - 1 : last].mean())
    texts = [model.decode(row.tolist()) for row in rows]
    bits = sum(len(t.encode()) for t in texts)
    assert values(result, "bits_per_byte", "position")[None] == pytest.approx(
        300 * 2 * mean.mean() / np.log(2) / bits
    )


def test_the_power_law_of_a_curve_that_is_one():
    protocol = NllByPosition(length=4096)
    x = np.array(protocol._positions(), float)
    curve = 3 * x**-0.4 + 2
    rows = [
        {
            "cluster": str(i),
            "cumulative": (curve + shift).tolist(),
            "buckets": [1.0] * (len(protocol._edges()) - 1),
            "bytes": 10,
            "scores": {"nll_last_half": 1.0, "bits_per_byte": 1.0},
        }
        for i, shift in enumerate((-0.1, 0.1))
    ]
    law = protocol.summarise(rows).tables["power_law"]
    assert (law["alpha"], law["beta"], law["gamma"]) == pytest.approx((3, -0.4, 2))
    assert law["r2"] == pytest.approx(1)
    assert law["beta_low"] == pytest.approx(-0.4)
    flat = [row | {"cumulative": np.full(len(x), 3.0).tolist()} for row in rows]
    assert "must vary" in protocol.summarise(flat).tables["power_law"]["none"]


def test_windows_of_a_book_share_its_cluster(models, books, tmp_path):
    result, rows = run(models["softmax"], tmp_path / "out", texts=books, length=200, windows=3)
    assert [row["id"] for row in rows] == [f"book{b}.txt:{w}" for b in (0, 1) for w in range(3)]
    assert {row["cluster"] for row in rows} == {"book0.txt", "book1.txt"}
    assert result.metrics[0].n == 2


def test_without_bos_the_first_token_is_given(build, books, tmp_path):
    model = build("softmax", add_bos=False)
    protocol = NllByPosition(texts=books, length=200, windows=2, documents=1)
    (first, second) = [item.payload for batch in protocol.batches(model) for item in batch]
    assert len(first) == len(second) == 201
    assert first[-1] == second[0]
    assert run(model, tmp_path / "out", texts=books, length=200)[0].num_failed == 0
