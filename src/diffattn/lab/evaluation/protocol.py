"""The interface of a protocol, its items and its summary; protocols by name and settings."""

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform, get_type_hints

from diffattn.errors import ConfigError, check_known, did_you_mean
from diffattn.lab.evaluation.catalog import PRESETS, PROTOCOLS, ProtocolFacts
from diffattn.lab.records.evaluations import Metric
from diffattn.lab.records.fields import read_settings, require_counts

if TYPE_CHECKING:  # names are checked before PyTorch is loaded
    from diffattn.lab.inference.language_model import LanguageModel


SHORT_CONTEXT = 1_024  # most prompts do not fit a context of fewer tokens
_LENGTHS = frozenset({"length", "lengths", "window", "windows", "block"})
"""Settings that are lengths of texts in tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One question to a model, or one piece of text to read."""

    id: str  # unique, and the same for every model, so that items can be paired
    payload: Any  # data for the prompt; small, as ``ask`` builds long prompts
    cluster: str | None = None
    """Name of a group of items that share a text or a seed. Default: each item for itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Metrics of a protocol, and further facts of ``result.json``: name to JSON value."""

    metrics: list[Metric]
    tables: dict[str, Any] = field(default_factory=dict)


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Protocol(ABC):
    """One evaluation. Every subclass is a frozen dataclass of its parameters, all with a default.

    If you change its data, prompt, scoring or seeds, raise its version in the catalog.
    """

    name: ClassVar[str]  # in the catalog
    choices: ClassVar[Mapping[str, str]] = {}
    """Topic to our decision where the source leaves it open. Saved with every result."""
    quick: ClassVar[Mapping[str, Any]] = {}
    """Parameters of ``--quick``. Lengths of texts are cut to the model's context."""
    quick_short: ClassVar[Mapping[str, Any]] = {}
    """Changes to :attr:`quick` for contexts below :data:`SHORT_CONTEXT`."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def quick_for(cls, longest: int | None) -> dict[str, Any]:
        """:attr:`quick`, adapted to ``longest``, the context of the shortest model in tokens."""
        values = dict(cls.quick)
        if longest is None:
            return values
        if longest < SHORT_CONTEXT:
            values |= cls.quick_short
        for name in values.keys() & _LENGTHS:
            if isinstance(values[name], int):
                values[name] = min(values[name], longest)
            else:
                values[name] = tuple(sorted({min(length, longest) for length in values[name]}))
        return values

    @property
    def facts(self) -> ProtocolFacts:
        return PROTOCOLS[self.name]

    @abstractmethod
    def batches(self, model: "LanguageModel") -> list[list[Item]]:
        """All items. Those of one batch are asked together, as they may share a text. Raises
        ``ConfigError`` if the data is missing or wrong, or the model cannot be asked."""

    def material(self, model: "LanguageModel", items: Sequence[Item]) -> Any:
        """Data that the prompts need and the items do not hold; hashed with the items."""
        return None

    @abstractmethod
    def ask(self, model: "LanguageModel", items: Sequence[Item]) -> list[dict[str, Any]]:
        """Ask the model some items of one batch; one row of JSON values per item, in order.

        ``scores`` maps names to the numbers that are compared between models: shares from 0 to 1
        unless the name says otherwise (:func:`diffattn.lab.evaluation.metrics.is_share`).
        ``weights`` may map a score to the item's weight in its mean. ``prompt`` holds
        :func:`prompt_facts` of the prompt. If ``ItemError`` is raised, each item is asked alone.
        """

    @abstractmethod
    def summarise(self, rows: Sequence[Mapping[str, Any]]) -> Summary:
        """Metrics of the rows of :meth:`ask`, to which ``id`` and any ``cluster`` were added."""

    def require_at_least(self, least: int, *names: str, most: int | None = None) -> None:
        """Raise ``ConfigError`` unless each named setting is an integer from ``least`` to ``most``,
        a list of different such integers, or ``None``."""
        for name in names:
            value = getattr(self, name)
            if value is None:
                continue
            numbers = value if isinstance(value, tuple | list) else [value]
            largest = math.inf if most is None else most
            sound = all(isinstance(n, int) and least <= n <= largest for n in numbers)
            if not (numbers and sound and len(set(numbers)) == len(numbers)):
                end = "" if most is None else f" and at most {most}"
                raise ConfigError(
                    f"{self.name}: {name} must be {least} or more{end}, as a whole number or as a "
                    f"list of different ones, got {value!r}."
                )

    def require_names(self, field: str, known: Iterable[str]) -> None:
        """Raise unless the setting ``field`` is a list of one known name or more, each once."""
        names = getattr(self, field)
        if isinstance(names, str) or not names or len(set(names)) < len(names):
            raise ConfigError(
                f"{self.name}: {field} must list one name or more, each once, got {names!r}."
            )
        for name in names:
            check_known(self.name, field, str(name), known)

    def require_columns(self, known: Iterable[str], fixed: Collection[str] = ()) -> None:
        """Raise unless the setting ``columns`` maps known names to names of columns in a file.
        ``fixed``: values of the setting ``data`` whose columns have their names."""
        columns, data = self.columns, self.data  # type: ignore[attr-defined]
        if columns and data in fixed:
            raise ConfigError(f"{self.name}: columns must be left out for data={data!r}.")
        is_mapping = isinstance(columns, Mapping)
        if not is_mapping or not all(isinstance(x, str) and x for x in columns.values()):
            raise ConfigError(
                f"{self.name}: columns must be an object of names to names in the file, such as "
                f'{{"{next(iter(known))}": "my_column"}}, got {columns!r}.'
            )
        for name in columns:
            check_known(self.name, "columns", str(name), known)

    def require_fit(self, model: "LanguageModel", field: str, tokens: int) -> None:
        """Raise if the setting ``field`` asks for more tokens than the model takes."""
        if tokens > model.max_length:
            raise ConfigError(
                f"{self.name}: {field} must be at most the {model.max_length} tokens of "
                f"{model.label}, got {tokens}. Set {self.name}.{field} lower, as --quick does, or "
                "--max-length higher if the model was trained for it."
            )

    def parameters(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One protocol with its parameters, and ``variant``, the name of its folder."""

    variant: str
    protocol: Protocol


def used_of(unit: str, wanted: int | None, used: int) -> dict[str, Any]:
    """A table for a summary: how many texts (``unit``) were wanted, and how many were used."""
    return {"used": {"unit": unit, "wanted": wanted, "used": used}}


def shortfall(tables: Mapping[str, Any]) -> str | None:
    """A sentence if fewer texts were used than wanted, by :func:`used_of`; else ``None``."""
    used = tables.get("used")
    if used is None or used["wanted"] is None or used["used"] >= used["wanted"]:
        return None
    return (
        f"{used['used']} {used['unit']} are used where {used['wanted']} were wanted: the texts "
        "hold no more that are long enough."
    )


def prompt_facts(text: str) -> dict[str, Any]:
    """Hash, length, beginning and end of a prompt; items are paired if the hashes are equal."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    facts = {"sha256": digest, "characters": len(text)}
    if len(text) <= 1_600:
        return facts | {"begins": text}
    return facts | {"begins": text[:400], "ends": text[-1_200:]}  # questions are at the end


def split_batches(batches: Sequence[Sequence[Item]], size: int) -> list[list[Item]]:
    """The same items in batches of at most ``size``, so that an interruption loses little."""
    return [list(batch[i : i + size]) for batch in batches for i in range(0, len(batch), size)]


def protocol_class(name: str) -> type[Protocol]:
    """Import the class of a protocol by the protocol's name."""
    require_known(name, PROTOCOLS)
    module, _, attribute = PROTOCOLS[name].path.partition(":")
    protocol: type[Protocol] = getattr(import_module(f"{__package__}.{module}"), attribute)
    return protocol


def parts(
    names: Iterable[str],
    settings: Sequence[str] = (),
    *,
    quick: bool = False,
    longest: int | None = None,
) -> list[Part]:
    """Build the parts that protocols and presets name; ``"all"`` is every protocol.

    ``settings`` are ``PROTOCOL.KEY=VALUE``, a value in JSON or as text; they override the
    parameters of ``quick``, which are adapted to a context of ``longest`` tokens.
    """
    chosen: dict[str, tuple[str, dict[str, Any]]] = {}
    asked = [protocol for name in names for protocol in (PROTOCOLS if name == "all" else [name])]
    for name in asked:
        require_known(name)  # check all names before PyTorch is loaded
        wanted = PRESETS.get(name) or {name: (name, {})}
        for variant, (protocol, parameters) in wanted.items():
            if variant in chosen and chosen[variant] != (protocol, parameters):
                raise ConfigError(f"evaluate: {variant!r} must be asked for once, got it twice.")
            chosen[variant] = (protocol, parameters)
    changes = _read(settings, {protocol for protocol, _ in chosen.values()})
    built = []
    for variant, (name, parameters) in chosen.items():
        kind = protocol_class(name)
        values = parameters | (kind.quick_for(longest) if quick else {}) | changes.get(name, {})
        built.append(Part(variant=variant, protocol=kind(**values)))
    return built


def require_known(name: str, known: Iterable[str] = (*PROTOCOLS, *PRESETS, "all")) -> None:
    """Raise ``ConfigError`` if ``name`` is not among the ``known`` protocols and presets."""
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"Unknown protocol {name!r}.{hint} See 'diffattn list protocols'.")


def _read(settings: Sequence[str], protocols: set[str]) -> dict[str, dict[str, Any]]:
    """Protocol to field to value."""
    changes: dict[str, dict[str, Any]] = {}
    for setting in settings:
        name, separator, _ = setting.partition("=")
        protocol, dot, _ = name.strip().partition(".")
        if not separator or not dot:
            raise ConfigError(f"--set: must be PROTOCOL.KEY=VALUE, got {setting!r}.")
        if protocol not in protocols:
            raise ConfigError(
                f"--set: {protocol!r} must be a protocol of this run "
                f"({', '.join(sorted(protocols))}), got {setting!r}."
            )
        kind = protocol_class(protocol)
        hints = get_type_hints(kind)
        kinds = {f"{protocol}.{field.name}": hints[field.name] for field in fields(kind)}
        for key, value in read_settings([setting], kinds).items():
            field = key.partition(".")[2]
            require_counts(key, field, value)
            changes.setdefault(protocol, {})[field] = value
    return changes
