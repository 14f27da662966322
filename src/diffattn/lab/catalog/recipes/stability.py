"""Stability studies: models of the laptop comparison's size at its learning rate and above."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from diffattn.lab.catalog.recipes.comparison import laptop as compared
from diffattn.lab.catalog.recipes.plan import RunPlan, StudyPlan, sane_start


def smoke() -> StudyPlan:
    """Tiny models at two rates, 40 steps: checks that everything runs.

    Command: ``diffattn reproduce stability --scale smoke``. Hardware: 2 CPU cores. Duration: under
    a minute. Expected: losses rise at the larger rate, which is far too large on purpose.
    """
    run = _run("stability-smoke", num_steps=40)
    model = replace(
        run.model,
        vocab_size=512,
        max_position_embeddings=32,
        num_hidden_layers=2,
        hidden_size=16,
        intermediate_size=64,
        num_heads=4,
        num_kv_heads=4,
        head_dim=4,
        embedding_multiplier=4.0,
    )
    train = replace(run.train, batch_tokens=64, seq_len=32, warmup_steps=4, evaluation_tokens=256)
    run = replace(run, model=model, train=train, data=replace(run.data, vocab_size=512))
    return {"run": run, "seeds": (0,), "learning_rates": (2e-3, 2.0)}


def laptop() -> StudyPlan:
    """The study's models at the usual and at its largest rate, 100 steps, 2 seeds.

    Command: ``diffattn reproduce stability``. Hardware: 2 CPU cores. Duration: about 7 minutes,
    estimated from runs of the study. Expected: *uninformative*, as 100 steps are too few for a
    model to gain from its context; no loss spike.
    """
    run = _run("stability-laptop", num_steps=100)
    return {"run": run, "seeds": (0, 1), "learning_rates": (3e-3, 1.2e-2)}


def study() -> StudyPlan:
    """500 steps at 1, 1.4, 2 and 4 times the usual rate, 5 seeds, 8 softmax heads (4 DIFF heads).

    Command: ``diffattn reproduce stability --scale study``. Hardware: 2 CPU cores. Duration: four
    and a half hours of processor time, estimated from 140 runs of 200 steps. Expected: the
    committed records. The papers have more DIFF heads and report spikes of models of 7B parameters.
    """
    run = _run("stability-study", num_steps=500)
    rates = (3e-3, 4.2e-3, 6e-3, 1.2e-2)
    return {"run": run, "seeds": (0, 1, 2, 3, 4), "learning_rates": rates}


def _run(name: str, *, num_steps: int) -> RunPlan:
    """The softmax run; the study replaces its learning rate."""
    base = compared()
    model = replace(base.model, vocab_size=1_024, **sane_start(base.model.hidden_size))
    pace: dict[str, Any] = {"num_steps": num_steps, "evaluate_every": num_steps}
    train = replace(base.train, batch_tokens=1_024, log_every=1, **pace)  # a spike lasts a step
    # Small, because every run reads the whole validation split at its end.
    data = replace(base.data, vocab_size=1_024, validation_fraction=0.01)
    return replace(base, name=name, model=model, train=train, data=data)


STABILITY: dict[str, Callable[[], StudyPlan]] = {"smoke": smoke, "laptop": laptop, "study": study}
