"""Every recipe builds, is recorded as it is, and says what it needs."""

import json
import re

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.catalog.models import TYPES
from diffattn.lab.catalog.recipes.catalog import GROUPS, RECIPES, SCALES, plan, plan_of_size, recipe
from diffattn.lab.catalog.recipes.diff_transformer import ABLATIONS
from diffattn.lab.report.paper import table_6
from diffattn.models.twins import parameter_count


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_builds_and_can_be_written_down(name):
    run = recipe(name)
    assert run.name == name
    resolved = run.resolved()
    assert json.loads(json.dumps(resolved, allow_nan=False)) == resolved
    assert run.model.vocab_size >= run.data.vocab_size
    # Mathematics is trained on in 4K windows, by a model that keeps the 64K it comes with.
    is_math = name.startswith("math-") and not name.endswith("-laptop")
    longer = 65_536 if is_math else run.train.seq_len
    assert run.model.max_position_embeddings == longer
    assert run.train.evaluate_every % run.train.log_every == 0
    assert resolved == recipe(name).resolved()
    run.model.vocab_size = 7  # nobody else's copy
    assert recipe(name).model.vocab_size != 7
    documentation = getattr(RECIPES[name], "func", RECIPES[name]).__doc__
    assert re.search(r"Command: ``diffattn (reproduce|train)", documentation)
    assert all(f"{word}:" in documentation for word in ("Hardware", "Duration", "Expected"))
    assert name in SCALES or "Source: arXiv:" in documentation


@pytest.mark.parametrize("name", SCALES)
def test_scales_are_softmax_models_with_twins(name):
    run = recipe(name)
    assert run.model.attention_type == "softmax"
    for attention_type in TYPES:
        twin = run.model.twin(attention_type)
        assert abs(twin.parameter_difference) < 0.01 * parameter_count(run.model)


def test_docstrings_give_the_numbers_of_their_models():
    for name, millions, heads in (("smoke", 0.17, 4), ("laptop", 0.79, 8), ("study", 5.3, 16)):
        run = recipe(name)
        assert run.model.num_heads == heads
        assert parameter_count(run.model) / 1e6 == pytest.approx(millions, rel=0.02)
        assert f"{millions}M parameters" in RECIPES[name].__doc__


MILLION = 2**20


@pytest.mark.parametrize(
    ("name", "rate", "batch", "tokens"),
    [
        ("diff-transformer-3b", 3.2e-4, 4 * MILLION, 350e9),
        ("long-context-diff", 8e-5, 4 * MILLION, 1.5e9),
        ("math-1-diff", 8e-5, 4 * MILLION, 20e9),
        ("math-2-diff", 1e-5, MILLION, 2e9),
        ("token-scaling-diff", 3.2e-4, 4 * MILLION, 90_000 * 4 * MILLION),
        ("scaling-830m", 1.5e-4, MILLION / 4, 40_000 * MILLION / 4),
        ("scaling-13.1b", 7.5e-5, MILLION / 4, 40_000 * MILLION / 4),
    ],
)
def test_papers_numbers(name, rate, batch, tokens):
    train = plan(name).train
    assert (train.learning_rate, train.batch_tokens) == (rate, batch)
    assert train.num_steps * train.batch_tokens == pytest.approx(tokens, rel=2e-3)


def test_later_stages_of_the_main_pair():
    train, model = plan("long-context-diff").train, plan("long-context-diff").model
    assert train.final_learning_rate / train.learning_rate == pytest.approx(0.04)
    assert model.rope_parameters == {"rope_type": "default", "rope_theta": 640_000.0}
    windows = plan("long-context-diff").config().windows
    assert (windows.upsample_longer_than, windows.upsample_factor) == (4_096, 10.0)
    for stage in ("math-1-diff", "math-2-diff"):
        assert plan(stage).model.rope_parameters == model.rope_parameters
        assert plan(stage).model.max_position_embeddings == train.seq_len == 65_536


LARGE = [group for group in GROUPS if f"{group}, laptop" in GROUPS]


def test_the_main_pair_differs_in_attention_alone():
    diff, softmax = plan("diff-transformer-3b"), plan("transformer-3b")
    assert diff.train == softmax.train
    assert (diff.model.num_heads, softmax.model.num_heads) == (12, 24)
    difference = parameter_count(softmax.model) - parameter_count(diff.model)
    assert abs(difference) < 1e-5 * parameter_count(diff.model)


def test_ablations_are_the_rows_of_table_6():
    models = {name.removeprefix("ablation-"): make().model for name, make in ABLATIONS.items()}
    shapes = {}
    for name, model in models.items():
        shapes.setdefault((model.num_heads, model.head_dim), []).append(name)
    v2 = ["diff-v2", "diff-v2-no-lambda", "diff-v2-raw-lambda", "diff-v2-across"]
    assert shapes == {
        (16, 128): ["softmax", *v2],
        (8, 256): ["softmax-8", "softmax-8-norm"],
        (8, 128): ["diff", "diff-no-norm", "diff-lambda-0.8", "diff-lambda-0.5"],
        (24, 128): ["softmax-24"],
    }
    norms = {name: model.uses_head_norm for name, model in models.items()}
    assert (norms["softmax-8"], norms["softmax-8-norm"], norms["diff"]) == (False, True, True)
    assert not norms["diff-no-norm"]
    counts = [parameter_count(model) for model in models.values()]
    assert max(counts) - min(counts) < 1e-3 * min(counts)
    inits = [models[name].lambda_init for name in ("diff", "diff-lambda-0.8", "diff-lambda-0.5")]
    assert inits == [None, 0.8, 0.5]
    assert {make().train.num_steps for make in ABLATIONS.values()} == {40_000}
    # The other rows are of the V2 note.
    assert len(table_6()) == len(set(models) - {*v2, "softmax-24"})
    assert table_6()["diff"] == min(table_6().values()) == 3.062


def test_shared_diff_varies_rank_and_start():
    makes = dict(GROUPS["Shared DIFF"])
    assert makes.pop("shared-diff-map-norm")().model.attention_type == "shared_diff_map_norm"
    models = [make().model for make in makes.values()]
    assert sorted({model.shared_rank for model in models}) == [8, 16, 32, 64]
    assert {model.lambda_init for model in models} == {None, 0.8, 0.5}
    full = parameter_count(plan("scaling-1.4b").model)
    assert all(abs(parameter_count(model) / full - 1) < 1e-3 for model in models)


@pytest.mark.parametrize("group", LARGE)
def test_siblings_keep_the_kind_of_model(group):
    for (name, large), (small_name, small) in zip(
        GROUPS[group].items(), GROUPS[f"{group}, laptop"].items(), strict=True
    ):
        big, little = large().model, small().model
        assert small_name == f"{name}-laptop" == small().name
        assert parameter_count(little) < 8e6
        for field in ("attention_type", "lambda_init", "head_norm", "rope_parameters"):
            assert getattr(big, field) == getattr(little, field)
        shares = [m.num_heads * m.head_dim / m.hidden_size for m in (big, little)]
        assert shares[0] == shares[1]
        assert large().train.beta_2 == small().train.beta_2
        assert large().windows == small().windows


@pytest.mark.parametrize("group", LARGE)
def test_siblings_of_matched_models_match(group):
    large = {name: parameter_count(make().model) for name, make in GROUPS[group].items()}
    small = [parameter_count(make().model) for make in GROUPS[f"{group}, laptop"].values()]
    pairs = list(zip(large.values(), small, strict=True))
    for size, little in pairs:
        for other, other_little in pairs:
            if abs(size / other - 1) < 1e-3:
                assert abs(little / other_little - 1) < 5e-3


def test_a_size_is_planned_with_the_main_training():
    planned = plan_of_size("70b")
    assert planned.train == plan("diff-transformer-3b").train
    assert planned.config().model.num_hidden_layers == 80
    with pytest.raises(ConfigError, match=r"Unknown recipe or preset '71b'.*list presets"):
        plan_of_size("71b")
    with pytest.raises(
        ConfigError, match=r"'scaling-830'\. Did you mean 'scaling-830m'\? See 'diff"
    ):
        recipe("scaling-830")
