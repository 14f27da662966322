"""The page of the attention viewer."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffattn import __version__
from diffattn.files.destination import require_file_destination, require_replaceable
from diffattn.lab.report.page.render import beginning, template_text, write_page
from diffattn.lab.report.page.wording import WHITE_SPACE
from diffattn.lab.report.viewer.values import MAX_CODE, ViewedLayer, ViewedModel, ViewedText, packed

GENERATOR = "diffattn inspect"
"""Name of the command that made the page, as the page states it."""
_MAX_SUM_CODE = 65_535
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}
_COMBINING = {"Mn", "Mc", "Me"}
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "␡"} | WHITE_SPACE
"""Control character or white space -> the character that shows it."""
_SCRIPTS = ("viewer_data.js", "viewer_drawing.js", "viewer.js")


def require_page_destination(path: Path, *, force: bool = False) -> None:
    """Refuse to replace a file that is no page of the viewer, unless ``force`` is set."""
    kind = f"a page of '{GENERATOR}'"
    if force:
        require_file_destination(path)
    else:
        require_replaceable(path, beginning(GENERATOR), kind, "--force replaces it.")


def write_viewer(out: Path, models: Sequence[ViewedModel]) -> Path:
    """Write the page. Models with equal tokens are shown side by side."""
    texts = list(dict.fromkeys(model.text for model in models))
    blocks = [
        (f"m{i}l{place}", _block(layer))
        for i, model in enumerate(models)
        for place, layer in enumerate(model.layers)
    ]
    labels = [model.label for model in models]
    begins = " ".join(_content(models[0].text).decode("utf-8", "replace").split())
    cut = f"{begins[:48].rstrip()} …" if len(begins) > 48 else begins
    layers = [layer for model in models for layer in model.layers]
    return write_page(
        out,
        "viewer.html.j2",
        script="\n".join(map(template_text, _SCRIPTS)),
        style=template_text("viewer.css"),
        title=f"Where {', '.join(labels)} look{'s' if len(labels) == 1 else ''} in “{cut}”",
        generator=f"{GENERATOR} {__version__}",
        notes=_notes(models, texts),
        groups=_groups(models, texts),
        data={
            "levels": MAX_CODE,
            "texts": [_text(text) for text in texts],
            "models": [_model(model, texts) for model in models],
        },
        blocks=blocks,
        row_scales=all(layer.scales is not None for layer in layers),
        error=f"{max(layer.error for layer in layers):.1g}",
    )


def _notes(models: Sequence[ViewedModel], texts: Sequence[ViewedText]) -> list[str]:
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
    groups: list[dict[str, Any]] = [{"notes": text.notes, "models": []} for text in texts]
    for number, model in enumerate(models):
        facts = {"label": model.label, "facts": model.facts, "maps": model.layers[0].codes.shape[1]}
        groups[texts.index(model.text)]["models"].append({"number": number, **facts})
    return groups


def _content(text: ViewedText) -> bytes:
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
    place = max(range(len(model.layers)), key=lambda i: model.layers[i].clearest[0])
    _, head, key = model.layers[place].clearest
    return {
        "start": {"place": place, "head": head, "key": key},
        "label": model.label,
        "text": texts.index(model.text),
        "layers": [layer.index for layer in model.layers],
        "heads": [layer.codes.shape[0] for layer in model.layers],
        "maps": model.layers[0].codes.shape[1],
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
        parts.append(np.rint(_MAX_SUM_CODE * layer.sums / scale).astype(np.uint16))
    return packed(*parts)


def shown(piece: str | bytes) -> str:
    """Make white space, control characters and bytes of a token visible: ``␣the``, ``‹E2 82›``."""
    if isinstance(piece, bytes):
        return f"‹{piece.hex(' ').upper()}›"
    text = "".join(map(_shown_character, piece))
    if piece and unicodedata.category(piece[0]) in _COMBINING:
        text = f"◌{text}"  # carries a combining mark whose letter is in another token
    return text or "∅"


def _shown_character(character: str) -> str:
    code = ord(character)
    if code in _PICTURES:
        return _PICTURES[code]
    return f"‹U+{code:04X}›" if unicodedata.category(character) in _INVISIBLE else character
