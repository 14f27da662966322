"""EvalResult: what one protocol measured on one model, and paired differences between models."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from diffattn.errors import CheckpointError, short
from diffattn.files.destination import is_folder_name
from diffattn.files.io import read_jsonl, read_record, write_json
from diffattn.lab.records.claim import is_claimed
from diffattn.lab.records.fields import checked
from diffattn.lab.records.lock import sole_writer

EVAL_SCHEMA_VERSION = 2
EVALUATION_MARKER = "evaluation.json"
"""Names the models and parts of an evaluation folder, in their order."""
ITEMS = "items.jsonl"
LATER_FACTS = ("end_tokens", "config", "tokenizer_hash", "chat_template")
"""Facts of a model that older records lack. Where they do, it cannot be told whether they have
changed: they are not compared."""
_FOLDER = "evaluation folder"


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One number with its interval."""

    name: str
    """For example ``"recall"``."""
    value: float
    n: int
    """Independent items (clusters, where items share a text) it was computed from."""
    low: float | None = None
    """Lower end of the interval; ``None`` where the spread is unknown."""
    high: float | None = None
    level: float = 0.95
    method: str = "none"
    """Of the interval, for example ``"Wilson"``."""
    unit: str = "share"
    """``"share"`` (0 to 1), ``"nats per token"``, ..."""
    where: dict[str, Any] = field(default_factory=dict)
    """Which part of the protocol, for example ``{"length": 4096, "depth": 50}``; empty for all."""
    headline: bool = False
    """The number a table of the paper would print."""
    higher_is_better: bool | None = True
    """``None`` if neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalResult:
    """One protocol on one model. Written once, when every item has been asked."""

    protocol: str
    version: int
    source: str
    variant: str
    """The protocol's name, or that of the preset's part that chose the parameters."""
    model: dict[str, Any]
    """``label``, ``path``, ``type``, ``parameters``, ``weights`` (hash), ``tokenizer``, ..."""
    parameters: dict[str, Any]
    choices: dict[str, str]
    metrics: list[Metric]
    tables: dict[str, Any]
    num_items: int
    num_failed: int
    """Items that could not be asked or scored; the reasons stand in ``items.jsonl``."""
    items: dict[str, Any]
    """Rows and hash of ``items.jsonl``."""
    selection: dict[str, Any] = field(default_factory=dict)
    """``limit`` and ``shard`` ([i, n]), where not all items were asked; empty for all. A share has
    no metrics."""

    def write(self, folder: Path) -> None:
        """Write ``result.json`` into ``folder``."""
        value = {"schema": EVAL_SCHEMA_VERSION, "kind": "evaluation"} | asdict(self)
        write_json(Path(folder) / "result.json", value)

    @classmethod
    def read(cls, folder: Path) -> "EvalResult":
        """Read ``result.json`` from ``folder``.

        Raises:
            CheckpointError: The file is missing, damaged, of another kind or schema version.
        """
        return read_record(
            Path(folder) / "result.json",
            "evaluation",
            EVAL_SCHEMA_VERSION,
            lambda value: checked(cls, value, f"{folder}/result.json"),
        )

    def read_items(self, folder: Path) -> list[dict[str, Any]]:
        """Rows of ``items.jsonl`` of ``folder``, all that were measured.

        Raises:
            CheckpointError: The file is missing, or not the one that was measured.
        """
        return read_jsonl(Path(folder) / ITEMS, recorded=self.items)

    def unlike(self, first: "EvalResult") -> str:
        """Why it shares no table with another model's result; empty if it does."""
        name = first.model.get("label")
        if (first.protocol, first.version) != (self.protocol, self.version):
            return (
                f"it is of {self.protocol}, version {self.version}, where {name} has "
                f"{first.protocol}, version {first.version}"
            )
        if first.selection != self.selection:
            limits = [of.selection.get("limit", "all") for of in (self, first)]
            return f"it was asked {limits[0]} items (--limit), {name} {limits[1]}"
        keys = {**first.parameters, **self.parameters}
        unequal = [key for key in keys if first.parameters.get(key) != self.parameters.get(key)]
        return f"{', '.join(unequal)} differ from those of {name}" if unequal else ""

    def headline(self) -> list[Metric]:
        """The metrics a table of the paper would print."""
        return [metric for metric in self.metrics if metric.headline]


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """What two models score in one kind of task, and what guessing would score for each."""

    where: dict[str, Any]
    """For example ``{"task": "niah_multikey_1"}``; empty for all."""
    n: int
    """Clusters of the items that have a floor."""
    value: float
    """Of the model, over these items."""
    guess: float
    """Of the best guess that does not read the question: with the model's own output where the
    protocol goes by it."""
    baseline_value: float
    baseline_guess: float


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedDifference:
    """One score of one protocol, model minus baseline, over the items both have answered."""

    variant: str
    score: str
    """A name from the rows' ``scores``."""
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
    """Independent clusters of items."""
    num_items: int
    num_unpaired: int
    """Items that only one of the two has scored: left out, and named."""
    num_other_text: int = 0
    """Items that both have scored, but on another text: left out, and named."""
    where: dict[str, Any] = field(default_factory=dict)
    """Which part of the protocol, for example ``{"length": 4096}``; empty for all."""
    primary: bool = False
    """Whether it is the declared primary score over all items."""
    over: str = "items"
    """What is drawn anew in the interval: ``"items"``, of one pair of models, or ``"seeds"``."""
    higher_is_better: bool | None = None
    """``None`` if neither, or unknown."""
    value: float | None = None
    """Mean of the model over the paired items."""
    baseline_value: float | None = None
    p_holm: float | None = None
    """Of primary scores: adjusted for all of them over the same of items or seeds."""
    chance: float | None = None
    """Score of guessing at random; ``None`` if it is not known."""
    guess_ceiling: float | None = None
    """Score of the best guess that does not read the question, the greater of the two models';
    ``None`` if it is not known."""
    guess: str = ""
    """What that guess is."""
    floors: list[Floor] = field(default_factory=list)
    """Of primary scores over items: kind by kind, those that have one."""
    verdict: str = ""
    """Of primary scores: what these items show of these models; see
    ``lab/evaluation/verdicts.py``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """``comparison.json``: paired differences between the models of one evaluation folder."""

    baseline: str
    differences: list[PairedDifference]
    skipped: list[str] = field(default_factory=list)
    """One sentence for everything that could not be compared."""
    notes: list[str] = field(default_factory=list)
    """One sentence for everything that was compared although the models ran differently."""

    def write(self, folder: Path) -> None:
        """Write ``comparison.json`` into ``folder``."""
        value = {"schema": EVAL_SCHEMA_VERSION, "kind": "comparison"} | asdict(self)
        write_json(Path(folder) / "comparison.json", value)

    @classmethod
    def read(cls, folder: Path) -> "Comparison":
        """Read ``comparison.json`` from ``folder``.

        Raises:
            CheckpointError: The file is missing, damaged, of another kind or schema version.
        """
        path = Path(folder) / "comparison.json"
        return read_record(
            path, "comparison", EVAL_SCHEMA_VERSION, lambda value: checked(cls, value, str(path))
        )


class _Marker(TypedDict):
    """Names of folders: ``<model>/<variant>/``."""

    models: list[str]
    variants: list[str]


def evaluation_marker(folder: Path) -> dict[str, Any]:
    """``models`` and ``variants`` of an evaluation folder, in their order.

    Raises:
        CheckpointError: The file is missing or of another kind, or names what is no folder's name.
    """
    path = Path(folder) / EVALUATION_MARKER
    marker: dict[str, Any] = read_record(
        path, _FOLDER, EVAL_SCHEMA_VERSION, lambda value: dict(checked(_Marker, value, str(path)))
    )
    for name in [*marker["models"], *marker["variants"]]:
        if not is_folder_name(name):
            raise CheckpointError(f"{path}: must name folders in it, got {short(name)}.")
    return marker


def register(folder: Path, label: str, variant: str) -> None:
    """Add a model and a part to an evaluation folder, which other processes may do as well.

    Raises:
        CheckpointError: ``folder`` holds other files.
    """
    folder = Path(folder)
    with sole_writer(folder, wait=True):
        known: dict[str, Any] = {"models": [], "variants": []}
        if is_claimed(folder, EVALUATION_MARKER, "an evaluation"):
            known = evaluation_marker(folder)
        added = {"models": [*known["models"], label], "variants": [*known["variants"], variant]}
        more = {key: list(dict.fromkeys(names)) for key, names in added.items()}
        if more != known:
            head = {"schema": EVAL_SCHEMA_VERSION, "kind": _FOLDER}
            write_json(folder / EVALUATION_MARKER, head | more)
