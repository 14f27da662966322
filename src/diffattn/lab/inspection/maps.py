"""Run models on one text, and write one page with their attention maps."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.convert_slow_tokenizer import bytes_to_unicode

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.attention_segments import AttentionSegments, segment_spans
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inspection.request import NeedleText, Request
from diffattn.lab.report.viewer.page import require_page_destination, write_viewer
from diffattn.lab.report.viewer.values import (
    Segment,
    ViewedLayer,
    ViewedModel,
    ViewedText,
    to_codes,
)
from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.attention_rows import LayerRows, attention_rows
from diffattn.probes.passes import unwrapped

_EXAMPLE = "Return the first item of the list. Return the last item of the list. Return the"
"""Its end repeats an earlier phrase: an induction head looks at the words that followed it."""
_BYTE_OF = {character: byte for byte, character in bytes_to_unicode().items()}
"""Character of a byte-level vocabulary to the byte that it stands for."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_SEGMENTS = ("BOS", "noise before", "needle", "noise after", "question")
"""Segments of protocol ``attention_segments`` by their names on the page."""


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
        Segment(name=name, start=start, end=end)
        for name, (start, end) in zip(_SEGMENTS, segment_spans(prompt), strict=True)
    ]
    others = needle.num_needles - 1
    note = (
        f"The magic number of {prompt.cities[0]} is {prompt.numbers[0]}. It is hidden at "
        f"{prompt.realised[0]:.0f} % of the text's depth{f', among {others} more' * (others > 0)}, "
        f"as in protocol attention_segments (length {needle.length}, sample "
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


MOST_WEIGHTS = 100_000_000
"""Most attention weights on one page: about as many bytes, which a browser still opens."""
_NEIGHBOURS = 3  # last tokens, at which nearly every model has a head that looks
_ROW_SCALES_UP_TO = 5_000_000
"""Largest page, in weights, with a scale per row. Its codes do not compress and take 6.7 MB."""


def viewed_layers(
    model: LanguageModel,
    ids: Sequence[int],
    *,
    layers: Sequence[int] | None = None,
    spans: Sequence[tuple[int, int]] = (),
    sought: tuple[int, int] | None = None,
    room: int = MOST_WEIGHTS,
    num_models: int = 1,
) -> list[ViewedLayer]:
    r"""A1, A2 and λ of every head, or the single map of softmax attention.

    λ is computed from the maps, in the same way for every model: the least-squares fit of
    :math:`A = A_1 - \lambda A_2`, per query and head in V2, else one per layer.

    Source: arXiv:2410.05258v2, Eq. (1).

    Args:
        layers: Indices of the layers, from 0. Default: all.
        spans: ``(start, end)`` of each segment in tokens, end excluded; empty for a plain text.
        sought: ``(start, end)`` of the keys in which to find the largest weight of the last query.
            Default: all but the first and the last three; all in a text of four or fewer.
        room: Number of weights that the page can still take.
        num_models: Models on the page. Weights of fewer models are stored more exactly.
    """
    network, label = unwrapped(model.network), model.label
    config = network.config
    is_ours = isinstance(network, DiffTransformerForCausalLM)
    if is_ours and any(facts.projected_maps == 0 for facts in config.attention_by_layer):
        raise ConfigError(
            f"{label}: must have attention, got attention_type {config.attention_type!r}."
        )
    count = int(config.get_text_config().num_hidden_layers)
    shown = range(count) if layers is None else layers
    for layer in shown:
        if not 0 <= layer < count:
            raise ConfigError(f"{label}: layers must be from 0 to {count - 1}, got {layer}.")
    weights = _num_weights(label, network, len(shown), len(ids), room)
    model.require_ids(ids)
    rows = attention_rows(network, torch.tensor([list(ids)], device=model.device))
    if len(rows) != count:
        raise ConfigError(f"{label}: must give a map per layer, got {len(rows)} of {count}.")
    maps = {rows[layer].maps.shape[1] for layer in shown}
    if len(maps) > 1:
        raise ConfigError(
            f"{label}: layers of one page must have as many maps, got {sorted(maps)}"
            ". Choose --layers."
        )
    fine = weights * num_models <= _ROW_SCALES_UP_TO
    viewed = []
    for layer in shown:
        viewed.append(_viewed_layer(label, network, layer, rows[layer], spans, fine, sought))
        rows[layer] = None  # type: ignore[call-overload]  # frees the maps
    return viewed


def _viewed_layer(
    label: str,
    network: Any,
    layer: int,
    rows: LayerRows,
    spans: Sequence[tuple[int, int]],
    row_scales: bool,
    sought: tuple[int, int] | None,
) -> ViewedLayer:
    if bool(rows.maps.triu(1).any()):
        raise ConfigError(f"{label}: attention must be causal, got weights on later tokens.")
    tolerance = min(0.02, 32 * torch.finfo(network.dtype).eps)
    is_diffattn = isinstance(network, DiffTransformerForCausalLM)
    per_token = is_diffattn and bool(network.config.attention_by_layer[layer].lambda_projection)
    lam = _lambdas(label, rows, per_token, tolerance)
    maps = rows.maps.cpu().double().numpy()  # [H, maps, T, T]
    codes, scales, error = to_codes(maps, row_scales=row_scales)
    tokens = maps.shape[-1]
    first, end = sought or ((1, tokens - _NEIGHBOURS) if tokens > _NEIGHBOURS + 1 else (0, tokens))
    weights = rows.signed[:, -1, first:end]
    head, key = divmod(int(weights.argmax()), weights.shape[-1])
    return ViewedLayer(
        index=layer,
        codes=codes,
        scales=scales,
        lam=lam,
        error=error,
        sums=_sums(rows, spans),
        clearest=(float(weights[head, key]), head, first + key),
    )


def _num_weights(label: str, network: Any, layers: int, tokens: int, room: int) -> int:
    config = network.config
    heads = int(config.get_text_config().num_attention_heads)
    if isinstance(network, DiffTransformerForCausalLM):  # layers may differ in type
        heads = max(kind.num_heads * kind.attention.query_maps for kind, _ in config.by_type())
    weights = layers * heads * tokens * (tokens + 1) // 2
    if weights > room:
        others = "" if room == MOST_WEIGHTS else " besides the other models"
        raise ConfigError(
            f"{label}: a page must hold at most {MOST_WEIGHTS:,} weights, got {weights:,} of "
            f"{layers} layers, {heads} maps and {tokens} tokens{others}. Choose --layers or a "
            "shorter text."
        )
    return weights


def _lambdas(label: str, rows: LayerRows, per_token: bool, tolerance: float) -> np.ndarray | None:
    """λ, float32: ``[H, T]`` if ``per_token``, else ``[1, 1]``; ``None`` for softmax attention."""
    if rows.maps.shape[1] == 1:
        return None
    maps, signed = rows.maps.double(), rows.signed.double()
    first, second = maps.unbind(1)  # [H, T, S]
    squares = second.square().sum(-1)
    lam = ((first - signed) * second).sum(-1) / squares  # [H, T]
    if not per_token:  # weighted: a row whose second map is concentrated gives λ more exactly
        lam = ((lam * squares).sum() / squares.sum()).reshape(1, 1)
    rest = float((signed - (first - lam[..., None] * second)).abs().max())
    if rest > tolerance:
        raise ConfigError(
            f"{label}: the map that acts must be A1 - λ A2, got one that differs by {rest:.2g}."
        )
    return lam.float().cpu().numpy()


def _sums(rows: LayerRows, spans: Sequence[tuple[int, int]]) -> np.ndarray | None:
    """Sums over segments of A1, A2 and abs(A1 − λ A2), float64 ``[kinds, H, T, segments]``."""
    if not spans:
        return None
    weights: list[Tensor] = [x.double() for x in rows.maps.unbind(1)]
    if len(weights) > 1:
        weights.append(rows.signed.double().abs())
    sums = [torch.stack([x[..., a:b].sum(-1) for a, b in spans], dim=-1) for x in weights]
    return torch.stack(sums).cpu().numpy()


def inspect_models(
    models: Mapping[str, str],
    request: Request,
    out: Path,
    *,
    device: str | None = None,
    dtype: str = "float32",
    verify: bool = True,
    force: bool = False,
    on_message: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write one page with the attention maps of models on a text.

    Models are loaded one after the other. Nothing is written if one of them fails.

    Args:
        models: Label to path of each model.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"auto"`` (the checkpoint's).
        verify: Whether to compare the models' files with their manifests.
        force: Whether to replace ``out`` even if this command did not write it.
    """
    require_page_destination(out, force=force)
    viewed: list[ViewedModel] = []
    for label, path in models.items():
        on_message(f"{label}: loading")
        model = LanguageModel.load(
            path, label=label, device=device, dtype=dtype, add_bos=request.add_bos, verify=verify
        )
        ids, text = read_text(model, request)
        on_message(f"{label}: reading {len(ids)} tokens")
        spans = {segment.name: (segment.start, segment.end) for segment in text.segments}
        layers = viewed_layers(
            model,
            ids,
            layers=request.layers,
            spans=list(spans.values()),
            sought=spans.get("needle"),
            room=MOST_WEIGHTS - sum(layer.codes.size for v in viewed for layer in v.layers),
            num_models=len(models),
        )
        viewed.append(
            ViewedModel(
                label=label,
                facts=_facts(model),
                text=text,
                layers=tuple(layers),
                num_layers=int(model.network.config.get_text_config().num_hidden_layers),
            )
        )
    on_message("writing the page")
    return write_viewer(out, viewed)


def _facts(model: LanguageModel) -> tuple[str, ...]:
    facts = model.facts()
    name = facts["attention_type"] or facts["type"]
    control = ATTENTION[name].control if name in ATTENTION else ""
    return (
        f"{name} ({control})" if control else str(name),
        f"{facts['parameters']:,} parameters",
        f"weights {facts['weights']}",
        str(facts["dtype"]),
    )
