"""Sources of text: each is an iterator of named documents, in a fixed order."""

import ast
import hashlib
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError, did_you_mean, first_line
from diffattn.lab.data import files
from diffattn.lab.data.source_files import (
    INSTALLED,
    hub_parts,
    is_hidden,
    is_json_lines,
    require_source,
    source_files,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    r"""One text and its name, both without lone surrogates, which no tokenizer can encode.

    Args:
        name: Unique within a corpus.
        text: Line ends become ``\n``.
        is_row: Whether the name ends with a row number, which changes if rows are inserted. The
            text of a row decides its split; for other documents the name decides.
    """

    name: str
    text: str
    is_row: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", files.normalise_line_ends(self.text))
        for field in ("name", "text"):
            try:
                getattr(self, field).encode()
            except UnicodeEncodeError as error:
                raise ConfigError(
                    f"Document {self.name!r}: {field} must be valid Unicode, "
                    f"got a lone surrogate at character {error.start}."
                ) from error


def _installed_texts(source: str) -> Iterator[Document]:
    """Texts of the running Python installation. They differ between installations.

    - ``"stdlib"``, the default corpus, about 10 MB: every ``.py`` file below ``sysconfig``'s
      ``stdlib`` folder (the base interpreter's, also in a virtual environment), without tests,
      ``encodings``, ``pydoc_data``, installed packages and files of one build or machine.
    - ``"python"``: the same, then 0.8 MB of documentation: the language reference behind
      ``help()`` (``pydoc_data``, a document per topic), IDLE's text files and the licence.
    - ``"packages"``: the ``.py`` files of installed packages. Files with equal text count once, as
      packages carry copies of each other.

    Documents are in the order of their posix paths. Files that are not UTF-8 are left out.
    """
    seen = set[bytes]()
    for name, path in (source_files(source) or {}).items():
        text = files.read_text(path) or ""
        if name == "pydoc_data/topics.py":  # the code assigns one dictionary, and is not executed
            assignments = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Assign)]
            for topic, content in sorted(ast.literal_eval(assignments[0].value).items()):
                yield Document(name=f"{name}:{topic}", text=content)
            continue
        digest = hashlib.sha256(text.encode()).digest()
        if text.strip() and (source != "packages" or digest not in seen):
            seen.add(digest)
            yield Document(name=name, text=text)


def _local_texts(
    path: Path, text_field: str, keep_empty: bool, on_read: files.OnRead
) -> Iterator[Document]:
    """Read a UTF-8 text file, a folder of files, or a ``.jsonl`` file with a document per line.

    A folder is read recursively. Its documents are named by their relative posix paths, and read in
    that order. Hidden, empty and irregular files are skipped; files that are not UTF-8 text are
    skipped with one warning per folder. A single file is named by its last path component, a line
    by ``FILE.jsonl:LINE``, from 1. Blank lines are skipped.
    """
    files.require_path(path)
    name = files.unicode_name(path.name)
    if path.is_dir():
        yield from _folder(path, text_field, on_read)
    elif is_json_lines(path):
        yield from _jsonl(path, name, text_field, on_read, keep_empty)
    else:
        text = files.require_text(path)
        on_read(path.stat().st_size)
        if text.strip():
            yield Document(name=name, text=text)


def hub_dataset(
    name: str,
    *,
    split: str = "train",
    text_field: str = "text",
    config: str | None = None,
    revision: str | None = None,
    keep_empty: bool = False,
) -> Iterator[Document]:
    """Stream a dataset from the Hugging Face hub, or from a local folder in its format.

    Documents are named ``NAME[:CONFIG]:SPLIT:ROW``, with rows from 0. For the arguments see
    :func:`load_corpus`.
    """
    if os.path.isdir(name):  # the library would wait for a FIFO
        for path in Path(name).rglob("*"):
            if not path.is_dir():
                files.require_regular(path)
    origin = ":".join(part for part in (name, config, split) if part is not None)
    where = f"hub_dataset: {origin!r}"
    rows = hub_rows(name, config, where=where, split=split, revision=revision, streaming=True)
    for number, row in enumerate(rows):
        text = _text_of(row, text_field, f"{origin}:{number}")
        if keep_empty or text.strip():
            yield Document(name=f"{origin}:{number}", text=text, is_row=True)


def load_hub(name: str, config: str | None, *, where: str, **options: Any) -> Any:
    """Load a hub dataset with the optional package ``datasets``; ``where`` begins its errors."""
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"{where} needs the package 'datasets', got none installed. "
            "Run: pip install 'diffattn[data]'"
        ) from error
    try:
        return datasets.load_dataset(name, config, **options)
    except (OSError, ValueError, RuntimeError, StopIteration) as error:
        raise unreadable(where, error) from error


def hub_rows(name: str, config: str | None, *, where: str, **options: Any) -> Iterator[Any]:
    """Rows of the dataset that :func:`load_hub` loads; errors while reading are ``ConfigError``."""
    rows = load_hub(name, config, where=where, **options)
    try:
        yield from rows
    # Some errors come with the first row only; files without rows raise StopIteration.
    except (OSError, ValueError, RuntimeError, StopIteration) as error:
        raise unreadable(where, error) from error


def unreadable(where: str, error: Exception) -> ConfigError:
    """The error for a dataset that cannot be opened."""
    return ConfigError(f"{where} must be a dataset that can be opened, got: {first_line(error)}.")


def load_corpus(
    source: str = "stdlib",
    *,
    text_field: str = "text",
    revision: str | None = None,
    split: str = "train",
    keep_empty: bool = False,
    on_read: files.OnRead = lambda size: None,
) -> Iterator[Document]:
    """Open a corpus as a user names it.

    Args:
        source: ``"stdlib"`` (``"./stdlib"`` is a folder), ``"python"`` or ``"packages"``: see
            :func:`_installed_texts`; the path of a text file, a folder or a ``.jsonl`` file; or
            ``"hub:NAME[@REVISION][:CONFIG]"``, where NAME may be a local dataset folder.
        text_field: Key or column of the text in JSON lines and hub datasets.
        revision: Revision of a hub dataset; overrides the revision in ``source``.
        keep_empty: Whether to keep empty texts of a hub dataset, or of a ``.jsonl`` file that
            ``source`` names itself.
        on_read: Called with each number of bytes read; only for files, folders and ``.jsonl``.

    Returns:
        Documents in a fixed order. The first one is read at once, so a wrong source raises here.
    """
    documents: Iterator[Document]
    if source in INSTALLED:
        documents = _installed_texts(source)
    elif source.startswith("hub:"):
        name, named_revision, config = hub_parts(source)
        documents = hub_dataset(
            name,
            split=split,
            text_field=text_field,
            config=config,
            revision=revision or named_revision,
            keep_empty=keep_empty,
        )
    else:
        documents = _local_texts(require_source(source), text_field, keep_empty, on_read)
    first = next(documents, None)
    if first is None:
        raise ConfigError(f"data source: must hold UTF-8 text, got none in {source!r}.")
    return itertools.chain([first], documents)


def corpus_hash(documents: Iterable[Document]) -> str:
    """SHA-256, in hexadecimal, over names, lengths and texts in their order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document_bytes(document))
    return digest.hexdigest()


def document_bytes(document: Document) -> bytes:
    """Name and text in UTF-8, each after its length: different documents give different bytes."""
    parts = (document.name.encode(), document.text.encode())
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _folder(folder: Path, text_field: str, on_read: files.OnRead) -> Iterator[Document]:
    skipped = []
    for relative in files.relative_files(folder, is_hidden):
        path, name = folder / relative, files.unicode_name(relative)
        if is_json_lines(path):
            yield from _jsonl(path, name, text_field, on_read)
            continue
        text = files.read_text(path)
        on_read(path.stat().st_size)
        if text is None:
            skipped.append(name)
        elif text.strip():
            yield Document(name=name, text=text)
    if skipped:
        warnings.warn(
            f"{folder}: skipped {len(skipped)} files that are not UTF-8 text, "
            f"the first is {skipped[0]!r}.",
            stacklevel=2,
        )


def _jsonl(
    path: Path, name: str, text_field: str, on_read: files.OnRead, keep_empty: bool = False
) -> Iterator[Document]:
    """Documents of a JSON-lines file, which may be empty."""
    for number, row in files.json_objects(files.read_lines(path, on_read), str(path)):
        text = _text_of(row, text_field, f"{path}:{number}")
        if keep_empty or text.strip():
            yield Document(name=f"{name}:{number}", text=text, is_row=True)


def _text_of(row: Mapping[str, Any], text_field: str, where: str) -> str:
    """Text of one row; raises an error that lists the row's fields if there is none."""
    if text_field not in row:
        hint = did_you_mean(text_field, map(str, row))
        raise ConfigError(f"{where}: must have field {text_field!r}, got {sorted(row)}.{hint}")
    text = row[text_field]
    if not isinstance(text, str):
        raise ConfigError(
            f"{where}: field {text_field!r} must be a string, got {type(text).__name__}."
        )
    return text
