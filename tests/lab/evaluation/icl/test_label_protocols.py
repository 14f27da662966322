"""Labels after demonstrations: nested prompts, both decodings, orders, and the range by chance."""

import dataclasses
import json
import re
from itertools import chain

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.icl.demonstrations import IclTask, balanced_rounds
from diffattn.lab.evaluation.icl.label_protocols import ManyShot, OrderRobustness, _ranges
from diffattn.lab.inference.scoring import Continuation
from evaluation_folders import evaluated
from scripted_model import alone


def prompts(model, protocol, rows):
    """Whole prompts of some rows, put together without anything shared."""
    task = IclTask(model, protocol, protocol.test_items, protocol.seed)
    order = balanced_rounds(task.train, protocol.seed)
    for row in rows:
        pieces = task.encode(model, order[: row["shots"]])
        question = task.questions[int(row["cluster"])]
        yield task, [token for piece in pieces for token in piece] + question


def test_rows_equal_prompts_read_from_scratch(model, files, tmp_path):
    """Log-probabilities of the labels, one whole prompt at a time."""
    protocol = ManyShot(data=files, shots=(4, 9), test_items=2)
    result, rows = evaluated(model, protocol, tmp_path / "out")
    assert (result.num_items, result.num_failed) == (4, 0)
    for row, (task, prompt) in zip(rows, prompts(model, protocol, rows), strict=True):
        assert row["prompt_tokens"] == len(prompt)
        asked = [Continuation(tuple(prompt), path) for path in task.trie.paths]
        scores = [one.logprob for one in alone(model).score(asked)]
        assert row["loglik"] == task.trie.labels[scores.index(max(scores))]
        expected = scores[task.trie.labels.index(row["expected"])]
        assert row["scores"]["expected_logprob"] == pytest.approx(expected, rel=0, abs=1e-12)
        assert row["scores"]["accuracy_loglik"] == (row["loglik"] == row["expected"])


def test_metrics_and_curve(models, files, tmp_path):
    protocol = ManyShot(data=files, shots=(6, 13, 30, 5_000), test_items=8, stable_from=10)
    result, rows = evaluated(models["diff"], protocol, tmp_path / "out")
    fit = sorted({row["shots"] for row in rows})
    assert fit + result.tables["shots_not_asked"] == [6, 13, 30, 5_000]
    assert len(rows) == 8 * len(fit)
    for name in ("accuracy_greedy_trie", "accuracy_loglik"):
        found = {json.dumps(m.where): m for m in result.metrics if m.name == name}
        assert set(found) == {"{}", '{"shots_from": 10}', *(f'{{"shots": {n}}}' for n in fit)}
        each = [found[f'{{"shots": {n}}}'] for n in fit]
        assert found["{}"].value == pytest.approx(sum(m.value for m in each) / len(each))
        late = [m.value for m in each[1:]]
        assert found['{"shots_from": 10}'].value == pytest.approx(sum(late) / len(late))
        assert all((m.n, m.method) == (8, "Wilson") for m in each)
        assert found["{}"].headline == (name == "accuracy_greedy_trie")
    assert {row["labels"] for row in rows} == {6}
    answers = [row["expected"] for row in rows]
    (often,) = (m.value for m in result.metrics if m.name == "most_frequent_answer")
    assert often == max(map(answers.count, answers)) / len(answers)
    # ABBR has two questions in train, and is used up after 12.
    assert all(row["classes_skipped"] == (row["shots"] >= 17) for row in rows)


def test_items_are_the_same_for_every_model_that_they_fit(models, build, files):
    protocol = ManyShot(data=files, shots=(6, 12, 30), test_items=8)
    ids = {
        kind: [item.id for batch in protocol.batches(models[kind]) for item in batch]
        for kind in models
    }
    assert len({tuple(found) for found in ids.values()}) == 1
    short = build("diff", max_length=300)
    few = [item.id for batch in protocol.batches(short) for item in batch]
    assert 0 < len(few) < len(ids["diff"])
    assert few == ids["diff"][: len(few)]
    loglik = dataclasses.replace(protocol, decoding="loglik")
    assert [i.id for b in loglik.batches(short) for i in b] == few


def test_demonstrations_that_do_not_fit_are_told_before_the_first_item(build, files):
    model = build("diff", max_length=200)
    with pytest.raises(ConfigError, match=r"must be at most \d+, which fit diff's 200 tokens, got"):
        ManyShot(data=files, shots=(50,), test_items=4).batches(model)
    with pytest.raises(ConfigError, match="or a smaller per_class"):
        OrderRobustness(data=files, per_class=9, test_items=4).batches(model)


def test_an_interrupted_evaluation_ends_with_the_same_rows(build, files, tmp_path):
    """Bit for bit in float32: demonstrations are read in the same steps from the beginning."""
    protocol = ManyShot(data=files, shots=(5, 11, 17), test_items=4)
    _, whole = evaluated(build("diff"), protocol, tmp_path / "out")
    lines = (tmp_path / "out" / "items.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "out" / "items.jsonl").write_text("".join(lines[:8]))
    (tmp_path / "out" / "result.json").unlink()
    _, resumed = evaluated(build("diff"), protocol, tmp_path / "out")
    assert resumed == whole


@pytest.mark.parametrize("format", ["random", "alternating"])
def test_orders_of_the_same_demonstrations(models, files, tmp_path, format):
    model = models["diff"]
    protocol = OrderRobustness(data=files, format=format, per_class=2, orders=3, test_items=4)
    result, rows = evaluated(model, protocol, tmp_path / "out")
    assert (result.num_items, result.num_failed, result.tables["shots"]) == (12, 0, 12)
    means = result.tables["accuracy_loglik"]["by_order"]
    for order, value in enumerate(means):
        own = [row["scores"]["accuracy_loglik"] for row in rows if row["order"] == order]
        assert value == pytest.approx(np.mean(own))
    found = {m.name: m for m in result.metrics if not m.where}
    assert found["margin_loglik"].value == pytest.approx(max(means) - min(means))
    assert found["margin_greedy_trie"].headline
    assert not found["margin_loglik"].headline
    by_item = {}
    for row in rows:
        by_item.setdefault(row["cluster"], set()).add(row["scores"]["expected_logprob"])
    assert all(len(values) == 3 for values in by_item.values())  # the order does matter
    ready, in_turn = protocol.ready(model), []
    for row in rows[::4]:  # two demonstrations of each of six classes
        reader, _ = protocol.demonstrations(model, ready, row["order"])
        shown = model.decode(list(chain(*reader.pieces)))
        labels = re.findall(rf"(?m)^{re.escape(ready.task.known.y_prefix)}(.+)$", shown)
        assert sorted(labels) == sorted(example.label for example in ready.order)
        assert row["prompt"]["begins"].startswith(shown[:200])
        in_turn.append(len(set(labels[:6])) == 6 and labels[6:] == labels[:6])
    assert in_turn == [format == "alternating"] * 3


def test_margin_of_orders_that_differ_and_of_orders_that_do_not():
    generator = np.random.default_rng(1)
    alike = (generator.random((10, 100)) < 0.8).astype(float)
    facts = _ranges(alike, "loglik", headline=True)[1]
    assert facts["margin_p_value"] > 0.05
    assert facts["margin_expected_dealt"] == pytest.approx(
        facts["margin_expected_binomial"], rel=0.1
    )
    alike[0, :40] = 0.0
    metrics, facts = _ranges(alike, "loglik", headline=True)
    assert facts["margin_p_value"] < 0.01
    margin = metrics[0]
    assert margin.low <= margin.value <= margin.high
    assert margin.value == pytest.approx(facts["best"] - facts["worst"])
    assert margin.value > 2 * facts["margin_expected_binomial"]


def test_items_of_fixed_difficulty_leave_less_to_chance():
    """Answers that never change with the order have no range, whatever binomial draws have."""
    fixed = np.tile(np.array([1.0] * 70 + [0.0] * 30), (10, 1))
    metrics, facts = _ranges(fixed, "loglik", headline=True)
    assert (metrics[0].value, metrics[0].low, metrics[0].high) == (0.0, None, None)
    assert (facts["margin_expected_dealt"], facts["margin_p_value"]) == (0.0, 1.0)
    assert facts["margin_expected_binomial"] > 0.1
