"""Bookkeeping of a session's stages: limits, kills, records, what is run again or refused."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.records.results import BenchCase, BenchResult, BenchRow, BenchRun
from tools import gpu_plan, stages
from tools.stages import Stage, read_stage, refusal, run_stages

ROOT = Path(__file__).parents[2]


@pytest.fixture
def planned(tmp_path):
    """The stages of a whole session on a GPU."""
    return gpu_plan.gpu_stages("full", "cuda", ROOT, tmp_path)


def python(code):
    return (sys.executable, "-S", "-c", code)


def stage(name, *codes, **changes):
    made = Stage(name=name, title=name, limit_seconds=30, commands=tuple(map(python, codes)))
    return replace(made, **changes)


def judge(passed, failed):
    counts = {"kernels": {"triton": {"passed": passed, "failed": failed}}}
    return stage("judge", "pass", facts=lambda out: counts)


def run(stages, out, **options):
    messages = []
    records = run_stages(stages, out, on_message=messages.append, **options)
    return records, messages


def test_a_record_says_what_ran(tmp_path):
    hello = stage("one", "print('hello')", facts=lambda out: {"files": os.listdir(out)})
    machine = {"commit": "abc", "versions": {"triton": "3"}, "machine": {"gpu": "H"}}
    (record,), messages = run([hello], tmp_path, **machine)
    assert record == read_stage(tmp_path / "one.json")
    expected = {"stage": "one", "outcome": "passed", "reason": None, "commit": "abc"}
    expected |= {"facts": {"table": "shipped", "files": ["one.log"]}}
    assert record.items() >= expected.items()
    assert (record["versions"]["triton"], record["hardware"]["gpu"]) == ("3", "H")
    assert record["versions"]["torch"]
    (command,) = record["commands"]
    assert (command["exit"], command["log"]) == (0, "hello\n")
    assert 0 < command["seconds"] <= record["seconds"]
    assert messages[0] == "one: one, at most 30 s"


def test_after_a_command_that_fails_the_others_still_run(tmp_path):
    records, _ = run([stage("a", "raise SystemExit(3)", "print(1)"), stage("b", "pass")], tmp_path)
    assert [record["outcome"] for record in records] == ["failed", "passed"]
    assert [command["exit"] for command in records[0]["commands"]] == [3, 0]
    assert records[0]["reason"] == "1 of 2 commands failed, see a.log"


def test_an_overrun_is_killed_with_its_children(tmp_path, monkeypatch):
    """Also a process that will not end, and its child; the next stage runs."""
    monkeypatch.setattr(stages, "_GRACE", 0.3)
    child = tmp_path / "child"
    stubborn = (
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('working', flush=True)\n"  # before there are two that would write at once
        f"pid = os.fork()\nif pid: pathlib.Path({str(child)!r}).write_text(str(pid))\n"
        "time.sleep(600)"
    )
    began = time.monotonic()
    slow = stage("slow", stubborn, "print('never')", limit_seconds=3.0)
    records, _ = run([slow, stage("next", "pass")], tmp_path)
    assert time.monotonic() - began < 25
    assert [record["outcome"] for record in records] == ["overran", "passed"]
    (command,) = records[0]["commands"]
    assert (command["exit"], command["log"][:8]) == (None, "working\n")
    assert records[0]["reason"] == "stopped at its limit of 3 s"
    assert has_ended(int(child.read_text()))


def has_ended(pid):
    """Whether it runs no longer; the system may take a moment to bury an orphan."""
    for _ in range(200):
        status = Path(f"/proc/{pid}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_what_has_a_record_runs_again_only_if_asked(tmp_path):
    count = f"open({str(tmp_path / 'runs')!r}, 'a').write('x'); raise SystemExit(1)"
    for again, runs in ((False, 1), (False, 1), (True, 2)):
        (record,), messages = run([stage("one", count)], tmp_path, again=again)
        assert record["outcome"] == "failed"
        assert (tmp_path / "runs").read_text() == "x" * runs
    assert messages[-1].startswith("one: failed in")


UNTIMED = "tests of 'triton' must pass before it is timed, got"


@pytest.mark.parametrize(
    ("first", "wrong"),
    [
        ([], "stage 'judge' must run before kernels are timed, got no record of it"),
        ([judge(5, 1)], f"{UNTIMED} 1 failed and 5 passed"),
        ([judge(0, 0)], f"{UNTIMED} 0 failed and 0 passed"),
        ([judge(5, 0)], None),
    ],
    ids=["unjudged", "wrong", "untested", "right"],
)
def test_wrong_kernels_are_not_timed(first, wrong, tmp_path):
    timed = stage("timed", "print('timing')", times=("triton",), judge="judge")
    records, _ = run([*first, timed, stage("untimed", "pass")], tmp_path)
    assert records[-1]["outcome"] == "passed"
    assert records[-2]["reason"] == wrong
    assert records[-2]["outcome"] == ("refused" if wrong else "passed")
    assert len(records[-2]["commands"]) == (0 if wrong else 1)
    assert refusal(timed, tmp_path) == wrong


def test_a_refused_stage_runs_once_its_kernel_is_right(tmp_path):
    timed = stage("timed", "pass", times=("triton",), judge="judge")
    assert run([judge(5, 1), timed], tmp_path)[0][1]["outcome"] == "refused"
    assert run([judge(5, 0)], tmp_path, again=True)[0][0]["outcome"] == "passed"
    assert run([timed], tmp_path)[0][0]["outcome"] == "passed"


@pytest.mark.parametrize("device", gpu_plan.DEVICES)
@pytest.mark.parametrize("scale", gpu_plan.SCALES)
def test_the_plan_fits_its_session(scale, device, tmp_path):
    planned = gpu_plan.gpu_stages(scale, device, Path("/code"), tmp_path)
    assert planned[0].name == gpu_plan.JUDGE
    assert [s.name for s in planned if s.fills] == [planned[-1].name] == ["lease"]
    judges = {s.name: s.judge for s in planned if s.times}
    timed = {"ops", "tune", "ops_tuned", "models", "decode", "paged", "pair"}
    assert judges == ({} if device == "cpu" else
                      dict.fromkeys(timed, "correctness") | {"hopper_ops": "hopper"})  # fmt: skip


def test_a_kernel_that_might_hang_is_run_by_late_stages_alone(planned):
    assert [s.name for s in planned[-4:-1]] == ["hopper_backward", "hopper", "hopper_ops"]
    for s in planned[:-4]:
        for argv in s.commands:
            if "pytest" in argv:
                assert "not hopper" in argv
            elif argv[3:5] in (("bench", "ops"), ("bench", "decode")):
                assert "hopper" not in argv[argv.index("--only") + 1].split(",")


def test_every_file_of_the_operators_is_run(planned):
    """By value: pytest would put a folder's own files before its folders."""
    (argv,) = planned[0].commands
    paths = [Path(word) for word in argv if word.startswith(str(ROOT / "tests"))]
    assert paths[:2] == [ROOT / "tests/gpu", ROOT / "tests/ops/triton"]
    assert set(paths[2:-1]) == set((ROOT / "tests/ops").glob("test_*.py"))
    assert paths[-1] == ROOT / "tests/layers"


def bench_record(path, backend, status="ok"):
    row = BenchRow(contender="diff", role="DIFF", backend=backend, status=status)
    source = BenchRun(
        name="r", created="", commit=None, dirty=None, source="", versions={}, hardware={},
        settings={},
    )  # fmt: skip
    case = BenchCase(
        suite="models", run="r", device="cuda", dtype="bfloat16", mode="forward", shape={"N": 1},
        created="", matmul_flops_per_second=None, rows=[row],
    )  # fmt: skip
    BenchResult(runs={"r": source}, cases=[case]).write(path)


@pytest.mark.parametrize(
    ("backend", "status", "got"),
    [("triton", "ok", None), ("composed", "ok", "composed"), ("triton", "failed", "nothing")],
)
def test_models_timed_without_the_kernels_are_a_failure(backend, status, got, planned, tmp_path):
    (models,) = (s for s in planned if s.name == "models")
    models = replace(models, times=(), commands=(python("pass"),))
    (missing,), _ = run([models], tmp_path)
    assert missing["outcome"] == "failed"
    assert "models.json" in missing["reason"]
    bench_record(tmp_path / "bench" / "models.json", backend, status)
    (record,), _ = run([models], tmp_path, again=True)
    wrong = "differential attention must run on one of {triton, hopper}, got "
    assert record["reason"] == (got and wrong + got)
    assert record["outcome"] == ("failed" if got else "passed")


def test_a_stage_launches_by_the_table_that_is_there_by_then(tmp_path):
    """Written by the stage before it, and named in its record; without it, the package's own."""
    table = tmp_path / "tune.json"
    search = stage("search", f"open({str(table)!r}, 'w')")
    times = stage("times", "import sys; print(*sys.argv[1:])", table=table)
    (before,), _ = run([times], tmp_path / "before")
    assert (before["facts"], before["commands"][0]["log"]) == ({"table": "shipped"}, "\n")
    (results, after), _ = run([search, times], tmp_path / "after")
    assert results["facts"] == {"table": "shipped"}
    assert after["facts"] == {"table": "tuned"}
    assert after["commands"][0]["log"] == f"--table {table}\n"


def test_a_stage_that_fills_the_time_stops_and_goes_on_in_the_next_call(tmp_path, monkeypatch):
    """It may save on SIGTERM for longer than others, and ends before the call does."""
    monkeypatch.setattr(stages, "_LEAST", 0.5)
    monkeypatch.setattr(stages, "_GRACE", 0.1)
    saves = f"""if True:
        import signal, time
        def save(*signal):
            time.sleep(0.5)
            open({str(tmp_path / "saved")!r}, "a").write("x")
            exit()
        signal.signal(signal.SIGTERM, save)
        time.sleep(60)
    """
    filling = stage("filling", saves, fills=True)
    monkeypatch.setattr(stages, "_GRACE_OF_TRAINING", 5.0)
    for times in (1, 2):
        until = time.monotonic() + 7.5
        (record,), _ = run([filling], tmp_path, until=until)
        assert record["outcome"] == "stopped"
        assert 0.5 < record["limit_seconds"] < 2
        assert (tmp_path / "saved").read_text() == times * "x"
        assert time.monotonic() < until
    with pytest.raises(ConfigError, match=r"must leave 5\.5 s or more for stage 'filling'"):
        run([filling], tmp_path, until=time.monotonic() + 3)
    ended = replace(filling, commands=(python("pass"),))
    assert run([ended], tmp_path)[0][0]["outcome"] == "passed"
    (record,), messages = run([ended], tmp_path)
    assert messages == [f"filling: passed on {record['date']}, not run again"]


def test_what_does_not_fit_in_is_left_in_its_order(tmp_path):
    """Also what would fit behind it; the next call goes on there."""
    known = [stage("a", "pass"), stage("b", "pass", limit_seconds=60), stage("c", "pass")]
    for times in range(2):
        records, messages = run(known, tmp_path, until=time.monotonic() + 50)
        assert [record["stage"] for record in records] == ["a"]
        assert messages[-1].endswith("is left in this one: b, c")
        if times == 0:
            (tmp_path / "a.json").unlink()
    with pytest.raises(ConfigError, match=r"must leave 65 s or more for stage 'b', got \d+ s"):
        run(known, tmp_path, until=time.monotonic() + 50)
    records, _ = run(known, tmp_path, until=time.monotonic() + 200)
    assert [record["outcome"] for record in records] == ["passed"] * 3


def test_processes_belong_to_the_session_of_their_caller(tmp_path):
    """Whoever ends a session of processes ends them; yet a stage is killed as a group."""
    code = "import os; print(os.getsid(0), os.getpgid(0) == os.getpid())"
    (record,), _ = run([stage("one", code)], tmp_path)
    assert record["commands"][0]["log"].split() == [str(os.getsid(0)), "True"]
