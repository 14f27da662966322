"""The tables of the page on caches are those of its record."""

from pathlib import Path

import pytest

from diffattn.files.io import read_json
from tools.caches.compare import compared
from tools.caches.page import tables
from tools.caches.tasks import TASKS

RECORDS = Path(__file__).parents[2] / "docs" / "records"
RECORD = read_json(RECORDS / "caches.json")


@pytest.mark.parametrize("task", TASKS)
def test_the_tables_follow_from_the_values_of_the_record(task):
    page = (RECORDS / "caches.md").read_text(encoding="utf-8")
    again = tables(RECORD | {"compared": {task: compared(RECORD["values"][task])}}, task)
    assert again == tables(RECORD, task)
    assert all(table in page for table in again.split("\n\n"))


def test_the_record_is_of_clean_code_and_three_seeds():
    assert not RECORD["dirty"]
    for values in RECORD["values"].values():
        for by_cache in values.values():
            assert {len(numbers) for numbers in by_cache.values()} == {3}
