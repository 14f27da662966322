"""The commands of the claims: each exists and resolves."""

import shlex
from functools import partial

import pytest
from typer.main import get_command

from diffattn.lab.benchmark.session import BenchConfig
from diffattn.lab.catalog.models import SIDE_EFFECTS
from diffattn.lab.catalog.recipes.catalog import SCALES
from diffattn.lab.cli.app import app
from diffattn.lab.evaluation.protocol import parts
from diffattn.lab.report.claims.commands import STUDIES as STUDY_COMMANDS
from diffattn.lab.report.claims.tables import CLAIMS
from diffattn.lab.studies.gradient_flow.runs import gradient_flow_study
from diffattn.lab.studies.scaling import scaling_study
from diffattn.lab.studies.stability import stability_study
from diffattn.lab.studies.text.comparison import comparison

COMMANDS = [command for claim in CLAIMS for command in claim.commands if command]
LINES = sorted({line for command in COMMANDS for line in command.split(" && ")})


STUDIES = {kind: partial(comparison, kind=kind) for kind in ("text", "ablations", "rank")}
STUDIES |= {"stability": stability_study, "scaling": scaling_study}
STUDIES |= {"gradient-flow": gradient_flow_study}


@pytest.mark.parametrize("line", LINES)
def test_every_command_exists_with_its_options(line):
    """As the command line reads it, without running it.

    Names within options are checked too, and that settings make whole models of every kind.
    """
    program, name, *arguments = shlex.split(line)
    assert program == "diffattn"
    values = get_command(app).commands[name].make_context(name, arguments).params
    if name == "reproduce":
        assert values["scale"] in SCALES
        if values["study"] == "recall":
            assert not values["set_"]
        else:
            make = STUDIES[values["study"]]
            assert make(values["scale"], settings=values["set_"] or []).resolved()
    elif name == "evaluate":
        parts(values["asked"], values["set_"] or [], quick=values["quick"])
        assert len(values["model"]) == len(set(values["model"])) >= 2
    elif name == "bench":
        assert values["device"] in (None, "cpu", "cuda")
        options = {key: values[key] for key in ("suite", "scale", "attention")}
        BenchConfig(**options, device="cpu")
    else:
        assert name == "judge"


@pytest.mark.parametrize("line", [line for line in LINES if " evaluate" in line])
def test_every_evaluated_model_is_one_that_the_study_trains(line):
    words = shlex.split(line)
    labels = {words[at + 1].split("=")[0] for at, word in enumerate(words) if word == "--model"}
    study = comparison("study")
    assert labels <= {run.config.name for run in study.trials(study.base_rates())}
    assert {*SIDE_EFFECTS, "diff"} < {label.rpartition("-seed")[0] for label in labels}
    assert {int(label.rpartition("-seed")[2]) for label in labels} == {*study.seeds}


def test_a_laptop_command_trains_the_models_of_its_claim():
    small = {claim.id for claim in CLAIMS if claim.commands.laptop == STUDY_COMMANDS["text"].laptop}
    assert small == {"v2-loss"}
