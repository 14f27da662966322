"""The scaling runs of the DIFF Transformer paper."""

from functools import partial

from diffattn.lab.catalog.recipes.plan import RunPlan
from diffattn.lab.training.config import DataConfig, TrainConfig
from diffattn.models.presets import preset_settings

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
    model = preset_settings(size)
    peak = _LEARNING_RATES[size]
    return RunPlan(
        name=f"scaling-{size}",
        model=model,
        train=TrainConfig(
            num_steps=40_000,
            batch_tokens=262_144,
            seq_len=2_048,
            micro_batch_sequences=8,
            learning_rate=peak,
            final_learning_rate=0.0,
            warmup_steps=375,
            beta_2=0.98,
            weight_decay=0.05,
            precision="bfloat16",
            log_every=50,
            evaluate_every=1_000,
            evaluation_tokens=1_048_576,
        ),
        data=DataConfig(vocab_size=model.vocab_size),
    )


SCALING = {f"scaling-{size}": partial(scaling, size) for size in _LEARNING_RATES}
