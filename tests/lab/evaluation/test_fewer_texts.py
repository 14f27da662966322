"""A corpus with fewer texts than are wanted: the record and one line say so."""

import json

import pytest

from diffattn.lab.evaluation.protocol import shortfall, used_of
from diffattn.lab.evaluation.registry import protocol_class
from diffattn.lab.evaluation.selection import Selection
from evaluation_folders import evaluated

PROTOCOLS = {
    "outliers": ("num_windows", {"window_tokens": 24, "windows_per_document": 1}),
    "nll_by_position": ("documents", {"length": 24}),
    "sliding_perplexity": ("documents", {"tokens": 24, "windows": (16,), "stride": 8}),
    "hallucination": (
        "samples",
        {"prompt_tokens": 600, "max_new_tokens": 2, "rouge": False, "lookback": False},
    ),
}


@pytest.mark.parametrize("wanted", [9, 2])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_fewer_texts_than_are_wanted_are_told(name, wanted, models, text, tmp_path):
    """Of two texts; not where all that are wanted are there, or some items alone are asked."""
    number, settings = PROTOCOLS[name]
    (tmp_path / "texts").mkdir()
    if name == "hallucination":
        rows = [{"document": text[i : i + 90], "summary": "s"} for i in (0, 90)]
        data = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "texts" / "xsum.jsonl").write_text(data)
    else:
        for i in range(2):
            (tmp_path / "texts" / f"{i}.txt").write_text(text[i * 300 : i * 300 + 300])
    source = {"data" if name == "hallucination" else "texts": str(tmp_path / "texts")}
    protocol, lines = protocol_class(name)(**settings, **source, **{number: wanted}), []
    model = models["diff"]
    result, _ = evaluated(model, protocol, tmp_path / "out", on_message=lines.append)
    used = result.tables["used"]
    assert (used["wanted"], used["used"]) == (wanted, 2)
    told = f"2 {used['unit']} are used where 9 were wanted"
    assert [line.startswith(told) for line in lines] == ([True] if wanted == 9 else [])
    few = {"selection": Selection(limit=1), "on_message": lines.append}
    evaluated(model, protocol, tmp_path / "one", **few)
    assert len(lines) == (wanted == 9)
    assert shortfall(used_of(used["unit"], None, 2)) is shortfall({"documents": ["a"]}) is None
