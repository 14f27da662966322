"""Run several models on one text and write one page."""

from collections.abc import Callable, Mapping
from pathlib import Path

from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inspection.maps import MOST_WEIGHTS, viewed_layers
from diffattn.lab.inspection.request import Request
from diffattn.lab.inspection.texts import read_text
from diffattn.lab.report.viewer.page import require_page_destination, write_viewer
from diffattn.lab.report.viewer.values import ViewedModel
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

    Models are loaded one after the other. Nothing is written if one of them fails.

    Args:
        models: Label to path of each model.
        device: Device of the models. Default: CUDA if there is any, else CPU.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"`` or ``"auto"`` (the checkpoint's).
        verify: Whether to compare the models' files with their manifests.
        force: Whether to replace ``out`` even if this command did not write it.

    Raises:
        ConfigError: The text is empty or too long, a model has no attention maps, an option is
            wrong, or ``out`` is a file that this command did not write.
        CheckpointError: A model cannot be read.
        DiffAttnError: A model is broken: its maps or logits are not finite.
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
        layers = viewed_layers(
            model,
            ids,
            layers=request.layers,
            spans=[(segment.start, segment.end) for segment in text.segments],
            sought=next(((s.start, s.end) for s in text.segments if s.name == "needle"), None),
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
    """Attention type, size, hash of the weights and dtype: what identifies a model on the page."""
    facts = model.facts()
    name = facts["attention_type"] or facts["type"]
    control = ATTENTION[name].control if name in ATTENTION else ""
    return (
        f"{name} ({control})" if control else str(name),
        f"{facts['parameters']:,} parameters",
        f"weights {facts['weights']}",
        str(facts["dtype"]),
    )
