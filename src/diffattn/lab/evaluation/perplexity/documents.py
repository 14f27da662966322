"""Documents and windows of text for perplexity protocols."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from diffattn.errors import ConfigError
from diffattn.lab.data.corpora import Document, load_corpus
from diffattn.lab.data.gutenberg import strip_gutenberg
from diffattn.lab.evaluation.protocol import Protocol
from diffattn.lab.inference.language_model import LanguageModel


def open_texts(source: str, text_field: str, *, split: str = "train") -> Iterator[Document]:
    """Documents of :func:`diffattn.lab.data.corpora.load_corpus`, without Gutenberg's licence."""
    for document in load_corpus(source, text_field=text_field, split=split):
        yield Document(name=document.name, text=strip_gutenberg(document.text))


@dataclass(frozen=True, kw_only=True)
class TextProtocol(Protocol):
    """A protocol over the documents of a corpus."""

    texts: str = "stdlib"
    """Corpus: a file, a folder, JSON lines, ``hub:NAME``, or ``stdlib``."""
    text_field: str = "text"

    def long_texts(
        self, model: LanguageModel, *, least: int, most: int, documents: int | None
    ) -> dict[str, np.ndarray]:
        """Name to the first ``most`` tokens of each document with at least ``least`` tokens; of the
        first ``documents`` in the order of the corpus. Raises ``ConfigError`` if there is none."""
        texts: dict[str, np.ndarray] = {}
        longest, count = Document(name="", text=""), 0
        for document in open_texts(self.texts, self.text_field):
            count += 1
            longest = max(longest, document, key=lambda held: len(held.text))
            if len(document.text.encode()) < least:  # a token has at least one byte
                continue
            ids = first_tokens(model, document.text, most)
            if len(ids) >= least:
                texts[document.name] = np.array(ids)
            if len(texts) == documents:
                break
        if not texts:
            size = len(model.encode(longest.text))
            raise ConfigError(
                f"{self.name}: one document or more must have {least} tokens, got none of {count} "
                f"in {self.texts!r}; the longest, {longest.name!r}, has {size}."
            )
        return texts


class WindowProtocol(Protocol):
    """A protocol over windows of a corpus; its settings have these two."""

    num_windows: int
    windows_per_document: int

    def first_windows(
        self,
        model: LanguageModel,
        source: str,
        text_field: str = "text",
        *,
        start: Sequence[int],
        size: int,
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The first ``num_windows`` windows, each with the name of its document.

        A window is ``start`` followed by ``size`` tokens of the text. A document gives at most
        ``windows_per_document`` windows; the rest of it is left out.
        """
        left = windows = self.num_windows
        for document in open_texts(source, text_field):
            wanted = min(left, self.windows_per_document)
            # Cut long books before encoding them; tokens rarely have 16 characters.
            ids = model.encode(document.text[: 16 * size * wanted])
            for i in range(min(wanted, len(ids) // size)):
                yield document.name, (*start, *ids[i * size : (i + 1) * size])
                left -= 1
            if not left:
                return
        if left == windows:
            raise ConfigError(
                f"{self.name}: {source!r} must hold a document of {size} tokens, got none."
            )


def first_tokens(model: LanguageModel, text: str, count: int) -> list[int]:
    """The first ``count`` tokens of a text, or all. Only a part of a long text is encoded."""
    size = 6 * count + 256  # characters: most tokenizers need fewer
    while size < len(text):
        ids = model.encode(text[:size])
        if len(ids) >= count + 16:  # the cut may have changed the tokens before it
            return ids[:count]
        size *= 2
    return model.encode(text)[:count]


def text_bytes(model: LanguageModel, tokens: np.ndarray) -> int:
    """UTF-8 bytes of the decoded tokens; each replacement sign of a cut character counts three."""
    text = model.tokenizer.decode(tokens.tolist(), clean_up_tokenization_spaces=False)
    return len(text.encode())
