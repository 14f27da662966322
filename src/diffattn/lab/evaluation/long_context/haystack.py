"""Long texts as haystacks: sequences of tokens or of words, with needles at ends of sentences."""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from random import Random
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import load_corpus, strip_gutenberg
from diffattn.lab.evaluation.long_context.lengths import LengthProtocol
from diffattn.lab.evaluation.protocol import Item, prompt_facts
from diffattn.lab.inference.decoding import prompt_text
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inference.network_reader import Prefix

_BETWEEN_DOCUMENTS = "\n\n"
_SENTENCE_END = re.compile(r"[.!?。！？][\"'”’»)\]]*$")
"""The end of a text that may end a sentence, if white space follows."""
_NEXT_SENTENCE = re.compile(r"[.!?][\"'”’»)\]]*\s+|\n\s*")
_LAST_CHARACTERS = frozenset(".!?。！？\"'”’»)] \t\n")
_CHARACTERS_PER_TOKEN = 16  # more than any tokenizer has on average


class HaystackProtocol(LengthProtocol):
    """A protocol that hides sentences in a long text."""

    haystack: str = "stdlib"
    """Source of the text: ``stdlib``, a file, a folder, a ``.jsonl`` file or ``hub:NAME``."""
    text_field: str = "text"  # key or column of the text in JSON lines or a hub dataset

    def material(self, model: LanguageModel, items: Sequence[Item]) -> Any:
        return corpus_text(self.haystack, self.text_field)

    def stretch(self, model: LanguageModel, key: str, num_tokens: int) -> "HaystackTokens":
        """So many tokens of the text from a random sentence on; ``key`` draws it."""
        text = corpus_text(self.haystack, self.text_field)
        match = _NEXT_SENTENCE.search(text, Random(key).randrange(max(1, len(text))))
        start = match.end() % len(text) if match else 0
        return read_haystack_tokens(model, self.haystack, start, num_tokens, self.text_field)

    def words(self, tokens: int) -> "HaystackWords":
        """The haystack as words, enough for contexts of ``tokens`` tokens."""
        return read_haystack_words(self.haystack, tokens, self.text_field)

    def require_words(self, model: LanguageModel, tokens: int) -> None:
        """Raise if the haystack has fewer than ``tokens`` tokens, so that it would repeat."""
        text = self.words(tokens).text
        is_long = len(text) >= _CHARACTERS_PER_TOKEN * tokens
        if not is_long and (held := len(model.encode(text))) < tokens:
            raise ConfigError(
                f"{self.name}: the haystack {self.haystack!r} must hold {tokens} tokens, the "
                f"longest context, got {held}. Name a longer text or set shorter lengths."
            )

    @staticmethod
    def read_rows(
        model: LanguageModel, prompts: Sequence[Any], row: Callable[[Any, Prefix], dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The rows of prompts: their facts, and ``row(prompt, prefix)``, where ``prefix`` holds all
        tokens but the last. A prefix that prompts share is read once."""
        rows: dict[int, dict[str, Any]] = {}
        for i, prefix in model.read_prompts([prompt.ids for prompt in prompts]):
            prompt = prompts[i]
            rows[i] = {
                "depth": prompt.depth,
                "haystack": _digest(prompt.haystack.text),
                "prompt_tokens": len(prompt.ids),
                "prompt": prompt_facts(model.decode(prompt.ids)),
            } | row(prompt, prefix)
            del prefix  # frees its memory before the next prompt is read
        return [rows[i] for i in range(len(prompts))]


class ChatProtocol(HaystackProtocol):
    """A protocol whose prompts may go through the tokenizer's chat template."""

    chat: bool = False  # ask through the tokenizer's chat template

    def material(self, model: LanguageModel, items: Sequence[Item]) -> Any:
        """Hash of the haystack's part that the longest length needs; payloads end with it."""
        longest = items[0].payload[-1]
        return self.words(longest).sha256 if longest else None  # 0: no text around the facts

    def prompt(self, model: LanguageModel, question: str, answer: str = "\nAnswer:") -> str:
        """The prompt; ``answer`` is the beginning of the answer."""
        return prompt_text(model, question, answer, chat=self.chat)

    def count(self, model: LanguageModel, prompt: str) -> int:
        return len(model.encode_prompt(prompt, special=self.chat))


@dataclass(frozen=True, slots=True)
class HaystackTokens:
    """Consecutive tokens of a text. A slot is the number of tokens before a needle in it."""

    ids: tuple[int, ...]
    text: str  # of the tokens; if the last is a part of a character, with all of it
    sentence_ends: tuple[int, ...]  # numbers of leading tokens, ascending, below ``len(ids)``

    def slot(self, depth: float) -> int:
        """The last slot at or before ``depth`` percent of the tokens; ``len(ids)`` for 100."""
        if depth >= 100:
            return len(self.ids)
        index = bisect_right(self.sentence_ends, int(len(self.ids) * depth / 100))
        return self.sentence_ends[index - 1] if index else 0

    def random_slots(self, generator: Random, count: int, taken: Collection[int]) -> list[int]:
        """``count`` slots before the sentences at different random depths, none in ``taken``."""
        slots = [0, *self.sentence_ends]
        ends = [*self.sentence_ends, len(self.ids)]
        weights = {a: b - a for a, b in zip(slots, ends, strict=True) if a not in taken}
        if len(weights) < count:
            raise ConfigError(
                f"haystack: {len(self.ids)} tokens of text must have {count} free sentence ends, "
                f"got {len(weights)}. Choose a longer text or fewer needles."
            )
        chosen = []
        for _ in range(count):
            (slot,) = generator.choices(list(weights), list(weights.values()))
            chosen.append(slot)
            del weights[slot]
        return chosen


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _documents(source: str, num_characters: int, text_field: str) -> Iterator[str]:
    """Documents without Project Gutenberg's licence, up to the one that passes the size."""
    size = 0
    for document in load_corpus(source, text_field=text_field):
        text = strip_gutenberg(document.text).strip()
        yield text
        size += len(text) + len(_BETWEEN_DOCUMENTS)
        if size > num_characters:
            return


@lru_cache(maxsize=2)
def corpus_text(source: str, text_field: str = "text") -> str:
    """Documents of a corpus as one text, up to the one that passes 20 million characters."""
    return _BETWEEN_DOCUMENTS.join(_documents(source, 20_000_000, text_field))


def read_haystack_tokens(
    model: LanguageModel, source: str, start: int, num_tokens: int, text_field: str = "text"
) -> HaystackTokens:
    """Exactly ``num_tokens`` tokens of a corpus from character ``start`` on, and after its end from
    its beginning on. A corpus too short for this raises."""
    text = corpus_text(source, text_field)
    longest = len(text) + len(_BETWEEN_DOCUMENTS)
    size = 5 * num_tokens + 64  # characters: enough for most texts and tokenizers
    while True:
        piece = text[start : start + size]
        if len(piece) < size:  # the corpus ends here
            piece = (piece + _BETWEEN_DOCUMENTS + text[:start])[:size]
        ids, spans = _encode(model, piece)
        # The last token of a cut text may differ from the token in the whole text.
        if len(ids) > num_tokens or (size >= longest and len(ids) == num_tokens):
            break
        if size >= longest:
            raise ConfigError(
                f"haystack: {source!r} must hold {num_tokens} tokens of {model.label}'s "
                f"tokenizer, got {len(ids)}. Name a longer text."
            )
        size *= 2
    end = spans[num_tokens - 1][1]
    ends = tuple(sentence_ends(piece, spans[:num_tokens]))
    return HaystackTokens(tuple(ids[:num_tokens]), piece[:end], ends)


def sentence_ends(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Numbers of leading tokens after which a sentence ends.

    ``spans`` are the ``(start, end)`` characters of tokens. A mark counts only before white space,
    not within ``3.14`` or ``os.path``. One token may hold the mark and the white space.
    """
    last = 0
    for i in range(len(spans) - 1):
        end, following = spans[i][1], spans[i + 1][0]
        if following < end:
            continue  # the tokens are parts of one character
        if text[end - 1] not in _LAST_CHARACTERS and following == end:
            continue
        before = text[max(0, end - 16) : end]
        # In some tokenizers white space belongs to no token and lies between the spans.
        inner = before.rstrip(" \t")
        is_line_end = inner.endswith("\n") or "\n" in text[end:following]
        is_followed = inner != before or text[end : end + 1].isspace()
        if is_line_end or (is_followed and _SENTENCE_END.search(inner)):
            if text[last:end].strip():
                yield i + 1
            last = end


def insert_tokens(
    ids: Sequence[int], pieces: Sequence[tuple[int, Sequence[int]]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """Insert pieces ``(slot, ids)`` at slots of the sequence as given. Also returns the ``(start,
    end)`` of each piece in the new sequence, end excluded, in their order."""
    whole = list(ids)
    spans: list[tuple[int, int]] = [(0, 0)] * len(pieces)
    moved = 0
    for i in sorted(range(len(pieces)), key=lambda i: pieces[i][0]):
        slot, piece = pieces[i][0] + moved, pieces[i][1]
        whole[slot:slot] = piece
        spans[i] = (slot, slot + len(piece))
        moved += len(piece)
    return whole, spans


def encode_within(model: LanguageModel, text: str) -> list[int]:
    """Tokens of ``text`` inside a longer text: SentencePiece puts a space before a first word."""
    return model.encode_after("a", text)


def span_within(model: LanguageModel, text: str, part: str) -> tuple[int, int]:
    """``(start, end)`` of the tokens of :func:`encode_within` that overlap ``part``."""
    ids = encode_within(model, text)
    carrier = "a" if _encode(model, f"a{text}")[0][-len(ids) :] == ids else ""
    start = len(carrier) + text.index(part)
    _, characters = _encode(model, carrier + text)
    spans = characters[-len(ids) :]
    holding = [i for i, (a, b) in enumerate(spans) if a < start + len(part) and b > start]
    return holding[0], holding[-1] + 1


def _encode(model: LanguageModel, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Token ids as by :meth:`LanguageModel.encode`, and the ``(start, end)`` characters of each."""
    tokenizer: Any = model.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(
            f"haystack: sentences need a tokenizer that tells the characters of its tokens (a "
            f"fast one), got {type(tokenizer).__name__} of {model.label}."
        )
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    encoded = tokenizer(text, return_offsets_mapping=True, **options)
    return encoded["input_ids"], encoded["offset_mapping"]


@dataclass(frozen=True)
class HaystackWords:
    """A text as words, without its white space, and the words with which sentences begin."""

    source: str
    words: tuple[str, ...]
    starts: tuple[int, ...]  # index of the first word of each sentence, ascending from 0

    @cached_property
    def text(self) -> str:
        return " ".join(self.words)

    def passage(self, first: int, num_words: int) -> list[str]:
        """Sentences from index ``first`` on, with ``num_words`` words: the last one may be cut. At
        its end the text continues at its beginning."""
        assert num_words <= len(self.words), "require_words() has measured the haystack"
        borders = (*self.starts, len(self.words))
        sentences: list[str] = []
        at = first % len(self.starts)
        while num_words > 0:
            start, stop = borders[at], borders[at + 1]
            sentences.append(" ".join(self.words[start : min(stop, start + num_words)]))
            num_words -= stop - start
            at = (at + 1) % len(self.starts)
        return sentences

    @cached_property
    def sha256(self) -> str:
        return _digest(self.text)

    @cached_property
    def numbers(self) -> frozenset[str]:
        return frozenset(re.findall(r"\d+", self.text))


@lru_cache(maxsize=4)
def read_haystack_words(source: str, tokens: int, text_field: str = "text") -> HaystackWords:
    """The beginning of a corpus as words, enough for contexts of ``tokens`` tokens."""
    words: list[str] = []
    starts: list[int] = []
    # Enough for short contexts, too, that the passages differ.
    size = max(2_000_000, _CHARACTERS_PER_TOKEN * tokens)
    for text in _documents(source, size, text_field):
        document = text.split()
        start = 0
        for i, word in enumerate(document, start=1):
            is_last = i == len(document) or i - start == 60  # code may have no full stop
            if is_last or _SENTENCE_END.search(word):
                starts.append(len(words) + start)
                start = i
        words += document
    return HaystackWords(source, tuple(words), tuple(starts))


def insert_sentences(
    sentences: Sequence[str], places: Sequence[int], additions: Sequence[str]
) -> list[str]:
    """Insert each addition before the sentence at its place; places must not fall."""
    merged = list(sentences)
    for place, addition in reversed(list(zip(places, additions, strict=True))):
        merged.insert(place, addition)
    return merged
