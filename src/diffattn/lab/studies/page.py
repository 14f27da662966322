"""The page of a study. Studies on text also show the committed benchmarks and claims."""

from collections.abc import Sequence
from pathlib import Path

from diffattn.lab.report.build import build_report
from diffattn.lab.report.claims.tables import committed_claims
from diffattn.lab.report.page.runs import study_kind


def build_study_page(
    study: Path, out: Path | None = None, *, benchmarks: Sequence[Path] | None = None
) -> Path:
    """Write the page of a study. Studies of kind text or recall also show the papers' claims.

    ``benchmarks``: by default the records of this checkout, for a study of kind text.
    """
    kind = study_kind(study)
    if benchmarks is None:  # an installed package has no records
        committed = Path(__file__).parents[4] / "benchmarks" / "results"
        benchmarks = sorted(committed.glob("*.json")) if kind == "text" else ()
    claims = committed_claims() if kind in ("text", "recall") else None
    return build_report(study, out, benchmarks=benchmarks, claims=claims)
