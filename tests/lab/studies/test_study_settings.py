"""Settings of studies: every scale can be made and recorded; impossible settings are refused."""

import json

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.catalog.recipes.gradient_flow import GRADIENT_FLOW
from diffattn.lab.catalog.recipes.practical import PRACTICAL
from diffattn.lab.catalog.recipes.recall import RECALL
from diffattn.lab.catalog.recipes.scaling import SCALING_STUDIES
from diffattn.lab.catalog.recipes.stability import STABILITY
from diffattn.lab.studies.reproduce import make_study

PLANS = {
    "gradient-flow": GRADIENT_FLOW,
    "practical": PRACTICAL,
    "recall": RECALL,
    "scaling": SCALING_STUDIES,
    "stability": STABILITY,
}
OF_TASKS = ("practical", "recall")
FIXED = [(kind, scale) for kind in PLANS if kind not in OF_TASKS for scale in PLANS[kind]]


@pytest.mark.parametrize(("kind", "scale"), [(k, s) for k, plans in PLANS.items() for s in plans])
def test_every_scale_can_be_made_and_recorded(kind, scale):
    resolved = make_study(kind, scale).resolved()
    assert json.loads(json.dumps(resolved, allow_nan=False)) == resolved
    documentation = PLANS[kind][scale].__doc__
    assert all(f"{word}:" in documentation for word in ("Command", "Hardware", "Duration"))
    assert "Expected:" in documentation


@pytest.mark.parametrize(("kind", "scale"), FIXED)
def test_every_run_has_a_name_and_the_starting_scale_of_the_comparison(kind, scale):
    config = make_study(kind, scale)
    planned = config.planned_runs()
    assert len({run.config.name for run in planned}) == len(planned)
    for run in planned:
        model, train = run.config.model, run.config.train
        assert model.embedding_multiplier == pytest.approx(model.hidden_size**0.5)
        assert model.depth_scaled_init
        assert train.seed == train.data_seed
        assert train.final_learning_rate == pytest.approx(train.learning_rate / 10)


def test_seeds_and_budgets_are_checked():
    with pytest.raises(ConfigError, match=r"seeds must be distinct, one or more, got \[1, 1\]"):
        make_study("recall", "smoke", seeds=(1, 1))
    with pytest.raises(ConfigError, match="match must be in"):
        make_study("scaling", "smoke", match="size")


@pytest.mark.parametrize(
    ("kind", "setting", "message"),
    [
        *(
            (kind, "model.attention_type=diff", "base must be a softmax model")
            for kind in ("gradient-flow", "scaling", "stability")
        ),
        ("gradient-flow", "train.num_steps=11", "at most train.num_steps=11"),
        ("gradient-flow", "train.final_learning_rate=0", "must be above 0"),
        ("gradient-flow", "guard.not_finite=skip", "as no measured step"),
        ("scaling", "model.num_heads=3", "num_heads must be whole"),
        ("stability", "train.log_every=2", "train.log_every must be 1"),
        ("stability", "train.num_steps=32", "train.num_steps must be more than 32"),
        ("stability", "guard.spike=skip", "as spikes and divergence"),
        ("stability", "guard.lam=clip", "guard must be left at its defaults"),
        ("recall", "train.num_steps=32", "settings must be left out"),
    ],
)
def test_settings_that_a_study_cannot_measure_are_refused(kind, setting, message):
    with pytest.raises(ConfigError, match=message):
        make_study(kind, "smoke", settings=[setting])
