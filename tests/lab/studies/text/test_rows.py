"""Rows of an ablation against numbers by hand, and the sentence that they lead to."""

from dataclasses import replace

import pytest

from diffattn.errors import ConfigError
from diffattn.files.io import read_json
from diffattn.lab.catalog.models import STUDY_MODELS
from diffattn.lab.report.study.files import read_study
from diffattn.lab.studies.reproduce import reproduce
from diffattn.lab.studies.text.comparison import comparison
from diffattn.lab.studies.text.results import comparison_results
from diffattn.lab.studies.text.verdict import verdict

SEEDS = (0, 1, 2)
SPREAD = (0.0, 0.1, -0.05)
LOSSES = {"softmax": 3.0, "diff": 2.9, "diff_v2": 2.91, "shared_diff": 2.92, "none": 4.0}
LOSSES |= {"diff_no_norm": 3.3, "softmax_more_heads": 2.95}
NOISE = {"diff": (0, 1e-4, -1e-4), "diff_no_norm": (0, 1e-4, 0), "diff_v2": (0.01, -0.02, 0.03)}


def results(kind="ablations", seeds=SEEDS, losses=LOSSES, late=(), left_out=()):
    """Of made-up runs; a variant that is not named in ``losses`` equals softmax, and one that is
    named in ``late`` never passes the phase."""
    config = comparison("laptop", kind=kind, seeds=seeds)
    runs = {}
    for run in config.trials(config.base_rates()):
        name, seed = run.config.name.split("-seed")
        noise = NOISE.get(name, (0, 0, 0))[int(seed)]
        loss = losses.get(name, losses["softmax"])
        loss = None if loss is None else loss + SPREAD[int(seed)] + noise
        runs[run.config.name] = {"validation_loss": loss, "validation_parts": {}}
    for run in left_out:
        runs[run]["left_out_steps"] = 2
    phases = {run: None if run.split("-seed")[0] in late else 500 for run in runs}
    made = comparison_results(config, {}, runs, phases, {}, {})
    return made | {"verdict": verdict(made, {})}


def test_ranks_stand_against_rank_8_that_against_v1_and_lambda_init_against_the_schedule():
    """The committed studies hold the other rows."""
    ranks = [(entry["variant"], entry["baseline"]) for entry in results("rank")["rows"]]
    against_rank_8 = [f"shared_diff_{name}" for name in ("r8_lambda_05", "r2", "r8_no_norm")]
    against_v1 = ("shared_diff_r8", "diff"), ("diff_no_norm", "diff")
    assert {*against_v1, *((name, "shared_diff_r8") for name in against_rank_8)} <= set(ranks)
    assert len(ranks) == 14  # no type, which the study of types tests


def test_one_seed_may_be_chance():
    message = results(seeds=(0,))["verdict"]
    assert "17 rows with one seed each: any of them may be chance." in message["sentence"]
    assert message["details"] == []
    lost = dict.fromkeys(set(STUDY_MODELS["ablations"]) - {"softmax", "none"})
    # Where every row diverges seeds are not to blame.
    assert "one seed each" not in results(losses=LOSSES | lost)["verdict"]["sentence"]


def test_rows_say_nothing_where_attention_does_not_help():
    message = results(losses=LOSSES | {"none": 3.05})["verdict"]
    assert not message["informative"]
    assert message["sentence"].startswith("Uninformative about attention types: softmax attention")


def test_a_row_is_compared_only_where_both_sides_copy_or_none():
    late = {"shared_diff", "shared_diff_map_norm", "diff_no_norm"}
    message = results(late=late)["verdict"]
    assert message["informative"]
    assert "DIFF V1 against Transformer (softmax) −0.100" in message["sentence"]
    assert message["sentence"].endswith("; 4 are not compared.")
    assert message["details"] == [
        "Not compared, as one has passed the induction phase and the other has not: DIFF V1 "
        "without head norm against DIFF V1; Shared DIFF against Transformer (softmax); Shared "
        "DIFF against Softmax, half the heads, head norm.",
        "Not compared, as neither has passed the induction phase: Shared DIFF, norm on the map "
        "against Shared DIFF.",
    ]
    message = results(late=set(STUDY_MODELS["ablations"]))["verdict"]
    assert "ot compared" not in " ".join([message["sentence"], *message["details"]])
    assert ", none of them past the induction phase (" in message["sentence"]


def test_a_row_that_diverges_is_said_to():
    losses = LOSSES | {"diff_lambda_08": None, "diff_v2": None}
    outcome, whole = results(losses=losses), results()
    assert outcome["diverged"] == {"diff_v2": [3, 3], "diff_lambda_08": [3, 3]}
    assert len(outcome["rows"]) == len(whole["rows"])
    message = outcome["verdict"]
    below = " ".join(message["details"])
    assert "Not compared, as DIFF V1, λ_init 0.8 diverged in 3 of 3 runs: " in below
    assert "DIFF V1 without head norm against DIFF V1 +0.400" in message["sentence"]
    assert "diverged" not in whole


def test_batches_that_a_guard_left_out_are_said():
    """Its run has read less than the one that it is paired with."""
    outcome = results(left_out=("diff-seed1",))
    assert outcome["left_out_steps"] == {"diff-seed1": 2}
    reason = "batches were left out, and not of every model: 2 steps of diff-seed1"
    assert outcome["verdict"]["reasons"] == [reason]
    assert "left_out_steps" not in results()


def test_at_study_scale_types_have_the_rates_that_were_chosen_for_them():
    config = comparison("study", kind="ablations")
    rates = config.base_rates()
    assert (rates["softmax"], rates["diff"], rates["diff_lambda_08"]) == (2e-3, 1e-3, 1e-3)
    assert (rates["diff_v2"], rates["shared_diff_map_norm"]) == (2e-3, 1e-3)
    ranks = comparison("study", kind="rank")
    assert ranks.base_rates()["shared_diff_r8_lambda_05"] == 1e-3
    named = replace(ranks, rate_factors={"diff": 0.5, "shared_diff_r2": 2}).base_rates()
    assert (named["shared_diff_r2"], named["shared_diff_r4"]) == (4e-3, 1e-3)
    runs = {run.config.name: run.config.train for run in config.trials(rates)}
    assert runs["diff-seed0"].learning_rate == 1e-3
    assert runs["diff-common-seed0"].learning_rate == runs["softmax-seed0"].learning_rate == 2e-3
    assert "rate_factors" not in comparison("laptop", kind="ablations").resolved()


@pytest.mark.scheduled
def test_a_whole_study_of_rows(settings, tmp_path):
    kind, out = "rank", tmp_path / "out"
    options = {"settings": settings, "workers": 2, "on_message": [].append}
    page = reproduce("smoke", kind=kind, out=out, **options)
    made, study = read_json(out / "results.json"), read_study(out)
    assert tuple(study.variants) == STUDY_MODELS[kind]
    assert study.gaps == ()
    assert study.info["kind"] == kind
    text = page.read_text(encoding="utf-8")
    assert made["verdict"]["sentence"].replace("'", "&#39;") in text
    assert "In words" in text
    with pytest.raises(ConfigError, match="must hold this configuration"):
        reproduce("smoke", kind="ablations", out=out, settings=settings)
