"""Options that several commands have."""

from typing import Annotated

import typer

VerifyOption = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify", help="compare files with their hashes first (a second per GB)"
    ),
]
