"""What a test of a document reads: pages as running text, and the results of published studies."""

from functools import cache
from pathlib import Path

from diffattn.files.io import read_json

ROOT = Path(__file__).parents[1]
FINDINGS = ROOT / "docs" / "findings"


@cache
def prose(path):
    """A page from the root of the repository, every gap one space."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


@cache
def results_of(study):
    return read_json(ROOT / "published" / study / "results.json")


def signed(value, digits=3):
    """As pages print it."""
    return f"{value:+.{digits}f}".replace("-", "−")


def estimate(interval, show=signed):
    """``mean (low to high)`` of an interval or of what a record holds of it."""
    recorded = interval if isinstance(interval, dict) else interval.recorded()
    mean, low, high = (show(recorded[key]) for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"
