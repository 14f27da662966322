"""A folder of a study of models on text, every number in it made up, as one is written."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from diffattn.lab.catalog.models import SWEPT, TYPES, VARIANTS, Variant, rate_owner
from diffattn.lab.stats.intervals import mean_interval
from diffattn.lab.stats.paired import paired_difference
from record_files import write_record, write_run

ALL = (
    *TYPES, "none", "none_ffn", "softmax_half", "softmax_minus_mean", "diff_no_norm",
    "diff_v2_gate", "diff_v2_constant", "diff_v2_norm", "diff_v2_added", "diff_token_lambda",
    "diff_v2_heads", "diff_v2_flops", "shared_diff_heads",
)  # fmt: skip
OFFSETS = {"softmax": 0.0, "diff": -0.031, "diff_v2": 0.002, "shared_diff": 0.027}
OFFSETS |= {"none": 0.61, "none_ffn": 0.55, "softmax_half": -0.004, "softmax_minus_mean": 0.03}
COMMON_RATE = 1e-3
BEST_RATES = {"diff": 2e-3, "none": 5e-4}
TRIED = (5e-4, 1e-3, 2e-3, 4e-3)
TOKENS = ["def", " ", "main", "(", "a", "<script>", "alert(1)", "</script>", ")", ":", "\n", " "]
PARTS = {"repeated_bigram": -0.9, "repeated_token": 0.1, "first_occurrence": 0.8}
PARTS |= {"quarter_1": 0.2, "quarter_2": 0.05, "quarter_3": -0.1, "quarter_4": -0.15}
COUNTED = {"repeated_bigram": 13_000, "repeated_token": 27_000, "first_occurrence": 25_000}
COUNTED |= dict.fromkeys(("quarter_1", "quarter_2", "quarter_3", "quarter_4"), 16_250)
VERDICT = {
    "informative": True,
    "sentence": "Made-up verdict: DIFF V1 is ahead of the Transformer by 0.03 nats per token.",
    "details": ["Made-up detail: at both rates.", "And <how> it was tested."],
    "reasons": [],
    "margin": 0.1,
}


def variant_of(name: str) -> Variant:
    """As the catalog has it; a model that it does not know is an ablation of V1."""
    return VARIANTS.get(name) or replace(VARIANTS["diff_token_lambda"], name=name)


def write_study(
    folder: Path,
    *,
    seeds: Sequence[int] = (0, 1, 2),
    variants: Sequence[str] = TYPES,
    sweep: bool = False,
    scale: str = "laptop",
    tokens: Sequence[str] = TOKENS,
    num_layers: int = 4,
    num_steps: int = 300,
    verdict: dict[str, Any] | None = VERDICT,
) -> Path:
    """Write a whole study."""
    made = _Made(folder, variants, seeds, num_layers, num_steps, sweep)
    made.write()
    write_record(folder / "study.json", made.info(scale))
    write_record(folder / "costs.json", {"schema": 1, "runs": made.costs})
    results = made.results(scale) | ({} if verdict is None else {"verdict": verdict})
    write_record(folder / "results.json", results)
    write_record(folder / "maps.json", _maps(variants, tokens, num_layers))
    return folder


class _Made:
    """Runs as they are written, and what the records of the study say of them."""

    def __init__(self, folder, variants, seeds, num_layers, num_steps, sweep):
        self.folder, self.variants, self.seeds = folder, list(variants), list(seeds)
        self.num_layers, self.num_steps, self.sweep = num_layers, num_steps, sweep
        self.random = random.Random(7)
        self.losses: dict[str, float] = {}
        self.costs: dict[str, Any] = {}
        self.models: dict[str, dict[str, int]] = {}
        model = {"attention_type": "softmax", "num_heads": 8, "num_kv_heads": 8, "head_dim": 16}
        model |= {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": num_layers}
        train = {"num_steps": num_steps, "batch_tokens": 4096, "seq_len": 256}
        train["learning_rate"] = COMMON_RATE
        source = {"source": "stdlib", "vocab_size": 1024}
        self.config: dict[str, Any] = {"model": model, "train": train, "data": source}

    def info(self, scale: str) -> dict[str, Any]:
        data = {"source": "stdlib", "corpus_hash": "made-up-hash", "train_tokens": 3_141_592}
        data |= {"validation_tokens": 65_536, "validation_bytes": 190_000}
        data |= {"vocab_size": 1024, "python": "3.11.7"}
        study = {"schema": 1, "scale": scale, "created": "2001-02-03T04:05:06+00:00"}
        study |= {"variants": self.variants, "seeds": self.seeds, "config": self.config}
        return study | {"data": data, "config_hash": "0123456789abcdef", "match": "params"}

    def best_rate(self, name: str) -> float:
        return BEST_RATES.get(rate_owner(name), COMMON_RATE) if self.sweep else COMMON_RATE

    def write(self) -> None:
        for name in self.variants:
            for seed in self.seeds:
                self.run(name, f"{name}-seed{seed}", seed, self.best_rate(name))
                if self.best_rate(name) != COMMON_RATE:
                    self.run(name, f"{name}-common-seed{seed}", seed, COMMON_RATE)
            if self.sweep and name in SWEPT:
                for rate in TRIED:
                    self.run(name, f"{name}-lr{rate:g}-sweep100", 100, rate)

    def run(self, kind: str, name: str, seed: int, rate: float) -> None:
        """One run; further from the best rate, its loss is higher."""
        offset = OFFSETS.get(kind, 0.01 * (len(kind) % 7) - 0.03)
        rates = BEST_RATES.get(variant_of(kind).attention_type, COMMON_RATE)
        far = 0.02 * abs(math.log2(rate / rates)) if self.sweep else 0.0
        final = 3.21 + offset + far + 0.02 * seed + self.random.gauss(0, 0.004)
        extra = {"softmax": 0, "diff": 384, "diff_v2": -1_280, "shared_diff": -640}.get(kind, 96)
        heads = 4 if kind in ("diff", "shared_diff") else 8
        shape = {"attention_type": variant_of(kind).attention_type, "num_heads": heads}
        shape |= {"num_kv_heads": heads, "intermediate_size": 304 if kind == "diff_v2" else 344}
        sizes = {"parameters": 912_384 + extra, "non_embedding_parameters": 781_312 + extra}
        sizes |= {"train_flops_per_token": 6_123_456 + 6 * extra}
        self.models[kind] = sizes
        train = self.config["train"] | {"learning_rate": rate}
        config = self.config | {"model": self.config["model"] | shape, "train": train}
        rows, lam = self.rows(kind, final)
        starts = [0.8 - 0.6 * math.exp(-0.3 * layer) for layer in range(self.num_layers)]
        result = {"validation_loss": final, "validation_bits_per_byte": final * 0.4976}
        result |= {"tokens": 4096 * self.num_steps, "lam": lam}
        result["lambda_init"] = starts if kind in ("diff", "shared_diff") else None
        result["validation_parts"] = {
            part: {"tokens": COUNTED[part], "loss": final + shift} for part, shift in PARTS.items()
        }
        speed = {"softmax": 8_000, "diff": 5_600, "diff_v2": 6_100}.get(kind, 5_200)
        cost = {"wall_seconds": 60 + seed, "cpu_seconds": (58.5 + seed) * 8_000 / speed}
        cost |= {"tokens_per_second": speed - 10 * seed, "peak_bytes": 500_000_000 + speed * 1000}
        _, self.costs[name] = write_run(
            self.folder / "runs" / name, config, seed, result, rows=rows, cost=cost,
            model=sizes | {"parameter_difference": extra, "flops_difference": 6 * extra},
            dirty=kind == "diff",
            backends={} if kind == "softmax" else {"diff_attention": "composed"},
        )  # fmt: skip
        self.losses[name] = final

    def rows(self, kind: str, final: float) -> tuple[list[dict[str, Any]], list[float] | None]:
        """``metrics.jsonl``, and λ at its end."""
        rows, lam = [], None
        learned = kind in ("diff", "diff_v2", "shared_diff")
        for step in range(0, self.num_steps + 1, 5):
            progress = step / self.num_steps
            loss = final + (6.93 - final) * math.exp(-6 * progress)
            row = {"step": step, "tokens": 4096 * step, "learning_rate": 1e-3 * (1 - progress)}
            rows.append(row)
            row |= {"train_loss": loss + self.random.gauss(0, 0.05), "gradient_norm": 1.0}
            if step % 25:
                continue
            row["validation_loss"] = loss
            row["validation_parts"] = {p: loss + x * progress for p, x in PARTS.items()}
            if learned:
                starts = (0.8 - 0.6 * math.exp(-0.3 * layer) for layer in range(self.num_layers))
                lam = [s + 0.1 * progress * (1 + layer / 4) for layer, s in enumerate(starts)]
                lam = [round(x + self.random.gauss(0, 0.01), 4) for x in lam]
                row["lam"] = lam
        return rows, lam

    def results(self, scale: str) -> dict[str, Any]:
        results = {"schema": 3, "protocol": {"name": "matched_comparison", "version": 4}}
        results |= {"scale": scale, "complete": True, "seeds": self.seeds, "rates": self.rates()}
        results["variants"] = {name: self.variant(name) for name in self.variants}
        results["differences"] = self.differences()
        statement = "Made-up statement: 4 DIFF heads are < 8, below the tested range."
        results["statement"] = statement
        results["count_models"] = {
            name: {"loss": loss, "parts": {part: loss + PARTS[part] for part in PARTS}}
            for name, loss in (("unigram", 5.99), ("bigram", 4.11), ("bigram_copy", 3.54))
        }
        return results | {"phase": {"threshold": 0.4, "what": "made up, a gain of 0.4 nats"}}

    def rates(self) -> dict[str, Any]:
        variants = {}
        for name in self.variants:
            swept = self.sweep and name in SWEPT
            runs = {f"{name}-lr{rate:g}-sweep100": rate for rate in TRIED if swept}
            tried = [
                {"run": run, "learning_rate": rate, "validation_loss": self.losses[run]}
                for run, rate in runs.items()
            ]
            inside = name != "none" if swept else None
            variants[name] = {"best": self.best_rate(name), "inside": inside, "tried": tried}
        sweep = {"sweep_seed": 100, "sweep_steps": self.num_steps // 2}
        sweep = sweep if self.sweep else dict.fromkeys(sweep)
        return {"common": COMMON_RATE, "variants": variants} | sweep

    def variant(self, name: str) -> dict[str, Any]:
        at = {"best": self.group(name, "")}
        if self.best_rate(name) != COMMON_RATE:
            at["common"] = self.group(name, "common-")
        entry = {"what": f"Made up: what {name} separates.", "at": at, "match": "params"}
        entry |= {key: getattr(variant_of(name), key) for key in ("role", "attention_type")}
        sizes = ("parameters", "train_flops_per_token")
        return entry | {key: self.models[name][key] for key in sizes}

    def names(self, variant: str, middle: str) -> list[str]:
        return [f"{variant}-{middle}seed{seed}" for seed in self.seeds]

    def group(self, name: str, middle: str) -> dict[str, Any]:
        runs = self.names(name, middle)
        losses = [self.losses[run] for run in runs]
        group = {"learning_rate": COMMON_RATE if middle else self.best_rate(name), "runs": runs}
        group["validation_loss"] = _summary(losses, mean_interval(losses))
        by_part = {part: [loss + PARTS[part] for loss in losses] for part in PARTS}
        group["parts"] = {k: _summary(v, mean_interval(v)) for k, v in by_part.items()}
        steps = [125 + 25 * (seed % 3) for seed in self.seeds]
        if name == "shared_diff":
            steps[-1] = None
        group["phase_steps"] = [None] * len(runs) if name.startswith("none") else steps
        return group

    def differences(self) -> list[dict[str, Any]]:
        pairs = [
            (name, variant_of(name).compared_with) for name in self.variants if name != "softmax"
        ]
        pairs += [(name, "none") for name in self.variants if name in TYPES[1:]]
        made = []
        for name, other in pairs:
            if other not in self.variants:
                continue
            moved = {item for item in (name, other) if self.best_rate(item) != COMMON_RATE}
            for at in ("best", "common") if moved else ("best",):
                runs, others = (
                    self.names(item, "common-" if at == "common" and item in moved else "")
                    for item in (name, other)
                )
                here, there = ([self.losses[run] for run in side] for side in (runs, others))
                for metric in ("validation_loss", *PARTS):
                    change = [a - b for a, b in zip(here, there, strict=True)]
                    entry = {"variant": name, "baseline": other, "at": at, "metric": metric}
                    entry["runs"] = [list(pair) for pair in zip(runs, others, strict=True)]
                    made.append(entry | _summary(change, paired_difference(here, there)))
        return made


def _summary(values: list[float], interval: Any) -> dict[str, Any]:
    keys = ("mean", "low", "high", "level")
    return {"values": values} | {key: getattr(interval, key) for key in keys}


def _maps(variants: Sequence[str], tokens: Sequence[str], num_layers: int) -> dict[str, Any]:
    """The first map looks at the token before, the second at the third before."""
    rng, lam = np.random.default_rng(7), 0.53
    focus = np.stack([np.eye(len(tokens), k=-1), np.eye(len(tokens), k=-3)])
    layers: dict[str, Any] = {}
    for kind in variants:
        if kind not in TYPES:
            continue
        maps = np.tril(rng.random(focus.shape) ** 3 + 2 * focus)
        first, second = maps / maps.sum(-1, keepdims=True)
        entry = {"run": f"{kind}-seed0", "layer": num_layers - 1, "head": 0}
        layers[kind] = entry | {"map_1": first.round(4).tolist()}
        if kind != "softmax":
            signed = (first - lam * second).round(4).tolist()
            layers[kind] |= {"map_2": second.round(4).tolist(), "difference": signed, "lam": lam}
    return {"schema": 1, "tokens": list(tokens), "layers": layers}
