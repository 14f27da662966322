"""Sparse lines without a terminal, bars with one, and an honest time left."""

import io
import itertools

import pytest
from rich.console import Console

from diffattn.cli import progress
from diffattn.cli.progress import RunsProgress, duration


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test turns on."""

    class Clock:
        now = 1_000.0

    monkeypatch.setattr(progress.time, "monotonic", lambda: Clock.now)
    return Clock


def test_lines_are_sparse_and_end_at_the_end(clock, capsys):
    with RunsProgress(200, 0, 100) as shown:
        shown.on_message("packing")
        for step in range(1, 101):
            clock.now += 1
            shown.on_progress("a", {"step": step, "loss": 2.5})
            shown.on_progress("b", {"step": step, "loss": None})
        shown.on_progress("a", {"done": True})
        shown.on_progress("b", {"done": True})
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "packing",
        "1/200 steps (0%), time left unknown; a loss 2.500",
        "41/200 steps (20%), about 1 min 22 s left; a loss 2.500",
        "81/200 steps (40%), about 1 min 00 s left; a loss 2.500",
        "121/200 steps (60%), about 40 s left; a loss 2.500",
        "161/200 steps (80%), about 20 s left; a loss 2.500",
        "200/200 steps (100%); b",
    ]


def test_what_earlier_calls_did_is_done_but_not_timed(clock, capsys):
    with RunsProgress(300, 100, 100) as shown:  # one of three runs is finished
        shown.on_progress("b", {"step": 61, "loss": 1.0})  # continued from step 60
        clock.now += 30
        shown.on_progress("b", {"step": 76, "loss": 1.0})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("161/300 steps (54%), time left unknown")
    assert lines[1].startswith("176/300 steps (59%), about 4 min 08 s left")  # 2 s a step


def test_runs_that_fail_or_finish_at_once_are_shown_without_a_step(clock, capsys):
    with RunsProgress(20, 0, 10) as shown:
        shown.on_progress("a", {"error": "no"})
        shown.on_progress("b", {"done": True})
    assert capsys.readouterr().err.splitlines() == ["10/20 steps (50%), time left unknown; b"]


def test_bars_on_a_terminal(clock, monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(
        progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=100)
    )
    with RunsProgress(20, 0, 10) as shown:
        shown.on_message("packing")
        shown.on_progress("a", {"error": "no"})
        for step, name in itertools.product((1, 10), "ab"):
            shown.on_progress(name, {"step": step, "loss": 2.5})
            shown.on_progress(name, {"done": True} if step == 10 else {"error": "no"})
        shown.on_message("comparing")
    text = screen.getvalue()
    assert "packing" in text
    assert "20/20 steps" in text
    assert "loss 2.500" in text
    assert "comparing" in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (3_600, "1 h 00 min")],
)
def testdurations(seconds, text):
    assert duration(seconds) == text
