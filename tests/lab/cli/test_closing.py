"""The last lines of a study in the terminal."""

from pathlib import Path

from diffattn.lab.cli.screen.closing import closing


def test_a_study_ends_in_few_short_lines():
    sentences = ["One sentence of the page, as long as they are there. " * 6] * 2
    lines = closing(sentences, Path("runs/first/report.html"), Path("runs/first/text")).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 100
    assert "Page: runs/first/report.html" in lines
    assert "  diffattn inspect runs/first/text" in lines


def test_a_study_without_language_models_names_no_commands():
    assert "diffattn" not in closing(["A sentence."], Path("report.html"))
