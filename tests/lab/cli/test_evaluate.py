"""``diffattn evaluate`` as a user runs it."""

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from diffattn.lab.cli.app import app
from model_folders import tiny_folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    generator = random.Random(0)
    text = " ".join(str(generator.randrange(10**6)) for _ in range(500))
    home = tmp_path_factory.mktemp("models")
    sizes = {"max_position_embeddings": 2048}
    return [str(tiny_folder(home / kind, kind, text, **sizes)) for kind in ("softmax", "diff")]


def run(*arguments):
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments)])


def test_two_models_are_compared_and_the_command_can_be_repeated(folders, tmp_path):
    out = tmp_path / "out"
    arguments = ["key_values", "--quick", "--model", folders[0], "--model", f"b={folders[1]}"]
    done = run(*arguments, "--out", out)
    assert done.exit_code == 0, done.output
    assert "recall" in done.stdout
    assert "b − softmax" in done.stdout
    assert (out / "comparison.json").exists()
    again = run(*arguments, "--out", out, "--json")
    printed = json.loads(again.stdout)
    assert [r["model"]["label"] for r in printed["results"]] == ["softmax", "b"]
    assert printed["comparison"][0]["baseline"] == "softmax"


def test_a_short_context_is_said_once_with_the_protocols_that_fit_it(fails, trained, tmp_path):
    for setting in ((), ("--set", "ruler.lengths=[32]"), ("--quick",)):
        line = fails("evaluate", "ruler", trained, "--out", tmp_path, *setting, code=2)
        assert line.endswith(
            "Few prompts fit the 32 tokens of run. It can be asked, with --quick: ar_hits, "
            "block_perplexity, lm_tasks, nll_by_position, outliers, quantized_logits, "
            "sliding_perplexity, word_perplexity."
        )
        assert "--set" not in line


def test_what_cannot_run_is_told_and_the_rest_goes_on(folders, tmp_path):
    arguments = ["key_values", "word_perplexity", "--quick", "--model", folders[0]]
    done = run(*arguments, "--out", tmp_path, "--set", "word_perplexity.texts=/nowhere/at/all")
    assert done.exit_code == 1
    assert "softmax/word_perplexity cannot run" in done.stderr
    assert "diffattn: 1 of 2 evaluations could not run (see above)." in done.stderr
    assert (tmp_path / "softmax" / "key_values" / "result.json").exists()


def test_dry_run_prints_the_parameters(folders, tmp_path):
    done = run("key_values", "--model", folders[0], "--out", tmp_path / "out", "--dry-run")
    assert json.loads(done.stdout)["parts"]["key_values"]["samples"] == 100
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["word_perplexity", "--set", "word_perplexity.texts=/nowhere"], "/nowhere"),
        (["key_values", "--dtype", "int8"], "dtype must be in"),
        (["key_values", "--device", "nowhere"], "device: must be one that works here"),
        (["key_values", "--set", "key_values.lengths=512"], "lengths must be a list, got 512"),
        (["key_values", "--model", "/nowhere/at/all"], "must be a run directory"),
    ],
)
def test_misuse_is_told_in_one_line(arguments, message, folders, tmp_path):
    out = tmp_path / "out"
    done = run(*arguments, "--model", folders[0], "--out", out)
    assert message in str(done.exception)
    assert "cannot run" not in done.stderr
    assert not (out / "comparison.json").exists()


def test_a_model_may_be_named_by_another_path_when_it_is_continued(folders, tmp_path):
    arguments = ["key_values", "--quick", "--out", tmp_path / "out"]
    assert run(*arguments, "--model", folders[0]).exit_code == 0
    name = Path(folders[0]).name
    assert run(*arguments, "--model", f"{folders[0]}/../{name}").exit_code == 0
    other = run(*arguments, "--model", folders[0], "--max-length", "1024")
    assert "model.max_length 1024 where 2048 is recorded" in str(other.exception)
    rounded = run(*arguments, "--model", folders[0], "--dtype", "bfloat16")
    assert "model.dtype 'bfloat16' where 'float32' is recorded" in str(rounded.exception)
