"""What a protocol is: items, how a model is asked, and what is counted."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One question."""

    id: str
    """Unique within the protocol and equal for every model, so that results can be paired."""
    payload: Any
    """What the protocol needs to ask it. Light: long prompts are built when they are asked."""
    cluster: str | None = None
    """Items of one cluster share a text or a seed and are not independent. Default: its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a protocol found."""

    metrics: list[Metric]
    tables: dict[str, Any] = field(default_factory=dict)
    """Whatever else a report shows, by name; JSON values."""


@dataclass(frozen=True, kw_only=True)
class Protocol(ABC):
    """One evaluation. Its parameters are the fields of a frozen dataclass, all with a default.

    A change of data, prompt, scoring or seeds raises its version in the catalog.
    """

    name: ClassVar[str]
    """Its name in :data:`diffattn.lab.evaluation.catalog.PROTOCOLS`."""
    choices: ClassVar[Mapping[str, str]] = {}
    """What the source leaves open, and what is done here. Stands in every record."""
    quick: ClassVar[Mapping[str, Any]] = {}
    """Parameters of the reduced size that ``--quick`` runs."""
    quick_context: ClassVar[str | None] = None
    """The one of them, if any, that is cut to the model's context."""

    @classmethod
    def quick_for(cls, longest: int | None) -> dict[str, Any]:
        """:attr:`quick`, smaller still where a model is made for fewer tokens.

        Args:
            longest: Tokens that the model of a run with the shortest context is made for. Default:
                enough.
        """
        values = dict(cls.quick)
        if cls.quick_context is not None and longest is not None:
            values[cls.quick_context] = min(values[cls.quick_context], longest)
        return values

    @property
    def version(self) -> int:
        """Two versions share no table."""
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
        """What items are built from when they are asked and their payloads do not hold.

        It is hashed, so that an evaluation is never continued on another text than it was begun
        with. Default: nothing.

        Args:
            model: That is asked.
            items: All of them, from :meth:`batches`.
        """
        return None

    @abstractmethod
    def ask(self, model: "LanguageModel", items: Sequence[Item]) -> list[dict[str, Any]]:
        """Put some items of one batch to the model.

        Returns:
            One row per item, in order, of JSON values. ``scores`` maps names to numbers: what is
            compared between models, item by item, as shares from 0 to 1 unless the name says
            otherwise (:func:`diffattn.lab.evaluation.metrics.is_share`). ``weights`` may say what
            an
            item counts in the mean of a score, such as its tokens; default 1. ``prompt`` holds
            :func:`prompt_facts` of the text that was read. Everything else is for the reader of
            the log.

        Raises:
            ItemError: An item cannot be asked; the others are asked again one by one.
        """

    @abstractmethod
    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Metrics with intervals from the rows of all items that were scored, one or more.

        A row holds what :meth:`ask` returned, ``id`` and ``cluster``.
        """

    def require_at_least(self, least: int, *names: str) -> None:
        """Refuse settings below ``least``: whole numbers, or tuples of one or more.

        Raises:
            ConfigError: One is smaller, no whole number, or an empty tuple; ``None`` is allowed.
        """
        for name in names:
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else [least if value is None else value]
            if not all(isinstance(number, int) for number in numbers):
                raise ConfigError(f"{self.name}: {name} must be whole numbers, got {value!r}.")
            if not numbers or min(numbers) < least:
                raise ConfigError(f"{self.name}: {name} must be {least} or more, got {value}.")

    def require_names(self, field: str, known: Iterable[str]) -> None:
        """Refuse a setting that does not list one known name or more, each once.

        Raises:
            ConfigError: It does not; the nearest known name is suggested.
        """
        names = getattr(self, field)
        if isinstance(names, str) or not names or len(set(names)) < len(names):
            raise ConfigError(
                f"{self.name}: {field} must list one name or more, each once, got {names!r}."
            )
        for name in names:
            check_known(self.name, field, str(name), known)

    def require_columns(self, known: Iterable[str]) -> None:
        """Refuse a setting ``columns`` that is no object of known names to names of a file.

        Raises:
            ConfigError: It is not; the nearest known name is suggested.
        """
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
        """Refuse a setting that asks for more tokens than the model takes.

        Raises:
            ConfigError: It does.
        """
        if tokens > model.max_length:
            raise ConfigError(
                f"{self.name}: {field} must be at most the {model.max_length} tokens of "
                f"{model.label}, got {tokens}. Set {self.name}.{field} lower, or --max-length "
                "higher if the model was trained for it."
            )

    def parameters(self) -> dict[str, Any]:
        """All settings as plain values, for records."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One protocol with its parameters, under the name of its folder."""

    variant: str
    protocol: Protocol


def used_of(unit: str, wanted: int | None, used: int) -> dict[str, Any]:
    """The table ``used`` of a summary: a corpus may hold fewer texts than are wanted.

    A run says so where there are fewer.

    Args:
        unit: What is counted, in the plural.
        wanted: The setting. ``None``: all that there are.
        used: How many were scored.
    """
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
    """What a row says of the text that its item held, as ``row["prompt"]``.

    Args:
        text: All that the model was given to read, the same for every tokenizer if it can be.

    Returns:
        ``sha256`` (16 hex digits), ``characters``, and how it ``begins`` and, where that is not
        all, ``ends``. Items of two models are paired only where the hashes are equal.
    """
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    facts = {"sha256": digest, "characters": len(text)}
    if len(text) <= _BEGINS + _ENDS:
        return facts | {"begins": text}
    return facts | {"begins": text[:_BEGINS], "ends": text[-_ENDS:]}


def text_hash(row: Mapping[str, Any]) -> str | None:
    """Hash of the text that a row's item held; ``None`` in records without it."""
    prompt = row.get("prompt")
    digest = prompt.get("sha256") if isinstance(prompt, Mapping) else None
    return digest if isinstance(digest, str) else None


def split_long_batches(batches: Sequence[Sequence[Item]], size: int) -> list[list[Item]]:
    """The same items in batches of at most ``size``, so that an interruption loses little."""
    return [list(batch[i : i + size]) for batch in batches for i in range(0, len(batch), size)]
