"""The stages of half an hour on a GPU, in the order of their value."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from diffattn.lab.benchmark.config import contender_names
from diffattn.lab.records.results import BenchResult
from diffattn.lab.records.run import RunRecord
from diffattn.ops.inputs.kernel_support import BY_MAP
from diffattn.ops.inputs.kernel_support import VARIABLE as KERNELS
from tools.outcomes import CHOICE, VARIABLE, read_outcomes
from tools.stages import Stage

JUDGE, HOPPER = "correctness", "hopper"
"""The stages that test kernels: all but one, and the one that might hang."""
SCALES = ("full", "tiny")
DEVICES = ("cuda", "cpu")
LONGEST_SESSION, LONGEST_STAGE = 25 * 60, 540
"""Seconds: of all stages together but the study for leases, and of one."""
_TINY_LIMIT = 300
"""Seconds of each stage that measures nothing: processes start slowly on a machine with others."""
_DIFFATTN = (sys.executable, "-m", "diffattn")
_IN_ONE_ORDER = (
    sys.executable,
    "-c",
    "import torch; from diffattn.__main__ import main; "
    "torch.use_deterministic_algorithms(True, warn_only=True); main()",
)
"""The same with gradients that are equal in every run."""
_TUNED = (sys.executable, "-m", "tools.measures.tuned_table")
"""The same by the tiles of ``--table``."""
_QUICK = ",".join(x for x in contender_names("ops") if x != HOPPER and "flex" not in x)
"""Contenders that compile fast."""
_KERNELS = ("triton", "hopper")
"""Backends of which one has to run where a model is timed."""
_PAIR: dict[str, dict[str, Any]] = {
    # About 100M parameters: 8 layers of width 1,024; 16 softmax heads, so 8 DIFF heads of width 64.
    "full": {
        "model.hidden_size": 1_024, "model.num_hidden_layers": 8, "model.num_heads": 16,
        "model.head_dim": 64, "model.max_position_embeddings": 2_048,
        "model.embedding_multiplier": 32.0, "model.vocab_size": 4_096, "data.vocab_size": 4_096,
        "data.source": "stdlib", "data.validation_fraction": 0.01, "train.num_steps": 200,
        "train.batch_tokens": 32_768, "train.seq_len": 2_048, "train.learning_rate": 6e-4,
        "train.final_learning_rate": 6e-5, "train.warmup_steps": 30, "train.evaluate_every": 100,
        "train.precision": "bfloat16",
    },
    "tiny": {
        "model.hidden_size": 128, "model.num_hidden_layers": 1, "model.num_heads": 16,
        "model.head_dim": 8, "model.max_position_embeddings": 32, "model.vocab_size": 300,
        "data.vocab_size": 300, "train.num_steps": 4, "train.batch_tokens": 64,
        "train.seq_len": 32, "train.warmup_steps": 1, "train.evaluate_every": 2,
        "train.evaluation_tokens": 64,
    },
}  # fmt: skip


_LEASE = {
    "model.hidden_size": 32, "model.num_hidden_layers": 1, "model.num_heads": 4,
    "model.head_dim": 8, "data.vocab_size": 300, "data.validation_fraction": 0.2,
    "train.seq_len": 16, "train.batch_tokens": 32, "train.num_steps": 8, "train.warmup_steps": 1,
    "train.log_every": 1, "train.evaluate_every": 2, "train.evaluation_tokens": 64,
}  # fmt: skip
"""What makes the study for leases tiny."""


def gpu_stages(scale: str, device: str, root: Path, out: Path) -> list[Stage]:
    """The stages of a session; scale ``"tiny"`` shows that all of it runs and measures nothing.

    Args:
        root: The checkout, whose tests run.
        out: Folder of the session.
    """
    plan = _Plan(full=scale == "full", device=device, root=root, out=out)
    stages = [*plan.kernels(), *plan.models(), *plan.last()]
    stages = [_adapted(stage, full=plan.full, device=device, root=root) for stage in stages]
    limits = [stage.limit_seconds for stage in stages if not stage.fills]
    assert not plan.full or sum(limits) <= LONGEST_SESSION
    assert max(stage.limit_seconds for stage in stages) <= LONGEST_STAGE
    return stages


@dataclass(frozen=True, kw_only=True)
class _Plan:
    full: bool
    device: str
    root: Path
    out: Path

    @property
    def table(self) -> Path:
        return self.out / "bench" / "tune.json"

    @property
    def effort(self) -> tuple[str, ...]:
        rounds, seconds = ("3", "1") if self.full else ("1", "0")
        return ("--rounds", rounds, "--seconds", seconds, "--device", self.device)

    def bench(
        self, suite: str, *more: str, file: str = "bench.json", program: tuple[str, ...] = _DIFFATTN
    ) -> tuple[str, ...]:
        out = str(self.out / "bench" / file)
        return (*program, "bench", suite, "--out", out, *self.effort, *more)

    def by_attention(self, suite: str, *more: str) -> list[tuple[str, ...]]:
        """The same for V1 and V2; at tiny scale for V1 alone."""
        attentions = ("v1", "v2") if self.full else ("v1",)
        return [self.bench(suite, "--attention", x, *more) for x in attentions]

    def sized(self, lengths: str, few: str, only: str = "") -> tuple[str, ...]:
        """Lengths; at tiny scale a short one, one dtype, and few contenders besides T."""
        if self.full:
            return ("--length", lengths, *(("--only", only) if only else ()))
        return ("--length", "16", "--dtype", "float32", "--scale", "quick", "--only", few)

    def kernels(self) -> list[Stage]:
        """Correctness, attention, the search for launches, and attention by what it finds."""
        names = [name for name in contender_names("ops") if name != HOPPER]
        # All of it at the length of the goal; FlexAttention, compiled at every shape, there alone.
        at_goal = self.sized("4096", "composed", ",".join(names))
        ops = self.by_attention("ops", *at_goal)
        if self.full:
            ops += self.by_attention("ops", *self.sized("16384,2048,8192,1024", "", _QUICK))
            ops.insert(0, self.bench("host", file="host.json"))
        search = (sys.executable, "-m", "tools.tune", "--out", str(self.table), *self.effort)
        again = self.bench("ops", *at_goal, file="ops_tuned.json", program=_TUNED)
        tests = _tests(self.full, self.root)
        return [
            _testing(JUDGE, "the kernels against float64", 240, self.out, tests, "kernels"),
            _timing(
                "ops", "attention against SDPA's kernels, FlexAttention and two calls", 240, ops
            ),
            _timing("tune", "launch settings, searched", 135, [search]),
            _timing("ops_tuned", "attention again, as tuned", 90, [again], table=self.table),
        ]

    def models(self) -> list[Stage]:
        """Whole models, decoding, and a matched pair that is trained."""
        sized = (*self.sized("2048,4096", "diff"), "--scale", "cut", "--only", "softmax,diff")
        models = self.bench("models", *sized, file="models.json", program=_TUNED)
        decode = self.by_attention("decode", *self.sized("4096,16384", "decode", _QUICK))
        paged = self.bench("paged", *self.sized("4096,16384", "gathered"))
        pair = _pair("full" if self.full else "tiny", self.root, self.out)
        return [
            _timing(
                "models",
                "3B and 13B shapes at two depths",
                180,
                [models],
                table=self.table,
                objection=_of_models,
            ),
            _timing("decode", "decoding against a cache", 75, decode, kernel="triton_decode"),
            _timing("paged", "decoding against a paged cache", 45, [paged], kernel="triton_decode"),
            _timing(
                "pair", "a matched pair of about 100M parameters", 135, pair, objection=_of_pair
            ),
        ]

    def last(self) -> list[Stage]:
        """The stages worth least; the Hopper kernel, whose warps may wait for ever; the study."""
        others = _tests(self.full, self.root)
        sized = self.sized("4096", "composed", f"{HOPPER},triton")
        by_map = ("env", f"{BY_MAP}=1", *self.bench("ops", *sized, file="hopper_by_map.json"))
        by_hopper = self.bench("ops", *sized, file="hopper.json")
        in_one_order = self.bench(
            "ops", *sized, file="hopper_in_one_order.json", program=_IN_ONE_ORDER
        )
        hopper = _pytest(self.root, "ops/triton/test_hopper.py", "-k", "inference and emulated")
        if self.full:
            hopper = _kernel_tests(self.root, HOPPER)
        backward = _pytest(self.root, "ops/triton/test_hopper_backward.py", *_side_by_side(),
                           "-k", "test_kernel" if self.full else "T1")  # fmt: skip
        settings = () if self.full else _settings(_LEASE | _tiny_source(self.root))
        lease = ("tools.lease", "train", str(self.out / "lease"), *settings)
        launch = ("torch.distributed.run", "--standalone", "--nproc-per-node", "1")
        fsdp = (*launch, str(self.root / "examples" / "sharded.py"), "fsdp")
        return [
            Stage(
                name="sharded",
                title="FSDP2 in one process",
                limit_seconds=45,
                # Losses of a model under FSDP2 against those of the whole model.
                commands=((sys.executable, "-m", *fsdp),),
            ),
            _testing(
                "others",
                "the machinery around the kernels, other backends, layers",
                120,
                self.out,
                others,
                "others",
            ),
            _testing(
                "hopper_backward",
                "the Hopper backward, which no GPU has run, against float64",
                45,
                self.out,
                backward,
            ),
            _testing(HOPPER, "the Hopper kernel against float64", 75, self.out, hopper),
            _timing(
                "hopper_ops",
                "attention by both forms of the Hopper forward, and of its backward",
                75,
                [by_map, by_hopper, in_one_order],
                kernel=HOPPER,
                judge=HOPPER,
            ),
            Stage(
                name="lease",
                title="the study for leases, as far as there is time",
                limit_seconds=LONGEST_STAGE,
                commands=((sys.executable, "-m", *lease),),
                environment={KERNELS: "0"},  # what it finds should not rest on untested kernels
                fills=True,
            ),
        ]


def _timing(
    name: str,
    title: str,
    limit_seconds: float,
    commands: Sequence[tuple[str, ...]],
    *,
    kernel: str = "triton",
    **more: Any,
) -> Stage:
    facts: dict[str, Any] = {"name": name, "title": title, "limit_seconds": limit_seconds}
    return Stage(**facts, commands=tuple(commands), times=(kernel,), **more)


def _testing(
    name: str, title: str, seconds: float, out: Path, argv: tuple[str, ...], choice: str = ""
) -> Stage:
    """A stage that runs tests, all or those of a choice, and judges the kernels among them."""
    outcomes = f"{name}.jsonl"
    return Stage(
        name=name, title=title, limit_seconds=seconds, commands=(argv,),
        # Each of many processes compiles by itself.
        environment={
            VARIABLE: str(out / outcomes), CHOICE: choice, "TORCHINDUCTOR_COMPILE_THREADS": "1",
        },
        facts=lambda folder: read_outcomes(folder / outcomes),
    )  # fmt: skip


def _adapted(stage: Stage, *, full: bool, device: str, root: Path) -> Stage:
    """A stage with what all share, and without what a CPU or the tiny scale cannot have."""
    paths = filter(None, [str(root / "src"), str(root), os.environ.get("PYTHONPATH")])
    shared = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    if VARIABLE not in stage.environment:
        # No record says yet that kernels passed on this GPU, so `auto` would leave them alone.
        shared[KERNELS] = "1"
    stage = replace(
        stage,
        environment={**shared, **stage.environment},
        judge=stage.judge or (JUDGE if stage.times else None),
        limit_seconds=stage.limit_seconds if full else _TINY_LIMIT,
        objection=stage.objection if full and device == "cuda" else None,
    )
    # The interpreter's kernels are not timed, so on a CPU none has to be right for that.
    return stage if device == "cuda" else replace(stage, times=(), judge=None)


def _of_models(out: Path) -> str | None:
    result = BenchResult.read(out / "bench" / "models.json")
    rows = [row for case in result.cases for row in case.rows]
    return _other_backends({r.backend for r in rows if r.contender == "diff" and r.status == "ok"})


def _of_pair(out: Path) -> str | None:
    return _other_backends(set(RunRecord.read(out / "diff").backends.values()))


def _other_backends(backends: set[Any]) -> str | None:
    if backends and backends <= {*_KERNELS}:
        return None
    names = ", ".join(sorted(map(str, backends))) or "nothing"
    return f"differential attention must run on one of {{{', '.join(_KERNELS)}}}, got {names}"


def _tests(full: bool, root: Path) -> tuple[str, ...]:
    if not full:
        return _pytest(root, "gpu", "-m", "scheduled or not scheduled", "-k",
                       "test_long_cache and fp32 and T16")  # fmt: skip
    return _kernel_tests(root, f"not {HOPPER}")


def _kernel_tests(root: Path, expression: str) -> tuple[str, ...]:
    """Tests of the GPU tier in the order of their value, should the time not do."""
    # Files by name, as pytest would read "ops/triton" and "ops" as the latter.
    ops = sorted(f"ops/{path.name}" for path in (root / "tests" / "ops").glob("test_*.py"))
    words = ("-m", "gpu and not scheduled", "-k", expression)
    return _pytest(root, "gpu", "ops/triton", *ops, "layers", *_side_by_side(), *words)


def _pytest(root: Path, *arguments: str) -> tuple[str, ...]:
    """A call of pytest: paths under the tests, and from the first option on its options."""
    first = next(i for i, word in enumerate(arguments) if word.startswith("-"))
    paths = (str(root / "tests" / path) for path in arguments[:first])
    # Of another version of a library a warning is no wrong result. pytest-benchmark, where it is
    # installed, warns of processes side by side.
    return (
        sys.executable, "-m", "pytest", "-q", "-p", "tools.outcomes",
        "-W", "default",
        "-p", "no:cacheprovider", "-p", "no:benchmark", "--continue-on-collection-errors",
        "--tb=short", *paths, *arguments[first:],
    )  # fmt: skip


def _side_by_side() -> tuple[str, ...]:
    """Many processes where pytest can: most of the time goes into compiling kernels.

    Each holds tensors of the longest cases, so not one for every core. One that a kernel broke is
    replaced.
    """
    processes = min(14, (os.cpu_count() or 1) - 2)
    words: tuple[str, ...] = ()
    if find_spec("xdist") and processes > 1:
        words += ("-n", str(processes), "--dist", "worksteal", "--max-worker-restart", "200")
    if find_spec("pytest_timeout"):
        words += ("--timeout=90", "--timeout-method=thread")
    return words


def _pair(scale: str, root: Path, out: Path) -> tuple[tuple[str, ...], ...]:
    """The softmax model and its DIFF twin on the same tokens, which the first call packs."""
    changes = _PAIR[scale] | ({} if scale == "full" else _tiny_source(root))
    of_data = ("data.source", "data.vocab_size", "data.validation_fraction")
    others = {key: value for key, value in changes.items() if key not in of_data}
    packed = ("--data", str(out / "softmax" / "data"))
    train = (*_DIFFATTN, "train", "laptop")
    return (
        (*train, "--out", str(out / "softmax"), "--attention", "softmax", *_settings(changes)),
        (*train, "--out", str(out / "diff"), "--attention", "diff", *packed, *_settings(others)),
    )


def _tiny_source(root: Path) -> dict[str, str]:
    return {"data.source": str(root / "src/diffattn/ops")}


def _settings(changes: dict[str, Any]) -> tuple[str, ...]:
    return tuple(word for key, value in changes.items() for word in ("--set", f"{key}={value}"))
