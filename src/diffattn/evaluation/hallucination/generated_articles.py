"""Made-up news articles with facts, to see the protocol work without any file."""

import random
from typing import Any

from diffattn.evaluation.hallucination.tasks import Task

_TOWNS = ("Marlow", "Esker", "Tidewell", "Norvale", "Quill", "Hathern", "Lindow", "Overby")
_FIRST = ("Anna", "Peter", "Maria", "Tom", "Ines", "Karl", "Ruth", "Omar")
_LAST = ("Keller", "Brandt", "Okafor", "Silva", "Novak", "Hughes", "Tanaka", "Moreau")
_BUILDINGS = ("bridge", "library", "school", "station", "theatre", "harbour", "museum", "market")
_ASIDES = (
    "Many people came to see the {building} on the first morning.",
    "The old road to {town} had been closed for {number} days.",
    "The mayor said that the work would bring {number} visitors a year.",
    "A letter from {year} had asked for the same thing.",
    "It was a long winter, and the river stood high in {town}.",
    "Some of the older people remembered the plans of {year}.",
)


def generated_rows(task: Task, count: int, seed: int) -> list[dict[str, Any]]:
    """Rows in the first layout of a task.

    Args:
        task: Which data set is stood in for.
        count: Rows.
        seed: Equal seeds make equal rows.
    """
    columns = task.columns[0]
    rows: list[dict[str, Any]] = []
    for i in range(count):
        generator = random.Random(f"{seed}-{task.name}-{i}")
        document, summary, question, answer = _article(generator)
        row: dict[str, Any] = {columns.document: document}
        if columns.question is not None:
            row[columns.question] = question
        reference = summary if task.kind == "summary" else answer
        row[columns.references] = [reference] if columns.references == "answers" else reference
        rows.append(row)
    return rows


def _article(generator: random.Random) -> tuple[str, str, str, str]:
    """Document, summary, question and answer."""
    town, building = generator.choice(_TOWNS), generator.choice(_BUILDINGS)
    person = f"{generator.choice(_FIRST)} {generator.choice(_LAST)}"
    year, cost = generator.randrange(1850, 2000), generator.randrange(10, 990) * 1000
    summary = f"In {year} the town of {town} opened a {building} built by {person}."
    facts = [summary, f"The {building} was paid for by the town and cost {cost:,} pounds."]
    for _ in range(generator.randint(6, 40)):
        aside = generator.choice(_ASIDES)
        facts.append(
            aside.format(
                building=building, town=town, year=generator.randrange(1800, 1850),
                number=generator.randrange(2, 900),
            )
        )  # fmt: skip
    return " ".join(facts), summary, f"Who built the {building} of {town}?", person
