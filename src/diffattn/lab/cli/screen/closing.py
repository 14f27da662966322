"""The end of a study in the terminal: its sentences, its page, and commands to go on with."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

_WIDTH = 100


def closing(sentences: Sequence[str], page: Path, text: Path | None = None) -> str:
    """The last lines of a study: at most 20, of at most 100 columns.

    Args:
        sentences: That stand first on the page.
        page: Its file.
        text: Study on text whose models the commands name. Default: no commands.
    """
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, _WIDTH)]
    lines += ["", f"Page: {page}"]
    if text is not None:
        lines += [
            "",
            "Look into the best differential model, let it write, evaluate it:",
            f"  diffattn inspect {text}",
            f"  diffattn generate {text} --prompt 'def '",
            f"  diffattn evaluate sliding_perplexity --quick --model {text}",
        ]
    return "\n".join(lines)
