"""AnalysisResult: what ``diffattn analyze`` saw of one or several models on the same text."""

from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from diffattn.records.fields import checked
from diffattn.records.io import read_record, write_json
from diffattn.records.run import git_state, hardware, package_versions

ANALYSIS_SCHEMA_VERSION = 1
ANALYSIS_FILE = "analysis.json"


class Ranges(TypedDict):
    """A quantity at the first key, and at all others by ranges of the distance."""

    first: float | None
    ranges: list[float | None]


class LayerAttentionRecord(TypedDict):
    """One layer; see :meth:`diffattn.analysis.attention.LayerAttention.result`."""

    heads: dict[str, list[float | None]]
    by_distance: dict[str, Ranges]
    map_cosine: dict[str, float | None]
    map_correlation: dict[str, float | None]
    cka: float | None
    queries: int


class LayerLambdaRecord(TypedDict):
    """λ of one layer over tokens, per head."""

    lam: float
    mean: list[float]
    std: list[float]
    min: list[float]
    max: list[float]
    below_0: list[float]
    above_1: list[float]


class LambdaRecord(TypedDict):
    """λ of a model on the text."""

    layers: list[LayerLambdaRecord]
    lambda_init: list[float] | None
    flags: list[str]


class LambdaLogRecord(TypedDict):
    """λ over the training of a run."""

    run: str
    steps: list[float]
    values: list[list[float]]
    lambda_init: list[float] | None
    flags: list[str]


class OutlierRecord(TypedDict):
    """Table 5's rows, and largest, median and kurtosis per layer."""

    table: dict[str, dict[str, dict[str, Any]]]
    layers: list[dict[str, dict[str, dict[str, float | None]]]]


class MassRecord(TypedDict):
    """Masses of a uniform map on the same texts."""

    first: float
    by_distance: list[float]


@dataclass(frozen=True, kw_only=True)
class ModelAnalysis:
    """One model."""

    model: dict[str, Any]
    """``label``, ``path``, ``attention_type``, ``weights`` (hash), ``dtype``, ...; of a run without
    weights label and path alone."""
    tokens: dict[str, Any]
    """``lengths`` of the windows, and ``sha256`` of all tokens: equal hashes, equal inputs."""
    attention: list[LayerAttentionRecord] = field(default_factory=list)
    uniform: MassRecord | None = None
    outliers: OutlierRecord | None = None
    lambdas: LambdaRecord | None = None
    lambda_log: LambdaLogRecord | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class AnalysisResult:
    """``analysis.json``. Written once, never edited."""

    text: dict[str, Any]
    """``source``, ``sha256`` of the documents read, ``documents``."""
    settings: dict[str, Any]
    """``tokens``, ``window_tokens``, ``bos``, ``dtype``, ``distances``."""
    models: list[ModelAnalysis]
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    commit: str | None = field(default_factory=lambda: git_state()[0])
    dirty: bool | None = field(default_factory=lambda: git_state()[1])
    versions: dict[str, str] = field(default_factory=package_versions)
    hardware: dict[str, Any] = field(default_factory=hardware)

    def write(self, folder: Path) -> None:
        """Write ``analysis.json`` into ``folder``."""
        value = {"schema": ANALYSIS_SCHEMA_VERSION, "kind": "analysis"} | asdict(self)
        write_json(Path(folder) / ANALYSIS_FILE, value)

    @classmethod
    def read(cls, folder: Path) -> "AnalysisResult":
        """Read ``analysis.json`` from ``folder``.

        Raises:
            CheckpointError: The file is missing, damaged, of another kind or schema version.
        """
        path = Path(folder) / ANALYSIS_FILE
        return read_record(
            path,
            "analysis",
            ANALYSIS_SCHEMA_VERSION,
            lambda value: checked(cls, value, str(path)),
        )
