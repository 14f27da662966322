"""Sparse lines without a terminal, bars with one, and an honest time left."""

import io
import itertools

import pytest
from rich.console import Console

from diffattn.lab.cli import screen as module
from diffattn.lab.cli.screen import ByteProgress, ItemProgress, RunsProgress


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1_000.0

    monkeypatch.setattr(module.time, "monotonic", lambda: Clock.now)
    return Clock


def test_lines_are_sparse_and_end_at_the_end(clock, capsys):
    with RunsProgress(200, 0, lambda _: 100) as shown:
        shown.on_message("packing")
        for step in range(1, 101):
            clock.now += 1
            shown.on_progress("a", {"step": step, "loss": 2.5})
            shown.on_progress("b", {"step": step, "loss": None})
        shown.on_progress("c", {"error": "no"})
        shown.on_progress("a", {"done": True})
        shown.on_progress("b", {"done": True})
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "packing",
        "1/200 steps (0%); a loss 2.500",
        "41/200 steps (20%), about 0:01:22 left; a loss 2.500",
        "81/200 steps (40%), about 0:01:01 left; a loss 2.500",
        "121/200 steps (60%), about 0:00:40 left; a loss 2.500",
        "161/200 steps (80%), about 0:00:20 left; a loss 2.500",
        "200/200 steps (100%); b",
    ]


def test_what_earlier_calls_did_is_done_but_not_timed(clock, capsys):
    with RunsProgress(300, 100, lambda _: 100) as shown:  # one of three runs is finished
        shown.on_progress("b", {"step": 61, "loss": 1.0})  # continued from step 60
        clock.now += 600
        shown.on_progress("b", {"step": 76, "loss": 1.0})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("161/300 steps (54%); b loss 1.000")
    assert lines[1].startswith("176/300 steps (59%), about 1:22:40 left")  # 40 s a step


@pytest.fixture
def screen(monkeypatch):
    """A terminal of 100 columns."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(module, "Console", lambda stderr: console)
    return console.file


def test_bars_on_a_terminal(clock, screen):
    with RunsProgress(20, 0, lambda _: 10) as shown:
        shown.on_message("packing /data/[old] and [/new]")
        shown.on_progress("a", {"total": 25})
        shown.on_progress("a", {"error": "no"})
        for step, name in itertools.product((1, 10), "ab"):
            shown.on_progress(name, {"step": step, "loss": 2.5})
            shown.on_progress(name, {"done": True} if step == 10 else {"error": "no"})
        shown.on_message("comparing")
    text = screen.getvalue()
    assert "packing /data/[old] and [/new]" in text
    assert "20/25 steps" in text
    assert "loss 2.500" in text
    assert "comparing" in text


def test_lines_over_items_are_sparse_and_show_the_time_left(clock, capsys):
    with ItemProgress(2) as shown:
        shown.on_start("a/needle")
        for seconds, done in ((0, 2), (5, 3), (25, 6), (1, 7), (29, 10)):
            clock.now += seconds
            shown.on_progress("a/needle", done, 10)
        shown.on_progress("b/needle", 5, 5)
    assert capsys.readouterr().err.splitlines() == [
        "1 of 2: a/needle: preparing",
        "1 of 2: a/needle: 2/10 items",
        "1 of 2: a/needle: 6/10 items, about 0:00:30 left",
        "1 of 2: a/needle: 10 items, 0:01:00",
        "2 of 2: b/needle: preparing",
        "2 of 2: b/needle: 5 items, 0:00:00",
    ]


def test_bars_of_what_has_ended_or_could_not_run_make_room(screen):
    with ItemProgress(3) as shown:
        shown.on_start("a/refused")
        shown.on_start("a/needle")
        shown.on_progress("a/needle", 3, 10)
        assert [task.total for task in shown.bars.tasks] == [10]  # it was not known before
        shown.on_progress("a/needle", 10, 10)
        shown.on_start("b/needle")
        assert [task.description for task in shown.bars.tasks] == ["3 of 3: b/needle, preparing"]
    assert "2 of 3: a/needle: 10 items, 0:00:00" in screen.getvalue()


@pytest.mark.parametrize(
    ("what", "events", "lines"),
    [
        ("packing",
         [(10, 400, 1_000, 5),  # an interrupted call had packed so much
          (10, 500, 1_000, 1_500), (5, 550, 1_000, 2_000), (25, 800, 1_000, 2_500)],
         ["1,500 tokens, 50% read, about 0:00:50 left",
          "2,500 tokens, 80% read, about 0:00:20 left"]),
        ("packing", [(30, 400, None, 5)], ["5 tokens"]),
        ("writing", [(10, 0, 2_000), (0, 5, 2_000), (10, 1_000, 2_000)],
         ["1,000/2,000 bytes, about 0:00:11 left"]),
    ],
)  # fmt: skip
def test_bytes_are_shown_with_the_time_left_where_the_size_is_known(
    what, events, lines, capsys, clock
):
    """And the tokens of a packing."""
    with ByteProgress(what) as shown:
        for seconds, *event in events:
            clock.now += seconds
            shown.on_progress(*event)
    assert capsys.readouterr().err.splitlines() == [f"{what}: {line}" for line in lines]
