"""The last lines of a study in the terminal."""

from pathlib import Path

from diffattn.lab.cli.screen.closing import closing


def test_a_study_ends_in_few_short_lines():
    sentences = ["One sentence of the page, as long as they are there. " * 6] * 2
    folder = Path("runs/first")
    folders = {name: folder / name for name in ("recall", "text", "scaling")}
    end = closing(sentences, folder / "report.html", folders)
    lines = end.splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 100
    assert "Page: runs/first/report.html" in lines
    assert "  diffattn inspect runs/first/recall" in lines
    assert "diffattn" not in closing(["A sentence."], Path("report.html"), {})
