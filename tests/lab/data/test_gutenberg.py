"""Nothing of the distributor's frame is left, and other texts are not touched."""

import pytest

from diffattn.lab.data.corpora import strip_gutenberg

BODY = "CHAPTER I\n\nIt began. He wrote *** in the margin.\n\nThe end of the project was near."
HEADER = "The Project Gutenberg EBook of A Book, by An Author\n\nThis eBook is for anyone.\n\n"
LICENCE = "\n\n***** This file should be named 1.txt *****\n\n*** START: FULL LICENSE ***\n\nTerms."


@pytest.mark.parametrize(
    "start",
    [
        "*** START OF THIS PROJECT GUTENBERG EBOOK A BOOK ***\n",
        "*** START OF THE PROJECT GUTENBERG EBOOK A LONG\nTITLE; OR, MORE OF IT ***\r\n",
        "*** START OF THIS PROJECT GUTENBERG ETEXT A BOOK\n",
        "*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.03.17.02*END*\n",
    ],
)
@pytest.mark.parametrize(
    "end",
    [
        "*** END OF THIS PROJECT GUTENBERG EBOOK A BOOK ***",
        "End of the Project Gutenberg EBook of A Book\n\n*** END OF THIS PROJECT GUTENBERG EBOOK",
        "End of Project Gutenberg's A Book, by An Author",
        "The End of Project Gutenberg Etext of A Book",
    ],
)
@pytest.mark.parametrize("credit", ["", "\n\nProduced by One and\nTwo\n\n\n"])
def test_only_the_body_is_left(start, end, credit):
    whole = f"{HEADER}{start}\n{credit}\n{BODY}\n\n\n{end}{LICENCE}"
    assert strip_gutenberg(whole) == BODY


def test_the_last_of_two_start_markers_counts():
    """Files revised once carry the small print and the newer marker."""
    small = "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*END*\n"
    new = "*** START OF THE PROJECT GUTENBERG EBOOK A BOOK ***\n"
    assert strip_gutenberg(f"{HEADER}{new}{small}{BODY}") == BODY
    assert strip_gutenberg(f"{HEADER}{small}{new}{BODY}") == BODY


@pytest.mark.parametrize(
    "text",
    [
        BODY,
        "Produced by hand.\n\nA story of Project Gutenberg.",
        "*** START OF THE STORY ***\nProse.",
        "*** START OF THIS PROJECT GUTENBERG EBOOK A ***\n*** END OF THIS PROJECT GUTENBERG EBOOK",
    ],
)
def test_other_texts_are_unchanged(text):
    assert strip_gutenberg(text) == text
