"""Options that several commands share, and functions that read their values."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.errors import ConfigError

VerifyOption = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify", help="first compare files with their hashes (a second per GB)"
    ),
]
DeviceOption = Annotated[str | None, typer.Option(help="cpu or cuda [cuda if available]")]
BosOption = Annotated[
    bool | None,
    typer.Option("--bos/--no-bos", help="begin with the BOS token [if the tokenizer has one]"),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="print the resolved configuration and stop")
]
DTYPES = ("float32", "bfloat16", "float16")
DtypeOption = Annotated[str, typer.Option(help="float32, bfloat16 or float16")]
AutoDtypeOption = Annotated[
    str, typer.Option(help="auto (the checkpoint's), float32, bfloat16 or float16")
]


def set_option(help: str, metavar: str = "KEY=VALUE") -> Any:
    """The option ``--set``."""
    return typer.Option("--set", metavar=metavar, help=help)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def say(line: str) -> None:
    """Print a line to stderr, apart from the results of a command."""
    typer.echo(line, err=True)


def default_out(kind: str, labels: Iterable[str], ending: str = "") -> Path:
    """Default of ``--out`` for a command on some models."""
    return Path("runs") / f"{kind}-{'-'.join(labels)[:100]}{ending}"


def say_if_finished(folder: Path) -> None:
    """Say that a run or study is finished, before its files are checked, which takes seconds."""
    if (folder / "results.json").exists():
        say(f"{folder} is finished: checking that it is what was asked for.")


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """Read whole numbers such as ``0,1,2``, the value of ``option``, or raise ``ConfigError``."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"{option}: must be whole numbers separated by commas, got {text!r}."
        ) from error
