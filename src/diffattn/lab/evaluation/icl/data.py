"""Classification datasets for in-context learning: from files, from the hub, or made up."""

import csv
import io
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError
from diffattn.lab.data import files
from diffattn.lab.data.corpora import load_hub

_WORDS = {
    "animal": "horse dog cat bird fish wolf bear fox",
    "building": "house church tower bridge castle school barn mill",
    "colour": "red green blue white black brown yellow grey",
    "food": "bread cheese apple soup cake rice fruit meat",
    "weather": "rain snow wind storm sun cloud frost fog",
    "weather report": "forecast warning bulletin barometer outlook almanac chart gauge",
}
_FRAMES = (
    "what do you know of {a} and {b}",
    "tell me of the {a} before the {b}",
    "is there any {a} or {b} in the town",
    "he spoke of {a} , and then of {b}",
)


_JSON_LINES = ("train.jsonl", "test.jsonl")  # in place of a dataset's original files
_COARSE = {
    "ABBR": "abbreviation", "ENTY": "entity", "DESC": "description", "HUM": "human",
    "LOC": "location", "NUM": "numeric",
}  # fmt: skip
# Words that the reference writes for codes; the other codes are words.
_FINE = {
    "abb": "abbreviation", "exp": "expansion", "def": "definition", "desc": "description",
    "cremat": "creation", "dismed": "disease", "instru": "instrument", "lang": "language",
    "techmeth": "technique", "termeq": "term", "veh": "vehicle", "gr": "group",
    "ind": "individual", "mount": "mountain", "dist": "distance", "ord": "order",
    "perc": "percent", "temp": "temperature", "volsize": "size",
}  # fmt: skip

OVERLAP_CHOICE = {
    "overlap": "training texts that stand in the test part too, compared by letters and digits, "
    "are no demonstrations"
}
"""A decision of every protocol that reads these datasets."""


@dataclass(frozen=True, slots=True)
class Example:
    """A text and its class."""

    text: str
    label: str


@dataclass(frozen=True, slots=True)
class IclData:
    """The examples of one dataset."""

    train: tuple[Example, ...]
    test: tuple[Example, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(sorted({example.label for example in self.train}))


@dataclass(frozen=True, kw_only=True, slots=True)
class IclDataset:
    """Files, prompts and sizes of one dataset."""

    folder: str
    files: tuple[str, ...]
    read: Callable[[Path, str, Mapping[str, str]], Iterator[Example]]
    """Examples of a part, ``train`` or ``test``, of its file, by names of columns."""
    hub: str  # NAME[:CONFIG]
    x_prefix: str  # before a text in a prompt
    y_prefix: str  # before a label
    num_classes: int
    shots: tuple[int, ...]  # numbers of demonstrations in Fig. 6
    stable_from: int  # at which the dashed line of Fig. 6 begins


def load_icl_data(dataset: str, source: str, columns: Mapping[str, str] = {}) -> IclData:
    """Training and test examples in file order, without training texts that are test texts."""
    known = ICL_DATASETS[dataset]
    if source == "generated":
        return IclData(tuple(_generated(50, seed=0)), tuple(_generated(10, seed=1)))
    data = _from_hub(dataset, known) if source == "hub" else _from_files(source, known, columns)
    for part in ("train", "test"):
        if not getattr(data, part):
            raise ConfigError(f"{dataset}: {part} must hold one example or more, got none.")
    # A text that is in the test part, too, would give the answer. Only letters and digits count.
    asked = {_letters(example.text) for example in data.test}
    train = tuple(example for example in data.train if _letters(example.text) not in asked)
    kept = IclData(train, data.test)
    unknown = sorted({x.label for x in (*data.train, *data.test)} - set(kept.labels))
    if unknown:
        raise ConfigError(
            f"{dataset}: every label must have a train text that is no test text, "
            f"got none of {unknown[0]!r}."
        )
    return kept


def _generated(per_class: int, seed: int) -> Iterator[Example]:
    """Made-up texts. Classes share no words; one label is a prefix of another."""
    generator = random.Random(f"questions-{seed}")
    for _ in range(per_class):
        for label, words in _WORDS.items():
            a, b = generator.sample(words.split(), 2)
            yield Example(generator.choice(_FRAMES).format(a=a, b=b), label)


def _letters(text: str) -> str:
    """Letters and digits of a text in lower case; the text itself if it has none."""
    return "".join(filter(str.isalnum, text.lower())) or text


def _from_files(source: str, known: IclDataset, columns: Mapping[str, str]) -> IclData:
    root = Path(source).expanduser()
    for folder in (root / known.folder, root):
        for names, read in ((known.files, known.read), (_JSON_LINES, _json_lines)):
            paths = [folder / name for name in names]
            if all(path.is_file() for path in paths):
                train = tuple(read(paths[0], "train", columns))
                return IclData(train, tuple(read(paths[-1], "test", columns)))
    raise ConfigError(
        f"{source}: must be 'hub', 'generated' or a folder with {', '.join(known.files)} (or "
        f"{' and '.join(_JSON_LINES)}), or with {known.folder}/ that holds them, got neither."
    )


def _json_lines(path: Path, part: str, columns: Mapping[str, str]) -> Iterator[Example]:
    """Read one object per line, with ``text`` and ``label`` or the names in ``columns``."""
    named = {"text": "text", "label": "label", **columns}
    lines = files.require_text(path).split("\n")
    for number, record in files.json_objects(lines, str(path)):
        where = f"{path}:{number}"
        row = files.with_known_names(record, named, where)
        yield _example(row["text"], row["label"], where)


def _example(text: Any, label: Any, where: str) -> Example:
    """An example with its text on one line; an underscore in a label becomes a space."""
    one_line = " ".join(text.split()) if isinstance(text, str) else ""
    name = " ".join(label.replace("_", " ").split()) if isinstance(label, str) else ""
    if not one_line or not name:
        raise ConfigError(f"{where}: text and label must not be empty, got {text!r}, {label!r}.")
    return Example(one_line, name)


def _trec_label(code: str, fine: bool, where: str) -> str:
    coarse, _, kind = code.partition(":")
    if coarse not in _COARSE or not kind:
        raise ConfigError(f"{where}: labels must be like 'NUM:date', got {code!r}.")
    return f"{_COARSE[coarse]} {_FINE.get(kind, kind)}" if fine else _COARSE[coarse]


def _trec(path: Path, part: str, columns: Mapping[str, str], *, fine: bool) -> Iterator[Example]:
    """Read a Latin-1 file with one question per line, such as ``NUM:date When did ...``."""
    for number, line in enumerate(files.require_text(path, "latin-1").split("\n"), start=1):
        if line.strip():
            code, _, question = line.strip().partition(" ")
            where = f"{path}:{number}"
            yield _example(question, _trec_label(code, fine, where), where)


def _banking(path: Path, part: str, columns: Mapping[str, str]) -> Iterator[Example]:
    """Read a CSV file with the columns ``text`` and ``category``, or the names in ``columns``."""
    text, label = columns.get("text", "text"), columns.get("label", "category")
    reader = csv.DictReader(io.StringIO(files.require_text(path), newline=""))
    names = list(reader.fieldnames or [])
    if not {text, label} <= set(names):
        raise ConfigError(f"{path}: columns must be {text} and {label}, got {names}.")
    for number, row in enumerate(reader, start=2):
        yield _example(row[text], row[label], f"{path}:row {number}")


def _clinic(
    path: Path, part: str, columns: Mapping[str, str], *, out_of_scope: bool
) -> Iterator[Example]:
    """Read JSON with lists of pairs ``train`` and ``test``, and ``oos_*`` if ``out_of_scope``."""
    try:
        value = files.parse_json(files.require_text(path))
    except ValueError as error:
        raise ConfigError(f"{path}: must be JSON, got: {error}.") from error
    for name in (part, f"oos_{part}") if out_of_scope else (part,):
        pairs = value.get(name) if isinstance(value, Mapping) else None
        if not isinstance(pairs, list):
            raise ConfigError(f"{path}: must hold a list {name!r}, got none.")
        for number, pair in enumerate(pairs):
            where = f"{path}:{name}[{number}]"
            if not isinstance(pair, list) or len(pair) != 2:
                raise ConfigError(f"{where}: must be a text and a label, got {pair!r}.")
            yield _example(pair[0], pair[1], where)


def _from_hub(name: str, known: IclDataset) -> IclData:
    repository, _, config = known.hub.partition(":")
    where = f"{name}: without a folder that holds {', '.join(known.files)}, {known.hub!r}"
    column = {"trec": "fine_label", "banking77": "label", "clinc150": "intent"}[known.folder]

    def read(split: str) -> Iterator[Example]:
        rows = load_hub(repository, config or None, where=where, split=split)
        if not {"text", column} <= set(rows.column_names):
            raise ConfigError(
                f"{name}: columns must be text and {column}, got {sorted(rows.column_names)}."
            )
        names = rows.features[column].names
        for number, row in enumerate(rows):
            at, label = f"{name}[{number}]", names[row[column]]
            if name == "clinic150" and label == "oos":
                continue
            if column == "fine_label":
                label = _trec_label(label, name == "trec_fine", at)
            yield _example(row["text"], label, at)

    return IclData(tuple(read("train")), tuple(read("test")))


_TREC: dict[str, Any] = {
    "folder": "trec", "files": ("train_5500.label", "TREC_10.label"), "hub": "CogComp/trec",
    "x_prefix": "Question: ", "y_prefix": "Type: ",
}  # fmt: skip
_CLINIC: dict[str, Any] = {
    "folder": "clinc150", "files": ("data_full.json",), "hub": "clinc/clinc_oos:plus",
    "x_prefix": "utterance: ", "y_prefix": "intent: ",
}  # fmt: skip

ICL_DATASETS: dict[str, IclDataset] = {
    "trec": IclDataset(
        **_TREC, read=partial(_trec, fine=False), num_classes=6,
        shots=(6, 12, *range(30, 3_541, 90)), stable_from=30,
    ),
    "trec_fine": IclDataset(
        **_TREC, read=partial(_trec, fine=True), num_classes=50,
        shots=(50, *range(100, 3_201, 100)), stable_from=800,
    ),
    "banking77": IclDataset(
        folder="banking77", files=("train.csv", "test.csv"), hub="PolyAI/banking77",
        x_prefix="query: ", y_prefix="intent: ", read=_banking, num_classes=77,
        shots=tuple(range(77, 77 * 34 + 1, 77)), stable_from=616,
    ),
    "clinic150": IclDataset(
        **_CLINIC, read=partial(_clinic, out_of_scope=False), num_classes=150,
        shots=tuple(range(150, 150 * 21 + 1, 150)), stable_from=1_950,
    ),
    "clinic151": IclDataset(
        **_CLINIC, read=partial(_clinic, out_of_scope=True), num_classes=151,
        shots=tuple(range(151, 151 * 21 + 1, 151)), stable_from=1_963,
    ),
}  # fmt: skip
"""Name to dataset. ``clinic151`` has one more class, ``oos``, which the paper leaves out."""
