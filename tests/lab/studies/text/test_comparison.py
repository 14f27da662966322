"""Who is compared, in what order, how they are matched, and the limits that are stated."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from diffattn.errors import ConfigError
from diffattn.lab.catalog.models import SWEPT, VARIANTS
from diffattn.lab.catalog.recipes.catalog import recipe
from diffattn.lab.catalog.recipes.plan import TIED_START
from diffattn.lab.studies import workers
from diffattn.lab.studies.text.comparison import Sweep, best_rates, comparison
from diffattn.lab.studies.text.summary import statement
from diffattn.lab.studies.workers import visible_devices, worker_count
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.models.twins import MATCHES, parameter_count


def parameters_on_meta(config):
    with torch.device("meta"):
        model = DiffTransformerForCausalLM(config)
    return sum(parameter.numel() for parameter in model.parameters())


def runs(config, rates=None):
    return config.trials(rates or config.base_rates())


def test_models_differ_in_their_attention_alone():
    base = recipe("study")
    free = {"attention_type", "num_heads", "num_kv_heads", "intermediate_size"}
    free |= {"shared_rank", "head_norm"}
    for run in runs(comparison("study", seeds=(0,))):
        assert run.config.train == base.train
        assert run.config.data == base.data
        settings, expected = run.config.model.settings(), base.model.settings()
        assert {key for key in settings if settings[key] != expected[key]} <= free


def test_the_gate_per_channel_is_swept_where_it_takes_part():
    config = replace(comparison("study"), variants=("softmax", "gated_element"))
    assert config.swept == ["softmax", "gated_element"]
    sweeps = {"softmax": Sweep(tried=((1e-3, 2.0),)), "gated_element": Sweep(tried=((4e-3, 2.0),))}
    planned = config.trials(best_rates(config, sweeps))
    trials = {run.config.name: run.config.train for run in planned}
    assert trials["gated_element-seed0"].learning_rate == 4e-3
    assert not [name for name in trials if "common" in name]
    assert "gated_element" not in comparison("study").variants


def test_every_type_has_its_rate_and_the_common_one():
    config = comparison("study", seeds=(0, 1, 2))
    sweeps = dict.fromkeys(SWEPT, Sweep(tried=((1e-3, 3.0), (2e-3, 2.0), (4e-3, 4.0))))
    sweeps["diff_v2"] = Sweep(tried=((1e-3, 3.0), (2e-3, 2.5), (4e-3, 2.1), (8e-3, 2.2)))
    rates = best_rates(config, sweeps)
    assert rates["diff"] == rates["softmax_half"] == rates["none_ffn"] == 2e-3
    assert rates["diff_v2"] == rates["diff_v2_gate"] == rates["diff_v2_flops"] == 4e-3
    trials = {run.config.name: run.config.train for run in config.trials(rates)}
    assert trials["diff_v2-seed2"].learning_rate == 4e-3
    assert trials["diff_v2-seed2"].final_learning_rate == pytest.approx(4e-4)
    assert trials["diff_v2-common-seed2"].learning_rate == 2e-3
    assert not [name for name in trials if "common" in name and "diff_v2" not in name]
    tried, steps = 4 * 3 + 4, config.base.train.num_steps
    whole = len(config.whole_runs(sweeps))
    assert config.steps_after(sweeps) == (len(trials) + whole) * steps + tried * steps // 4
    as_planned = len(config.trials(config.base_rates())) + whole
    assert config.total_steps == as_planned * steps + 5 * 4 * steps // 4


def test_a_sweep_grows_until_the_rates_to_choose_from_lie_inside():
    config = comparison("study")
    rates = config.learning_rates

    def tried(loss, whole_rates=2):
        """All rates of a sweep whose runs end at a loss."""
        changed = replace(config, variants=("softmax",), whole_rates=whole_rates)
        results = {}
        for wave in changed.waves(results):
            if wave.title != "learning rates":
                break
            for run in wave.runs:
                rate = run.config.train.learning_rate
                results[run.config.name] = {"validation_loss": loss(rate)}
        (sweep,) = changed.sweeps(results).values()
        assert sweep.inside == (sweep.best not in (sweep.tried[0][0], sweep.tried[-1][0]))
        return tuple(rate for rate, _ in sweep.tried)

    assert tried(lambda rate: abs(rate - 1.4 * rates[1])) == rates
    second = tried(lambda rate: abs(rate - 0.9 * rates[1]))  # whose second best is the lowest
    assert second == (rates[0] / 2, *rates)
    assert tried(lambda rate: abs(rate - 0.9 * rates[1]), whole_rates=0) == rates
    assert tried(lambda rate: 1 / rate) == (*rates, *(rates[-1] * 2**i for i in (1, 2, 3)))
    assert tried(lambda rate: rate) == (*(rates[0] / 2**i for i in (3, 2, 1)), *rates)


def test_runs_of_all_steps_decide_between_the_leading_rates():
    config = replace(comparison("study"), variants=SWEPT)
    asked = []

    def train(planned):
        """Short runs like 0.002 and 0.001 best, whole ones 0.001; those of V1 0.004."""
        losses = {}
        for run in planned:
            best = 4e-3 if run.config.name.startswith("diff-") else 1e-3
            rate, whole = run.config.train.learning_rate, "-whole" in run.config.name
            assert run.config.train.num_steps == (4_000 if whole else 1_000)
            assert run.config.train.warmup_steps == (200 if whole else 50)
            assert run.config.train.seed == config.sweep_seed
            loss = abs(math.log(rate / (best if whole else 1.5 * best)))
            losses[run.config.name] = {"validation_loss": loss}
        return losses

    results = {}
    for wave in config.waves(results):
        if wave.title == "comparison":
            break
        asked.append(wave.title)
        results |= train(wave.runs)
    sweeps = config.sweeps(results)
    assert asked == ["learning rates", "learning rates", "leading learning rates"]
    assert sweeps["softmax"].leading(2) == [2e-3, 1e-3]
    assert [rate for rate, _ in sweeps["softmax"].tried] == [5e-4, 1e-3, 2e-3, 4e-3, 8e-3]
    assert [rate for rate, _ in sweeps["diff"].tried] == [1e-3, 2e-3, 4e-3, 8e-3, 16e-3]
    assert [rate for rate, _ in sweeps["softmax"].whole] == [1e-3, 2e-3]
    assert all(sweep.inside for sweep in sweeps.values())
    rates = best_rates(config, sweeps)
    assert rates == dict.fromkeys(SWEPT, 1e-3) | {"diff": 4e-3}
    names = [run.config.name for run in config.whole_runs(sweeps)]
    assert names[:2] == ["softmax-lr0.002-whole1000", "softmax-lr0.001-whole1000"]
    assert len(names) == 2 * len(SWEPT)
    assert "whole_rates" not in comparison("laptop").resolved()


def test_the_study_for_leases_trains_what_is_worth_most_first():
    """Each model at the best of its own rates; Shared DIFF behind the first seed of the others."""
    config, results, order = comparison("lease"), {}, []
    for wave in config.waves(results):
        for run in wave.runs:
            train, name = run.config.train, run.config.name
            best = 7.5e-4 if name.startswith("diff-") else 1.5e-3
            if name not in results:
                order.append((wave.title, name))
            results[name] = {"validation_loss": abs(math.log(train.learning_rate / best))}
    runs = [name for title, name in order if title == "comparison"]
    models = ["softmax", "diff_v2_gate", "diff_v2", "diff", "shared_diff"]
    assert runs == [f"{name}-seed{seed}" for seed in (0, 1, 2) for name in models]
    swept = [name for title, name in order if title == "learning rates"]
    assert len(swept) == 5 * 3 + 1  # V1's best rate lay at the edge
    after = order.index(("comparison", "diff-seed0"))
    are_after = [i > after for i, (_, name) in enumerate(order) if name in swept]
    assert are_after == 13 * [False] + 3 * [True]
    rates = best_rates(config, config.sweeps(results))
    assert rates == dict.fromkeys(models, 1.5e-3) | {"diff": 7.5e-4}
    assert config.resolved()["own_rates"] is True
    assert not {"own_rates", "later"} & set(comparison("study").resolved())


@pytest.mark.parametrize(
    ("scale", "kind", "match"),
    [("smoke", "text", match) for match in MATCHES]
    + [("study", "text", "params"), ("laptop", "ablations", "params"), ("study", "rank", "params")],
)
def test_stated_differences_are_those_of_the_real_models(scale, kind, match):
    config = comparison(scale, kind=kind, seeds=(0,), match=match)
    planned = config.trials(dict.fromkeys(VARIANTS, 1e-3))
    base = parameters_on_meta(planned[0].config.model)
    assert base == parameter_count(recipe(scale).model)
    for run in planned:
        model = run.config.model
        difference = parameters_on_meta(model) - base
        assert run.facts["parameter_difference"] == difference
        variant = VARIANTS[run.config.name.removesuffix("-seed0")]
        if (variant.match or match) == "params":
            assert abs(difference) <= 3 * model.hidden_size * model.num_hidden_layers
    assert planned[0].facts == {"parameter_difference": 0, "flops_difference": 0}


def test_every_gpu_gets_its_workers(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert worker_count(None) == 3
    assert visible_devices() == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5,GPU-7")
    assert visible_devices() == ["2", "5", "GPU-7"]
    pool = workers._Pool([], None, None, None, False)
    for device in ("2", "5", "GPU-7", "2"):
        assert pool.least_used_device() == device
        pool.active.append(SimpleNamespace(device=device))
    del pool.active[1]  # it has ended
    assert pool.least_used_device() == "5"
    pool.devices = []
    assert pool.least_used_device() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": ("a",)}, "TrainConfig: seed must be a whole number, got 'a'"),
        ({"seeds": (1000,)}, "sweep_seed must be none of the seeds"),
        ({"settings": ["model.num_heads=3"]}, "num_heads of the 'diff' twin must be whole"),
        ({"settings": ["windows.documents=apart"]}, "windows.documents"),
        ({"settings": ["windows.upsample_longer_than=100"]}, "windows.upsample_longer_than"),
        ({"scale": "study", "settings": ["train.learning_rate=4e-4"]}, "train.learning_rate"),
    ],
    ids=str,
)
def test_impossible_comparisons_are_refused_at_once(options, message):
    with pytest.raises(ConfigError) as error:
        comparison(**{"scale": "smoke"} | options)
    assert message in str(error.value)


def test_statement_names_heads_tokens_and_seeds_that_are_few():
    in_range = statement(comparison("study", settings=["train.num_steps=12000000"]))
    assert in_range.startswith("Heads and tokens lie in the range the papers test.")
    words = statement(comparison("laptop", kind="ablations", seeds=[0]))
    assert "4 DIFF heads (the papers use 8 or more) and 1,024,000 training tokens per run" in words
    assert "one seed" in words
    assert words.endswith("One learning rate is used for all types, tuned for none.")


@pytest.mark.parametrize(
    "changes",
    [{"settings": ["model.hidden_size=512"]}, {"settings": ["train.learning_rate=0.0005"]},
     {"match": "heads"}],
    ids=str,
)  # fmt: skip
def test_rates_chosen_for_other_models_are_not_said_to_be_chosen_for_these(changes):
    settings = [*TIED_START, *changes.pop("settings", ())]
    chosen = "is the one that the matched comparison of this scale chose."
    assert statement(comparison("study", kind="rank", settings=TIED_START)).endswith(chosen)
    changed = comparison("study", kind="rank", settings=settings, **changes)
    assert changed.rate_factors == {"diff": 0.5, "shared_diff": 0.5}
    assert "the common one times the factor that the matched comparison" in statement(changed)
