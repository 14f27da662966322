"""Perplexity over blocks: the number of the usual WikiText-2 script, and its text."""

import json
import math

import pytest
import torch

from diffattn.lab.evaluation.perplexity.perplexities import BlockPerplexity
from evaluation_folders import evaluated

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


def test_it_is_the_usual_number(model, rows, tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": row}) for row in rows))
    protocol = BlockPerplexity(block=128, texts=str(tmp_path / "rows.jsonl"), layout="wikitext")
    result, _ = evaluated(model, protocol, tmp_path / "out")
    expected, count = usual_script(model, "\n\n".join(rows), 128)
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
