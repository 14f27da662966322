"""The seven tasks: log-likelihoods by an independent computation, counts as the harness's."""

import json

import pytest
import torch

from diffattn.lab.evaluation.compare import compare
from diffattn.lab.evaluation.lm_tasks.documents import TASKS, read_task
from diffattn.lab.evaluation.lm_tasks.lm_tasks import LmTasks, harness_questions, harness_task
from diffattn.lab.evaluation.metrics import task_metric
from diffattn.lab.inference.language_model import LanguageModel
from evaluation_folders import evaluated
from language_models import plain_logprobs
from lm_documents import documents, write_task

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
COUNT = 5


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Files of all seven tasks; three of them with training documents."""
    folder = tmp_path_factory.mktemp("lm") / "data"
    for task in TASKS:
        write_task(folder, task, COUNT, 6 if task in ("arc_easy", "boolq", "piqa") else 0)
    return folder


def run(model, out, **settings):
    return evaluated(model, LmTasks(**settings), out)


def metric(result, name, task):
    (one,) = [m for m in result.metrics if m.name == name and m.where.get("task") == task]
    return one


def logprob(model, context, continuation):
    """Sum over the continuation's tokens, by one plain forward pass of what the tokenizer makes."""
    everything = model.tokenizer.encode(context + continuation)
    whole = everything[-(model.max_length + 1) :]
    first = len(model.tokenizer.encode(context)) - (len(everything) - len(whole))
    return float(plain_logprobs(model, whole)[first - 1 :].sum())


def test_an_independent_computation(models, folder, tmp_path):
    """Every log-likelihood by a plain pass of its own, and the answers that follow from them."""
    model = models["diff"]
    result, rows = run(model, tmp_path / "out", data=str(folder))
    assert (result.num_items, result.num_failed) == (len(TASKS) * COUNT, 0)
    by_id = {row["id"]: row for row in rows}
    for task in TASKS:
        questions, _ = harness_questions(task, read_task(folder, task))
        right = dict.fromkeys(("acc", "acc_norm", "acc_bytes"), 0)
        for i, question in enumerate(questions):
            row = by_id[f"{task}-{i}"]
            expected = [logprob(model, *pair) for pair in question.pairs]
            # Logits become float32 before the softmax.
            assert row["logprobs"] == pytest.approx(expected, rel=1e-5, abs=1e-5)
            for name, size in (
                ("acc", lambda x: 1),
                ("acc_norm", len),
                ("acc_bytes", lambda x: len(x.encode())),
            ):
                values = [x / size(c) for x, c in zip(expected, question.choices, strict=True)]
                right[name] += values.index(max(values)) == question.gold
        for name, count in right.items():
            assert metric(result, name, task).value == pytest.approx(count / COUNT)
    headlines = [metric(result, task_metric(task), task) for task in TASKS]
    average = metric(result, "average", None)
    assert average.value == pytest.approx(sum(m.value for m in headlines) / len(TASKS))
    assert [m for m in result.metrics if m.headline] == [*headlines, average]


def test_the_average_over_items_is_that_of_the_tasks(models, tmp_path):
    """Tasks of unequal size: what is compared between models is what stands in the table."""
    sizes, values = {"piqa": 9, "boolq": 2, "winogrande": 4}, {}
    for task, count in sizes.items():
        write_task(tmp_path / "data", task, count)
    settings = {"data": str(tmp_path / "data"), "tasks": tuple(sizes)}
    for label in ("softmax", "diff"):
        result, rows = run(models[label], tmp_path / label / "lm_tasks", **settings)
        own = [metric(result, "acc", task).value for task in sizes]
        assert len(set(own)) > 1
        values[label] = metric(result, "average", None).value
        assert values[label] == pytest.approx(sum(own) / 3)
        weighed = [(row["weights"]["average"], row["scores"]["average"]) for row in rows]
        mean = sum(w * x for w, x in weighed) / sum(w for w, _ in weighed)
        assert values[label] == pytest.approx(mean)
        assert {x for _, x in weighed} <= {0.0, 1.0}
    differences = compare(tmp_path, list(values), ["lm_tasks"]).differences
    (whole,) = [entry for entry in differences if entry.score == "average"]
    parts = {x.where["task"]: (x.score, x.n, x.difference) for x in differences if x.where}
    assert {task: x[:2] for task, x in parts.items()} == {
        task: (f"{task} acc", count) for task, count in sizes.items()
    }
    assert whole.primary
    assert whole.difference == pytest.approx(sum(x[2] for x in parts.values()) / 3)
    assert whole.difference == pytest.approx(values["diff"] - values["softmax"])


@pytest.mark.parametrize("num_fewshot", [0, 3])
def test_counts_equal_those_of_the_harness(models, folder, num_fewshot, tmp_path):
    """The harness's own evaluation loop and model wrapper, on the same documents."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    own, tasks = models["diff"], ("arc_easy", "hellaswag", "winogrande")
    model = LanguageModel(own.network, own.tokenizer)
    settings = {"data": str(folder), "num_fewshot": num_fewshot, "tasks": tasks}
    result, rows = run(model, tmp_path / "out", **settings)
    assert result.tables["bos"] is False
    found = simple_evaluate(
        model=HFLM(pretrained=own.network, tokenizer=own.tokenizer, batch_size=4),
        tasks=[harness_task(task, read_task(folder, task)) for task in tasks],
        num_fewshot=num_fewshot,
        bootstrap_iters=0,
        log_samples=True,
        task_manager=TaskManager(include_defaults=False),
    )
    by_id = {row["id"]: row for row in rows}
    for task in tasks:
        theirs = found["results"][task]
        for name in ("acc", "acc_norm"):
            if f"{name},none" in theirs:
                assert metric(result, name, task).value == pytest.approx(theirs[f"{name},none"])
        assert len(found["samples"][task]) == COUNT
        for sample in found["samples"][task]:
            expected = [float(logprob) for (logprob, _), *_ in sample["resps"]]
            row = by_id[f"{task}-{sample['doc_id']}"]
            assert row["logprobs"] == pytest.approx(expected, rel=1e-5)


def test_contexts_longer_than_the_model_lose_their_beginning(build, folder, tmp_path):
    model = build("softmax", max_length=24, dtype=torch.float64)
    result, rows = run(model, tmp_path / "out", data=str(folder), tasks=("boolq",), num_fewshot=2)
    assert result.num_failed == 0
    assert all(row["cut_tokens"] > 0 for row in rows)
    assert all(row["examples_from"] == "training" for row in rows)
    assert result.tables["documents"]["boolq"] == {"documents": COUNT, "cut_contexts": COUNT}
    questions, _ = harness_questions("boolq", read_task(folder, "boolq"), num_fewshot=2)
    for row, question in zip(rows, questions, strict=True):
        expected = [logprob(model, *pair) for pair in question.pairs]
        assert row["logprobs"] == pytest.approx(expected, rel=1e-5)


def test_items_that_cannot_be_asked_are_recorded(models, tmp_path):
    """An empty answer, and one that has no token of its own, take no other item down."""
    good, empty = documents("piqa", 2)
    (tmp_path / "piqa.jsonl").write_text(
        "".join(json.dumps(one) + "\n" for one in (good, empty | {"sol2": ""})), encoding="utf-8"
    )
    result, rows = run(models["softmax"], tmp_path / "out", data=str(tmp_path), tasks=("piqa",))
    assert (result.num_items, result.num_failed) == (2, 1)
    assert "piqa document 1: choices must not be empty" in rows[1]["error"]


@pytest.mark.parametrize("add_bos", [None, True, False])
def test_bos_is_the_tokenizers_unless_told_otherwise(models, folder, add_bos, tmp_path):
    own = models["diff"]
    model = LanguageModel(own.network, own.tokenizer, add_bos=add_bos)
    result, _ = run(model, tmp_path / "out", data=str(folder), tasks=("winogrande",), limit=2)
    assert result.tables["bos"] is (add_bos is True)
    assert (model.bos is None) is (add_bos is False)  # for the other protocols
