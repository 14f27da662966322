"""The commands that measure claims, at three scales."""

from collections.abc import Sequence
from typing import NamedTuple

from diffattn.lab.catalog.models import BASELINE, SIDE_EFFECTS


class Commands(NamedTuple):
    """One command line per scale: an hour, or a day, on 2 CPU cores; or days on one GPU."""

    laptop: str | None
    study: str
    gpu: str


_GPU_MODEL = (
    "--set model.hidden_size=1024 --set model.num_hidden_layers=12 --set model.num_heads=16 "
    "--set model.head_dim=64 --set model.embedding_multiplier=32.0 --set train.seq_len=4096 "
    "--set train.batch_tokens=131072 --set train.micro_batch_sequences=4 "
    "--set train.precision=bfloat16 --set data.source=TEXTS --set data.vocab_size=16384"
)
_GPU_STEPS = "--set train.num_steps=4000 --set train.warmup_steps=400"
_GPU_FEW_STEPS = "--set train.num_steps=1000 --set train.warmup_steps=100"
# Peak rates fall with the root of the width, from 0.003 at 128 and, for rows, from 0.002 at 256.
_GPU_RATE = "--set train.learning_rate=1.06e-3 --set train.final_learning_rate=1.06e-4"
_GPU_RATE_OF_ROWS = "--set train.learning_rate=1e-3 --set train.final_learning_rate=1e-4"


def _study(kind: str, *gpu: str) -> Commands:
    """Commands of a kind of study. ``gpu``: further arguments of the GPU command."""
    laptop = f"diffattn reproduce {kind}"
    study = f"{laptop} --scale study"
    return Commands(laptop, study, " ".join([f"{study} --out runs/{kind}-gpu", *gpu]))


STUDIES = {
    "text": Commands(
        "diffattn reproduce text --seeds 0,1,2",
        "diffattn reproduce text --scale study",
        f"diffattn reproduce text --scale study --out runs/gpu {_GPU_MODEL} {_GPU_STEPS}",
    ),
    "scaling": Commands(
        "diffattn reproduce scaling",
        "diffattn reproduce scaling --seeds 0,1,2,3,4 --out runs/scaling-study",
        f"diffattn reproduce scaling --out runs/scaling-gpu {_GPU_MODEL} "
        f"--set model.intermediate_size=2560 {_GPU_STEPS} {_GPU_RATE}",
    ),
    "ablations": _study("ablations", _GPU_MODEL, _GPU_STEPS, _GPU_RATE_OF_ROWS),
    "rank": _study("rank", _GPU_MODEL, _GPU_STEPS, _GPU_RATE_OF_ROWS),
    "recall": _study("recall"),
    "stability": _study("stability", _GPU_MODEL, _GPU_FEW_STEPS, _GPU_RATE),
    "gradient-flow": _study("gradient-flow"),
}
JUDGE = "diffattn judge {out} --endpoint https://HOST/v1 --model JUDGE"
"""The second command of an evaluation of hallucination."""


def evaluation(
    gpu_parts: str,
    name: str,
    *,
    small: Sequence[str] = (),
    whole: Sequence[str] = (),
    then: str = "",
) -> Commands:
    """Commands that evaluate softmax, V1 and controls of the study on text, all seeds together.

    Args:
        gpu_parts: Preset or protocol of the GPU command, at the paper's sizes.
        name: Ending of the evaluation folder's name.
        small: Settings for models with short contexts.
        whole: Settings for the paper's sizes, for example the place of data.
        then: A second command, on the evaluation folder ``{out}``.
    """
    protocol = small[0].split(".")[0] if small else gpu_parts

    def line(parts: str, runs: str, out: str, options: Sequence[str]) -> str:
        models = " ".join(
            f"--model {kind}-seed{seed}={runs}/{kind}-seed{seed}"
            for seed in range(5)
            for kind in (BASELINE, "diff", *SIDE_EFFECTS)
        )
        words = ["diffattn evaluate", parts, models, *options, f"--out {out}"]
        return " ".join([*words, f"&& {then.format(out=out)}"] if then else words)

    settings, large = ([f"--set {setting}" for setting in group] for group in (small, whole))
    return Commands(
        None,  # the study of that scale trains no V1
        line(protocol, "runs/study/runs", f"runs/study-{name}", settings),
        line(gpu_parts, "runs/gpu/runs", f"runs/gpu-{name}", large),
    )


def bench(suite: str, *options: str) -> Commands:
    """Commands that time attention or models. The papers' times are comparable to a GPU's."""
    words = " ".join(["diffattn bench", suite, *options])
    ways = ("--scale quick", "--device cpu", "--device cuda")
    return Commands(*(f"{words} {way}" for way in ways))
