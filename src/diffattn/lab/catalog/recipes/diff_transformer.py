"""The papers' large runs: sizes, main pair, later stages, ablations, Shared DIFF's ranks."""

from dataclasses import replace
from functools import partial
from typing import Any

from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.lab.training.config import DataConfig, TrainConfig, WindowConfig
from diffattn.models.config.settings import ModelSettings
from diffattn.models.presets import preset_settings
from diffattn.models.twins import twin

_TRAIN = TrainConfig(
    num_steps=83_447,
    batch_tokens=4_194_304,
    seq_len=4_096,
    micro_batch_sequences=4,
    learning_rate=3.2e-4,
    final_learning_rate=1.28e-5,
    warmup_steps=1_000,
    beta_2=0.95,
    weight_decay=0.1,
    precision="bfloat16",
    log_every=50,
    evaluate_every=1_000,
    evaluation_tokens=4_194_304,
)
_LENGTH = 65_536
"""Longest context after the main training, in tokens."""
_STAGES = {1: (8e-5, 4_194_304, 4_768), 2: (1e-5, 1_048_576, 1_907)}
"""Stage of mathematics -> learning rate, tokens per step, steps."""
# Size -> peak learning rate.
_LEARNING_RATES = {"830m": 1.5e-4, "1.4b": 1.5e-4, "2.8b": 1.5e-4, "6.8b": 7.5e-5, "13.1b": 7.5e-5}


def scaling(size: str) -> RunPlan:
    """One DIFF model of Figure 3a: 10B tokens (40,000 steps, 10.49B) at length 2,048.

    Command: ``diffattn train scaling-830m --out FOLDER --set data.source=... --set
    data.tokenizer=...``. Hardware: a GPU node; not run by this project. Duration: days. Expected:
    the validation losses of Figure 3a. The paper's corpus is not public: name your own. The paper
    says that the rate falls linearly, but does not print the last rate: here it is 0.

    Source: arXiv:2410.05258v2, section 3.2 and Appendix E.
    """
    changes: dict[str, Any] = {"beta_2": 0.98, "weight_decay": 0.05}
    changes |= {"batch_tokens": 262_144, "seq_len": 2_048, "evaluation_tokens": 1_048_576}
    changes |= {"num_steps": 40_000, "warmup_steps": 375, "micro_batch_sequences": 8}
    changes |= {"learning_rate": _LEARNING_RATES[size], "final_learning_rate": 0.0}
    train = replace(_TRAIN, **changes)
    model = preset_settings(size)
    data = DataConfig(vocab_size=model.vocab_size)
    return RunPlan(name=f"scaling-{size}", model=model, train=train, data=data)


def main_run(size: str, name: str, attention_type: str = "diff") -> RunPlan:
    """The paper's main 3B training, applied to a preset of any size or its twin.

    Source: arXiv:2410.05258v2, section 3.1 and Appendix D."""
    model = preset_settings(size, attention_type)
    model.max_position_embeddings = _TRAIN.seq_len
    data = DataConfig(vocab_size=model.vocab_size)
    return RunPlan(name=name, model=model, train=_TRAIN, data=data)


def main_pair(attention_type: str) -> RunPlan:
    """DIFF 3B, or its matched Transformer of 24 softmax heads: 350B tokens at length 4,096.

    Command: ``diffattn train diff-transformer-3b --out FOLDER --set data.source=... --set
    data.tokenizer=...``, and the same of ``transformer-3b``. Hardware: GPU nodes; not run by this
    project. Duration: 5,610 hours of an H100 by ``diffattn plan``; 4,640 hours of the Transformer.
    Expected: the losses of Table 8. The paper's Table 1 trains on 1T tokens:
    ``train.num_steps=238419``. The paper's corpus is not public: name your own.

    Source: arXiv:2410.05258v2, section 3.1 and Appendix D (recipe of StableLM-3B-4E1T).
    """
    name = "diff-transformer-3b" if attention_type == "diff" else "transformer-3b"
    return main_run("3b", name, attention_type)


def token_scaling(attention_type: str) -> RunPlan:
    """The curve of Figure 3b: the main 3B run to 90,000 steps, evaluated every 10,000.

    Command: ``diffattn train token-scaling-diff --out FOLDER --set data.source=... --set
    data.tokenizer=... --set engine.save_every=1000``, and the same of ``token-scaling-softmax``.
    Hardware: many GPU nodes; not run by this project. Duration: weeks. Expected: DIFF at 160B
    tokens with the loss of the Transformer at 251B (Figure 3b, 63.7 %).

    Source: arXiv:2410.05258v2, section 3.2.
    """
    run = main_run("3b", f"token-scaling-{attention_type}", attention_type)
    return replace(run, train=replace(run.train, num_steps=90_000, evaluate_every=10_000))


def _later_stage(name: str, attention_type: str, rate: float, **train: Any) -> RunPlan:
    """The main 3B run with a context of 65,536 and the main run's ratio of last to peak rate."""
    run = main_run("3b", f"{name}-{attention_type}", attention_type)
    run.model.rope_parameters = {"rope_type": "default", "rope_theta": 640_000.0}
    run.model.max_position_embeddings = _LENGTH
    final = rate * run.train.final_learning_rate / run.train.learning_rate
    changed = replace(run.train, learning_rate=rate, final_learning_rate=final, **train)
    return replace(run, train=changed)


def long_context(attention_type: str) -> RunPlan:
    """1.5B more tokens at length 65,536 with RoPE θ 640,000 and learning rate 8e-5.

    Command: ``diffattn train long-context-diff --init-from MAIN --out FOLDER --set data.source=...
    --set data.tokenizer=MAIN/model``. MAIN is the finished run of ``diff-transformer-3b``, or of
    ``transformer-3b`` for the softmax twin. Without ``--init-from`` it starts from fresh weights.
    Hardware: GPU nodes; not run by this project. Duration: a day or less. Expected: Figures 4 and 5
    of the paper. The paper prints neither warm-up nor last rate: here a tenth of the steps, and 4 %
    of the peak. It up-samples long documents as Fu et al. do; the numbers are our choice, from an
    example in Fu et al.'s code.

    Source: arXiv:2410.05258v2, section 3.3 and Appendix D; arXiv:2402.10171 (up-sampling).
    """
    steps = {"num_steps": 358, "warmup_steps": 36, "evaluate_every": 50}
    windows = {"seq_len": _LENGTH, "micro_batch_sequences": 1}
    run = _later_stage("long-context", attention_type, 8e-5, **steps, **windows)
    upsampled = WindowConfig(upsample_longer_than=_TRAIN.seq_len, upsample_factor=10.0)
    return replace(run, windows=upsampled)


def math_stage(stage: int, attention_type: str) -> RunPlan:
    """20B tokens of synthetic mathematics (stage 1), or 2B tokens of fine-tuning (stage 2).

    Command: ``diffattn train math-1-diff --init-from LONG --out STAGE1 --set data.source=... --set
    data.tokenizer=LONG/model``, where LONG is the finished run of ``long-context-diff``. Then
    ``math-2-diff --init-from STAGE1``. Both stages keep LONG's RoPE θ and longest context.
    Hardware: GPU nodes; not run by this project. Duration: days. Tokens: 20B, then 2B with 1M a
    step. Expected: Figure 9 of the paper, which starts from its 64K models. The paper prints no
    schedule or window length: here they are the main run's, with a warm-up of a tenth of the steps.

    Source: arXiv:2410.05258v2, mathematical reasoning (two-stage training).
    """
    rate, batch_tokens, num_steps = _STAGES[stage]
    pace = {"batch_tokens": batch_tokens, "num_steps": num_steps, "warmup_steps": num_steps // 10}
    return _later_stage(f"math-{stage}", attention_type, rate, **pace)


_SOFTMAX_8 = {"attention_type": "softmax", "num_heads": 8, "head_dim": 256}
_ROWS: dict[str, dict[str, Any]] = {
    "softmax": {"attention_type": "softmax", "num_heads": 16, "head_dim": 128},
    "softmax-8": _SOFTMAX_8,
    "softmax-8-norm": _SOFTMAX_8 | {"head_norm": True},
    "diff": {},
    "diff-no-norm": {"head_norm": False},
    "diff-lambda-0.8": {"lambda_init": 0.8},
    "diff-lambda-0.5": {"lambda_init": 0.5},
}
"""Row -> changed settings of the 1.4B model."""
_OF_V2_NOTE = ("diff-v2", "diff-v2-no-lambda", "diff-v2-raw-lambda", "diff-v2-across", "softmax-24")
"""Rows of the V2 note, which prints no losses: attention types with 16 heads, and softmax."""


def ablation(name: str) -> RunPlan:
    """One row of Table 6 or of the V2 note's ablations: a 1.4B model at 10B tokens.

    Command: ``diffattn train ablation-diff-no-norm --out FOLDER --set data.source=... --set
    data.tokenizer=...``. Hardware: a GPU node; not run by this project. Duration: days. Expected:
    the losses of Table 6 (:func:`diffattn.lab.report.paper.table_6`), on the paper's corpus, which
    is not public. Rows of Table 6 keep the FFN's width. Rows of the note change it so that all have
    the parameters of ``softmax``, up to a multiple of 8 channels.

    Source: arXiv:2410.05258v2, Table 6; DIFF V2 note (January 2026) for its rows.
    """
    run = scaling("1.4b")
    if name in _OF_V2_NOTE:
        kind, heads = ("softmax", 24) if name == "softmax-24" else (name.replace("-", "_"), 16)
        softmax = ablation("softmax").model
        model = twin(softmax, kind, num_heads=heads, num_kv_heads=heads).config
    else:
        kept = run.model.settings() | {"num_kv_heads": None, "shared_rank": None}
        model = ModelSettings(**kept | _ROWS[name])
    return replace(run, name=f"ablation-{name}", model=model)


_KINDS = ("diff", "softmax")
MAIN = {
    "diff-transformer-3b": partial(main_pair, "diff"),
    "transformer-3b": partial(main_pair, "softmax"),
}
SCALING = {f"scaling-{size}": partial(scaling, size) for size in _LEARNING_RATES}
TOKEN_SCALING = {f"token-scaling-{kind}": partial(token_scaling, kind) for kind in _KINDS}
LONG_CONTEXT = {f"long-context-{kind}": partial(long_context, kind) for kind in _KINDS}
MATH = {
    f"math-{stage}-{kind}": partial(math_stage, stage, kind) for stage in _STAGES for kind in _KINDS
}
ABLATIONS = {f"ablation-{name}": partial(ablation, name) for name in (*_ROWS, *_OF_V2_NOTE)}


# Ranks 2 and 4 would have the same laptop sibling as rank 8, of rank 1. The studies train them.
_RANKS = (8, 16, 32, 64)
_LAMBDA_INITS = {"": None, "-lambda-0.8": 0.8, "-lambda-0.5": 0.5}


def shared_diff(rank: int, constant: str) -> RunPlan:
    """Shared DIFF at 1.4B and 10B tokens with another rank of its updates, or a constant λ_init.

    Command: ``diffattn train shared-diff-r16 --out FOLDER --set data.source=... --set
    data.tokenizer=...``. Hardware: a GPU node; not run by this project. Duration: days. Expected:
    not known; the paper prints neither ranks nor their losses. Ranks and training are our choice.
    The FFN is widened to V1's parameter count.

    Source: arXiv:2501.17900, Shared DIFF attention (Q and K projections).

    ``constant``: ending of the recipe's name for a constant λ_init; empty for the default.
    """
    run, lambda_init = scaling("1.4b"), _LAMBDA_INITS[constant]
    model = twin(run.model, "shared_diff", shared_rank=rank, lambda_init=lambda_init).config
    return replace(run, name=f"shared-diff-r{rank}{constant}", model=model)


def shared_diff_map_norm() -> RunPlan:
    """Shared DIFF at 1.4B and 10B tokens, with its norm on the difference of the maps.

    Rows of that map are normalised in place of the heads' outputs. Only the reference backend runs
    it, as it holds the maps: by ``diffattn plan``, an H200 has room for 2 sequences at a time.

    Command: ``diffattn train shared-diff-map-norm --out FOLDER --set data.source=... --set
    data.tokenizer=...``. Hardware: a GPU node; not run by this project. Duration: days. Expected:
    not known. The paper says that the norm acts on attention scores; the type ``shared_diff`` takes
    them for the heads' outputs.

    Source: arXiv:2501.17900, Shared DIFF attention (the norm).
    """
    run = scaling("1.4b")
    model = twin(run.model, "shared_diff_map_norm").config
    train = replace(run.train, micro_batch_sequences=2)
    return replace(run, name="shared-diff-map-norm", model=model, train=train)


SHARED_DIFF = {
    f"shared-diff-r{rank}{constant}": partial(shared_diff, rank, constant)
    for rank in _RANKS
    for constant in _LAMBDA_INITS
} | {"shared-diff-map-norm": shared_diff_map_norm}
