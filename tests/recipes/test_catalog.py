"""Every recipe builds, is recorded as it is, and says what it needs."""

import json
import re

import pytest

from diffattn.errors import ConfigError
from diffattn.models.accounting import parameter_count
from diffattn.models.attention_types import ATTENTION_TYPES
from diffattn.recipes.catalog import RECIPES, recipe
from diffattn.studies.text.reproduce import SCALES


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_builds_and_can_be_written_down(name):
    run = recipe(name)
    assert run.name == name
    resolved = run.resolved()
    assert json.loads(json.dumps(resolved, allow_nan=False)) == resolved
    assert run.model.vocab_size >= run.data.vocab_size
    assert run.model.max_position_embeddings == run.train.seq_len
    assert resolved == recipe(name).resolved()
    run.model.vocab_size = 7  # nobody else's copy
    assert recipe(name).model.vocab_size != 7


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_can_be_continued_in_step_with_its_log(name):
    train = recipe(name).train
    assert train.evaluate_every % train.log_every == 0
    assert train.warmup_steps < train.num_steps


@pytest.mark.parametrize("name", RECIPES)
def test_docstring_says_command_hardware_duration_and_expectation(name):
    documentation = getattr(RECIPES[name], "func", RECIPES[name]).__doc__
    assert re.search(r"Command: ``diffattn (reproduce|train)", documentation)
    assert "Hardware:" in documentation
    assert "Duration:" in documentation
    assert "Expected:" in documentation
    if name not in SCALES:
        assert "Source: arXiv:" in documentation


@pytest.mark.parametrize("name", SCALES)
def test_scales_are_softmax_models_with_twins(name):
    run = recipe(name)
    assert run.model.attention_type == "softmax"
    for attention_type in ATTENTION_TYPES:
        twin = run.model.twin(attention_type)
        assert abs(twin.parameter_difference) < 0.01 * parameter_count(run.model)


def test_docstrings_give_the_numbers_of_their_models():
    for name, millions, heads in (("smoke", 0.14, 4), ("laptop", 0.9, 8), ("study", 4.8, 16)):
        run = recipe(name)
        assert run.model.num_heads == heads
        assert parameter_count(run.model) / 1e6 == pytest.approx(millions, rel=0.02)
        assert f"{millions}M parameters" in RECIPES[name].__doc__


def test_papers_numbers():
    train = recipe("diff-transformer-3b").train
    assert train.num_steps * train.batch_tokens == pytest.approx(350e9, rel=1e-4)
    assert (train.learning_rate, train.final_learning_rate) == (3.2e-4, 1.28e-5)
    for name in RECIPES:
        if name.startswith("scaling-"):
            train = recipe(name).train
            assert train.num_steps * train.batch_tokens == pytest.approx(10e9, rel=0.05)
            large = name in ("scaling-6.8b", "scaling-13.1b")
            assert train.learning_rate == (7.5e-5 if large else 1.5e-4)
            assert (train.beta_1, train.beta_2, train.weight_decay) == (0.9, 0.98, 0.05)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("smok", "Did you mean 'smoke'?"),
        ("scaling-830", "Did you mean 'scaling-830m'?"),
        ("Laptop", "Did you mean 'laptop'?"),
        ("zzz", "See 'diffattn list recipes'"),
        ("", "Unknown recipe ''"),
    ],
)
def test_unknown_names_get_a_hint(name, hint):
    with pytest.raises(ConfigError) as error:
        recipe(name)
    assert str(error.value).startswith(f"Unknown recipe {name!r}.")
    assert hint in str(error.value)
