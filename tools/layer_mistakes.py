"""What each known mistake of a copied V1 layer does: to the first output, and to a trained model.

    python -m tools.layer_mistakes docs/records/layer_mistakes.json     # minutes on one core

A model of two layers learns bytes of Python's own files, once per mistake and seed, from the same
start on the same batches. A model that sees the future has a low training loss; so the loss is
also taken of a byte that nothing follows.
"""

import argparse
import ast
import heapq
import inspect
import statistics
import sys
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diffattn import DiffAttention
from diffattn.files.io import write_json
from diffattn.lab.layer_check import formula as formulas
from diffattn.lab.layer_check.formula import FACTS, PLANTED, Formula, LayerWeights, attend
from diffattn.ops.inputs.formulas import lambda_init

WIDTH, HEADS, KV_HEADS, HEAD_DIM, LAYERS, DEPTH = 64, 4, 2, 8, 2, 12
STEPS, BATCH, LENGTH, SEEDS, RATE = 1_500, 8, 64, 3, 3e-3
VECTORS = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
TRAINED = ("right", "lambda_init_sign", "zero_vectors", "not_causal", "wide_start")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to build the layer."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    std: float = 0.1
    """Of λ's vectors at the start."""
    shift: int = 0
    """Added to the index of the layer before λ_init follows from it."""
    constant: float | None = None
    """λ_init of every layer."""

    def lambda_init(self, layer_idx: int) -> float:
        """λ_init of a layer."""
        return lambda_init(layer_idx + self.shift) if self.constant is None else self.constant


CASES = [
    Case(name="right"),
    *(Case(name=m.name, changes=m.changes) for m in PLANTED if "diff" in m.attention_types),
    Case(name="zero_vectors", std=0.0),
    Case(name="wide_start", std=1.0),
    Case(name="lambda_init_depth", shift=1),
    Case(name="lambda_init_constant", constant=0.8),
]
TEXTS = {
    "right": "None.",
    "zero_vectors": FACTS["zero_vectors"],
    "wide_start": "The vectors of λ start with deviation 1, not 0.1.",
    "lambda_init_depth": "λ_init has the index of the layer plus one.",
    "lambda_init_constant": "λ_init is 0.8 in every layer.",
}


class PlantedAttention(nn.Module):
    """V1 by the formula, with one mistake."""

    def __init__(self, case: Case, layer_idx: int) -> None:
        super().__init__()
        self.layer = DiffAttention(WIDTH, HEADS, HEAD_DIM, num_kv_heads=KV_HEADS)
        with torch.no_grad():
            for name in VECTORS:
                getattr(self.layer, name).mul_(case.std / 0.1)
        wide = case.changes.get("norm_over") in ("heads", "output")
        self.norm = nn.Parameter(torch.ones(WIDTH if wide else 2 * HEAD_DIM))
        self.formula = replace(Formula(lambda_init=case.lambda_init(layer_idx)), **case.changes)

    def weights(self) -> LayerWeights:
        """The parameters by role."""
        return LayerWeights(
            attention_type="diff", num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM,
            matrices={role: getattr(self.layer, f"{role}_proj").weight for role in "qkvo"},
            biases={}, lambdas=tuple(getattr(self.layer, name) for name in VECTORS),
            norm=torch.stack((self.norm, torch.zeros_like(self.norm))),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, WIDTH]`` to the same shape."""
        return attend(self.weights(), self.formula, x)


class Model(nn.Module):
    """A decoder of bytes with learned positions."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.attention = nn.ModuleList(PlantedAttention(case, i) for i in range(LAYERS))
        self.feed_forward = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(LAYERS)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 * LAYERS + 1))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits ``[B, T, 256]``."""
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1]))
        for i, (attention, mlp) in enumerate(zip(self.attention, self.feed_forward, strict=True)):
            x = x + attention(self.norms[2 * i](x))
            x = x + mlp(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x))


def read(*modules: ModuleType) -> Tensor:
    """Bytes of the files of modules, as integers."""
    text = "".join(inspect.getsource(module) for module in modules)
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()


def train(case: Case, seed: int) -> dict[str, float]:
    """λ of the first layer and losses in nats per byte: of the last 20 steps, of unseen bytes."""
    data, judged = read(argparse, ast, heapq, textwrap), read(inspect)
    torch.manual_seed(seed)
    model = Model(case)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    draws, losses = torch.Generator().manual_seed(seed), []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 40) * (1 - step / STEPS)
        starts = torch.randint(len(data) - LENGTH, (BATCH,), generator=draws)
        rows = torch.stack([data[i : i + LENGTH + 1] for i in starts])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    rows = torch.stack(
        [judged[i : i + LENGTH + 1] for i in range(0, len(judged) - LENGTH - 1, 128)]
    )
    with torch.no_grad():
        next_byte = F.cross_entropy(model(rows[:, :-1])[:, -1], rows[:, -1])
    return {
        "training": statistics.fmean(losses[-20:]),
        "next_byte": next_byte.item(),
        "last_lambda": measured_lambda(model.attention[0]),
    }


@torch.no_grad()
def at_the_start(case: Case) -> dict[str, float]:
    """λ of layers 1 and 12, and how far layer 1's output is from the right one's, relative."""
    x = torch.randn(4, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    layer = PlantedAttention(case, 0)
    torch.manual_seed(0)
    right = PlantedAttention(CASES[0], 0)(x)
    facts = {"changed": round(float((layer(x) - right).norm() / right.norm()), 4)}
    for number in (1, DEPTH):
        torch.manual_seed(0)
        lam = measured_lambda(PlantedAttention(case, number - 1))
        facts[f"lambda_{number}"] = round(lam, 4)
    return facts


def measured_lambda(layer: Any) -> float:
    """λ as the formula makes it."""
    return formulas.layer_lambda(layer.weights(), layer.formula).item()


def table(record: dict[str, Any]) -> str:
    """The start of every case as Markdown."""
    texts = formulas.TEXTS | TEXTS
    lines = [
        "| name | mistake | output changed | λ, layer 1 | λ, layer 12 |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, facts in record["cases"].items():
        numbers = (f"{facts[f'lambda_{number}']:.2f}" for number in (1, DEPTH))
        cells = (f"`{name}`", texts[name], f"{100 * facts['changed']:.1f} %", *numbers)
        lines.append(f"| {' | '.join(cells)} |".replace("| -", "| −"))
    return "\n".join(lines)


def main(path: str) -> None:
    """Train every case with every seed, and write the record."""
    torch.set_num_threads(1)
    record: dict[str, Any] = {"steps": STEPS, "seeds": SEEDS, "torch": torch.__version__}
    record["cases"] = {}
    for case in CASES:
        record["cases"][case.name] = at_the_start(case)
        if case.name in TRAINED:
            runs = [train(case, seed) for seed in range(SEEDS)]
            record["cases"][case.name] |= {
                name: [round(run[name], 4) for run in runs] for name in runs[0]
            }
        print(case.name, record["cases"][case.name], flush=True)
    write_json(Path(path), record)


if __name__ == "__main__":
    main(sys.argv[1])
