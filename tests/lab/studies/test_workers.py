"""Worker processes: how many run, what their parent hears, and that none outlives it."""

import base64
import json
import pickle
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

from diffattn.errors import DiffAttnError
from diffattn.lab.studies import workers
from diffattn.lab.studies.study import PlannedRun
from diffattn.lab.studies.text.comparison import comparison
from diffattn.lab.studies.workers import is_done, run_here, train_runs

# Stands for "python -m diffattn.lab.studies.worker": reads its job, then does as its name says.
FAKE = """
    import json, os, signal, sys, time
    from pathlib import Path
    order = json.loads(sys.stdin.readline())
    name, folder = order["name"], Path(order["folder"])
    folder.mkdir()
    (folder / "pid").write_text(str(os.getpid()))
    (folder / "pid").rename(folder.parent / f"{name}.pid")  # it may be killed in between
    def send(**event):
        print(json.dumps(event), flush=True)
    send(step=1, loss=2.5)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """``fake(body)``: what workers do from now on."""

    def write(body, interpreter=sys.executable, start=FAKE):
        program = tmp_path / "fake_worker"
        code = textwrap.dedent(start) + textwrap.dedent(body)
        program.write_text(f"#!{interpreter}\n{code}", encoding="utf-8")
        program.chmod(0o755)
        monkeypatch.setattr(workers, "sys", SimpleNamespace(executable=str(program)))

    return write


@pytest.fixture
def planned():
    config = comparison("smoke")
    return config.trials(config.base_rates())


def run(planned, tmp_path, count=2, on_progress=None, **options):
    received = []
    hear = on_progress or (lambda name, event: received.append((name, event)))
    options |= {"workers": count, "on_progress": hear}
    train_runs(planned, tmp_path / "data", tmp_path / "runs", **options)
    return received


@pytest.mark.parametrize("left", ["checkpoints", ".lock"])
def test_a_run_that_was_killed_while_it_cleaned_up_is_not_done(left, tmp_path):
    (tmp_path / "results.json").touch()
    assert is_done(tmp_path)
    (tmp_path / left).touch()
    assert not is_done(tmp_path)


def test_each_run_gets_its_own_job(planned, tmp_path, fake):
    fake("(folder / 'job.json').write_text(json.dumps(order)); send(done=1)")
    received = run(planned, tmp_path)
    for run_of_worker in planned:
        name = run_of_worker.config.name
        events = [event for who, event in received if who == name]
        assert events == [{"step": 1, "loss": 2.5}, {"done": 1}]
        job = json.loads((tmp_path / "runs" / name / "job.json").read_text())
        sent = pickle.loads(base64.b64decode(job["planned_run"]))
        assert sent.config.resolved() == run_of_worker.config.resolved()
        assert sent.facts == run_of_worker.facts
        assert sent.records_divergence is run_of_worker.records_divergence is True
        assert job["data"] == str(tmp_path / "data")
        assert (tmp_path / "runs" / f"{name}.log").read_text() == ""


def test_runs_in_this_process_are_heard(planned, tmp_path, monkeypatch):
    def train(run, data, folder, on_progress, on_message):
        on_message("a damaged checkpoint is left out")
        on_progress(1, 2.5)

    monkeypatch.setattr(PlannedRun, "train", train)
    received = []
    run_here(planned[:1], None, tmp_path, on_progress=lambda *event: received.append(event))
    name = planned[0].config.name
    events = [{"message": "a damaged checkpoint is left out"}, {"step": 1, "loss": 2.5}]
    assert received == [(name, event) for event in (*events, {"done": True})]


def test_within_a_seed_the_most_arithmetic_is_first(tmp_path, monkeypatch):
    config, started = comparison("smoke", seeds=(1, 0)), []
    planned = config.trials(config.base_rates())

    def note(pool, count):
        started.extend(run.config.name for run in pool.waiting)

    monkeypatch.setattr(workers._Pool, "run", note)
    run(planned, tmp_path, count=1)
    assert [name.rsplit("-", 1)[1] for name in started] == ["seed1"] * 5 + ["seed0"] * 5
    flops = {run.config.name: run.facts["flops_difference"] for run in planned}
    for of_seed in (started[:5], started[5:]):
        results = [flops[name] for name in of_seed]
        assert results == sorted(results, reverse=True)
    assert started[4] == "none-seed1"


@pytest.mark.parametrize("count", [1, 3])
def test_no_more_than_the_given_number_run_at_a_time(count, planned, tmp_path, fake):
    fake(
        """
        (folder.parent / f"{name}.on").touch()
        send(running=len(list(folder.parent.glob("*.on"))))
        time.sleep(0.1)
        (folder.parent / f"{name}.on").unlink()
        send(done=True)
        """
    )
    received = run(planned, tmp_path, count)
    running = [event["running"] for _, event in received if "running" in event]
    assert len(running) == len(planned)
    assert max(running) <= count


@pytest.mark.parametrize("short", [True, False])
def test_short_runs_share_processes(short, planned, tmp_path, fake):
    fake(
        """
        send(done=True)
        for line in sys.stdin:
            send(done=True)
        """
    )
    received = run(planned, tmp_path, short=short)
    done = [name for name, event in received if "done" in event]
    assert sorted(done) == sorted(run.config.name for run in planned)
    assert len(list((tmp_path / "runs").glob("*.pid"))) == (2 if short else len(planned))


def test_a_message_of_a_worker_reaches_the_caller_and_no_more_are_started(planned, tmp_path, fake):
    fake(
        """
        if name.startswith("diff_v2-"):
            send(error=f"{name}: it must work, got none.")
            sys.exit(1)
        time.sleep(0.3)
        (folder / "results.json").touch()
        send(done=True)
        """
    )
    with pytest.raises(DiffAttnError, match=r"^diff_v2-seed0: it must work, got none\.$"):
        run(planned, tmp_path)
    runs = tmp_path / "runs"
    begun = {path.name for path in runs.iterdir() if path.is_dir()} - {"diff_v2-seed0"}
    assert len(begun) == 1
    assert (runs / begun.pop() / "results.json").exists()  # what had begun was finished


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("sys.stdout.write('{\"st'); sys.stdout.flush(); os._exit(3)", 3),  # dies within a line
        ("raise MemoryError", 1),
    ],
)
def test_a_worker_that_dies_is_named_with_its_log(body, status, planned, tmp_path, fake):
    fake(body)
    with pytest.raises(DiffAttnError) as error:
        run(planned[:1], tmp_path)
    log = tmp_path / "runs" / "softmax-seed0.log"
    ended = f"the run must end by itself, got exit status {status}. Its log: {log}"
    assert str(error.value) == f"softmax-seed0: {ended}"
    assert ("MemoryError" in log.read_text()) == (body == "raise MemoryError")


def test_a_worker_that_never_reads_its_job_is_an_error_too(planned, tmp_path, fake):
    fake("exit 1", interpreter="/bin/sh", start="")
    with pytest.raises(DiffAttnError, match=r"softmax-seed0: .* got exit status 1"):
        run(planned[:1], tmp_path)


def is_alive(pid):
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")


def test_an_interruption_ends_the_workers(planned, tmp_path, fake):
    fake("time.sleep(60)")

    def interrupt(name, event):
        if name == "diff_v2-seed0":
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(planned, tmp_path, on_progress=interrupt)
    assert time.monotonic() - began < 30  # they were not waited for
    pids = [int(path.read_text()) for path in (tmp_path / "runs").glob("*.pid")]
    assert 1 <= len(pids) <= 2
    assert not any(map(is_alive, pids))


# The real worker around another job: what is tested is how it talks and ends.
REAL = """
import os, sys, time
from diffattn.errors import CheckpointError
from diffattn.lab.studies import worker
def train(order, send):
    {body}
worker._train = train
sys.exit(worker.main())
"""


def real_worker(body):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", REAL.format(body=body)], **pipes, text=True)


def give_job(process, name="r"):
    process.stdin.write(f'{{"name": "{name}"}}\n')
    process.stdin.flush()


@pytest.mark.parametrize(
    ("body", "events", "status"),
    [
        ("send(step=1, loss=None)", [{"step": 1, "loss": None}, {"done": True}], 0),
        ("print('noise'); os.system('echo more')", [{"done": True}], 0),
        ("raise CheckpointError('x: must be.')", [{"error": "r: x: must be."}], 1),
        (
            "raise OSError(28, 'No space left')",
            [{"error": "r: files must be writable, got [Errno 28] No space left."}],
            1,
        ),
    ],
)
def test_a_real_worker_tells_one_json_line_per_event(body, events, status):
    with real_worker(body) as process:
        give_job(process)
        assert [json.loads(process.stdout.readline()) for _ in events] == events
        if status == 0:
            process.stdin.close()  # or it would wait for another job
        assert process.stdout.read() == ""
        log = process.stderr.read()
        assert process.wait() == status
    assert ("noise" in log and "more" in log) == ("noise" in body)
    assert "Error" not in log


def test_a_real_worker_takes_one_job_after_another_and_ends_with_its_parent():
    body = "order['name'] == 'long' and (send(step=1), time.sleep(60))"
    with real_worker(body) as process:
        for _ in range(2):
            give_job(process)
            assert json.loads(process.stdout.readline()) == {"done": True}
        give_job(process, "long")
        assert json.loads(process.stdout.readline()) == {"step": 1}
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=10) == 1
