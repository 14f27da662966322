"""Balanced rounds, orders, and demonstrations that are read once."""

from collections import Counter

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.icl.data import Example
from diffattn.lab.evaluation.icl.demonstrations import (
    SEPARATOR,
    DemonstrationReader,
    IclTask,
    balanced_rounds,
    kept_per_model,
    longest_kept,
    most_within,
    skipped_classes,
)
from diffattn.lab.evaluation.icl.label_protocols import ManyShot
from scripted_model import LoggedModel

SIZES = {"a": 2, "b": 5, "c": 4}
EXAMPLES = [Example(f"{label}{i}", label) for label, n in SIZES.items() for i in range(n)]


def test_rounds_hold_every_class_once_until_it_is_used_up():
    order = balanced_rounds(EXAMPLES, seed=1)
    assert Counter(order) == Counter(EXAMPLES)  # without replacement
    rounds = [order[0:3], order[3:6], order[6:8], order[8:10], order[10:11]]
    assert [sorted(one.label for one in r) for r in rounds] == [
        ["a", "b", "c"], ["a", "b", "c"], ["b", "c"], ["b", "c"], ["b"],
    ]  # fmt: skip
    assert order == balanced_rounds(EXAMPLES, seed=1) != balanced_rounds(EXAMPLES, seed=2)
    assert balanced_rounds(EXAMPLES, 1, 7) == order[:7]
    assert [most_within([4, 3, 2], room) for room in (3, 4, 6, 7, 9)] == [0, 1, 1, 2, 3]


def test_skipped_classes_are_counted_once_a_round_without_them_is_complete():
    order = balanced_rounds(EXAMPLES, seed=1)
    assert [skipped_classes(order, n) for n in range(12)] == [0] * 8 + [1, 1, 1, 2]


def test_the_longest_hundredth_is_left_out():
    assert longest_kept([Example("x" * n, "a") for n in range(1, 201)]) == 198
    assert longest_kept([Example("xy", "a")]) == 2


@pytest.mark.parametrize("dataset", ["trec", "trec_fine", "banking77", "clinic150"])
def test_joined_pieces_are_the_tokens_of_the_whole_prompt(models, files, dataset):
    model = models["diff"]
    task = IclTask(model, ManyShot(dataset=dataset, data=files), 5, seed=0)
    known, order = task.known, balanced_rounds(task.train, 0)[:9]
    pieces = task.encode(model, order)
    for i, question in task.questions.items():
        text = SEPARATOR.join(
            [f"{known.x_prefix}{one.text}\n{known.y_prefix}{one.label}" for one in order]
            + [f"{known.x_prefix}{task.test[i].text}\n{known.y_prefix.strip()}"]
        )
        joined = [token for piece in pieces for token in piece] + question
        assert joined == model.encode_prompt(text)
        for label, path in zip(task.trie.labels, task.trie.paths, strict=True):
            assert [*joined, *path] == model.encode_prompt(f"{text} {label}\n")


def test_fewer_test_items_are_a_part_of_more(models, files):
    trec = ManyShot(data=files)
    few, more = (IclTask(models["diff"], trec, n, seed=0).test for n in (3, 9))
    assert set(few) < set(more)
    with pytest.raises(ConfigError, match="test_items must be at most"):
        IclTask(models["diff"], trec, 99, seed=0)


def test_steps_are_read_once_and_always_the_same(models):
    model = LoggedModel(models["softmax"])
    pieces = [[i + 1] * (3 + i) for i in range(9)]
    reader = DemonstrationReader(pieces, [2, 5, 9])
    prefixes = [reader.prefix(model, n) for n in (2, 5, 5, 9)]
    assert model.reads == [7, 18, 38]
    assert [prefix.length for prefix in prefixes] == [7, 25, 25, 63]
    later = DemonstrationReader(pieces, [2, 5, 9]).prefix(model, 9)
    for a, b in zip(prefixes[-1].cache.layers, later.cache.layers, strict=True):
        assert torch.equal(a.keys, b.keys)  # an interrupted run rounds as an uninterrupted one
    assert reader.prefix(model, 2).length == 7  # back to the beginning


def test_what_is_prepared_is_kept_for_equal_settings(models):
    made = []
    ready = kept_per_model(lambda settings, model: made.append((settings, model)) or len(made))
    assert [ready(settings, models["diff"]) for settings in ("a", "a", "b")] == [1, 1, 2]
    assert ready("b", models["softmax"]) == 3
    assert made == [("a", models["diff"]), ("b", models["diff"]), ("b", models["softmax"])]
