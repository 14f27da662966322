"""Sources of text that a user can name: their documents in a fixed order, and their pins.

The pin of a source shows later whether it changed: the hashes of files, the commit of a dataset.
"""

import ast
import hashlib
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError, did_you_mean, first_line
from diffattn.files.io import file_hash
from diffattn.lab.data import files

Pin = dict[str, Any]
"""``{"files": {name: {"bytes": ..., "sha256": ...}}}`` or ``{"revision": commit}``."""
_INSTALLED = ("stdlib", "python", "packages")
# Tests hold data that nobody wrote to be read; encodings and pydoc_data are tables.
_STDLIB_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings", "pydoc_data", "site-packages", "dist-packages"}
)
# Files written when Python is built or installed; they differ between machines of one version.
_BUILD_PREFIXES = ("__pycache__", "config-", "_sysconfigdata", "sitecustomize", "usercustomize")


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    r"""One text with ``\n`` as line ends, and its name, which is unique within a corpus.

    Neither has lone surrogates, which no tokenizer can encode.
    """

    name: str
    text: str
    is_row: bool = False
    """Whether the name ends with a row number. Then the text decides the split, not the name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", files.normalise_line_ends(self.text))
        try:
            (self.name + self.text).encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"Document {self.name!r}: must be valid Unicode, got a lone surrogate."
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
    for name, path in (_source_files(source) or {}).items():
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
    source: str, text_field: str, keep_empty: bool, on_read: files.OnRead
) -> Iterator[Document]:
    """Read a UTF-8 text file, a folder of files, or a ``.jsonl`` file with a document per line.

    A folder is read recursively. Its documents are named by their relative posix paths, and read in
    that order. Hidden, empty and irregular files are skipped; files that are not UTF-8 text are
    skipped with one warning. A line is named ``FILE.jsonl:LINE``, from 1.
    """
    is_folder, skipped = _require_source(source).is_dir(), []
    for name, path in (_source_files(source) or {}).items():
        if _is_json_lines(path):
            lines = files.json_objects(files.read_lines(path, on_read), str(path))
            for number, row in lines:
                text = _text_of(row, text_field, f"{path}:{number}")
                if text.strip() or (keep_empty and not is_folder):
                    yield Document(name=f"{name}:{number}", text=text, is_row=True)
            continue
        content = files.read_text(path) if is_folder else files.require_text(path)
        on_read(path.stat().st_size)
        if content is None:
            skipped.append(name)
        elif content.strip():
            yield Document(name=name, text=content)
    if skipped:
        warnings.warn(
            f"{source}: skipped {len(skipped)} files that are not UTF-8 text, "
            f"the first is {skipped[0]!r}.",
            stacklevel=2,
        )


def _hub_texts(
    source: str, revision: str | None, split: str, text_field: str, keep_empty: bool
) -> Iterator[Document]:
    """Stream a dataset from the Hugging Face hub, or from a local folder in its format.

    Documents are named ``NAME[:CONFIG]:SPLIT:ROW``, with rows from 0.
    """
    name, named_revision, config = _hub_parts(source)
    options = {"split": split, "revision": revision or named_revision, "streaming": True}
    origin = ":".join(part for part in (name, config, split) if part is not None)
    rows = hub_rows(name, config, where=f"hub_dataset: {origin!r}", **options)
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
        revision: Of a hub dataset; overrides the revision in ``source``.
        keep_empty: Whether to keep empty texts of a hub dataset, or of a ``.jsonl`` file that
            ``source`` names itself.
        on_read: Called with each number of bytes read; only for files, folders and ``.jsonl``.

    Returns:
        Documents in a fixed order. The first one is read at once, so a wrong source raises here.
    """
    documents: Iterator[Document]
    if source in _INSTALLED:
        documents = _installed_texts(source)
    elif source.startswith("hub:"):
        documents = _hub_texts(source, revision, split, text_field, keep_empty)
    else:
        documents = _local_texts(source, text_field, keep_empty, on_read)
    first = next(documents, None)
    if first is None:
        raise ConfigError(f"data source: must hold UTF-8 text, got none in {source!r}.")
    return itertools.chain([first], documents)


def corpus_hash(documents: Iterable[Document]) -> str:
    """SHA-256 over names, lengths and texts in their order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(document_bytes(document))
    return digest.hexdigest()


def document_bytes(document: Document) -> bytes:
    """Name and text in UTF-8, each after its length: different documents give different bytes."""
    parts = (document.name.encode(), document.text.encode())
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def _text_of(row: Mapping[str, Any], text_field: str, where: str) -> str:
    if text_field not in row:
        hint = did_you_mean(text_field, map(str, row))
        raise ConfigError(f"{where}: must have field {text_field!r}, got {sorted(row)}.{hint}")
    text = row[text_field]
    if not isinstance(text, str):
        raise ConfigError(
            f"{where}: field {text_field!r} must be a string, got {type(text).__name__}."
        )
    return text


def _hub_parts(source: str) -> tuple[str, str | None, str | None]:
    """Name, revision and configuration in ``"hub:NAME[@REVISION][:CONFIG]"``."""
    named, _, config = source.removeprefix("hub:").partition(":")
    name, _, revision = (named, "", "") if os.path.isdir(named) else named.partition("@")
    if not name:
        raise ConfigError(f"data source: must be 'hub:NAME[@REVISION][:CONFIG]', got {source!r}.")
    return name, revision or None, config or None


def _require_source(source: str) -> Path:
    """The file or folder that a source names, which must be there."""
    path = Path(os.path.expanduser(source))
    if not source or not os.path.exists(path):  # also for a name that no file can have
        raise ConfigError(
            f"data source: must be a file or folder that is there, 'stdlib', 'python', "
            f"'packages' or 'hub:NAME', got {source!r}.{files.near_path(path, *_INSTALLED)}"
        )
    files.require_path(path)
    return path


def _source_files(source: str) -> dict[str, Path] | None:
    """File name to path of a source's files; ``None`` for a dataset on the hub."""
    if source in _INSTALLED:
        of_packages = source == "packages"
        root = Path(sysconfig.get_path("purelib" if of_packages else "stdlib"))
        left_out = _is_hidden if of_packages else _outside_stdlib_corpus
        names = [n for n in files.relative_files(root, left_out) if n.endswith(".py")]
        if source == "python":
            prose = (*sorted(root.glob("idlelib/*.txt")), root / "LICENSE.txt")
            others = [path for path in (root / "pydoc_data/topics.py", *prose) if path.is_file()]
            names += [path.relative_to(root).as_posix() for path in others]
    else:
        is_hub = source.startswith("hub:")
        root = Path(_hub_parts(source)[0]) if is_hub else _require_source(source)
        if not root.is_dir():
            return None if is_hub else {files.unicode_name(root.name): root}
        names = files.relative_files(root, _is_hidden)
    return {files.unicode_name(name): root / name for name in names}


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _outside_stdlib_corpus(name: str) -> bool:
    return name in _STDLIB_SKIPPED_FOLDERS or name.startswith(_BUILD_PREFIXES)


def _is_json_lines(path: Path) -> bool:
    return path.suffix.lower() == ".jsonl"


def pin(source: str) -> Pin:
    """Hash every file of a source, or ask the hub for the commit of a dataset."""
    paths = _source_files(source)
    if paths is None:
        return {"revision": _commit(source)}
    for path in () if source.startswith("hub:") else paths.values():
        # Checked first, since hashing all files takes long.
        files.require_regular(path, one_text=not _is_json_lines(path))
    pins = {name: {"bytes": p.stat().st_size, "sha256": file_hash(p)} for name, p in paths.items()}
    return {"files": pins}


def stamp(source: str) -> dict[str, tuple[int, int]]:
    """Size and modification time of a source's files; empty for a hub dataset."""
    stats = {name: path.stat() for name, path in (_source_files(source) or {}).items()}
    return {name: (stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()}


def changed_file(before: Pin, now: Pin) -> str | None:
    """The first file that differs, in words; ``None`` if none does. Revisions are not compared."""
    known, present = before.get("files", {}), now.get("files", {})
    for name in sorted(known.keys() | present.keys()):
        if name not in known:
            return f"{name!r} is new"
        if known[name] != present.get(name):
            return f"{name!r} {'has changed' if name in present else 'is missing'}"
    return None


def _commit(source: str) -> str:
    from huggingface_hub import HfApi

    name, revision, _ = _hub_parts(source)
    try:
        return str(HfApi().dataset_info(name, revision=revision).sha)
    # A wrong name or revision, no access, no connection: the library has an error for each.
    except Exception as error:
        raise ConfigError(
            f"hub_dataset: {source.removeprefix('hub:')!r} must be a dataset that the hub knows, "
            f"got: {first_line(error)}."
        ) from error


_START = re.compile(
    r"^[ \t]*(?:"
    r"\*\*\*[ \t]*START OF (?:THE|THIS) PROJECT GUTENBERG E(?:BOOK|TEXT)"
    r"(?:(?:(?!\n[ \t\r]*\n)[^*])*\*\*\*|[^\n]*)"  # the title may run over several lines
    r"|\*END[ *]*THE SMALL PRINT[^\n]*"  # until about 2003
    r")[^\n]*\n",
    re.IGNORECASE | re.MULTILINE,
)
_END = re.compile(
    r"^[ \t]*(?:"
    r"\*\*\*[ \t]*END OF (?:THE |THIS )?PROJECT GUTENBERG E(?:BOOK|TEXT)"
    r"|(?:THE )?END OF (?:THE |THIS )?PROJECT GUTENBERG(?:'S|’S)?[ \t]+\S"
    r")",
    re.IGNORECASE | re.MULTILINE,
)
_CREDITS = re.compile(
    r"\s*(?:Produced by|E-?text prepared by|Transcribed (?:from|by)"
    r"|This e-?(?:book|text) was (?:produced|prepared) by)\b.*?(?:\n[ \t]*\r?\n|\Z)",
    re.IGNORECASE | re.DOTALL,
)


def strip_gutenberg(text: str) -> str:
    """Cut licence, header and trailer off a Project Gutenberg text, and the producer's credits.

    A text without markers, or without anything between them, is returned as it is.
    """
    starts = [match.end() for match in _START.finditer(text)]
    end = _END.search(text, starts[-1] if starts else 0)
    if not starts and end is None:
        return text
    body = text[starts[-1] if starts else 0 : end.start() if end else len(text)]
    credits = _CREDITS.match(body) if starts else None
    body = (body[credits.end() :] if credits else body).strip()
    return body or text
