"""Evaluation folders: of made-up answers, and of a protocol on a model."""

from diffattn.files.io import log_facts, read_jsonl
from diffattn.lab.evaluation.compare import Answers
from diffattn.lab.evaluation.protocol import Part
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.records.evaluations import EvalResult, PairedDifference, register
from record_files import change_record, write_rows


def write(folder, label, right, *, variant="key_values", weights=None, **more):
    """One model's result of one protocol, 0 or 1 per item."""
    part = folder / label / variant
    register(folder, label, variant)
    part.mkdir(parents=True)
    rows = [{"id": str(i), "scores": {"recall": float(x)}} for i, x in enumerate(right)]
    write_rows(part / "items.jsonl", rows)
    result = made_up(label, rows, variant=variant, weights=weights or label, **more)
    result.write(part)
    change_record(part / "result.json", items=log_facts(part / "items.jsonl"))
    return part


def made_up(label, rows, *, vocabulary="v", weights="", **more):
    model = {"label": label, "weights": weights, "vocabulary": vocabulary, "dtype": "float32"}
    model |= {"bos": 1, "max_length": 8}
    values = {"variant": "key_values", "model": model, "num_items": len(rows)} | more
    return eval_result(values.pop("protocol", "key_values"), **values)


def eval_result(protocol, **more):
    """A result without numbers, but for what is given."""
    values = {
        "protocol": protocol, "version": 1, "source": "", "variant": protocol, "model": {},
        "parameters": {}, "choices": {}, "metrics": [], "tables": {}, "num_items": 1,
        "num_failed": 0, "items": {},
    } | more  # fmt: skip
    return EvalResult(**values)


def paired(**more):
    """A difference of ``b`` and ``a`` that nothing tells from 0, but for what is given."""
    values = {
        "variant": "needle", "score": "recall", "model": "b", "baseline": "a", "difference": 0.0,
        "low": None, "high": None, "level": 0.95, "method": "", "p_value": None, "test": "",
        "n": 10, "num_items": 10, "num_unpaired": 0,
    } | more  # fmt: skip
    return PairedDifference(**values)


def answers(label, rows, **more):
    """The answers of a model in ``key_values``, or in the protocol that is named."""
    return Answers(label, made_up(label, rows, **more), rows)


def evaluated(model, protocol, folder, **options):
    part = Part(variant=protocol.name, protocol=protocol)
    result = evaluate(model, part, folder, **options)
    return result, read_jsonl(folder / "items.jsonl")


def values(result, name, key):
    """The values of a metric, by what its ``where`` says of a key."""
    return {m.where.get(key): m.value for m in result.metrics if m.name == name}
