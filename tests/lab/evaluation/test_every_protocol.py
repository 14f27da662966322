"""A complete evaluation at reduced size, as one command: every protocol on every kind of model."""

import json
import random

import pytest
from typer.testing import CliRunner

from diffattn.lab.cli.app import app
from diffattn.lab.evaluation.catalog import PROTOCOLS
from diffattn.lab.evaluation.lm_tasks.documents import TASKS
from diffattn.lab.records.evaluations import EvalResult
from diffattn.lab.report.build import build_evaluation_report
from language_models import save
from lm_documents import write_task

pytest.importorskip("lm_eval", reason="lm-eval is not installed")
pytestmark = pytest.mark.scheduled


@pytest.fixture(scope="module")
def data(tmp_path_factory, text):
    """A folder of LM tasks and a folder of long texts, both generated."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "texts").mkdir()
    sentences = text.split(". ")
    for i in range(6):
        long = ". ".join(random.Random(i).choices(sentences, k=1_500))
        (folder / "texts" / f"{i}.txt").write_text(long, encoding="utf-8")
    for task in TASKS:
        write_task(folder / "tasks", task, 6)
    return folder


def test_all_protocols_on_all_kinds_of_model(models, build, data, tmp_path):
    arguments = ["evaluate", "all", "--quick", "--out", str(tmp_path / "out")]
    for kind in models:
        arguments += ["--model", save(build(kind, max_length=4_096), tmp_path / kind)]
    quantized = {"tasks": ["hellaswag"], "data": str(data / "tasks"), "limit": 4}
    settings = {
        "lm_tasks.data": data / "tasks",
        "quantized_logits.settings": json.dumps(quantized),
        "ar_hits.data": data / "texts",
    }
    haystacks = ("needle", "attention_segments", "babilong", "hidden_needle")
    settings |= {f"{name}.haystack": data / "texts" for name in (*haystacks, "ruler")}
    texts = ("nll_by_position", "sliding_perplexity", "word_perplexity", "block_perplexity")
    settings |= {f"{name}.texts": data / "texts" for name in texts}
    settings["quantized_logits.text"] = data / "texts"
    for key, value in settings.items():
        arguments += ["--set", f"{key}={value}"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    for kind in models:
        for variant in PROTOCOLS:
            result = EvalResult.read(tmp_path / "out" / kind / variant)
            assert result.num_failed == 0, (kind, variant)
            assert result.metrics
            rows = result.read_items(tmp_path / "out" / kind / variant)
            assert all(len(row["prompt"]["sha256"]) == 16 for row in rows), (kind, variant)
    page = build_evaluation_report(tmp_path / "out").read_text(encoding="utf-8")
    assert "What is missing or unequal" not in page


@pytest.mark.parametrize("longest", [None, 2_048])
def test_a_model_with_a_short_context_and_no_data(build, tmp_path, longest):
    """As the README's models are: 128 tokens, some hundred entries, nothing named."""
    model = save(build("diff", max_length=128), tmp_path / "short")
    names = [name for name, facts in PROTOCOLS.items() if longest or facts.any_context]
    arguments = ["evaluate", *names, model, "--quick", "--out", str(tmp_path / "out")]
    beyond = ["--max-length", str(longest)] if longest else []
    done = CliRunner().invoke(app, [*arguments, *beyond])
    assert done.exit_code == 0, (done.output, done.exception)
    for variant in names:
        result = EvalResult.read(tmp_path / "out" / "short" / variant)
        assert result.num_failed == 0, variant
        assert result.model["max_length"] == (longest or 128)
