"""A limit takes the same items of every model."""

import pytest
from test_runner import Counting

from diffattn.lab.evaluation.compare import compare
from diffattn.lab.evaluation.protocol import Item, Part
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.evaluation.selection import limited


def part(**parameters):
    return Part(variant="counting", protocol=Counting(**parameters))


def items(count, size=1):
    return [Item(id=str(i), payload=i, cluster=str(i // size)) for i in range(count)]


@pytest.mark.parametrize("limit", [1, 4, 5, 30, 99])
def test_a_limit_keeps_clusters_whole_and_spreads_over_all(limit):
    batches = [items(30, size=2)[i : i + 7] for i in range(0, 30, 7)]
    parts = limited(batches, limit)
    chosen = {item.id for part in parts for item in part}
    assert parts == limited(batches, limit)
    assert all(parts)
    assert len(chosen) == sum(map(len, parts))
    assert len(chosen) == (1 if limit == 1 else min(30, limit // 2 * 2))
    if limit == 4:  # one cluster of either half
        assert len({int(name) // 15 for name in chosen}) == 2
    if limit > 1:
        assert all(str(int(name) ^ 1) in chosen for name in chosen)


def test_a_limit_is_recorded_and_never_mixed(models, tmp_path):
    result = evaluate(models["diff"], part(), tmp_path / "b" / "counting", limit=4)
    assert (result.num_items, result.selection) == (4, {"limit": 4})
    evaluate(models["softmax"], part(), tmp_path / "a" / "counting")
    found = compare(tmp_path, ["a", "b"], ["counting"])
    assert not found.differences
    assert "it was asked 4 items (--limit), softmax all" in found.skipped[0]
