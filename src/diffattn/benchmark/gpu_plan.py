"""What is measured on a GPU that is there for half an hour: stages in the order of their value."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffattn.benchmark.stages import Stage
from diffattn.models.known_names import check_known
from diffattn.testing.outcomes import VARIABLE, read_outcomes

JUDGE = "correctness"
SCALES = ("full", "tiny")
DEVICES = ("cuda", "cpu")
LONGEST_SESSION, LONGEST_STAGE = 28 * 60, 570
"""Seconds: of all stages together, and of one."""
_TINY_LIMIT = 300
"""Seconds of each stage that measures nothing: processes start slowly on a machine with others."""
_TUNED = ("ops_tuned", "models")
"""Stages that launch what the one before them found."""
_OUTCOMES = "outcomes.jsonl"
_PAIR: dict[str, dict[str, Any]] = {
    # About 100M parameters: 8 layers of width 1,024; 16 softmax heads, so 8 DIFF heads of width 64.
    "full": {
        "model.hidden_size": 1_024, "model.num_hidden_layers": 8, "model.num_heads": 16,
        "model.head_dim": 64, "model.max_position_embeddings": 2_048,
        "model.embedding_multiplier": 32.0, "model.vocab_size": 4_096, "data.vocab_size": 4_096,
        "data.source": "stdlib", "data.validation_fraction": 0.01, "train.num_steps": 300,
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


def gpu_stages(scale: str, device: str, root: Path, out: Path) -> list[Stage]:
    """The stages of a session.

    Args:
        scale: ``"full"``; or ``"tiny"``, which shows that all of it runs and measures nothing.
        device: ``"cuda"`` or ``"cpu"``.
        root: The checkout, whose tests run.
        out: Folder of the session.

    Returns:
        Stages whose limits together are at most :data:`LONGEST_SESSION` at full scale.

    Raises:
        ConfigError: An unknown scale or device.
    """
    check_known("gpu_session", "scale", scale, SCALES)
    check_known("gpu_session", "device", device, DEVICES)
    full, table = scale == "full", out / "bench" / "tune.json"
    # The interpreter's kernels are not timed, so on a CPU none has to be right for that.
    triton, decoder = (("triton",), ("triton_decode",)) if device == "cuda" else ((), ())
    environment = {
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(root / "src"), os.environ.get("PYTHONPATH")])
        ),
        "PYTHONUNBUFFERED": "1",
    }
    effort = ("--rounds", "3", "--seconds", "1") if full else ("--rounds", "1", "--seconds", "0")
    attentions = ("v1", "v2") if full else ("v1",)

    def bench(suite: str, *more: str, file: str = "bench.json") -> tuple[str, ...]:
        common = ("--device", device, "--out", str(out / "bench" / file), *effort)
        return (*_DIFFATTN, "bench", suite, *common, *more)

    def sized(lengths: str, only: str) -> tuple[str, ...]:
        """Lengths; at tiny scale a short one, one dtype, and few contenders besides T."""
        if full:
            return ("--length", lengths)
        return ("--length", "16", "--dtype", "float32", "--scale", "quick", "--only", only)

    lengths = sized("1024,2048,4096,8192,16384", "composed")
    cached = sized("4096,16384", "decode")
    models = (*sized("2048,4096", "diff"), "--scale", "cut", "--only", "softmax,diff")
    made = [
        ("every operator case against float64", 480, (_tests(full, root),), ()),
        (
            "attention against SDPA's kernels, FlexAttention and two calls",
            270,
            tuple(bench("ops", "--attention", name, *lengths) for name in attentions),
            triton,
        ),
        ("launch settings, searched", 180, (bench("tune", file=table.name),), triton),
        (
            "attention again, as tuned",
            120,
            (bench("ops", *sized("4096", "composed"), file="ops_tuned.json"),),
            triton,
        ),
        (
            "3B and 13B shapes at two depths",
            210,
            (bench("models", *models, file="models.json"),),
            triton,
        ),
        (
            "decoding against a cache",
            90,
            tuple(bench("decode", "--attention", name, *cached) for name in attentions),
            decoder,
        ),
        (
            "decoding against a paged cache",
            45,
            (bench("paged", *sized("4096,16384", "gathered")),),
            decoder,
        ),
        ("a matched pair of about 100M parameters", 225, _pair(scale, root, out), triton),
        ("FSDP2 in one process", 60, (_sharded(root),), ()),
    ]
    names = (
        JUDGE, "ops", "tune", "ops_tuned", "models", "decode", "paged", "pair", "sharded",
    )  # fmt: skip
    stages = [
        Stage(
            name=name, title=title, limit_seconds=limit if full else _TINY_LIMIT,
            commands=commands, times=times, table=table if name in _TUNED else None,
            environment=environment | ({VARIABLE: str(out / _OUTCOMES)} if name == JUDGE else {}),
            facts=_correctness if name == JUDGE else None,
        )
        for name, (title, limit, commands, times) in zip(names, made, strict=True)
    ]  # fmt: skip
    assert not full or sum(stage.limit_seconds for stage in stages) <= LONGEST_SESSION
    assert max(stage.limit_seconds for stage in stages) <= LONGEST_STAGE
    return stages


_DIFFATTN = (sys.executable, "-m", "diffattn")


def _tests(full: bool, root: Path) -> tuple[str, ...]:
    """The GPU tier, by many processes where pytest can: most of its time compiles kernels."""
    # Of another version of a library a warning is no wrong result.
    common = (
        sys.executable, "-m", "pytest", "-q", "-p", "diffattn.testing.outcomes", "-W", "default",
        "-p", "no:cacheprovider", "--continue-on-collection-errors", "--tb=line",
    )  # fmt: skip
    gpu, ops, layers = (str(root / "tests" / name) for name in ("gpu", "ops", "layers"))
    if not full:
        return (*common, gpu, "-m", "scheduled or not scheduled", "-k",
                "test_long_cache and fp32 and T16")  # fmt: skip
    return (*common, *_side_by_side(), "-m", "gpu", gpu, ops, layers)


def _side_by_side() -> tuple[str, ...]:
    from importlib.util import find_spec

    processes = min(12, (os.cpu_count() or 1) - 1)
    return ("-n", str(processes)) if find_spec("xdist") and processes > 1 else ()


def _correctness(out: Path) -> Mapping[str, Any]:
    return read_outcomes(out / _OUTCOMES)


def _pair(scale: str, root: Path, out: Path) -> tuple[tuple[str, ...], ...]:
    """The softmax model and its DIFF twin on the same tokens, which the first call packs."""
    changes = _PAIR[scale] | (
        {} if scale == "full" else {"data.source": str(root / "src/diffattn/ops")}
    )
    settings = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    data = [f"data.{name}" for name in ("source", "vocab_size", "validation_fraction")]
    kept = [
        word for key, value in changes.items() if key not in data
        for word in ("--set", f"{key}={value}")
    ]  # fmt: skip
    packed = ("--data", str(out / "softmax" / "data"))
    train = (*_DIFFATTN, "train", "laptop")
    return (
        (*train, "--out", str(out / "softmax"), "--attention", "softmax", *settings),
        (*train, "--out", str(out / "diff"), "--attention", "diff", *packed, *kept),
    )


def _sharded(root: Path) -> tuple[str, ...]:
    """Losses of a model under FSDP2 against those of the whole model, in one process."""
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")
    return (sys.executable, *launch, str(root / "examples" / "sharded.py"), "fsdp")
