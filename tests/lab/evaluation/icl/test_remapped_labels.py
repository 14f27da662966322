"""Labels renamed to numbers, new for every question."""

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.icl.data import load_icl_data
from diffattn.lab.evaluation.icl.remapped_labels import RemappedLabels, most_shown
from evaluation_folders import evaluated


def test_a_prompt_names_classes_by_numbers_that_change_with_the_question(files):
    data = load_icl_data("trec", files)
    protocol = RemappedLabels(data=files)
    mappings = set()
    for example in data.test:
        prompt, number = protocol.prompt(data, example, 12)
        head, *blocks, last = prompt.split("\n\n")
        assert head.endswith('Only output "label: {label}" and nothing else. ')
        assert last == f"{example.text}\nlabel:"
        shown = {
            one.label: block.split("\nlabel: ")[1]
            for block in blocks for one in data.train if one.text == block.split("\nlabel: ")[0]
        }  # fmt: skip
        assert len(blocks) == 12
        assert sorted(shown.values()) == sorted(map(str, range(6)))
        assert shown[example.label] == number
        mappings.add(tuple(sorted(shown.items())))
    assert len(mappings) > 6
    assert protocol.prompt(data, data.test[0], 12) == protocol.prompt(data, data.test[0], 12)


def test_more_demonstrations_than_examples_begin_anew(files):
    data = load_icl_data("banking77", files)
    prompt, _ = RemappedLabels(data=files).prompt(data, data.test[0], 60)
    assert prompt.count("label: ") == 60 + 1  # the instruction names one
    blocks = prompt.split("\n\n")[1:-1]
    assert len(set(blocks)) <= len(data.train)


def test_rows_and_metrics(models, files, tmp_path):
    protocol = RemappedLabels(data=files, shots=(6, 12, 900), test_items=3)
    data = load_icl_data("trec", files)
    asked = {example.text: (data, example) for example in data.test}
    result, rows = evaluated(models["diff"], protocol, tmp_path / "out")
    assert (result.num_items, result.num_failed) == (6, 0)
    assert result.tables["shots_not_asked"] == [900]
    scores = [m for m in result.headline() if m.name == "exact_match"]
    assert [m.where for m in scores] == [{"shots": 6}, {"shots": 12}]
    for row in rows:
        assert row["among_numbers"] in map(str, range(6))
        assert row["scores"]["exact_match"] == (row["output"].strip() == row["expected"])
        prompt = protocol.prompt(*asked[row["text"]], row["shots"])[0]
        assert row["guess"] == pytest.approx(1 / 6)
        assert row["guess_of_all_that_fit"] == (most_shown(prompt) == row["expected"])
    printed = [m for m in result.headline() if m.name == "guess_of_all_that_fit"]
    assert [m.n for m in printed] == [3, 3]


def test_the_number_that_most_demonstrations_have():
    prompt = '"label: {label}"\n\na\nlabel: 3\n\nb\nlabel: 1\n\nc\nlabel: 3\n\nd\nlabel:'
    assert most_shown(prompt) == "3"
    assert most_shown(prompt.replace("c\nlabel: 3", "c\nlabel: 4")) == "4"  # the last of equals


def test_more_items_than_there_are(models, files):
    with pytest.raises(ConfigError, match="test_items must be at most 12, got 500"):
        RemappedLabels(data=files).batches(models["diff"])
