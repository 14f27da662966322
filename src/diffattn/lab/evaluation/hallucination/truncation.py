"""Cut a document so that the prompt around it fits."""

from collections.abc import Callable

from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import ItemError


def cut(
    model: LanguageModel, document: str, render: Callable[[str], str], *, limit: int, where: str
) -> tuple[int, int]:
    """Numbers of characters of a document to keep at its beginning and at its end.

    ``"end"`` drops words from the end until the prompt fits, which is found by bisection.
    ``"middle"`` keeps half of the token budget at either end.

    Source: ``step01_extract_attns.py`` of voidism/Lookback-Lens (words are what single spaces
    separate); ``pred.py`` of THUDM/LongBench.

    Args:
        model: Its tokenizer counts.
        document: Any text.
        render: The prompt around a document.
        limit: Tokens of the prompt, BOS included.
        where: ``"end"`` or ``"middle"``.

    Raises:
        ItemError: The prompt does not fit even without a document.
    """

    def size(text: str) -> int:
        return len(model.encode_prompt(render(text)))

    if size(document) <= limit:
        return len(document), 0
    room = limit - size("")
    if room < 0:
        raise ItemError(
            f"The prompt without its document must fit {limit} tokens, got {limit - room}."
        )
    borders = [0, *(i for i, character in enumerate(document) if character == " ")]
    if where == "end":
        return borders[_last(borders, lambda end: size(document[:end]) <= limit)], 0
    return _middle(model, document, borders, size, room, limit)


def _middle(
    model: LanguageModel,
    document: str,
    borders: list[int],
    size: Callable[[str], int],
    room: int,
    limit: int,
) -> tuple[int, int]:
    """Half of the room at either end, less if tokens merge differently in the whole prompt."""
    backwards = [len(document), *reversed(borders)]

    def longest(candidates: list[int], part: Callable[[int], str], room: int) -> int:
        return candidates[_last(candidates, lambda at: len(model.encode(part(at))) <= room)]

    while True:
        head = longest(borders, lambda end: document[:end], room // 2)
        left = room - len(model.encode(document[:head]))
        tail = longest(backwards, lambda start: document[start:], left)
        excess = 1 if tail < head else size(document[:head] + document[tail:]) - limit
        if excess <= 0 or room == 0:
            return head, len(document) - tail
        room = max(0, room - excess)


def _last(candidates: list[int], fits: Callable[[int], bool]) -> int:
    """Index of the last candidate that fits; the first one always does."""
    low, high = 0, len(candidates)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(candidates[middle]) else (low, middle)
    return low
