"""Several models on one text, put on one page."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inspection.maps import MOST_WEIGHTS, viewed_layers
from diffattn.lab.inspection.request import Request
from diffattn.lab.inspection.texts import read_text
from diffattn.lab.report.viewer.page import require_page_destination, write_viewer
from diffattn.lab.report.viewer.values import ViewedModel, ViewedText
from diffattn.models.config.attention_types import ATTENTION


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

    Models are loaded one after the other; nothing is written unless all could be read.

    Args:
        models: Paths by label.
        request: The text, and which layers.
        out: The page.
        device: Default: CUDA if there is any, else CPU.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        verify: Whether to compare the models' files with their manifests.
        force: Replace ``out`` also if it is no page of this command.
        on_message: Given one line per stage.

    Returns:
        ``out``.

    Raises:
        ConfigError: A text that is empty or too long, a model without maps, a bad option, or a
            destination that is something else.
        CheckpointError: A model cannot be read.
        DiffAttnError: A model is broken.
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
        room = MOST_WEIGHTS - sum(layer.codes.size for v in viewed for layer in v.layers)
        viewed.append(_view(model, ids, text, request.layers, room, len(models)))
    on_message("writing the page")
    return write_viewer(out, viewed)


def _view(
    model: LanguageModel,
    ids: Sequence[int],
    text: ViewedText,
    layers: Sequence[int] | None,
    room: int,
    num_models: int,
) -> ViewedModel:
    viewed = viewed_layers(
        model,
        ids,
        layers=layers,
        spans=[(segment.start, segment.end) for segment in text.segments],
        sought=next(((s.start, s.end) for s in text.segments if s.name == "needle"), None),
        room=room,
        num_models=num_models,
    )
    return ViewedModel(
        label=model.label,
        facts=_facts(model),
        text=text,
        layers=tuple(viewed),
        num_layers=int(model.network.config.get_text_config().num_hidden_layers),
    )


def _facts(model: LanguageModel) -> tuple[str, ...]:
    """Facts that a reader needs to reproduce the numbers of a model."""
    facts = model.facts()
    name = facts["attention_type"] or facts["type"]
    control = ATTENTION[name].control if name in ATTENTION else ""
    return (
        f"{name} ({control})" if control else str(name),
        f"{facts['parameters']:,} parameters",
        f"weights {facts['weights']}",
        str(facts["dtype"]),
    )
