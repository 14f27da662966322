"""``diffattn bench``."""

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer


def bench(
    suite: Annotated[
        str,
        typer.Argument(
            help="ops, models, decode and paged (of the operator, against a cache), generation "
            "(of models) or tune (launches)"
        ),
    ],
    scale: Annotated[
        str,
        typer.Option(help="quick (a minute), full or, of models, cut (few layers of large sizes)"),
    ] = "full",
    device: Annotated[
        str | None, typer.Option(help="cpu (one thread, processor time) or cuda [cuda if there]")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="comma-separated, e.g. float32,bfloat16 [of the scale]")
    ] = None,
    length: Annotated[
        str | None,
        typer.Option(
            help="comma-separated tokens; decode, paged, generation: cached tokens [of the scale]"
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="comma-separated contenders besides the baseline [all]")
    ] = None,
    attention: Annotated[str, typer.Option(help="shapes of the operator: v1 or v2")] = "v1",
    rounds: Annotated[int, typer.Option(help="rounds of every shape, at least")] = 3,
    seconds: Annotated[
        float, typer.Option(help="time after which a shape starts no further round")
    ] = 10.0,
    out: Annotated[
        Path | None, typer.Option(help="result file or folder [runs/bench/DEVICE.json]")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="forget what the result file holds")
    ] = False,
    table: Annotated[
        Path | None,
        typer.Option(help="record of tune, whose lines are launched in place of the package's"),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="print the measured cases as JSON")] = False,
) -> None:
    """Check and time attention, decoding, models or their generation.

    Every differential backend against T, PyTorch's softmax attention, and TC, softmax attention
    by our own technique. Contenders run interleaved; a wrong one gets no number. The same command
    again skips what the result file holds from the same code, versions, machine and settings.

    tune searches, on a CUDA device and in bfloat16, the tiles of every kernel's launches: each is
    checked, the right ones are timed. It takes --length, --rounds, --seconds and --out, writes
    its own record and beside it the lines for the table of launches, and changes nothing else.
    """
    from diffattn.lab.benchmark.config import TUNE, BenchConfig, check_names
    from diffattn.lab.cli.options import whole_numbers

    lengths = () if length is None else whole_numbers("--length", length)
    check_names(suite, scale, device, attention, _words(dtype), _words(only))

    if suite == TUNE:
        others = (dtype, only, table, scale, attention)
        _tune(device, lengths, rounds, seconds, out, others=others)
        return

    import torch  # after every name is known to be right

    from diffattn.files.destination import require_file_destination
    from diffattn.lab.benchmark.session import result_path, run_bench, total_effort
    from diffattn.lab.cli.screen.progress import RunsProgress

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    tuned = None if table is None else _tuned_table(table, chosen)
    config = BenchConfig(
        suite=suite,
        scale=scale,
        device=chosen,
        dtypes=_words(dtype),
        lengths=lengths,
        only=_words(only),
        attention=attention,
        rounds=rounds,
        seconds=seconds,
        table=None if tuned is None else tuned.digest,
    )
    effort = total_effort(config)
    path = result_path(out, chosen)
    require_file_destination(path)
    launched = nullcontext() if tuned is None else tuned.in_force()
    with launched, RunsProgress(effort, 0, lambda _: effort) as progress:
        _, cases = run_bench(
            config, path, fresh=fresh, on_message=progress.on_message,
            on_progress=lambda done: progress.on_progress(f"bench {suite}", {"step": done}),
        )  # fmt: skip
    if json_:
        typer.echo(json.dumps([asdict(case) for case in cases], indent=2, ensure_ascii=False))
    else:
        _show(cases, path)
    if any(row.status == "failed" for case in cases for row in case.rows):
        raise typer.Exit(1)


def _tuned_table(path: Path, device: str) -> Any:
    """Lines for a GPU's kernels: nowhere else are any launched by the table."""
    from diffattn.errors import ConfigError
    from diffattn.lab.benchmark.config import require_cuda

    if device != "cuda":
        raise ConfigError(f"bench: --table needs device 'cuda', got {device!r}.")
    require_cuda()
    _require_triton("bench: --table")
    from diffattn.lab.benchmark.tuning.table import read_table

    return read_table(path, device)


def _require_triton(where: str) -> None:
    from diffattn.errors import BackendError

    if find_spec("triton") is None:
        raise BackendError(f"{where} needs triton, which is not installed here.")


def _tune(
    device: str | None,
    lengths: tuple[int, ...],
    rounds: int,
    seconds: float,
    out: Path | None,
    others: tuple[object, ...],
) -> None:
    from diffattn.errors import ConfigError
    from diffattn.files.destination import require_file_destination
    from diffattn.lab.benchmark.config import require_cuda

    if device == "cpu":
        raise ConfigError("bench tune: device must be 'cuda', got 'cpu', on which no kernel runs.")
    if len(lengths) > 1 or others != (None, None, None, "full", "v1"):
        raise ConfigError(
            "bench tune: must be given one --length, --rounds, --seconds and --out alone: it runs "
            "in bfloat16, for V1 and V2."
        )
    require_cuda()
    _require_triton("bench tune:")
    path = out or Path("runs") / "bench" / "tune.json"
    path = path if path.suffix == ".json" else path / "tune.json"
    require_file_destination(path)

    from diffattn.lab.benchmark.timing import timer_of
    from diffattn.lab.benchmark.tuning.table import lines_path, lines_text
    from diffattn.lab.benchmark.tuning.tune import TuneConfig, tune

    config = TuneConfig(rounds=rounds, seconds=seconds)
    config = replace(config, length=lengths[0]) if lengths else config
    record = tune(config, path, timer=timer_of("cuda"), on_message=typer.echo)
    typer.echo(lines_text(record["row"], record["lines"]))
    typer.echo(f"Record: {path}, lines of the table: {lines_path(path)}")


def _show(cases: list[Any], path: Path) -> None:
    from diffattn.lab.cli.screen.tables import print_table
    from diffattn.lab.report.benchmarks.tables import contender_rows
    from diffattn.lab.report.benchmarks.wording import case_title, targets_in_words

    for case in cases:
        typer.echo(case_title(case))
        print_table(contender_rows(case))
    typer.echo(targets_in_words(cases))
    typer.echo(f"Record: {path}")


def _words(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(part.strip() for part in text.split(","))
