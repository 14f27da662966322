"""AnalysisResult: the record of ``diffattn analyze`` on one or several models."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, NotRequired, TypedDict

from diffattn.lab.records.fields import AtLeast, FileRecord
from diffattn.lab.records.run import git_state, hardware, package_versions

ANALYSIS_FILE = "analysis.json"


class _Ranges(TypedDict):
    first: float | None
    ranges: list[float | None]
    """At all keys but the first, by range of their distance."""


class _LayerAttentionRecord(TypedDict):
    heads: dict[str, list[float | None]]
    by_distance: dict[str, _Ranges]
    map_cosine: dict[str, float | None]
    map_correlation: dict[str, float | None]
    cka: float | None
    queries: int


_PerHead = Annotated[list[float], AtLeast(1)]


class _LayerLambdaRecord(TypedDict):
    lam: float
    mean: _PerHead
    std: _PerHead
    min: _PerHead
    max: _PerHead
    below_0: _PerHead
    above_1: _PerHead


class _LambdaRecord(TypedDict):
    layers: list[_LayerLambdaRecord]
    lambda_init: list[float] | None
    flags: list[str]


class _LambdaLogRecord(TypedDict):
    run: str
    steps: Annotated[list[float], AtLeast(1)]
    values: Annotated[list[list[float]], AtLeast(1)]
    lambda_init: list[float] | None
    flags: list[str]


class LargeValue(TypedDict):
    """A large activation and its place: layers, heads and positions from 0, maps from 1."""

    value: float
    layer: int
    text: int
    map: NotRequired[int]
    head: NotRequired[int]
    query: NotRequired[int]
    key: NotRequired[int]
    query_token: NotRequired[str]
    key_token: NotRequired[str]
    channel: NotRequired[int]
    position: NotRequired[int]
    token: NotRequired[str]


class OutlierRow(TypedDict):
    """One kind of activation; see :func:`diffattn.probes.outliers.outlier_summary`."""

    count: int
    top: dict[str, float]
    median: float
    kurtosis: float | None
    massive: NotRequired[int]
    largest: NotRequired[list[LargeValue]]


class _LayerOutlierRow(TypedDict):
    largest: float
    median: float
    kurtosis: float | None


class _OutlierRecord(TypedDict):
    table: dict[str, dict[str, OutlierRow]]
    layers: list[dict[str, dict[str, _LayerOutlierRow]]]


class _WindowRecord(TypedDict):
    lengths: Annotated[list[int], AtLeast(1)]
    sha256: str
    """Hash of all tokens; equal hashes mean equal inputs."""


class _SettingsRecord(TypedDict):
    tokens: int
    window_tokens: int | None
    bos: bool | None
    dtype: str
    distances: Annotated[list[int], AtLeast(1)]
    """Smallest distance of every range, in tokens."""


class _TextRecord(TypedDict):
    source: str
    documents: list[str]
    sha256: str


class _MassRecord(TypedDict):
    first: float
    by_distance: list[float]


@dataclass(frozen=True, kw_only=True)
class ModelAnalysis:
    """The analysis of one model."""

    model: dict[str, Any]
    """``label``, ``path``, ``attention_type``, ``weights`` (hash), ``dtype``, ...; only label and
    path if the run has no weights."""
    tokens: _WindowRecord | None = None
    attention: list[_LayerAttentionRecord] = field(default_factory=list)
    uniform: _MassRecord | None = None
    outliers: _OutlierRecord | None = None
    lambdas: _LambdaRecord | None = None
    lambda_log: _LambdaLogRecord | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class AnalysisResult(FileRecord):
    """``analysis.json``. Written once, never edited."""

    FILE, KIND = ANALYSIS_FILE, "analysis"

    text: _TextRecord
    settings: _SettingsRecord
    models: Annotated[list[ModelAnalysis], AtLeast(1)]
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    commit: str | None = field(default_factory=lambda: git_state()[0])
    dirty: bool | None = field(default_factory=lambda: git_state()[1])
    versions: dict[str, str] = field(default_factory=package_versions)
    hardware: dict[str, Any] = field(default_factory=hardware)
