"""Models on a server: asked in tokens, with retries, keys kept; what needs logits is refused."""

import json

import pytest
from typer.testing import CliRunner

from diffattn.errors import ConfigError
from diffattn.lab.cli.app import app
from diffattn.lab.evaluation.catalog import PROTOCOLS
from diffattn.lab.evaluation.served_model import ServedModel, served_settings
from diffattn.lab.inference.network_reader import ItemError, ModelError
from diffattn.lab.records.evaluations import EvalResult
from judge_server import judge_server

KEY = "sk-very-secret-key"


def server(answer, *, failures=0):
    """Serve completions of ``answer(body)``; the first so many requests get a 503."""

    def complete(body):
        choice = {"text": answer(body), "index": 0, "finish_reason": "stop"}
        return 200, {"model": "m", "choices": [choice]}, {}

    return judge_server(*[(503, b"no", {})] * failures, complete)


@pytest.fixture(scope="module")
def tokenizer_folder(tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def open_served(tokenizer_folder):
    def make(url, *more):
        changes = [
            "big.model=owner/big", f"big.tokenizer={tokenizer_folder}", "big.max_length=4096",
            "big.first_wait_seconds=0.01", "big.timeout_seconds=5", *more,
        ]  # fmt: skip
        return ServedModel(served_settings("big", url, changes), label="big")

    return make


def test_prompts_go_as_tokens_and_answers_are_cut(open_served, monkeypatch):
    monkeypatch.setenv("BIG_KEY", KEY)
    with server(lambda body: " river and so on", failures=1) as (url, asked):
        model = open_served(url, "big.key_variable=BIG_KEY", "big.workers=1")
        ids = model.encode_prompt("the old king")
        (one,) = model.generate([ids], max_new_tokens=9, stop=[" so"])
        assert (one.text, one.finished) == (" river and", "stop")
        assert len(asked) == 2  # the first failed in a way that may pass
        sent = asked[1]
        assert sent["path"] == "/v1/completions"
        assert sent["headers"]["Authorization"] == f"Bearer {KEY}"
        assert sent["body"] == {
            "model": "owner/big", "prompt": ids, "max_tokens": 9, "stop": [" so"],
            "temperature": 0.0,
        }  # fmt: skip
        assert KEY not in json.dumps(model.facts())
        with pytest.raises(ItemError, match="must fit the model's 4096 tokens"):
            model.generate([ids], max_new_tokens=5_000)


def test_what_a_server_cannot_do_is_refused_by_name(open_served):
    with judge_server((401, b"no", {})) as (url, asked):
        model = open_served(url)
        for call in (lambda: model.score([]), lambda: model.read([1]), lambda: model.network):
            with pytest.raises(ModelError, match="big: this protocol needs logits or maps"):
                call()
        assert not asked
        with pytest.raises(ModelError, match="must accept the key and know the model 'owner/big'"):
            model.generate([[1]], max_new_tokens=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], r"a served model needs --served big.model=\.\.\., got none"),
        (["big.model=m", "big.tokenizer=t"], "needs --served big.max_length="),
        (["big.modle=m"], "unknown key 'big.modle'. Did you mean 'big.model'"),
        (["big.max_tokens=9"], "unknown key 'big.max_tokens'"),  # the protocol's to say
        (["model=m"], "must be LABEL.KEY=VALUE, got 'model'"),
        (["big.model=m", "big.tokenizer=t", "big.max_length=1"], "max_length must be a whole"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message):
        served_settings("big", "http://127.0.0.1:1/v1", changes)


@pytest.mark.scheduled
def test_every_protocol_runs_on_a_server_or_is_refused_by_name(tokenizer_folder, tmp_path):
    """As the documentation lists them; none leaves an item that failed."""
    with server(lambda body: " the river") as (url, _):
        settings = ["model=m", f"tokenizer={tokenizer_folder}", "max_length=4096"]
        served = [x for one in settings for x in ("--served", f"big.{one}")]
        done = CliRunner().invoke(
            app,
            ["evaluate", "all", "--quick", "--out", str(tmp_path / "out"), "--model", f"big={url}",
             *served, "--set", "hallucination.lookback=false"],
        )  # fmt: skip
    assert done.exit_code == 1
    ran = {path.parent.name for path in (tmp_path / "out" / "big").glob("*/result.json")}
    assert ran == {"ruler", "babilong", "key_values", "hidden_needle", "hallucination"}
    for name in ran:
        assert EvalResult.read(tmp_path / "out" / "big" / name).num_failed == 0
    for name in set(PROTOCOLS) - ran:
        said = done.stderr.partition(f"big/{name} cannot run: ")[2].partition("\n")[0]
        assert "needs logits or maps, and a served model only writes" in said, name
    assert CliRunner().invoke(app, ["report", str(tmp_path / "out")]).exit_code == 0
