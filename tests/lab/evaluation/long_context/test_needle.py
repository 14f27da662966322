"""Multi-needle retrieval: what is asked, what counts as found, and the cells of the grid."""

import pytest

from diffattn.lab.evaluation.long_context.needle import Needle, contains_number, forced_number
from diffattn.lab.evaluation.metrics import NAMED
from diffattn.lab.inference.decoding import Generation
from diffattn.lab.inference.scoring import Score
from diffattn.lab.stats.intervals import wilson_interval
from evaluation_folders import evaluated
from language_models import plain_logprobs
from scripted_model import ScriptedModel


def protocol(haystack, **changes):
    values = {
        "tasks": ((1, 1), (3, 2)), "lengths": (600, 700), "depths": (0, 50, 100), "samples": 2,
        "haystack": haystack,
    }  # fmt: skip
    return Needle(**(values | changes))


def test_the_shared_reading_equals_whole_prompts(models, haystack):
    """Scores of the row: the same as from a plain pass over the whole text."""
    model = models["diff"]
    one = protocol(haystack, lengths=(600,))
    batch = one.batches(model)[-1]
    rows = one.ask(model, batch)
    prompts = one.build_prompts(model, one.depths, **one._settings(model, 3, 2, 600, 1))
    for row, prompt in zip(rows, prompts, strict=True):
        (plain,) = model.generate([list(prompt.ids)], max_new_tokens=40, stop=("\n",))
        assert row["output"] == plain.text
        logprobs = []
        for city, number in zip(row["cities"], row["numbers"], strict=True):
            answer = forced_number(model, city, number)
            whole = [*prompt.ids, *answer.context, *answer.target]
            logprobs += plain_logprobs(model, whole)[-len(answer.target) :].tolist()
        expected = sum(logprobs) / len(logprobs)
        assert row["scores"]["logprob_per_token"] == pytest.approx(expected, abs=1e-5)


def test_recall_and_cells(models, haystack, tmp_path):
    """A model that writes the first number asked for, and the second at depth 50 alone; given the
    answer's words, it writes the first alone."""
    one = protocol(haystack)
    answers = iter(
        [
            " ".join(prompt.numbers[: settings["num_asked"] if prompt.depth == 50 else 1])
            for batch in one.batches(models["diff"])
            for settings in [one._settings(models["diff"], *batch[0].payload[:-1])]
            for prompt in one.build_prompts(models["diff"], one.depths, **settings)
        ]
    )
    model = ScriptedModel(
        models["diff"],
        generate=lambda prompts, **_: [Generation((), next(answers), "stop")],
        score=lambda asked, **_: [
            Score((-5.0,) * len(a.target), i == 0) for i, a in enumerate(asked)
        ],
    )
    result, rows = evaluated(model, one, tmp_path / "out")
    assert rows[0]["id"] == "1-1/600/0/0"
    for row in rows:
        assert row["prompt_tokens"] + row["room_tokens"] == row["length"]
        assert ("guess" in row, NAMED in row) == (row["asked"] < row["needles"],) * 2
        if row["needles"] == 3:  # one number named, at depth 50 two
            assert row[NAMED] == (2 / 3 if row["depth"] == 50 else 1 / 3)
    found = {(m.name, *m.where.values()): m for m in result.metrics}
    assert found["recall", "N=1, R=1", 600, 0].value == 1
    assert found["recall", "N=1, R=1", 600, 0].low == wilson_interval(2, 2).low
    assert found["recall", "N=1, R=1", 600].n == 2  # haystacks, not prompts
    assert found["recall", "N=3, R=2", 700].value == pytest.approx(4 / 6)
    assert found["all_correct", "N=3, R=2", 700].value == pytest.approx(1 / 3)
    assert found["digits_greedy", "N=1, R=1", 700].value == 1
    assert found["digits_greedy", "N=3, R=2", 700].value == 0.5
    cells = [
        m
        for m in result.metrics
        if m.name == "recall" and m.where.get("task") == "N=3, R=2" and "depth" in m.where
    ]
    assert [(cell.value, cell.n) for cell in cells] == [(x, 2) for x in (0.5, 0.5, 1, 1, 0.5, 0.5)]


def test_a_cell_without_items_is_left_out(haystack):
    one = protocol(haystack)
    scores = {"recall": 1.0, "all_correct": 1.0, "digits_greedy": 0.0, "logprob_per_token": -1.0}
    row = {"needles": 1, "asked": 1, "length": 700, "depth": 0, "cluster": "a", "scores": scores}
    cells = [m.where for m in one.summarise([row]).metrics if "depth" in m.where]
    assert cells == [{"task": "N=1, R=1", "length": 700, "depth": 0}]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It is 1234567.", True),
        ("No. 1234567th", True),
        ("12345678", False),
        ("01234567", False),
        ("1,234,567", False),
    ],
)
def test_a_number_counts_only_by_itself(text, found):
    assert contains_number(text, "1234567") == found
