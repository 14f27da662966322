"""EvalResult: scores of one model by one protocol. Comparison: paired differences of models."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, short
from diffattn.files.destination import is_folder_name
from diffattn.files.io import read_jsonl
from diffattn.lab.records.fields import FileRecord
from diffattn.lab.records.lock import sole_writer
from diffattn.lab.records.run import is_claimed

EVAL_SCHEMA_VERSION = 2
EVALUATION_MARKER = "evaluation.json"
"""Name of the file that lists the models and variants of an evaluation folder, in order."""
ITEMS = "items.jsonl"
JUDGED_PROTOCOL = "hallucination"
"""Name of the protocol whose rows of ``items.jsonl`` a judge can check. Their keys: ``kind``
(``"summary"`` or ``"answer"``), ``question``, ``references``, ``document``, ``read`` (see
:func:`text_read`) and ``output``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One number with its interval."""

    name: str
    value: float
    n: int
    """Number of independent items; of clusters, where items share a text."""
    low: float | None = None
    """Lower end of the interval; ``None`` if the spread is unknown."""
    high: float | None = None
    level: float = 0.95
    method: str = "none"
    unit: str = "share"
    """``"share"`` (0 to 1), ``"nats per token"``, ..."""
    where: dict[str, Any] = field(default_factory=dict)
    """The part of the protocol, for example ``{"length": 4096, "depth": 50}``; empty for all."""
    headline: bool = False
    """Whether a table of the paper prints this number."""
    higher_is_better: bool | None = True
    """``None`` if neither a high nor a low value is better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalResult(FileRecord):
    """One protocol on one model. Written once, when every item has been asked."""

    FILE, KIND, SCHEMA = "result.json", "evaluation", EVAL_SCHEMA_VERSION

    protocol: str
    version: int
    source: str
    variant: str
    """Name of these parameters: the protocol's, or that of a part of a preset."""
    model: dict[str, Any]
    """``label``, ``path``, ``type``, ``parameters``, ``weights`` (hash), ``tokenizer``, ..."""
    parameters: dict[str, Any]
    choices: dict[str, str]
    metrics: list[Metric]
    tables: dict[str, Any]
    num_items: int
    num_failed: int
    """Items that could not be asked or scored; ``items.jsonl`` has the reasons."""
    items: dict[str, Any]
    """Number of rows and hash of ``items.jsonl``."""
    selection: dict[str, Any] = field(default_factory=dict)
    """``limit`` if not all items were asked."""

    def read_items(self, folder: Path) -> list[dict[str, Any]]:
        """Rows of ``items.jsonl`` of ``folder``, checked against the recorded hash."""
        return read_jsonl(Path(folder) / ITEMS, recorded=self.items)

    def unlike(self, first: "EvalResult") -> str:
        """Why this cannot share a table with ``first``, another model's result; empty if it can."""
        name = first.model.get("label")
        if (first.protocol, first.version) != (self.protocol, self.version):
            return (
                f"it is of {self.protocol}, version {self.version}, where {name} has "
                f"{first.protocol}, version {first.version}"
            )
        if first.selection != self.selection:
            limits = [result.selection.get("limit", "all") for result in (self, first)]
            return f"it was asked {limits[0]} items (--limit), {name} {limits[1]}"
        keys = {**first.parameters, **self.parameters}
        unequal = [key for key in keys if first.parameters.get(key) != self.parameters.get(key)]
        return f"{', '.join(unequal)} differ from those of {name}" if unequal else ""

    def headline(self) -> list[Metric]:
        """The metrics a table of the paper would print."""
        return [metric for metric in self.metrics if metric.headline]


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """Scores of a model and its baseline in one kind of task, and of guessing there."""

    where: dict[str, Any]
    """For example ``{"task": "niah_multikey_1"}``; empty for all."""
    n: int
    """Number of clusters of these items."""
    value: float
    guess: float
    """Score of the model's best guess that does not read the question."""
    baseline_value: float
    baseline_guess: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedDifference:
    """One score of one protocol, model minus baseline, over the items both have answered."""

    variant: str
    score: str
    model: str
    baseline: str
    difference: float
    low: float | None
    high: float | None
    level: float
    method: str
    p_value: float | None
    test: str
    n: int
    """Number of independent clusters of items."""
    num_items: int
    num_unpaired: int
    """Number of items that only one of the two has scored; they are left out."""
    num_other_text: int = 0
    """Number of items that both have scored on different texts; they are left out."""
    where: dict[str, Any] = field(default_factory=dict)
    primary: bool = False
    """Whether it is the declared primary score over all items."""
    over: str = "items"
    """The sample of the interval: ``"items"`` of one pair of models, or ``"seeds"``."""
    higher_is_better: bool | None = None
    value: float | None = None
    """Mean score of the model over the paired items."""
    baseline_value: float | None = None
    p_holm: float | None = None
    """Holm-adjusted over the primary scores with equal ``over``; ``None`` for other scores."""
    chance: float | None = None
    """Score of guessing at random; ``None`` if it is not known."""
    guess_ceiling: float | None = None
    """Score of the best guess that does not read the question, the larger of the two models."""
    guess: str = ""
    """How that guess is made, in words."""
    floors: list[Floor] = field(default_factory=list)
    """For primary scores over items: one floor for each kind of task that has one."""
    verdict: str = ""
    """For primary scores only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison(FileRecord):
    """``comparison.json``: paired differences between the models of one evaluation folder."""

    FILE, KIND, SCHEMA = "comparison.json", "comparison", EVAL_SCHEMA_VERSION

    baseline: str
    differences: list[PairedDifference]
    skipped: list[str] = field(default_factory=list)
    """One sentence for each score that could not be compared."""
    notes: list[str] = field(default_factory=list)
    """One sentence for each comparison of models that ran differently."""


@dataclass(frozen=True, kw_only=True)
class _Marker(FileRecord):
    FILE, KIND, SCHEMA = EVALUATION_MARKER, "evaluation folder", EVAL_SCHEMA_VERSION

    models: list[str]
    variants: list[str]


def evaluation_marker(folder: Path) -> dict[str, Any]:
    """Names of the folders ``<model>/<variant>/`` of an evaluation, in their order."""
    path = Path(folder) / EVALUATION_MARKER
    if not path.exists():
        got = "no evaluation" if Path(folder).exists() else "nothing"
        must = f"must be a folder that 'diffattn evaluate' wrote ({EVALUATION_MARKER})"
        raise CheckpointError(f"{folder}: {must}, got {got}.")
    marker = _Marker.read(folder)
    for name in [*marker.models, *marker.variants]:
        if not is_folder_name(name):
            raise CheckpointError(f"{path}: must name folders in it, got {short(name)}.")
    return asdict(marker)


def register(folder: Path, label: str, variant: str) -> None:
    """Add a model and a variant to an evaluation folder. Other processes may do the same."""
    folder = Path(folder)
    with sole_writer(folder, wait=True):
        is_known = is_claimed(folder, EVALUATION_MARKER, "an evaluation")
        known = evaluation_marker(folder) if is_known else {"models": [], "variants": []}
        models, variants = [*known["models"], label], [*known["variants"], variant]
        added = _Marker(models=list(dict.fromkeys(models)), variants=list(dict.fromkeys(variants)))
        if asdict(added) != known:
            added.write(folder)


def text_read(document: str, read: Sequence[int]) -> str:
    """The part that a model has read: so many characters at the document's beginning and end."""
    head, tail = read
    return document[:head] + document[len(document) - tail :]
