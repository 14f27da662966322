"""Measures of small models: readers that follow a rule have the values known beforehand."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from diffattn.lab.data.recall_tasks import LookupConfig, ManyShotConfig
from diffattn.lab.data.synthetic import Shots, generate, many_shots
from diffattn.lab.training import practical_measures as measures
from diffattn.lab.training.practical_measures import answers, order_answers

LOOKUP = LookupConfig(context_len=14, num_queries=5)
SHOTS = ManyShotConfig(num_shots=20)


class Reader(torch.nn.Module):
    """A causal language model whose next token follows from a rule of the tokens before it."""

    device = torch.device("cpu")

    def __init__(self, rule, vocab_size):
        super().__init__()
        self.rule, self.vocab_size = rule, vocab_size

    def forward(self, input_ids, **options):
        chosen = [[self.rule(row[: i + 1]) for i in range(len(row))] for row in input_ids.tolist()]
        logits = torch.nn.functional.one_hot(torch.tensor(chosen), self.vocab_size).float()
        return SimpleNamespace(logits=logits)


def looks_up(tokens):
    key, *_ = tokens[-1:]
    places = [i for i, token in enumerate(tokens[:-1]) if token == key and i <= LOOKUP.context_len]
    return tokens[places[0] + 1] if places else LOOKUP.not_there


def counts_labels(tokens):
    """The first of the labels that are shown most often; of a new class the first label."""
    group = (tokens[-1] - 1) // SHOTS.items_per_class
    pairs = zip(tokens[1::2], tokens[2::2], strict=False)
    seen = Counter(label for item, label in pairs if (item - 1) // SHOTS.items_per_class == group)
    best = max(seen.values(), default=0)
    return min((x for x in seen if seen[x] == best), default=SHOTS.first_label)


def test_a_lookup_is_answered_by_its_context_alone():
    batch = generate(LOOKUP, 60, seed=3)
    right = batch.labels.gather(1, batch.queries)
    assert torch.equal(answers(Reader(looks_up, LOOKUP.vocab_size), batch, rows=7), right)
    assert 0.08 < (right == LOOKUP.not_there).double().mean() < 0.18  # an eighth of 300
    assert (batch.input_ids[:, 0] == 0).all()


def test_found_and_unsupported_are_counted_apart(monkeypatch):
    """Both extremes, and a reader that always names the first value of the context."""
    monkeypatch.setattr(measures, "_SEQUENCES", 12)
    monkeypatch.setattr(measures, "BITS", ())
    monkeypatch.setattr(measures, "attention_shares", lambda *_: {})
    first_value = 1 + LOOKUP.num_keys

    def guesses(tokens):
        values = [x for x in tokens if first_value <= x < first_value + LOOKUP.num_values]
        return values[0] if values else 0

    refusing, naming = (
        measures.practical_measures(Reader(rule, LOOKUP.vocab_size), LOOKUP)
        for rule in (lambda tokens: LOOKUP.not_there, guesses)
    )
    assert len(refusing) == 2 * len(measures.PAIRS) * len(measures.LENGTHS)
    for name, value in refusing.items():
        assert value == 0, name
        expected = 1.0 if name.startswith("unsupported") else 1 / int(name.split("_")[1])
        assert naming[name] == pytest.approx(expected, abs=0.25 * (expected < 1)), name


def test_a_reader_that_counts_reaches_the_vote_and_ignores_order(monkeypatch):
    monkeypatch.setattr(measures, "_ORDERED_SETS", 3)
    reader = Reader(counts_labels, SHOTS.vocab_size)
    shots = many_shots(SHOTS, 80, seed=4)
    hits = answers(reader, shots.batch()) == torch.from_numpy(shots.answers)
    votes = [float(x) for x in measures.vote_accuracy(SHOTS, shots)]
    assert hits.double().mean(0).tolist() == pytest.approx(votes, abs=0.2)
    assert float(hits[:, 1:].double().mean()) == pytest.approx(np.mean(votes[1:]), abs=0.03)
    chosen, _ = order_answers(reader, SHOTS)
    assert (chosen == chosen[:, :1]).all()
    last, _ = order_answers(Reader(lambda tokens: tokens[-2:][0], SHOTS.vocab_size), SHOTS)
    assert not (last == last[:, :1]).all()  # the last label shown goes with the order


def test_orders_hold_the_same_examples(monkeypatch):
    """Every row asked for is a set's examples, its labels with them, and one item to classify."""
    monkeypatch.setattr(measures, "_ORDERED_SETS", 2)
    rows = []
    reader = Reader(lambda tokens: rows.append(tokens) or 1, SHOTS.vocab_size)
    order_answers(reader, SHOTS)
    whole = [row for row in rows if len(row) == 2 * 17]
    examples = [tuple(zip(row[1:-1:2], row[2::2], strict=True)) for row in whole]
    assert len(whole) == 2 * measures.NUM_ORDERS * 16
    assert len({tuple(sorted(pairs)) for pairs in examples}) == 2
    assert len(set(examples)) == 2 * measures.NUM_ORDERS


def test_the_vote_by_hand():
    """Two right labels outvote a wrong one; of a tie half is right; a new class is guessed."""
    task = ManyShotConfig(num_shots=5, num_classes=2, known_classes=2, num_labels=2)
    a, b = task.first_label, task.first_label + 1
    shots = Shots(
        items=np.array([[1, 2, 1, 3, 2]]),
        shown=np.array([[a, b, a, b, a]]),
        answers=np.array([[a, a, a, b, a]]),
    )
    assert [float(x) for x in measures.vote_accuracy(task, shots)] == [0.5, 1, 0.5, 0.5, 1]


def test_the_best_reader_is_sure_without_noise_and_beats_the_vote_with_it():
    """Of two classes and two labels one example names both, but for a quarter that is wrong."""
    small = {"num_classes": 2, "known_classes": 2, "num_labels": 2}
    sure = measures.best_accuracy(ManyShotConfig(wrong=0.0, **small), 80)
    assert [sure[f"shots_{n}"] for n in (0, 1, 47)] == pytest.approx([0.5, 1, 1])
    one = measures.best_accuracy(ManyShotConfig(wrong=0.25, **small), 80)
    assert [one[f"shots_{n}"] for n in (0, 1, 2)] == pytest.approx([0.5, 0.75, 0.75], abs=0.08)
    shots = many_shots(ManyShotConfig(noisy=1.0), 400, seed=6)
    votes = [float(x) for x in measures.vote_accuracy(SHOTS, shots)]
    best = measures.best_accuracy(ManyShotConfig(), 80)
    assert all(best[f"shots_{n}"] > votes[n] - 0.05 for n in (0, 1, 2, 4, 8, 16, 23))
    assert best["shots_8"] > votes[8] + 0.02


def test_labels_are_new_in_every_sequence_and_wrong_as_often_as_asked():
    shots = many_shots(ManyShotConfig(num_shots=200, wrong=0.3, noisy=0.5), 400, seed=5)
    wrong = (shots.shown != shots.answers).mean(1)
    assert 0.4 < (wrong > 0.1).mean() < 0.6
    assert wrong[wrong > 0.1].mean() == pytest.approx(0.3, abs=0.02)
    groups, names = (shots.items - 1) // 2, shots.answers
    pairs = [
        set(zip(*(x.tolist() for x in row), strict=True)) for row in zip(groups, names, strict=True)
    ]
    assert all(len(row) == len(dict(row)) == len({y for _, y in row}) == 4 for row in pairs)
    assert len({y for row in pairs for x, y in row if x == 0}) == 6
