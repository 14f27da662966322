"""JSON key-value retrieval: objects, questions, lengths, scores and cells."""

import itertools
import json
import re

import pytest

from diffattn.lab.evaluation.long_context.key_values import KeyValues
from diffattn.lab.evaluation.metrics import NAMED
from evaluation_folders import evaluated
from scripted_model import completing

EXAMPLE = re.compile(r"Key: (\S+)\nCorresponding value: (\S+)\n\n")


def entries(context):
    return json.loads(context[context.index("{") : context.index("}") + 1])


@pytest.mark.parametrize("pairs", [7, 8, 23, 200])
def test_an_object_holds_every_pair_once_and_is_asked_for_five(pairs):
    protocol = KeyValues(num_pairs=(pairs,), samples=20)
    for number in range(4):
        found = protocol._object(pairs, number, pairs)
        body = entries(found.context)
        assert len(body) == pairs
        assert len(set(body.values())) == pairs
        assert len({key for key, _, _ in found.asked}) == 5
        for (key, value, position), prompt in zip(found.asked, found.prompts(), strict=True):
            assert (body[key], list(body)[position]) == (value, key)
            assert prompt == f"{found.context}Key: {key}\nCorresponding value:"
        shown = EXAMPLE.findall(found.context)
        assert len(shown) == 2
        assert all(body[key] == value for key, value in shown)
        assert not {key for key, _ in shown} & {key for key, _, _ in found.asked}


def test_positions_lie_evenly_over_the_object():
    protocol = KeyValues(num_pairs=(100,), samples=100)
    positions = sorted(
        position
        for number in range(20)
        for *_, position in protocol._object(100, number, 100).asked
    )
    assert positions == list(range(100))


def test_values_that_the_output_names_are_counted(long_model, tmp_path):
    """Every value of the object, those of the worked examples too, whatever is asked."""
    first = itertools.count()
    model = completing(
        long_model, lambda text, *_: " ".join(list(entries(text).values())[next(first) :]).upper()
    )
    protocol = KeyValues(num_pairs=(8,), samples=2, questions=2, examples=0)
    result, rows = evaluated(model, protocol, tmp_path / "out")
    assert [row[NAMED] for row in rows] == [1.0, 7 / 8]
    assert [m.value for m in result.headline() if m.name == NAMED] == [15 / 16, 15 / 16]


def test_lengths_are_filled_and_right_answers_counted(long_model, tmp_path):
    asked = []

    def write(text, value, budget):
        """Right in the first half of the object only."""
        asked.append(len(long_model.encode_prompt(text)) + budget)
        place = list(entries(text).values()).index(value)
        return value if place < len(entries(text)) / 2 else ""

    model = completing(long_model, write)
    protocol = KeyValues(lengths=(3000, 4096), samples=16, questions=4)
    result, rows = evaluated(model, protocol, tmp_path / "out")
    recalls = [m for m in result.headline() if m.name == "recall"]
    assert [m.where for m in recalls] == [{}, {"length": 3000}, {"length": 4096}]
    assert all(abs(m.value - 0.5) <= 0.1 for m in recalls)
    assert [m.n for m in recalls] == [8, 4, 4]  # objects, not questions
    assert all(row["guess"] == 1 / (row["pairs"] - 2) for row in rows)  # two were shown
    by_depth = {m.where["depth"]: m.value for m in result.metrics if m.where.get("length") == 4096
                and "depth" in m.where}  # fmt: skip
    assert (by_depth[0], by_depth[80]) == (1.0, 0.0)
    per_pair = 120  # tokens of a pair of UUIDs and JSON marks in this small vocabulary
    for length in (3000, 4096):
        used = [n for n, row in zip(asked, rows, strict=True) if row["length"] == length]
        assert length - per_pair < min(used)
        assert max(used) <= length
        pairs = next(row["pairs"] for row in rows if row["length"] == length)
        larger = protocol._object(length, 0, pairs + 1)
        assert protocol._tokens(long_model, larger) > length
