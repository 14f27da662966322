"""Analyse several models on the same text: attention, outliers and λ, in one pass each."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import gt, lt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffattn.errors import CheckpointError, ConfigError, short
from diffattn.files.io import read_jsonl
from diffattn.lab.analysis.attention import DISTANCES, LayerAttention, uniform_masses
from diffattn.lab.data.corpora import Document, strip_gutenberg
from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.records.analysis import AnalysisResult, ModelAnalysis
from diffattn.lab.records.run import RunRecord, has_log, is_log_alone
from diffattn.models.config.attention_types import ATTENTION
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.ops.inputs.formulas import lambda_init
from diffattn.probes.activations import LambdaStatistics
from diffattn.probes.layer_reader import (
    BLOCK_ENTRIES,
    AttentionInputs,
    LogitRows,
    logit_rows,
    read_layers,
    require_readable,
)
from diffattn.probes.outliers import OutlierScan, common_scale, layer_rows, outlier_summary, pooled
from diffattn.probes.passes import unwrapped


def lambda_flags(layers: Sequence[dict[str, Any]]) -> list[str]:
    """One sentence for each layer in which λ is below 0, and one for each in which it is above 1.

    Below 0 the second map is added; above 1 a row of the difference sums to less than 0.
    """
    flags = []
    for number, layer in enumerate(layers):
        for side, end in (("below_0", min(layer["min"])), ("above_1", max(layer["max"]))):
            if share := sum(layer[side]) / len(layer[side]):
                flags.append(
                    f"Layer {number}: λ is {side.replace('_', ' ')} for {share:.1%} of tokens and "
                    f"heads, as far as {end:.3f}."
                )
    return flags


def initial_lambdas(model: dict[str, Any]) -> list[float] | None:
    """λ_init of every layer of a recorded configuration; ``None`` for types without λ vectors.

    Source: arXiv:2410.05258v2, after Eq. (2).
    """
    names = str(model.get("attention_type")).split(",")
    if not any(name in ATTENTION and ATTENTION[name].lambda_vectors for name in names):
        return None
    given, layers = model.get("lambda_init"), range(model["num_hidden_layers"])
    if isinstance(given, list):
        return [float(value) for value in given]
    return [lambda_init(layer) if given is None else float(given) for layer in layers]


def lambda_log(folder: Path) -> Any:
    """λ of every layer from the training log of a run; ``None`` if no λ was logged.

    ``values`` holds one λ per layer for each of ``steps``, in V2 the mean over tokens and heads.
    """
    record = RunRecord.read(folder)
    rows = [row for row in read_jsonl(folder / "metrics.jsonl") if row.get("lam") is not None]
    if not rows:
        return None
    model = record.config.get("model", {})
    layers = model.get("num_hidden_layers")
    for row in rows:
        values = row["lam"]
        numbers = isinstance(values, list) and all(isinstance(x, int | float) for x in values)
        if not numbers or len(values) != layers:
            raise CheckpointError(
                f"{folder / 'metrics.jsonl'}: lam must hold a number for each of {short(layers)} "
                f"layers, got {short(values)}."
            )
    flags = []
    for layer in range(layers):
        for words, is_beyond, bound in (("below 0", lt, 0), ("above 1", gt, 1)):
            steps = [row["step"] for row in rows if is_beyond(row["lam"][layer], bound)]
            if steps:
                flags.append(
                    f"Layer {layer}: λ was {words} at {len(steps)} of {len(rows)} logged steps, "
                    f"first at step {steps[0]}."
                )
    return {
        "run": record.name,
        "steps": [row["step"] for row in rows],
        "values": [row["lam"] for row in rows],
        "lambda_init": initial_lambdas(model),
        "flags": flags,
    }


OnProgress = Callable[[str, int, int], None]  # label of a model, its windows done and in all


@dataclass(frozen=True, kw_only=True, slots=True)
class AnalysisSettings:
    """How much of the text is read, and in which arithmetic."""

    tokens: int = 16_384
    """Most tokens of text that a model reads; BOS is not counted."""
    window_tokens: int | None = None
    """Tokens of a window, BOS included. Default: 1,024, or fewer if the model takes fewer."""
    dtype: str = "float32"
    device: str | None = None
    bos: bool | None = None
    """Whether a window begins with BOS. Default: if the tokenizer has one."""


def analyze(
    models: Mapping[str, str],
    documents: Callable[[], Iterable[Document]],
    source: str,
    settings: AnalysisSettings,
    *,
    verify: bool = True,
    on_start: Callable[[str], None] = lambda label: None,
    on_progress: OnProgress = lambda label, done, total: None,
) -> AnalysisResult:
    """Analyse models one after the other on the same documents.

    Windows run one by one without padding. Held at once are queries, keys and values of one layer
    and window, and ``BLOCK_ENTRIES`` logits: never the whole maps of all heads.

    Args:
        models: Label -> path of a model or of a run. From a run the λ of its log is read too, and
            λ alone if it has no weights.
        documents: Opens the text, once for each model.
        on_start: Given the label of each model before it is loaded.
    """
    done: list[ModelAnalysis] = []
    used: dict[str, str] = {}
    for label, path in models.items():
        on_start(label)
        done.append(_analyze_model(label, path, documents, settings, used, verify, on_progress))
    digest = hashlib.sha256()
    for text in used.values():
        digest.update(hashlib.sha256(text.encode()).digest())
    names = ("tokens", "window_tokens", "bos", "dtype")
    recorded: Any = {name: getattr(settings, name) for name in names}
    return AnalysisResult(
        text={"source": source, "documents": list(used), "sha256": digest.hexdigest()},
        settings=recorded | {"distances": list(DISTANCES)},
        models=done,
    )


def _analyze_model(
    label: str,
    path: str,
    documents: Callable[[], Iterable[Document]],
    settings: AnalysisSettings,
    used: dict[str, str],
    verify: bool,
    on_progress: OnProgress,
) -> ModelAnalysis:
    log = lambda_log(Path(path)) if has_log(path) else None
    if is_log_alone(path):
        return ModelAnalysis(
            model={"label": label, "path": path},
            lambda_log=log,
            notes=[f"{label} has no weights: only λ of its training log is shown."],
        )
    arithmetic: dict[str, Any] = {"device": settings.device, "dtype": settings.dtype}
    model = LanguageModel.load(path, label=label, add_bos=settings.bos, verify=verify, **arithmetic)
    windows = _windows(model, documents(), settings, used)
    require_readable(model.network, max(map(len, windows)))
    config = unwrapped(model.network).config
    if isinstance(config, DiffTransformerConfig):  # the record has one shape for all layers
        shapes = {(kind.num_heads, kind.attention.query_maps) for kind, _ in config.by_type()}
        if len(shapes) > 1:
            raise ConfigError(
                "analysis: all layers must have the same numbers of heads and maps, got "
                f"attention_type {config.attention_type!r}."
            )
    collector = _Collector(model)
    on_progress(label, 0, len(windows))
    for number, ids in enumerate(windows):
        collector.add(number, ids)
        on_progress(label, number + 1, len(windows))
    lengths = [len(ids) for ids in windows]
    digest = hashlib.sha256(str(windows).encode()).hexdigest()
    return ModelAnalysis(
        model=model.facts(),
        tokens={"lengths": lengths, "sha256": digest},
        uniform=uniform_masses(lengths),
        lambda_log=log,
        **collector.result(),
    )


class _Collector:
    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.attention: dict[int, LayerAttention] = {}
        self.lambdas: dict[int, LambdaStatistics] = {}
        self.scan = OutlierScan()

    def add(self, number: int, ids: Sequence[int]) -> None:
        tokens = torch.tensor(ids, device=self.model.device)

        def on_attention(layer: int, inputs: AttentionInputs) -> None:
            _, num_heads, maps, _ = inputs.q.shape
            attention = self.attention.setdefault(layer, LayerAttention(num_heads, maps))
            if inputs.lam is not None:
                self.lambdas.setdefault(layer, LambdaStatistics(num_heads)).add(inputs.lam)

            def blocks() -> Iterator[LogitRows]:
                for rows in logit_rows(inputs, attention.block(BLOCK_ENTRIES)):
                    self.scan.add_logits(layer, inputs, rows, tokens, number)
                    yield rows

            attention.add(inputs, blocks())

        def on_hidden(layer: int, x: Tensor) -> None:
            self.scan.add_hidden(layer, x, tokens, number)

        read_layers(self.model.network, tokens[None], on_attention, on_hidden)

    def result(self) -> dict[str, Any]:
        scales = [scale for _, scale in sorted(self.scan.scales.items())]
        lambdas = [self.lambdas[layer].result() for layer in sorted(self.lambdas)]
        network = self.model.network
        config = network.config.get_text_config()
        if config.model_type == "diffllama":  # its layers hold λ_init
            layers = unwrapped(network).model.layers
            initial: Any = [float(layer.self_attn.lambda_init) for layer in layers]
        else:
            initial = initial_lambdas(config.to_dict())
        record = {"layers": lambdas, "lambda_init": initial, "flags": lambda_flags(lambdas)}
        return {
            "attention": [self.attention[layer].result() for layer in sorted(self.attention)],
            "outliers": {
                "table": outlier_summary(
                    pooled(self.scan),
                    common_scale(scales),
                    lambda token: str(self.model.tokenizer.decode([token])),
                ),
                "layers": layer_rows(self.scan),
            },
            "lambdas": record if lambdas else None,
        }


def _windows(
    model: LanguageModel,
    documents: Iterable[Document],
    settings: AnalysisSettings,
    used: dict[str, str],
) -> list[list[int]]:
    """Windows of the documents in order, each with BOS; the last has 2 tokens or more.

    ``used`` receives the name and the whole text of each document that was read from.
    """
    start = model.start()
    size = settings.window_tokens or min(1024, model.max_length)
    if size > model.max_length:
        raise ConfigError(
            f"analyze: window_tokens must be at most the {model.max_length} tokens of "
            f"{model.label}, got {size}."
        )
    windows: list[list[int]] = []
    left, size = settings.tokens, size - len(start)
    for document in documents:
        text = strip_gutenberg(document.text)
        used[document.name] = text
        # Cut a long book before it is encoded: few tokens are longer than 16 characters.
        ids = model.encode(text[: 16 * left])[:left]
        model.require_ids(ids)
        pieces = [ids[i : i + size] for i in range(0, len(ids), size)]
        windows += [[*start, *piece] for piece in pieces if len(start) + len(piece) > 1]
        left -= len(ids)
        if left <= 0:
            break
    if not windows:
        raise ConfigError("analyze: the text must have two tokens or more, got none or one.")
    return windows
