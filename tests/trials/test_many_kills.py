"""One training that is killed again and again ends as one that nobody disturbed, to the bit.

Besides the files of the run, every step that any of its processes made is compared: which windows
it read, and its loss.
"""

import hashlib
import os
import random
import signal
import time

import pytest

from children import fork, in_child
from diffattn.lab.training.loop.trainer import RunTrainer
from tally import trial
from trials import commands
from trials.commands import Command, call


def small(home):
    """Seconds."""
    out, text = home / "train", commands.corpus(home / "text")
    changes = commands.settings(text, 40)
    return Command("train", ["train", "smoke", "--attention", "diff", "--out", out, *changes], out)


def laptop(home):
    """The laptop model, with checkpoints between evaluations."""
    out, text = home / "train", commands.corpus(home / "text", 40)
    changes = [
        f"data.source={text}", "data.vocab_size=300", "train.num_steps=200",
        "train.evaluate_every=20", "train.evaluation_tokens=512", "engine.save_every=5",
        "engine.watch_every=10",
    ]  # fmt: skip
    arguments = ["train", "laptop", "--attention", "diff", "--out", out]
    return Command("train", [*arguments, *(x for c in changes for x in ("--set", c))], out)


def live(command, log):
    """A child's life: the command, with a line for every step it makes."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    real = RunTrainer.training_step

    def training_step(self, model, inputs, *rest):
        read = hashlib.sha256(inputs["input_ids"].cpu().numpy().tobytes()).hexdigest()
        loss = real(self, model, inputs, *rest)
        line = f"{self.state.global_step + 1} {read} {float(loss).hex()}\n"
        os.write(handle, line.encode())
        return loss

    RunTrainer.training_step = training_step
    return call(command.arguments)


def life(command, log, steps=None, seconds=0.0):
    """Fork a process; kill it so long after it has made so many steps.

    Returns its exit status, negative for a signal.
    """
    made = lines_of(log)
    pid = fork()
    if pid == 0:
        status = 9
        try:
            status = 0 if live(command, log) is None else 1
        finally:
            os._exit(status)
    if steps is None:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    while lines_of(log) < made + steps:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(1e-3)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def lines_of(log):
    return log.read_bytes().count(b"\n") if log.exists() else 0


def steps_of(log):
    """Number to windows and loss, and what contradicts itself."""
    steps, faults = {}, []
    for line in log.read_text().splitlines() if log.exists() else []:
        number, *what = line.split()
        if steps.setdefault(int(number), what) != what:
            faults.append(f"step {number} was made twice, differently")
    return steps, faults


def killed_often(command, home, kills, steps, seconds):
    """Kill it so often, each time a random moment after at most so many steps; then let it end."""
    with trial(f"one training killed {kills} times", minimum=kills + 1) as tally:
        command.start()
        assert life(command, home / "whole") == 0
        command.expected = command.results()
        expected, faults = steps_of(home / "whole")
        assert not faults
        command.start()
        rng = random.Random(0)
        for number in range(kills):
            moment = rng.uniform(0, seconds)  # in a step, an evaluation or a checkpoint
            status = life(command, home / "killed", rng.randint(0, steps), moment)
            made, faults = steps_of(home / "killed")
            faults += [f"step {s} is another" for s, what in made.items() if what != expected[s]]
            if status != -signal.SIGKILL:
                faults.append(f"it had ended before kill {number}, with status {status}")
            tally.check(f"after kill {number}", faults[0] if faults else None)
        status = life(command, home / "killed")
        fault = f"status {status}" if status else command.difference()
        made, faults = steps_of(home / "killed")
        tally.check("at the end", fault or (None if made == expected else "other steps"))
    return len(made)


def test_killed_twice(tmp_path):
    assert killed_often(small(tmp_path), tmp_path, 2, 8, 0.03) == 40


@pytest.mark.scheduled
def test_killed_twenty_times(tmp_path):
    assert killed_often(laptop(tmp_path), tmp_path, 20, 14, 0.1) == 200


def test_sigterm_is_one_line_and_a_status(tmp_path):
    command = small(tmp_path)
    command.start()

    def terminated():
        real = RunTrainer.training_step

        def training_step(self, *rest):
            if self.state.global_step == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(self, *rest)

        RunTrainer.training_step = training_step
        return call(command.arguments)

    how, line = in_child(terminated)
    assert how == "done"
    assert line.startswith("exit 143: diffattn: stopped after step 3 of ")
    assert (command.out / "checkpoints" / "checkpoint-3" / "manifest.json").exists()
