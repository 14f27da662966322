"""JSON key-value retrieval: prompts, scores and cells."""

import json

from diffattn.evaluation.key_values import KeyValues
from diffattn.evaluation.runner import Part, evaluate


def test_a_prompt_holds_every_pair_once_and_asks_for_one():
    protocol = KeyValues(num_pairs=(7,), samples=7)
    for sample in range(7):
        prompt, value, position = protocol._prompt(7, sample)
        body = json.loads(prompt[prompt.index("{") : prompt.index("}") + 1])
        key = prompt.split('Key: "')[1].split('"')[0]
        assert len(body) == 7
        assert (body[key], list(body)[position]) == (value, key)
        assert position == sample


def test_every_kind_of_model(model, tmp_path):
    protocol = KeyValues(num_pairs=(2, 3), samples=2)
    result = evaluate(model, Part(variant="key_values", protocol=protocol), tmp_path / "out")
    assert (result.num_items, result.num_failed) == (4, 0)
    assert [metric.where for metric in result.metrics] == [{}, {"pairs": 2}, {"pairs": 3}]
