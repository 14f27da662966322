"""A corpus with fewer texts than are wanted: the record and one line say so."""

import json

import pytest

from diffattn.lab.evaluation.hallucination.hallucination import Hallucination
from diffattn.lab.evaluation.outliers import Outliers
from diffattn.lab.evaluation.perplexity.nll_by_position import NllByPosition
from diffattn.lab.evaluation.perplexity.perplexities import SlidingPerplexity
from diffattn.lab.evaluation.protocol import Part, shortfall, used_of
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.evaluation.selection import Selection


@pytest.fixture
def protocol(request, tmp_path, text):
    """A protocol over two texts, of which so many are wanted."""
    name, wanted = request.param
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(2):
        (folder / f"{i}.txt").write_text(text[i * 300 : i * 300 + 300])
    rows = [{"document": text[:90], "summary": "s"}, {"document": text[90:180], "summary": "s"}]
    (folder / "xsum.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts, xsum = {"texts": str(folder)}, str(folder / "xsum.jsonl")
    made = {
        "outliers": lambda: Outliers(
            **texts, num_windows=wanted, window_tokens=24, windows_per_document=1
        ),
        "nll_by_position": lambda: NllByPosition(**texts, documents=wanted, length=24),
        "sliding_perplexity": lambda: SlidingPerplexity(
            **texts, documents=wanted, tokens=24, windows=(16,), stride=8
        ),
        "hallucination": lambda: Hallucination(
            data=xsum, samples=wanted, prompt_tokens=600, max_new_tokens=2, rouge=False,
            lookback=False,
        ),
    }  # fmt: skip
    if name != "hallucination":
        (folder / "xsum.jsonl").unlink()
    return made[name]()


NAMES = ("outliers", "nll_by_position", "sliding_perplexity", "hallucination")


@pytest.mark.parametrize("protocol", [(name, 9) for name in NAMES], indirect=True)
def test_fewer_texts_are_said(protocol, models, tmp_path):
    said = []
    part = Part(variant="x", protocol=protocol)
    result = evaluate(models["diff"], part, tmp_path / "out", on_message=said.append)
    used = result.tables["used"]
    assert (used["wanted"], used["used"]) == (9, 2)
    (line,) = said
    assert line.startswith(f"2 {used['unit']} are used where 9 were wanted")
    chosen = Selection(limit=1)
    evaluate(models["diff"], part, tmp_path / "one", selection=chosen, on_message=said.append)
    assert said == [line]  # a part of the items was asked for


@pytest.mark.parametrize("protocol", [(name, 2) for name in NAMES], indirect=True)
def test_enough_texts_are_not(protocol, models, tmp_path):
    said = []
    part = Part(variant="x", protocol=protocol)
    result = evaluate(models["diff"], part, tmp_path / "out", on_message=said.append)
    assert (result.tables["used"]["wanted"], result.tables["used"]["used"]) == (2, 2)
    assert said == []


def test_all_that_there_are_is_never_too_few():
    assert shortfall(used_of("documents", None, 2)) is None
    assert shortfall({"documents": ["a"]}) is None
