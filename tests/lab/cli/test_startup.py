"""What needs no model answers before PyTorch loads, which takes seconds."""

import subprocess
import sys

import pytest

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
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("list presetz", "Did you mean 'presets'?"),
        ("train laptpo --out {out}", "Unknown recipe 'laptpo'. Did you mean 'laptop'?"),
        ("train laptop --out {out} --attention dif", "Did you mean 'diff'?"),
        ("train laptop --out {out} --set train.num_step=3", "Did you mean 'train.num_steps'?"),
        ("plan 13b --gpu h100", "Unknown recipe or preset '13b'. Did you mean '3b'?"),
        ("plan smoke --gpu h2000", "Did you mean 'h200'?"),
        (
            "plan smoke --gpu cpu --set engine.parallel=dpp",
            "engine.parallel must be 'ddp' or 'fsdp'",
        ),
        ("plan smoke --gpu cpu --utilisation 2", "--utilisation must be above 0"),
        ("plan smoke --gpu cpu --price nan", "--price must be above 0"),
        ("plan smoke --gpu cpu --attention dif", "Did you mean 'diff'?"),
        ("reproduce txt", "Did you mean 'text'?"),
        ("reproduce scaling --scale study", "laptop"),
        ("reproduce --extrapolate", "--extrapolate must be left out"),
        ("reproduce --scale smok", "Did you mean 'smoke'?"),
        ("reproduce recall --scale smok", "Did you mean 'smoke'?"),
        ("reproduce --match parms", "Did you mean 'params'?"),
        ("reproduce --set model.hiden_size=3", "--set must name one of data"),
        ("reproduce --seeds one", "--seeds: must be whole numbers"),
        ("bench oops", "Did you mean 'ops'?"),
        ("evaluate neddle --model {out} --out {out}", "Did you mean 'needle'?"),
        ("evaluate tabl2 --model {out} --out {out}", "Did you mean 'table2'?"),
        ("bench ops --scale quik", "Did you mean 'quick'?"),
        ("bench ops --dtype float31", "Did you mean 'float32'?"),
        ("bench ops --only tritn", "Did you mean 'triton'?"),
        ("bench models --only difff", "Did you mean 'diff'?"),
        ("generate {out} --prompt a --temperature inf", "--temperature must be finite"),
        ("generate {out} --top-k 3", "--top-k and --top-p need --temperature"),
        ("inspect a a --text a --out {out}", "labels must differ"),
        ("inspect a --text b --needle --out {out}", "got --text and --needle"),
        ("inspect a --needle --set dept=1 --out {out}", "Did you mean 'depth'?"),
        ("inspect a --text a --layers one --out {out}", "--layers: must be whole numbers"),
        ("pack {out} --out {out} --vocab-size 3", "vocab_size must be at least 257"),
        ("convert {out} --to difflama --out {out}", "Did you mean 'diffllama'?"),
        ("judge {out}", "--model or --requests must be given"),
        ("judge {out} --model m --replies a --endpoint b", "got both"),
        ("judge {out} --model m --set worker=2", "Did you mean 'workers'?"),
        ("analyze {out} --out {out}", "one of --text, --file and --data must be given, got none"),
        ("analyze {out} --out {out} --text a --data b", "got --text and --data"),
        ("analyze {out} --out {out} --file {out}", "must be a file of text, got none"),
        ("analyze {out} --out {out} --text a --dtype float31", "Did you mean 'float32'?"),
        ("report {out} --markdown --out {out}", "--markdown prints and --out writes"),
        ("reproduce all --only foo --out {out}", "only must be in {recall, text}, got 'foo'"),
        ("bench ops --rounds 0 --out {out}", "rounds must be 1 or more and at most 1000000"),
    ],
)
def test_misuse_is_refused_before_anything_heavy_loads(arguments, message, tmp_path):
    out = tmp_path / "out"
    status, output, errors, loaded = run(*arguments.format(out=out).split())
    assert (status, output, loaded) == (2, "", [])
    (line,) = errors
    assert line.startswith("diffattn: ")
    assert message in line
    assert not out.exists()


def test_a_missing_model_is_refused_before_anything_heavy_loads(tmp_path):
    none = str(tmp_path / "none")
    for arguments in (("generate", none, "--prompt"), ("inspect", none, "--out", none, "--text")):
        status, _, errors, loaded = run(*arguments, "a")
        assert (status, loaded) == (1, [])
        message = "must be a run directory, a model folder or a hub name, got nothing."
        assert errors[0].endswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "judge {out} --model m",
            "must be a folder that 'diffattn evaluate' wrote (evaluation.json), got nothing.",
        ),
        (
            "compare {out}",
            "must be a folder that 'diffattn evaluate' wrote (evaluation.json), got nothing.",
        ),
        ("report {out}", "must hold study.json, evaluation.json or analysis.json, got none."),
        (
            "report {out} --markdown",
            "must hold study.json, evaluation.json or analysis.json, got none.",
        ),
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
