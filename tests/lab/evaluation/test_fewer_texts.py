"""A corpus with fewer texts than are wanted: the record and one line say so."""

import pytest

from diffattn.lab.evaluation.protocol import protocol_class, shortfall, used_of
from evaluation_folders import evaluated

PROTOCOLS = {
    "outliers": ("num_windows", {"window_tokens": 24, "windows_per_document": 1}),
    "nll_by_position": ("documents", {"length": 24}),
}


@pytest.mark.parametrize("wanted", [9, 2])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_fewer_texts_than_are_wanted_are_told(name, wanted, models, text, tmp_path):
    """Of two texts; not where all that are wanted are there, or some items alone are asked."""
    number, settings = PROTOCOLS[name]
    (tmp_path / "texts").mkdir()
    for i in range(2):
        (tmp_path / "texts" / f"{i}.txt").write_text(text[i * 300 : i * 300 + 300])
    settings = settings | {"texts": str(tmp_path / "texts"), number: wanted}
    protocol, lines = protocol_class(name)(**settings), []
    result, _ = evaluated(models["diff"], protocol, tmp_path / "out", on_message=lines.append)
    used = result.tables["used"]
    assert (used["wanted"], used["used"]) == (wanted, 2)
    told = f"2 {used['unit']} are used where 9 were wanted"
    assert [line.startswith(told) for line in lines] == ([True] if wanted == 9 else [])
    few = {"limit": 1, "on_message": lines.append}
    evaluated(models["diff"], protocol, tmp_path / "one", **few)
    assert len(lines) == (wanted == 9)
    assert shortfall(used_of(used["unit"], None, 2)) is shortfall({"documents": ["a"]}) is None
