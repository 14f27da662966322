"""The end of a study in the terminal: its sentences, its page, and commands to go on with."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

_WIDTH = 100


def closing(
    sentences: Sequence[str], page: Path, *, retrieval: Path | None = None, text: Path | None = None
) -> str:
    """The last lines of a study: at most 20, of at most 100 columns.

    Args:
        sentences: They stand first on the page.
        retrieval: Study of recall, whose models a command looks into. Default: no command.
        text: Study on text, whose models write and are evaluated. Default: no commands.
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
