"""What a test of a document reads: pages as running text, and the results of published studies."""

from functools import cache
from pathlib import Path

from diffattn.files.io import read_json
from diffattn.lab.records.stored_runs import runs_folder

ROOT = Path(__file__).parents[1]
FINDINGS = ROOT / "docs" / "findings"


@cache
def prose(path):
    """A page from the root of the repository, every gap one space."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


@cache
def results_of(study):
    return read_json(ROOT / "published" / study / "results.json")


def run_losses(study, name, part=None):
    """Final validation losses of a model's runs, by seed. ``part``: on this class of tokens."""
    folder = runs_folder(ROOT / "published" / study)
    results = [read_json(run / "results.json") for run in sorted(folder.glob(f"{name}-seed*"))]
    return [x["validation_parts"][part]["loss"] if part else x["validation_loss"] for x in results]


def signed(value, digits=3):
    """As pages print it."""
    return f"{value:+.{digits}f}".replace("-", "−")


def estimate(interval, show=signed):
    """``mean (low to high)`` of an interval or of what a record holds of it."""
    recorded = interval if isinstance(interval, dict) else interval.recorded()
    mean, low, high = (show(recorded[key]) for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"
