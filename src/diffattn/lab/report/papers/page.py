"""What the page beside the papers shows, as plain values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from diffattn.lab.report.page.charts import Chart
from diffattn.lab.report.page.findings import Finding
from diffattn.lab.report.page.tables import Table, head_cell, number_cell, table, word_cell
from diffattn.lab.report.page.wording import listing, number, plural
from diffattn.lab.report.paper import PublishedTable, published_tables
from diffattn.lab.report.papers.charts import published_charts
from diffattn.lab.report.papers.sections import SECTIONS, Section

TITLE = "Differential attention: the papers beside what was measured"
CHAPTERS = {
    "own": "This run",
    "glance": "At a glance",
    **{section.id: section.title for section in SECTIONS},
    "benchmarks": "Benchmarks",
    "provenance": "Provenance",
}
VERDICTS = {
    "agrees": "✓",
    "disagrees": "✗",
    "inconclusive": "?",
    "uninformative": "○",
    "not run": "–",
}
"""Each with its sign: colour alone would not tell them apart."""
MEANINGS = {
    "agrees": "measured on the side that the paper says, beyond the spread of at least three seeds",
    "disagrees": "measured on the other side, beyond that spread",
    "inconclusive": "a fair test that did not decide: more seeds may",
    "uninformative": "it may not be the second map: a control without it is not shown to do worse, "
    "none was trained, or the models have not learned what is asked",
    "not run": "there is no record",
}
WORDS = {
    "seed": "A model is trained several times from other random weights, its seeds. Models are "
    "compared seed by seed; the spread of these differences gives the 95 % interval.",
    "p, Holm": "The probability of a difference as large by chance. With many claims some would "
    "pass by luck, so Holm's rule makes each one harder to pass; a verdict needs 0.05 or less "
    "after it. Times and counts are not tested: there the whole range must lie on one side.",
    "control": "A model that has what the claim is about only in part: no attention at all, or one "
    "map scaled or shifted. If it gains as much, the second map does not explain the gain.",
    "nats per token": "The unit of the loss: how surprised a model is by each token of unseen "
    "text, in natural logarithms. Lower is better; 0.01 is small, 0.1 is much.",
    "λ, λ_init": "The learned weight of the second map; λ_init is the number near which it starts.",
    "head norm": "After the subtraction DIFF V1 and Shared DIFF scale the output of each head to a "
    "fixed size. V2 does not.",
    "V1, V2, Shared DIFF": "V1 is the first paper's. V2 gives both maps the same keys and each "
    "token a λ of its own. Shared DIFF gives both maps common weights, and each a small update of "
    "its own.",
}
"""What a reader without the papers has to know."""


def papers_page(
    findings: Sequence[Finding],
    charts: Mapping[str, Sequence[Chart]],
    tables: Mapping[str, Sequence[Table]],
    gaps: Sequence[str],
    provenance: Sequence[tuple[str, str]],
) -> dict[str, Any]:
    """Every section of the page, as the template names them.

    Args:
        findings: All claims.
        charts: Section to charts of our own records.
        tables: The same, of tables.
        gaps: What is missing or was left out, a sentence each.
        provenance: Records read, and what they say of themselves.
    """
    by_claim = {finding.claim: finding for finding in findings}
    counts = Counter(finding.verdict for finding in findings)
    return {
        "summary": _summary(counts),
        "counts": [
            {"verdict": verdict, "sign": sign, "count": counts[verdict],
             "meaning": MEANINGS[verdict]}
            for verdict, sign in VERDICTS.items()
        ],
        "signs": VERDICTS,
        "words": WORDS,
        "answers": [of for of in findings if of.verdict in ("agrees", "disagrees")],
        "reasons": _reasons(findings),
        "gaps": list(gaps),
        "glance": [
            {"section": section, "findings": [by_claim[name] for name in section.claims]}
            for section in SECTIONS
        ],
        "sections": [
            {
                "section": section,
                "published_charts": published_charts(section.id),
                "published_tables": [_published(published_tables()[name])
                                     for name in section.tables],
                "findings": [by_claim[name] for name in section.claims],
                "measured": _measured(section, by_claim),
                "charts": list(charts.get(section.id, ())),
                "tables": list(tables.get(section.id, ())),
            }
            for section in SECTIONS
        ],
        "provenance": table(
            "Records that this page was made from.",
            ("Record", "What it says of itself"),
            ((head_cell(name), word_cell(text)) for name, text in provenance),
        ),
    }  # fmt: skip


def _summary(counts: Mapping[str, int]) -> str:
    """What stands first: how many of the claims could be answered, and how."""
    whole = sum(counts.values())
    answered = counts["agrees"] + counts["disagrees"]
    rest = listing(
        f"{counts[name]} {name}" for name in ("inconclusive", "uninformative", "not run")
    )
    return (
        f"Of {plural(whole, 'claim')}, the papers' own or drawn from them (“ours”, “asked”), "
        f"{answered} could be answered by the records on this page (agrees: {counts['agrees']}, "
        f"disagrees: {counts['disagrees']}). The others: {rest}. An answer is about the models "
        "that were measured: the committed ones have a few million parameters at most, the papers' "
        "0.8 to 13 billion."
    )


def _reasons(findings: Sequence[Finding]) -> list[tuple[int, str]]:
    """Why claims are uninformative, the most frequent reason first."""
    reasons = Counter(of.why for of in findings if of.verdict == "uninformative")
    return [(times, why) for why, times in reasons.most_common()]


def _published(of: PublishedTable) -> Table:
    return table(
        f"Published. {of.caption} {of.source}.",
        of.columns,
        (
            [head_cell(row[0]), *(number_cell(number(value, of.digits)) for value in row[1:])]
            for row in of.rows
        ),
    )


def _measured(section: Section, by_claim: Mapping[str, Finding]) -> Table | None:
    """The effects measured; claims without a record stand below it alone."""
    found = [by_claim[name] for name in section.claims if by_claim[name].verdict != "not run"]
    if not found:
        return None
    return table(
        "Measured here.",
        ("Claim", "Effect measured", "If it holds", "Effect", "Range or 95 % interval", "n", "p",
         "p, Holm", "Verdict", "Record"),
        (
            [
                head_cell(of.claim), word_cell(of.effect), word_cell(of.holds),
                *map(number_cell, of.numbers), word_cell(_verdict(of)), word_cell(of.record),
            ]
            for of in found
        ),
    )  # fmt: skip


def _verdict(of: Finding) -> str:
    return f"{VERDICTS[of.verdict]} {of.verdict}" + (f": {of.why}" if of.why else "")
