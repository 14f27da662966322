"""``tools/gpu_session.py``: its plan, its tables, and all of it at tiny size on a CPU."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from diffattn.files.io import write_json
from tools import gpu_session
from tools.stages import read_stage

ROOT = Path(__file__).parents[2]


def test_the_plan_is_printed_and_nothing_runs(tmp_path, capsys):
    out = tmp_path / "out"
    assert gpu_session.main(["--plan", "--stages", "1,decode", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 correctness: the kernels against float64, 240 s"
    assert lines[1].endswith("240 s (left out)")
    assert lines[-1] == "at most 5.25 minutes"
    words = ["--plan", "--stages", "1,ops", "--limit", "ops=60", "--out", str(out)]
    assert gpu_session.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("two calls, 60 s")
    assert lines[-1] == "at most 5 minutes"
    assert not out.exists()


LIMIT = "limit: must be STAGE=SECONDS with one of {corr"


@pytest.mark.parametrize(
    ("option", "word", "message"),
    [
        *(("--limit", word, LIMIT) for word in ("oops=60", "ops", "ops=0", "ops=soon", "ops=-3")),
        ("--stages", "oops", "stages: must be of 1 to 14 or of {correctness, "),
    ],
)
def test_a_wrong_option_is_one_line(tmp_path, capsys, option, word, message):
    assert gpu_session.main(["--plan", option, word, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(message)


def bench_case(size, length, mode, seconds):
    rows = [
        SimpleNamespace(contender=name, seconds=SimpleNamespace(median=value))
        for name, value in seconds.items()
    ]
    shape = {"size": size, "N": length}
    return SimpleNamespace(suite="models", mode=mode, shape=shape, rows=rows)


def test_two_depths_give_the_whole_depth():
    """0.1 s besides layers and 0.01 s each: 28 layers take 0.38 s; DIFF twice that per layer."""
    cases = [
        bench_case("3b-2-layers", 2_048, "forward", {"softmax_sdpa": 0.12, "diff": 0.14}),
        bench_case("3b-6-layers", 2_048, "forward", {"softmax_sdpa": 0.16, "diff": 0.22}),
        bench_case("3b-2-layers", 4_096, "forward", {"softmax_sdpa": 0.12}),
    ]
    rows = gpu_session.beside_table_7(SimpleNamespace(cases=cases))
    (row,) = (r for r in rows if r["tokens_per_second"])
    assert (row["preset"], row["tokens"], row["mode"]) == ("3b", 2_048, "forward")
    assert row["tokens_per_second"]["softmax_sdpa"] == pytest.approx(2_048 / 0.38)
    assert row["tokens_per_second"]["diff"] == pytest.approx(2_048 / 0.66)
    assert row["printed"] == {"transformer": 51_228, "diff": 46_811}


RECORD = {
    "outcome": "failed", "date": "2026-11-22T10:00:00+00:00", "commit": "0" * 40,
    "hardware": {"gpu": "H", "capability": [9, 0]},
    "versions": {"torch": "2.11.0", "triton": "3.6.0", "ptxas": "12.8.93"},
    "facts": {
        "passed": 50, "failed": 7, "skipped": 9, "kernels": {
            "triton": {"passed": 3, "failed": 0, "skipped": 2},
            "triton_decode": {"passed": 2, "failed": 0, "skipped": 0},
            "hopper": {"passed": 0, "failed": 4, "skipped": 0},
        },
    },
}  # fmt: skip


def test_a_whole_run_on_a_gpu_makes_a_row():
    """It counts tests of numbers, and of the kernels that ``auto`` chooses."""
    assert gpu_session.accepted_row(RECORD) == (
        "| H | 9.0 | 3.6.0 | 2.11.0 | 12.8.93 | `0000000` | 2026-11-22 | 5 | 0 | 2 |"
    )


def test_the_assembler_is_the_one_that_triton_calls(tmp_path, monkeypatch):
    knobs = pytest.importorskip("triton.knobs", reason="the assembler comes with it")
    assert gpu_session.ptxas_version(90).startswith(knobs.nvidia.ptxas.version + ".")
    newer = tmp_path / "ptxas"
    newer.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.1, V13.1.80'\n")
    newer.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(newer))
    assert gpu_session.ptxas_version(90) == "13.1.80"


def decoded(passed, failed):
    """A change of the outcomes of one kernel's tests."""
    counts = {"passed": passed, "failed": failed, "skipped": 4}
    return {"facts": {"kernels": RECORD["facts"]["kernels"] | {"triton_decode": counts}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"outcome": "overran"}, "must be of a whole run on a GPU"),
        ({"hardware": {}}, "must be of a whole run on a GPU"),
        ({"commit": None}, "must name the commit of the code, got none"),
        (decoded(0, 0), "tests of 'triton_decode' must pass, got 0 failed and 0 passed."),
        (decoded(7, 1), "tests of 'triton_decode' must pass, got 1 failed and 7 passed."),
    ],
)
def test_part_of_a_run_makes_no_row(change, message, tmp_path, capsys):
    write_json(tmp_path / "correctness.json", RECORD | {"schema": 1} | change)
    assert gpu_session.main(["--accept", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"correctness.json: {message}")


@pytest.mark.parametrize(("words", "got"), [([], "None"), (["--commit", "main"], "main")])
def test_without_a_checkout_a_commit_is_asked_for(words, got, tmp_path, monkeypatch, capsys):
    """Before anything runs, as the record of a session without one cannot be accepted."""
    monkeypatch.setattr(gpu_session, "git_state", lambda: (None, None))
    assert gpu_session.main(["--out", str(tmp_path / "out"), *words]) == 2
    text = capsys.readouterr().err
    assert text.startswith("commit: must be 7 to 40 hexadecimal digits, and given where there is")
    assert text.endswith(f"got {got}.\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.scheduled
def test_all_stages_run_on_a_cpu(tmp_path):
    """Every stage passes but the one that a CPU refuses: its kernels have no launches there."""
    command = [sys.executable, "-m", "tools.gpu_session", "--scale", "tiny", "--device", "cpu"]
    subprocess.run([*command, "--out", str(tmp_path)], cwd=ROOT, check=False)
    records = {path.stem: read_stage(path) for path in tmp_path.glob("*.json")
               if path.stem != "table_7"}  # fmt: skip
    assert len(records) == 14
    for name, record in records.items():
        # The study for leases stops where its runs take longer than its limit.
        expected = {"tune": ("failed",), "lease": ("passed", "stopped")}.get(name, ("passed",))
        assert record["outcome"] in expected, record["commands"]
        assert record["hardware"]["processor"]
        assert record["versions"]["triton"]
        assert record["facts"]["table"] == "shipped"  # nothing was searched
    for name in ("correctness", "others", "hopper"):
        assert records[name]["facts"]["passed"] > 0
        assert records[name]["facts"]["failed"] == 0
    measured = {json.loads((tmp_path / "bench" / f).read_text())["cases"][0]["suite"]
                for f in ("bench.json", "models.json", "ops_tuned.json")}  # fmt: skip
    assert measured == {"ops", "models"}
    for model in ("softmax", "diff"):
        assert (tmp_path / model / "metrics.jsonl").stat().st_size > 0
        assert json.loads((tmp_path / model / "results.json").read_text())["validation_loss"] > 0
