"""Tables on narrow screens."""

import io

import pytest
from rich.console import Console

from diffattn.lab.cli import screen

ROW = {
    "protocol": "nll_by_position", "score": "logprob_per_token", "difference": "llama − base",
    "value": "−1.1001", "95 % interval": "−1.3367 to −0.8738", "p": "0.25",
    "test": "sign flips of clusters", "n": "3",
}  # fmt: skip


def shown(monkeypatch, width, row):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(screen, "Console", lambda: console)
    screen.print_table([row])
    return console.file.getvalue()


@pytest.mark.parametrize("width", [100, 160])
def test_words_are_whole_and_lines_fit(monkeypatch, width):
    text = shown(monkeypatch, width, ROW)
    assert max(map(len, text.splitlines())) <= width
    for word in " ".join(ROW.values()).split():
        assert word in text


def test_brackets_are_no_markup(monkeypatch):
    text = shown(monkeypatch, 100, {"model[a]": "diff [old]", "value": "[/red]"})
    for word in ("model[a]", "diff [old]", "[/red]"):
        assert word in text


@pytest.mark.parametrize("width", [24, 40, 80])
def test_nothing_is_left_out_of_a_table_that_cannot_fit(monkeypatch, width):
    text = shown(monkeypatch, width, {"model": "m" * 33, "value": "−1.1001", "n": "3"})
    assert (text.count("m"), "3" in text) == (33 + len("m"), True)
    row = {"name": "a"} | {f"column {i}": "x" * 30 for i in range(6)}
    text = shown(monkeypatch, 80, row)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("x") == 6 * 30
