"""Runs allocate what is estimated: the committed record, and some of its runs again."""

import json
from pathlib import Path

import pytest

from tools.measures import memory

RECORD = Path(__file__).parents[4] / "docs" / "records" / "memory.json"


@pytest.mark.parametrize("row", json.loads(RECORD.read_text())["runs"], ids=str)
def test_committed_runs_allocated_what_was_estimated(row):
    assert row["estimated_bytes"] == pytest.approx(row["allocated_bytes"], rel=0.1)


def test_a_block_given_back_unseen_is_held_until_its_address_is_taken_again():
    taken_twice = [(1, 0xA, 100), (2, 0xB, 10), (3, 0xB, -10), (4, 0xA, 50), (5, 0xB, 20)]
    assert memory.most_given_out(taken_twice) == 110
    assert memory.most_given_out([*taken_twice, (6, 0xC, 60)]) == 130
    assert memory.most_given_out([(1, 0xA, -100), (2, 0xB, 10)]) == 10  # taken before


def test_the_record_has_every_case():
    keys = ("type", "size", "checkpointing", "precision", "processes")
    recorded = [{key: row[key] for key in keys} for row in json.loads(RECORD.read_text())["runs"]]
    assert recorded == memory.CASES


@pytest.mark.scheduled
@pytest.mark.parametrize("case", memory.CASES[:4], ids=str)
def test_runs_allocate_what_is_estimated(case):
    _, needed = memory.estimated(case)
    assert needed == pytest.approx(memory.measured(case, "allocated"), rel=0.1)
