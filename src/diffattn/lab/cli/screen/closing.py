"""The last lines of a study in the terminal: results, page, and commands to go on with."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

_WIDTH = 100


def closing(sentences: Sequence[str], page: Path, folders: Mapping[str, Path]) -> str:
    """Results, page and commands on the models of studies ``recall`` and ``text`` in ``folders``.

    ``sentences`` are also the first ones of the page; here they are wrapped at 100 columns.
    """
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, _WIDTH)]
    lines += ["", f"Page: {page}"]
    commands = [f"  diffattn inspect {folders['recall']}"] if "recall" in folders else []
    if text := folders.get("text"):
        commands += [
            f"  diffattn generate {text} --prompt 'def '",
            f"  diffattn evaluate block_perplexity --quick {text}",
        ]
    if commands:
        lines += ["", "Go on with:", *commands]
    return "\n".join(lines)
