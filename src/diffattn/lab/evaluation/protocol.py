"""The interface of a protocol: its items, its questions to a model, and its summary."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.catalog import PROTOCOLS
from diffattn.lab.records.evaluations import Metric
from diffattn.models.config.known_names import check_known

if TYPE_CHECKING:  # loads PyTorch, and names are checked before
    from diffattn.lab.inference.language_model import LanguageModel


SHORT_CONTEXT = 1_024
"""Tokens below which most prompts do not fit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One question."""

    id: str
    """Unique within the protocol and equal for every model, so that results can be paired."""
    payload: Any
    """What the protocol needs for this item. Keep it small: build long prompts in ``ask``."""
    cluster: str | None = None
    """Items of one cluster share a text or a seed and are not independent. Default:
    each item is a cluster of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Metrics and tables of a protocol."""

    metrics: list[Metric]
    tables: dict[str, Any] = field(default_factory=dict)
    """JSON values by name, for the report."""


@dataclass(frozen=True, kw_only=True)
class Protocol(ABC):
    """One evaluation. Its parameters are the fields of a frozen dataclass, all with a default.

    A change of data, prompt, scoring or seeds raises its version in the catalog.
    """

    name: ClassVar[str]
    """Its name in :data:`diffattn.lab.evaluation.catalog.PROTOCOLS`."""
    choices: ClassVar[Mapping[str, str]] = {}
    """Our decisions where the source leaves one open. Saved with every result."""
    quick: ClassVar[Mapping[str, Any]] = {}
    """Parameters of the reduced size that ``--quick`` runs."""
    quick_short: ClassVar[Mapping[str, Any]] = {}
    """Changes to :attr:`quick` for contexts below :data:`SHORT_CONTEXT`."""
    quick_context: ClassVar[str | None] = None
    """The parameter in :attr:`quick` that is cut to the model's context, if any."""

    @classmethod
    def quick_for(cls, longest: int | None) -> dict[str, Any]:
        """:attr:`quick`, smaller still where the shortest model takes ``longest`` tokens only."""
        values = dict(cls.quick)
        if longest is not None and longest < SHORT_CONTEXT:
            values |= cls.quick_short
        if cls.quick_context is not None and longest is not None:
            value = values[cls.quick_context]
            values[cls.quick_context] = (
                tuple(sorted({min(length, longest) for length in value}))
                if isinstance(value, tuple)
                else min(value, longest)
            )
        return values

    @property
    def version(self) -> int:
        """Results of different versions are never compared."""
        return PROTOCOLS[self.name].version

    @property
    def source(self) -> str:
        """Paper and section, and the reference code if there is any."""
        return PROTOCOLS[self.name].source

    @abstractmethod
    def batches(self, model: "LanguageModel") -> list[list[Item]]:
        """All items; those of one batch are asked together, for example over one shared text.

        Raises:
            ConfigError: The data is missing or wrong, or the model cannot take the protocol.
        """

    def material(self, model: "LanguageModel", items: Sequence[Item]) -> Any:
        """Shared data that is not stored in the items. Default: none.

        It is hashed, so that an evaluation is never continued on other data.
        """
        return None

    @abstractmethod
    def ask(self, model: "LanguageModel", items: Sequence[Item]) -> list[dict[str, Any]]:
        """Ask the model some items of one batch.

        Returns:
            One row per item, in order, of JSON values. ``scores`` maps names to numbers, which
            are compared between models: shares from 0 to 1 unless the name says otherwise
            (:func:`diffattn.lab.evaluation.metrics.is_share`). ``weights`` may hold the weight of
            the item in the mean of a score. ``prompt`` holds :func:`prompt_facts` of the text that
            was read. Everything else is for the reader of the log.

        Raises:
            ItemError: An item cannot be asked; the others are asked again one by one.
        """

    @abstractmethod
    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Metrics with intervals from the rows of :meth:`ask`, with ``id`` and ``cluster``."""

    def require_at_least(self, least: int, *names: str, most: int | None = None) -> None:
        """Refuse a setting unless it is a whole number from ``least`` to ``most``, a list of
        different ones, or ``None``."""
        for name in names:
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple | list) else [value]
            sound = all(
                isinstance(n, int) and least <= n and (most is None or n <= most) for n in numbers
            )
            if value is not None and not (numbers and sound and len(set(numbers)) == len(numbers)):
                end = "" if most is None else f" and at most {most}"
                raise ConfigError(
                    f"{self.name}: {name} must be {least} or more{end}, as a whole number or as a "
                    f"list of different ones, got {value!r}."
                )

    def require_names(self, field: str, known: Iterable[str]) -> None:
        """Refuse a setting that does not list one known name or more, each once."""
        names = getattr(self, field)
        if isinstance(names, str) or not names or len(set(names)) < len(names):
            raise ConfigError(
                f"{self.name}: {field} must list one name or more, each once, got {names!r}."
            )
        for name in names:
            check_known(self.name, field, str(name), known)

    def require_columns(self, known: Iterable[str]) -> None:
        """Refuse a setting ``columns`` that is no object of known names to names of a file."""
        columns = self.columns  # type: ignore[attr-defined]
        if not isinstance(columns, Mapping) or not all(
            isinstance(name, str) and name for name in columns.values()
        ):
            raise ConfigError(
                f"{self.name}: columns must be an object of names to names in the file, such as "
                f'{{"{next(iter(known))}": "my_column"}}, got {columns!r}.'
            )
        for name in columns:
            check_known(self.name, "columns", str(name), known)

    def require_fit(self, model: "LanguageModel", field: str, tokens: int) -> None:
        """Refuse a setting that asks for more tokens than the model takes."""
        if tokens > model.max_length:
            raise ConfigError(
                f"{self.name}: {field} must be at most the {model.max_length} tokens of "
                f"{model.label}, got {tokens}. Set {self.name}.{field} lower, as --quick does, or "
                "--max-length higher if the model was trained for it."
            )

    def parameters(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One protocol with its parameters, and the name of its folder."""

    variant: str
    protocol: Protocol


def used_of(unit: str, wanted: int | None, used: int) -> dict[str, Any]:
    """A table for a summary: how many texts were wanted, and how many were used."""
    return {"used": {"unit": unit, "wanted": wanted, "used": used}}


def shortfall(tables: Mapping[str, Any]) -> str | None:
    """One line where :func:`used_of` counts fewer than were wanted, else ``None``."""
    used = tables.get("used")
    if used is None or used["wanted"] is None or used["used"] >= used["wanted"]:
        return None
    return (
        f"{used['used']} {used['unit']} are used where {used['wanted']} were wanted: the texts "
        "hold no more that are long enough."
    )


_BEGINS, _ENDS = 400, 1_200
"""Characters of a prompt that a row keeps: questions stand at the end."""


def prompt_facts(text: str) -> dict[str, Any]:
    """Facts of the text that a model was given to read, as ``row["prompt"]``.

    They are ``sha256`` (16 hex digits), ``characters``, and its beginning and end. Items of two
    models are paired only where the hashes are equal.
    """
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    facts = {"sha256": digest, "characters": len(text)}
    if len(text) <= _BEGINS + _ENDS:
        return facts | {"begins": text}
    return facts | {"begins": text[:_BEGINS], "ends": text[-_ENDS:]}


def split_batches(batches: Sequence[Sequence[Item]], size: int) -> list[list[Item]]:
    """The same items in batches of at most ``size``, so that an interruption loses little."""
    return [list(batch[i : i + size]) for batch in batches for i in range(0, len(batch), size)]
