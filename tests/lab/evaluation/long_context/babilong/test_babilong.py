"""BABILong on models: facts in order between sentences, exact length, what is refused."""

from pathlib import Path
from random import Random

import pytest

from diffattn.lab.evaluation.long_context.babilong.babilong import BabiLong
from diffattn.lab.evaluation.long_context.babilong.stories import STORIES, mentioned
from diffattn.lab.evaluation.metrics import guessing
from evaluation_folders import evaluated
from scripted_model import completing


def test_facts_stand_in_order_and_the_text_fills_the_length(long_model, haystack):
    protocol = BabiLong(lengths=(0, 2000, 3000), samples=3, haystack=haystack)
    book = Path(haystack).read_text()
    for batch in protocol.batches(long_model):
        for item in batch:
            length, task, index, longest = item.payload
            story, text, depths, _ = protocol._sample(long_model, length, task, index, longest)
            context = text.split("<context>\n")[1].split("\n</context>")[0]
            if length == 0:
                assert context == " ".join(story.facts)
                continue
            rest, at = context, 0
            for fact in story.facts:
                at = context.index(fact, at) + len(fact)
                rest = rest.replace(fact, "", 1)
            assert all(word in book for word in rest.split())
            assert depths == sorted(depths)
            tokens = len(long_model.encode_prompt(text)) + protocol.max_new_tokens
            assert length - 12 < tokens <= length  # within a word of this small vocabulary


def test_places_are_uniform(long_model, haystack):
    protocol = BabiLong(lengths=(2500,), tasks=("qa4",), samples=100, haystack=haystack)
    depths = [
        depth
        for index in range(100)
        for depth in protocol._sample(long_model, 2500, "qa4", index, 2500)[2]
    ]
    # The mean of 200 uniform depths has a standard error of 100 / sqrt(12 * 200) = 2.04.
    assert abs(sum(depths) / len(depths) - 50) < 4 * 2.04
    assert min(depths) < 5
    assert max(depths) > 95


def test_one_story_at_several_lengths_is_one_cluster(long_model, haystack):
    protocol = BabiLong(haystack=haystack, lengths=(0, 1000), tasks=("qa1", "qa4"), samples=2)
    items = [item for batch in protocol.batches(long_model) for item in batch]
    assert len({item.id for item in items}) == 8
    stories = {}
    for item in items:
        story, *_ = protocol._sample(long_model, *item.payload)
        stories.setdefault(item.cluster, set()).add(story)
    assert [len(equal) for equal in stories.values()] == [1] * 4


def test_right_and_wrong_answers_are_counted(long_model, haystack, tmp_path):
    model = completing(long_model, lambda *_: " kitchen. garden")
    protocol = BabiLong(lengths=(0, 2000), tasks=("qa1", "qa2"), samples=6, haystack=haystack)
    result, rows = evaluated(model, protocol, tmp_path / "out")
    for length in (0, 2000):
        own = [row["expected"] == "kitchen" for row in rows if row["length"] == length]
        mean = next(m for m in result.headline() if m.where == {"length": length})
        assert (mean.name, mean.value) == ("mean_of_2_tasks", pytest.approx(sum(own) / len(own)))
    assert result.headline()[-1].value == 0.0
    assert result.tables["threshold"] == 0.85


def test_default_lengths_hold_the_prompt_and_fit_the_model(build, haystack):
    model = build("softmax", max_length=2500)
    protocol = BabiLong(tasks=("qa5",), samples=2, haystack=haystack)
    lengths = {item.payload[0] for batch in protocol.batches(model) for item in batch}
    assert {0, 2048} <= lengths <= {0, 1024, 2048}


def test_labels_named_without_following_the_story(long_model, haystack, tmp_path):
    """A model that writes the last label scores what the rows say, far above 1 in 6."""
    asked = iter(
        (task, STORIES[task](Random(f"42-{task}-{i}"))) for task in STORIES for i in range(40)
    )
    model = completing(long_model, lambda *_: f" {mentioned(*next(asked))[-1]}")
    protocol = BabiLong(lengths=(0,), samples=40, haystack=haystack)
    result, rows = evaluated(model, protocol, tmp_path / "out")
    for row in rows:
        assert row["guess_of_all_that_fit"] == row["scores"]["accuracy"]
        assert 0 < row["guess"] <= 1
    guess = guessing("babilong", rows, "accuracy")
    mean = next(m.value for m in result.headline() if m.name == "mean_of_5_tasks")
    assert guess.ceiling == pytest.approx(mean)
    assert guess.ceiling > 0.4
    assert guess.chance > 0.25
