"""The page of the attention viewer.

It makes invisible characters of tokens visible, and keeps combining marks off their neighbours.
"""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffattn import __version__
from diffattn.files.destination import require_file_destination, require_replaceable
from diffattn.lab.report.page.render import beginning, template_text, write_page
from diffattn.lab.report.page.wording import WHITE_SPACE
from diffattn.lab.report.viewer.codes import LEVELS, packed
from diffattn.lab.report.viewer.values import ViewedLayer, ViewedModel, ViewedText

GENERATOR = "diffattn inspect"
"""Name of the command that made the page, as the page states it."""
_SUM_LEVELS = 65_535
_MOST_CHARACTERS = 48
"""Most characters of the text in the title."""
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
_COMBINING = {"Mn", "Mc", "Me"}
_CARRIER = "◌"
"""Character that carries a combining mark whose letter is in another token."""
_SCRIPTS = ("viewer_data.js", "viewer_drawing.js", "viewer.js")


def require_page_destination(path: Path, *, force: bool = False) -> None:
    """Refuse to replace a file that is no page of the viewer, unless ``force`` is set.

    Raises:
        ConfigError: The path holds something else, or is not writable.
    """
    if force:
        require_file_destination(path)
        return
    kind = f"a page of '{GENERATOR}'"
    require_replaceable(path, beginning(GENERATOR), kind, "--force replaces it.")


def write_viewer(out: Path, models: Sequence[ViewedModel]) -> Path:
    """Write the page; an existing file is left as it was on failure.

    Args:
        models: One or more, in the order shown. Models with equal tokens are shown side by side.
    """
    texts = list(dict.fromkeys(model.text for model in models))
    data = {
        "levels": LEVELS,
        "texts": [_text(text) for text in texts],
        "models": [_model(model, texts) for model in models],
    }
    blocks = [
        (f"m{i}l{place}", _block(layer))
        for i, model in enumerate(models)
        for place, layer in enumerate(model.layers)
    ]
    return write_page(
        out,
        "viewer.html.j2",
        script="\n".join(map(template_text, _SCRIPTS)),
        style=template_text("viewer.css"),
        title=_title(models),
        generator=f"{GENERATOR} {__version__}",
        notes=_notes(models, texts),
        groups=_groups(models, texts),
        data=data,
        blocks=blocks,
        row_scales=all(x.scales is not None for model in models for x in model.layers),
        error=f"{max(layer.error for model in models for layer in model.layers):.1g}",
    )


def _title(models: Sequence[ViewedModel]) -> str:
    """A title with the models' labels and the beginning of the first model's text."""
    labels = [model.label for model in models]
    begins = " ".join(_content(models[0].text).decode("utf-8", "replace").split())
    cut = f"{begins[:_MOST_CHARACTERS].rstrip()} …" if len(begins) > _MOST_CHARACTERS else begins
    return f"Where {', '.join(labels)} {'looks' if len(labels) == 1 else 'look'} in “{cut}”"


def _notes(models: Sequence[ViewedModel], texts: Sequence[ViewedText]) -> list[str]:
    """Facts that a reader must know before comparing."""
    notes = []
    if len(texts) > 1:
        same = len({_content(text) for text in texts}) == 1
        notes.append(
            "These models cut the text into different tokens. Models with the same tokens stand "
            "side by side, others below, each with its own."
            if same
            else "These models do not read the same text: with another tokenizer as many tokens "
            "are another passage. Models with the same tokens stand side by side, others below."
        )
    left_out = [
        f"{model.label}: {len(model.layers)} of {model.num_layers} layers are on this page."
        for model in models
        if len(model.layers) < model.num_layers
    ]
    return notes + left_out


def _groups(models: Sequence[ViewedModel], texts: Sequence[ViewedText]) -> list[dict[str, Any]]:
    """Groups of models that read the same tokens, in the order of their first models."""
    return [
        {
            "notes": text.notes,
            "models": [
                {
                    "number": i,
                    "label": model.label,
                    "facts": model.facts,
                    "maps": model.layers[0].codes.shape[1],
                }
                for i, model in enumerate(models)
                if model.text == text
            ],
        }
        for text in texts
    ]


def _content(text: ViewedText) -> bytes:
    """The text of all tokens without BOS."""
    pieces = text.pieces[1:] if text.begins_with_bos else text.pieces
    whole = b"".join(p if isinstance(p, bytes) else p.encode("utf-8", "replace") for p in pieces)
    return whole.strip()  # tokenizers of the SentencePiece kind begin with a space


def _text(text: ViewedText) -> dict[str, Any]:
    return {
        "tokens": [shown(piece) for piece in text.pieces],
        "breaks": [i for i, x in enumerate(text.pieces) if isinstance(x, str) and x.endswith("\n")],
        "bos": text.begins_with_bos,
        "segments": [[segment.name, segment.start, segment.end] for segment in text.segments],
    }


def _model(model: ViewedModel, texts: Sequence[ViewedText]) -> dict[str, Any]:
    first = model.layers[0]
    place = max(range(len(model.layers)), key=lambda i: model.layers[i].clearest[0])
    _, head, key = model.layers[place].clearest
    return {
        "start": {"place": place, "head": head, "key": key},
        "label": model.label,
        "text": texts.index(model.text),
        "layers": [layer.index for layer in model.layers],
        "heads": [layer.codes.shape[0] for layer in model.layers],
        "maps": first.codes.shape[1],
        "numLayers": model.num_layers,
        "scaled": [layer.scales is not None for layer in model.layers],
        "lambdas": [None if x.lam is None else x.lam.size for x in model.layers],
        "sumScales": [_sum_scale(layer) for layer in model.layers],
    }


def _sum_scale(layer: ViewedLayer) -> float | None:
    """The sum that the largest code stands for; ``None`` without segments."""
    return None if layer.sums is None else float(layer.sums.max())


def _block(layer: ViewedLayer) -> str:
    """Pack λ, scales, codes and sums of a layer for the script of the page."""
    floats = [x.astype(np.float32) for x in (layer.lam, layer.scales) if x is not None]
    parts: list[np.ndarray] = [*floats, layer.codes]
    if layer.sums is not None:
        scale = _sum_scale(layer)
        parts.append(np.rint(_SUM_LEVELS * layer.sums / scale).astype(np.uint16))
    return packed(*parts)


def shown(piece: str | bytes) -> str:
    """Make white space, control characters and bytes of a token visible.

    Args:
        piece: Text of a token, or its bytes if a character is cut.

    Returns:
        Plain text: ``␣the``, ``⏎``, ``␀``, ``‹U+202E›``, ``‹E2 82›``, and ``∅`` if it is empty.
    """
    if isinstance(piece, bytes):
        return f"‹{piece.hex(' ').upper()}›"
    text = "".join(map(_shown_character, piece))
    if piece and unicodedata.category(piece[0]) in _COMBINING:
        text = _CARRIER + text
    return text or "∅"


def _shown_character(character: str) -> str:
    code = ord(character)
    if code in WHITE_SPACE:
        return WHITE_SPACE[code]
    if code < 0x20:
        return chr(0x2400 + code)  # the control picture of the character
    if code == 0x7F:
        return "␡"
    if unicodedata.category(character) in _INVISIBLE:
        return f"‹U+{code:04X}›"
    return character
