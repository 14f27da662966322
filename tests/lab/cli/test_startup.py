"""What needs no model answers before PyTorch loads, which takes seconds."""

import subprocess
import sys

import pytest

from lab.cli.misuse import BEFORE_TORCH

HEAVY = ("torch", "transformers", "scipy", "plotly")
# Runs the command line, then says on the last line of stderr what was loaded by then.
PROGRAM = f"""
import sys
from diffattn.lab.cli.app import main
try:
    main()
finally:
    print("loaded:", *sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)
"""
LISTINGS = ["recipes", "presets", "types", "backends", "protocols"]


def run(*arguments):
    """Exit status, output, error lines and what was loaded, of a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False
    )
    *errors, loaded = done.stderr.splitlines()
    assert loaded.startswith("loaded:"), done.stderr
    return done.returncode, done.stdout, errors, loaded.removeprefix("loaded:").split()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["list"],
        ["train", "--help"],
        ["plan", "--help"],
        ["fit", "--help"],
        ["inspect", "--help"],
        *(["list", kind] for kind in LISTINGS),
        *(["list", kind, "--json"] for kind in LISTINGS),
    ],
    ids=" ".join,
)
def test_listings_and_help_load_nothing_heavy(arguments):
    status, output, errors, loaded = run(*arguments)
    assert (status, errors, loaded) == (0, [], [])
    assert output


@pytest.mark.sampled(one_of=4)
@pytest.mark.parametrize(("arguments", "message"), BEFORE_TORCH)
def test_misuse_is_refused_before_anything_heavy_loads(arguments, message, tmp_path):
    out = tmp_path / "out"
    status, output, errors, loaded = run(*arguments.format(out=out).split())
    assert (status, output, loaded) == (2, "", [])
    (line,) = errors
    assert line.startswith("diffattn: ")
    assert message in line
    assert not out.exists()


MODEL = "must be a run directory, a model folder or a hub name, got nothing."
EVALUATION = "must be a folder that 'diffattn evaluate' wrote (evaluation.json), got nothing."
RECORDS = "must hold study.json, evaluation.json or analysis.json, got no such folder."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("generate {out} --prompt a", MODEL),
        ("inspect {out} --out {out} --text a", MODEL),
        ("judge {out} --model m", EVALUATION),
        ("compare {out}", EVALUATION),
        ("report {out}", RECORDS),
        ("report {out} --markdown", RECORDS),
    ],
)
def test_a_missing_folder_is_refused_before_anything_heavy_loads(arguments, message, tmp_path):
    status, output, errors, loaded = run(*arguments.format(out=tmp_path / "none").split())
    assert (status, output, loaded) == (1, "", [])
    assert errors[0].endswith(message)


def test_what_is_loaded_would_be_seen():
    """The control: a command that does need PyTorch is reported as such."""
    status, _, _, loaded = run("train", "smoke", "--out", "unused", "--dry-run")
    assert status == 0
    assert {"torch", "transformers"} <= set(loaded)
