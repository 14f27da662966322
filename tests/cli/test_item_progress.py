"""Progress over items, as lines."""

from diffattn.cli import item_progress
from diffattn.cli.item_progress import ItemProgress


def test_lines_are_sparse_and_tell_the_time_left(capsys, monkeypatch):
    now = iter([0.0, 5.0, 30.0, 31.0, 60.0, 61.0])
    monkeypatch.setattr(item_progress.time, "monotonic", lambda: next(now))
    with ItemProgress(2) as progress:
        for done in (2, 3, 6, 7, 10):
            progress.tell("a/needle", done, 10)
        progress.tell("b/needle", 5, 5)
    assert capsys.readouterr().err.splitlines() == [
        "1 of 2: a/needle: 2/10 items",
        "1 of 2: a/needle: 6/10 items, about 30 s left",
        "1 of 2: a/needle: 10/10 items",
        "2 of 2: b/needle: 5/5 items",
    ]
