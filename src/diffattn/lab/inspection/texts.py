"""The text of a page, as the tokens of one model."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.attention_segments import (
    SEGMENTS,
    AttentionSegments,
    segment_spans,
)
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inspection.request import NeedleText, Request
from diffattn.lab.report.viewer.values import Segment, ViewedText

_EXAMPLE = "Return the first item of the list. Return the last item of the list. Return the"
"""Its end repeats an earlier phrase: an induction head looks at the words that followed it."""
_BYTE_OF = {character: byte for byte, character in bytes_to_unicode().items()}
"""Character of a byte-level vocabulary to the byte that it stands for."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_NAMES = {
    "bos": "BOS",
    "before": "noise before",
    "answer": "needle",
    "after": "noise after",
    "query": "question",
}
"""Segments of protocol ``attention_segments``, and their names on the page."""


def read_text(model: LanguageModel, request: Request) -> tuple[list[int], ViewedText]:
    """The ids of the text, and the text as it is shown."""
    if isinstance(request.text, NeedleText):
        return _needle(model, request.text, request.max_tokens)
    example = model.tokenizer.init_kwargs.get("example", _EXAMPLE)
    body = model.encode(example if request.text is None else request.text)
    if not body:
        raise ConfigError(f"inspect: text must hold one token or more of {model.label}, got none.")
    ids = [*model.start(), *body]
    notes = []
    if fault := _too_long(model, len(ids), request.max_tokens):
        if not request.cut:
            raise ConfigError(
                f"inspect: text must have at most {fault}, got {len(ids)} of {model.label}. "
                "--cut keeps the first ones."
            )
        kept = min(request.max_tokens, model.max_length)
        notes.append(f"The first {kept} of {len(ids)} tokens are shown; the text goes on.")
        ids = ids[:kept]
    return ids, _viewed(model, ids, notes)


def _needle(
    model: LanguageModel, needle: NeedleText, max_tokens: int
) -> tuple[list[int], ViewedText]:
    if fault := _too_long(model, needle.length, max_tokens):
        raise ConfigError(
            f"inspect: the needle's text must have at most {fault}, got {needle.length}. "
            "--set length=N chooses another."
        )
    settings = asdict(needle)
    depths, sample = (settings.pop("depth"),), settings.pop("sample")
    protocol = AttentionSegments(depths=depths, **settings)
    (prompt,) = protocol.build_prompts(model, depths, **protocol.settings(sample))
    segments = [
        Segment(name=_NAMES[name], start=start, end=end)
        for name, (start, end) in zip(SEGMENTS, segment_spans(prompt), strict=True)
    ]
    note = (
        f"The magic number of {prompt.cities[0]} is {prompt.numbers[0]}. It is hidden at "
        f"{prompt.realised[0]:.0f} % of the text's depth, among {needle.num_needles - 1} other "
        f"numbers, as in protocol attention_segments (length {needle.length}, sample "
        f"{needle.sample}, seed {needle.seed}). The last token is the one that predicts its first "
        "digit."
    )
    return list(prompt.ids), _viewed(model, prompt.ids, [note], segments)


def _viewed(
    model: LanguageModel, ids: Sequence[int], notes: list[str], segments: Sequence[Segment] = ()
) -> ViewedText:
    return ViewedText(
        pieces=tuple(token_pieces(model.tokenizer, ids)),
        begins_with_bos=ids[0] == model.bos or bool(segments and segments[0].end),
        segments=tuple(segments),
        notes=tuple(notes),
    )


def _too_long(model: LanguageModel, length: int, max_tokens: int) -> str | None:
    """The limit that is exceeded, in words; the model's comes first, as no option raises it."""
    if length > model.max_length:
        return f"the {model.max_length} tokens of {model.label}"
    if length > max_tokens:
        return f"{max_tokens} tokens (--max-tokens)"
    return None


def token_pieces(tokenizer: Any, ids: Sequence[int]) -> list[str | bytes]:
    """Text of every token by itself, or bytes where it is not a whole number of characters.

    ``tokenizer.decode`` of a single token loses the space before a word with SentencePiece, and
    gives the same sign for every part of a cut character. So vocabulary entries are read instead.
    Byte-level tokenizers write each byte as one of GPT-2's letters.
    """
    special = {int(i) for i in tokenizer.all_special_ids}
    added = {**getattr(tokenizer, "added_tokens_decoder", {})}
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    is_byte_level = decoder is not None and b'"ByteLevel"' in decoder.__getstate__()
    pieces: list[str | bytes] = []
    for token, entry in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        if entry is None:  # a model may have more ids than its tokenizer
            pieces.append(f"<id {token}>")
        elif token in special or token in added:
            pieces.append(str(entry))
        elif is_byte_level and all(c in _BYTE_OF for c in entry):
            pieces.append(_text_of(bytes(_BYTE_OF[c] for c in entry)))
        elif match := _BYTE_TOKEN.fullmatch(entry):
            pieces.append(_text_of(bytes.fromhex(match[1])))
        else:
            pieces.append(entry.replace("▁", " "))  # SentencePiece's sign for a space
    return pieces


def _text_of(content: bytes) -> str | bytes:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
