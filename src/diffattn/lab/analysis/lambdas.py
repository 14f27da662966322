"""λ during the training of a run, and the layers in which it leaves [0, 1]."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffattn.errors import CheckpointError, short
from diffattn.files.io import read_jsonl
from diffattn.lab.records.run import RunRecord
from diffattn.models.config.attention_types import ATTENTION
from diffattn.ops.inputs.formulas import lambda_init


def lambda_flags(layers: Sequence[dict[str, Any]]) -> list[str]:
    """One sentence for each layer in which λ is below 0, and one for each in which it is above 1.

    Below 0 the second map is added, not subtracted; above 1 a row of the difference sums to less
    than 0. V1 does not clamp λ (arXiv:2410.05258v2, Eq. (2)).
    """
    flags = []
    for number, layer in enumerate(layers):
        for key, words, end in (("below_0", "below 0", min), ("above_1", "above 1", max)):
            share = sum(layer[key]) / len(layer[key])
            if share:
                furthest = end(layer["min" if end is min else "max"])
                flags.append(
                    f"Layer {number}: λ is {words} for {share:.1%} of tokens and heads, as far as "
                    f"{furthest:.3f}."
                )
    return flags


def initial_lambdas(model: dict[str, Any]) -> list[float] | None:
    """λ_init of every layer of a recorded configuration; ``None`` for types without λ vectors.

    Source: arXiv:2410.05258v2, after Eq. (2).
    """
    names = str(model.get("attention_type")).split(",")
    if not any(name in ATTENTION and ATTENTION[name].lambda_vectors for name in names):
        return None
    given, layers = model.get("lambda_init"), range(model["num_hidden_layers"])
    if isinstance(given, list):
        return [float(value) for value in given]
    return [lambda_init(layer) if given is None else float(given) for layer in layers]


def lambda_log(folder: Path) -> Any:
    """Read λ of every layer from the training log of a run, with or without weights.

    Returns:
        ``None`` if no λ was logged, else a dictionary: ``run``, ``steps``, ``values`` (per step one
        λ per layer; in V2 the mean over tokens and heads), ``lambda_init`` (see
        :func:`initial_lambdas`) and ``flags`` (a sentence per layer with λ outside [0, 1]).
    """
    record = RunRecord.read(folder)
    rows = [row for row in read_jsonl(folder / "metrics.jsonl") if row.get("lam") is not None]
    if not rows:
        return None
    model = record.config.get("model", {})
    layers = model.get("num_hidden_layers")
    for row in rows:
        values = row["lam"]
        numbers = isinstance(values, list) and all(isinstance(x, int | float) for x in values)
        if not numbers or len(values) != layers:
            raise CheckpointError(
                f"{folder / 'metrics.jsonl'}: lam must hold a number for each of {short(layers)} "
                f"layers, got {short(values)}."
            )
    flags = []
    for layer in range(layers):
        lams = {row["step"]: row["lam"][layer] for row in rows}
        for words, steps in (
            ("below 0", [step for step, lam in lams.items() if lam < 0]),
            ("above 1", [step for step, lam in lams.items() if lam > 1]),
        ):
            if steps:
                flags.append(
                    f"Layer {layer}: λ was {words} at {len(steps)} of {len(rows)} logged steps, "
                    f"first at step {steps[0]}."
                )
    return {
        "run": record.name,
        "steps": [row["step"] for row in rows],
        "values": [row["lam"] for row in rows],
        "lambda_init": initial_lambdas(model),
        "flags": flags,
    }
