"""Shares of an evaluation make the whole one; a limit takes the same items of every model."""

import pytest
from test_runner import Counting

from diffattn.errors import ConfigError
from diffattn.files.io import read_jsonl
from diffattn.lab.evaluation.compare import compare
from diffattn.lab.evaluation.protocol import Item, Part
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.evaluation.selection import Selection, limited
from diffattn.lab.evaluation.session import run_evaluation
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.records.evaluations import EvalResult
from record_files import change_record


def part(**parameters):
    return Part(variant="counting", protocol=Counting(**parameters))


def items(count, size=1):
    return [Item(id=str(i), payload=i, cluster=str(i // size)) for i in range(count)]


@pytest.mark.parametrize("shares", [1, 2, 3, 7])
def test_shares_are_every_batch_once(shares):
    batches = [items(3), items(2), items(1), items(4)]
    parts = [Selection(shard=(i + 1, shares)).select(batches) for i in range(shares)]
    together = [batch for of in parts for batch in of]
    assert sorted(map(len, together)) == [1, 2, 3, 4]
    assert Selection().select(batches) == batches


@pytest.mark.parametrize("limit", [1, 4, 5, 30, 99])
def test_a_limit_keeps_clusters_whole_and_spreads_over_all(limit):
    whole = items(30, size=2)
    chosen = limited(whole, limit)
    assert chosen == limited(whole, limit)
    assert len(chosen) == (1 if limit == 1 else min(30, limit // 2 * 2))
    if limit == 4:  # one cluster of either half
        assert len({int(name) // 15 for name in chosen}) == 2
    if limit > 1:
        assert all(str(int(name) ^ 1) in chosen for name in chosen)


def test_a_limit_is_recorded_and_never_mixed(models, tmp_path):
    result = evaluate(
        models["diff"], part(), tmp_path / "b" / "counting", selection=Selection(limit=4)
    )
    assert (result.num_items, result.selection) == (4, {"limit": 4})
    evaluate(models["softmax"], part(), tmp_path / "a" / "counting")
    found = compare(tmp_path, ["a", "b"], ["counting"])
    assert not found.differences
    assert "it was asked 4 items (--limit), softmax all" in found.skipped[0]


def test_the_last_share_puts_all_together(models, tmp_path, monkeypatch):
    monkeypatch.setattr(LanguageModel, "load", lambda *ignored, **more: models["diff"])
    for i in (1, 2):
        results, _ = run_evaluation(
            [part()], {"diff": "x"}, tmp_path / "out", selection=Selection(shard=(i, 2))
        )
    whole = evaluate(models["diff"], part(), tmp_path / "alone")
    merged = EvalResult.read(tmp_path / "out" / "diff" / "counting")
    assert results == [merged]
    assert (merged.metrics, merged.num_items, merged.selection) == (whole.metrics, 6, {})
    assert (tmp_path / "out" / "diff" / "counting" / "items.jsonl").read_bytes() == (
        tmp_path / "alone" / "items.jsonl"
    ).read_bytes()
    share = EvalResult.read(tmp_path / "out" / "diff" / "counting.shard-1-of-2")
    assert (share.num_items, share.metrics, share.selection) == (3, [], {"shard": [1, 2]})
    third = Selection(shard=(3, 3))  # of two batches
    empty = evaluate(models["diff"], part(), tmp_path / "counting.shard-3-of-3", selection=third)
    assert (empty.num_items, empty.metrics) == (0, [])


def test_a_whole_evaluation_takes_what_shares_have_asked(models, tmp_path, monkeypatch):
    shard = Selection(shard=(2, 2))
    evaluate(models["diff"], part(), tmp_path / "counting.shard-2-of-2", selection=shard)
    asked = []
    original = Counting.ask
    monkeypatch.setattr(
        Counting, "ask", lambda *a: asked.extend(i.id for i in a[2]) or original(*a)
    )
    result = evaluate(models["diff"], part(), tmp_path / "counting")
    assert asked == ["0", "1", "2"]
    assert result.num_items == 6
    assert [row["id"] for row in read_jsonl(tmp_path / "counting" / "items.jsonl")] == list(
        "012345"
    )


def test_shares_of_other_settings_or_damaged_ones_are_named_and_left_out(models, tmp_path):
    for i, bad in ((1, ()), (2, (5,))):
        evaluate(
            models["diff"], part(bad=bad), tmp_path / f"counting.shard-{i}-of-2",
            selection=Selection(shard=(i, 2)),
        )  # fmt: skip
    change_record(tmp_path / "counting.shard-1-of-2" / "result.json", kind="other")
    said = []
    result = evaluate(models["diff"], part(), tmp_path / "counting", on_message=said.append)
    assert (result.num_items, result.num_failed) == (6, 0)
    assert said[0].startswith("A share is left out: ")
    assert said[1] == "counting.shard-2-of-2 has other settings and is left out"


@pytest.mark.parametrize("text", ["2", "0/2", "3/2", "a/b", "1/2/3", "-1/2", "/", "1/0"])
def test_what_is_no_share(text):
    with pytest.raises(ConfigError, match="--shard: must be i/n"):
        Selection.read(text, None)
    assert Selection.read("2/3", 5) == Selection(shard=(2, 3), limit=5)
    with pytest.raises(ConfigError, match="--limit"):
        Selection(limit=0)
