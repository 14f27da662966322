"""Progress over items, as lines."""

import io

from rich.console import Console

from diffattn.cli import item_progress
from diffattn.cli import progress as shared_display
from diffattn.cli.item_progress import ItemProgress


def test_lines_are_sparse_and_tell_the_time_left(capsys, monkeypatch):
    now = iter([0.0, 5.0, 30.0, 31.0, 60.0, 61.0])
    monkeypatch.setattr(item_progress.time, "monotonic", lambda: next(now))
    with ItemProgress(2) as progress:
        for done in (2, 3, 6, 7, 10):
            progress.on_progress("a/needle", done, 10)
        progress.on_progress("b/needle", 5, 5)
    assert capsys.readouterr().err.splitlines() == [
        "1 of 2: a/needle: 2/10 items",
        "1 of 2: a/needle: 6/10 items, about 30 s left",
        "1 of 2: a/needle: 10/10 items",
        "2 of 2: b/needle: 5/5 items",
    ]


def test_preparation_is_shown_before_the_number_of_items_is_known(capsys):
    with ItemProgress(2) as progress:
        progress.on_start("a/needle")
        progress.on_progress("a/needle", 0, 10)
        progress.on_start("b/needle")
    assert capsys.readouterr().err.splitlines() == [
        "1 of 2: a/needle: preparing",
        "1 of 2: a/needle: 0/10 items",
        "2 of 2: b/needle: preparing",
    ]


def test_a_bar_without_a_number_of_items_gets_one(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(shared_display, "Console", lambda stderr: screen)
    with ItemProgress(1) as progress:
        progress.on_start("a/needle")
        screen.file.truncate(0)
        progress.on_progress("a/needle", 3, 10)
    assert "3/10 items" in screen.file.getvalue()
    assert "preparing" not in screen.file.getvalue().splitlines()[-1]


def test_bars_of_what_has_ended_or_could_not_run_make_room(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(shared_display, "Console", lambda stderr: screen)
    with ItemProgress(3) as progress:
        progress.on_start("a/refused")
        progress.on_start("a/needle")
        progress.on_progress("a/needle", 10, 10)
        progress.on_start("b/needle")
        assert [task.description for task in progress.bars.tasks] == ["3 of 3: b/needle, preparing"]
    assert "2 of 3: a/needle: 10 items, 0 s" in screen.file.getvalue()
