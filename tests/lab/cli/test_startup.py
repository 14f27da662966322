"""What needs no model answers before PyTorch loads, which takes seconds."""

import pytest

from lab.cli.forks import run_each
from lab.cli.misuse import BEFORE_TORCH

LISTINGS = ["recipes", "presets", "types", "backends", "protocols"]
MODEL = "must be a run directory, a model folder or a hub name, got nothing."
EVALUATION = "must be a folder that 'diffattn evaluate' wrote (evaluation.json), got nothing."
RECORDS = "must hold study.json or evaluation.json or analysis.json, got no such folder."
ANSWERED = ("--version", "list", *(f"list {x}{y}" for x in LISTINGS for y in ("", " --json")))
MISSING = (
    ("generate {out} --prompt a", MODEL),
    ("inspect {out} --out {out} --text a", MODEL),
    ("judge {out} --model m", EVALUATION),
    ("compare {out}", EVALUATION),
    ("report {out}", RECORDS),
    ("report {out} --markdown", RECORDS),
)
CONTROL = "fit {out}.csv"


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """How every command line of this file ends, none of which may leave a file."""
    out = tmp_path_factory.mktemp("startup") / "out"
    rows = "".join(f"a,{2**i},{3 + 0.5**i}\n" for i in range(6))
    out.with_suffix(".csv").write_text(f"name,tokens,loss\n{rows}")
    lines = [*ANSWERED, *(line for line, _ in (*BEFORE_TORCH, *MISSING)), CONTROL]
    ends = run_each(*(line.format(out=out).split() for line in lines), folder=out.parent)
    assert [path.name for path in out.parent.iterdir()] == ["out.csv"]
    return dict(zip(lines, ends, strict=True))


@pytest.mark.parametrize("line", ANSWERED)
def test_listings_load_nothing_heavy(line, ended):
    assert ended[line].output
    assert ended[line]._replace(output="") == (0, "", [], [])


@pytest.mark.parametrize(
    ("line", "message", "status"),
    [*((*row, 2) for row in BEFORE_TORCH), *((*row, 1) for row in MISSING)],
)
def test_misuse_and_missing_folders_are_refused_before_anything_heavy_loads(
    line, message, status, ended
):
    (error,) = ended[line].errors
    assert error.startswith("diffattn: ")
    assert message in error
    assert ended[line] == (status, "", [error], [])


def test_what_is_loaded_would_be_seen(ended):
    """The control: a command that does need a heavy package, and the quickest of them."""
    assert (ended[CONTROL].status, ended[CONTROL].loaded) == (0, ["scipy"])
