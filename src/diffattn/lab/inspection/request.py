"""The text and layers that a user asks for. Checked before a model is loaded; needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_type_hints

from diffattn.errors import ConfigError
from diffattn.lab.data.files import normalise_line_ends, read_text
from diffattn.lab.records.fields import read_settings, require_counts


@dataclass(frozen=True, kw_only=True, slots=True)
class NeedleText:
    """A number hidden in a long text, and a question for it, as in ``attention_segments``.

    Source: arXiv:2410.05258v2, section 3.4.
    """

    length: int = 256
    """Of the prompt, in tokens."""
    depth: float = 50.0
    """Position of the number that the question asks for, in percent of the text."""
    num_needles: int = 1
    haystack: str = "stdlib"
    """Source of the text: ``stdlib``, a file, a folder, a ``.jsonl`` file or ``hub:NAME``."""
    sample: int = 0
    seed: int = 1234
    """With ``sample``, an index, it chooses the text, cities and numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One text, and the layers to show."""

    text: str | NeedleText | None
    """``None``: the tokenizer's example, or a built-in one."""
    layers: tuple[int, ...] | None = None
    max_tokens: int = 512
    cut: bool = False
    """Whether to show the first tokens of a longer text, with a note. Default: refuse the text."""
    add_bos: bool | None = None
    """Whether to begin with the BOS token. Default: if the tokenizer has one."""


def chosen_text(
    text: str | None, file: Path | None, needle: bool, settings: Sequence[str]
) -> str | NeedleText | None:
    r"""The text that a command line names; ``None`` if it names none. Line ends become ``\n``.

    ``settings`` are values of ``--set``, ``KEY=VALUE`` for fields of :class:`NeedleText`.
    """
    options = {"--text": text is not None, "--file": file is not None, "--needle": needle}
    given = [name for name, is_given in options.items() if is_given]
    if len(given) > 1:
        raise ConfigError(
            f"inspect: one of --text, --file and --needle must be given, got {' and '.join(given)}."
        )
    if needle:
        return _needle_text(settings)
    if settings:
        raise ConfigError("inspect: --set is for --needle, got a text.")
    if not given:
        return None
    if file is not None:
        text = read_text(file)
        if text is None:
            raise ConfigError(f"{file}: must be UTF-8 text, got other data.")
    if not text:
        name = file or "--text"
        raise ConfigError(f"inspect: {name} must hold one token or more, got none.")
    return str(normalise_line_ends(text))


def _needle_text(settings: Sequence[str]) -> NeedleText:
    values = read_settings(settings, get_type_hints(NeedleText))
    for key, value in values.items():
        require_counts(key, key, value)
    needle = NeedleText(**values)
    if not 0 <= needle.depth <= 100:
        raise ConfigError(f"--set: depth must be from 0 to 100 percent, got {needle.depth:g}.")
    return needle
