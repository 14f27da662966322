"""``diffattn bench``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from diffattn.lab.cli.options import print_json, whole_numbers

Suite = Annotated[
    str,
    typer.Argument(
        help="ops; decode or paged (the operator against a cache); models; generation (by models); "
        "host (processor time of one call; takes --device, --out and --json)"
    ),
]
Scale = Annotated[
    str,
    typer.Option(
        help="quick (a minute), full or, for suite models, cut (large models with few layers)"
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu (one thread, in processor time) or cuda [cuda if there]")
]
Dtype = Annotated[
    str | None, typer.Option(help="comma-separated, e.g. float32,bfloat16 [of the scale]")
]
Length = Annotated[
    str | None,
    typer.Option(
        help="comma-separated tokens; decode, paged, generation: cached tokens [of the scale]"
    ),
]
Only = Annotated[str | None, typer.Option(help="comma-separated contenders besides T [all]")]
Fresh = Annotated[bool, typer.Option("--fresh", help="forget what the result file holds")]
Out = Annotated[Path | None, typer.Option(help="result file or folder [runs/bench/DEVICE.json]")]

_LEGEND = (
    "T: PyTorch's softmax attention. TC: softmax attention by our kernels. / T, / TC: time over "
    "theirs. Of peak: share of a matrix product's speed. Error: share of what rounding allows."
)


def bench(
    suite: Suite,
    scale: Scale = "full",
    device: Device = None,
    dtype: Dtype = None,
    length: Length = None,
    only: Only = None,
    attention: Annotated[str, typer.Option(help="shapes of the operator: v1 or v2")] = "v1",
    rounds: Annotated[int, typer.Option(help="fewest rounds of a shape")] = 3,
    seconds: Annotated[
        float, typer.Option(help="time after which a shape starts no further round")
    ] = 10.0,
    out: Out = None,
    fresh: Fresh = False,
    json_: Annotated[bool, typer.Option("--json", help="print the measured cases as JSON")] = False,
) -> None:
    """Check and time attention, decoding, whole models or generation.

    Times every backend of differential attention (the contenders) against T, PyTorch's softmax
    attention, and TC, softmax attention by our own kernels. Contenders run in turn. One whose
    output is wrong is not timed. The same command again skips cases that the result file already
    has from the same code, versions, machine and settings.
    """
    from diffattn.files.destination import require_file_destination
    from diffattn.lab.benchmark import config as settings

    given: dict[str, Any] = {
        "suite": suite,
        "scale": scale,
        "device": device,
        "dtypes": _words(dtype),
        "lengths": () if length is None else whole_numbers("--length", length),
        "only": _words(only),
        "attention": attention,
        "rounds": rounds,
        "seconds": seconds,
    }
    settings.check_names(given)
    import torch  # takes seconds: all names are checked before

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if suite == settings.HOST:
        _host(device, settings.result_path(out, f"host_{device}"), json_)
        return
    require_file_destination(path := settings.result_path(out, device))
    _measure(settings.BenchConfig(**given | {"device": device}), path, fresh, json_)


def _host(device: str, path: Path, json_: bool) -> None:
    from diffattn.files.destination import require_replaceable
    from diffattn.lab.benchmark.config import require_cuda
    from diffattn.lab.benchmark.host import measure_host
    from diffattn.lab.cli.screen import print_table, print_text

    require_replaceable(path, '{\n "scope"', "a record of 'bench host'")
    if device == "cuda":
        require_cuda()
    record = measure_host(device, path)
    if json_:
        print_json(record["calls"])
        return
    print_table(
        [
            {
                "call": f"{row['type']} {row['passes']}",
                "ms": f"{row['milliseconds']:.3f}",
                "launches": row["launches"],
                **{part: f"{ms:.3f}" for part, ms in row["stages"].items()},
            }
            for row in record["calls"]
        ]
    )
    print_text([record["scope"], f"Record: {path}"])


def _measure(config: Any, path: Path, fresh: bool, json_: bool) -> None:
    from diffattn.lab.benchmark.session import plan, run_bench
    from diffattn.lab.cli.screen import RunsProgress

    with RunsProgress(len(plan(config)), 0, lambda _: 1) as progress:
        _, cases = run_bench(
            config,
            path,
            fresh=fresh,
            on_message=progress.on_message,
            on_progress=lambda done: progress.on_progress(f"bench {config.suite}", {"step": done}),
        )
    if json_:
        print_json([asdict(case) for case in cases])
    else:
        _show(cases, path)
    if any(row.status == "failed" for case in cases for row in case.rows):
        raise typer.Exit(1)


def _show(cases: list[Any], path: Path) -> None:
    from diffattn.lab.cli.screen import print_table, print_text
    from diffattn.lab.report.benchmarks.tables import case_title, contender_rows, targets_in_words

    for case in cases:
        print_text([case_title(case)])
        print_table(contender_rows(case))
    absent: dict[str, dict[str, None]] = {}
    for row in (row for case in cases for row in case.rows if row.status != "ok"):
        why = f"{'failed' if row.status == 'failed' else 'did not run'}: {row.reason}"
        absent.setdefault(why, {})[row.contender] = None
    reasons = [f"{', '.join(names)} {why}." for why, names in absent.items()]
    print_text([*reasons, _LEGEND, *targets_in_words(cases), f"Record: {path}"])


def _words(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(part.strip() for part in text.split(","))
