"""What the protocols can do with stock architectures: the table of the documentation, made anew."""

import re
from pathlib import Path

import pytest

from stock_models import ARCHITECTURES, COLUMNS, what_works

PAGE = Path(__file__).parents[3] / "docs" / "protocols" / "models.md"
_OFTEN = ("GPT2", "Mamba", "Rwkv")


def documented():
    """Cells of the page by architecture."""
    lists = re.findall(r"^- (Yes|Refused): (.+(?:\n  .+)*)", PAGE.read_text("utf-8"), re.MULTILINE)
    return {
        name: dict.fromkeys(COLUMNS, answer.lower())
        for answer, names in lists
        for name in re.findall(r"`([^`]+)`", names)
    }


def test_the_page_names_every_architecture():
    assert set(documented()) == set(ARCHITECTURES)


@pytest.mark.filterwarnings("ignore")  # of architectures that are not ours
@pytest.mark.parametrize(
    "name",
    [n if n in _OFTEN else pytest.param(n, marks=pytest.mark.scheduled) for n in ARCHITECTURES],
)
def test_what_works_is_what_the_page_says(name, tokenizer):
    results = {
        column: cell.partition(":")[0] for column, cell in what_works(name, tokenizer).items()
    }
    assert results == documented()[name]
