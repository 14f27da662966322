"""Orders of the same demonstrations, and the range that chance brings."""

import re

import numpy as np
import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.icl.label_protocols import OrderRobustness, _ranges
from evaluation_folders import evaluated


@pytest.mark.parametrize("format", ["random", "alternating"])
def test_every_kind_of_model(model, files, tmp_path, format):
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


@pytest.mark.parametrize("format", ["random", "alternating"])
def test_the_labels_of_an_asked_prompt_stand_in_the_order_of_its_format(models, files, format):
    """Two demonstrations of each of six classes: class by class in turn, or as they are drawn."""
    model = models["diff"]
    protocol = OrderRobustness(data=files, format=format, per_class=2, orders=3, test_items=4)
    in_turn = []
    for batch in protocol.batches(model):
        row = protocol.ask(model, batch[:1])[0]
        ready = protocol.ready(model)
        shown = ready.readers[row["order"]].text(model, row["shots"])
        labels = re.findall(rf"(?m)^{re.escape(ready.task.known.y_prefix)}(.+)$", shown)
        assert sorted(labels) == sorted(example.label for example in ready.order)
        assert row["prompt"]["begins"].startswith(shown[:200])
        assert len(labels) == 12
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


def test_demonstrations_that_do_not_fit(build, files):
    with pytest.raises(ConfigError, match="Choose a smaller per_class"):
        OrderRobustness(data=files, per_class=9, test_items=4).batches(
            build("diff", max_length=200)
        )
