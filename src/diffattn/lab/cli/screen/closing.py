"""The last lines of a study in the terminal: results, page, and commands to go on with."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

_WIDTH = 100


def closing(
    sentences: Sequence[str], page: Path, *, retrieval: Path | None = None, text: Path | None = None
) -> str:
    """The last lines of a study. Sentences are wrapped at 100 columns.

    Args:
        sentences: The results, which are also the first sentences of the page.
        retrieval: Folder of a recall study, for a command that inspects a model. Default: none.
        text: Folder of a text study, for commands that generate and evaluate. Default: none.
    """
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, _WIDTH)]
    lines += ["", f"Page: {page}"]
    commands = [f"  diffattn inspect {retrieval}"] if retrieval else []
    if text:
        commands += [
            f"  diffattn generate {text} --prompt 'def '",
            f"  diffattn evaluate block_perplexity --quick {text}",
        ]
    if commands:
        lines += ["", "Go on with:", *commands]
    return "\n".join(lines)
