"""``diffattn convert``: tokenizers go along, and training goes on where the source stood."""

import json

import pytest

pytestmark = pytest.mark.scheduled


@pytest.fixture(scope="module")
def softmax(cli, small, tmp_path_factory):
    out = tmp_path_factory.mktemp("softmax") / "run"
    called = cli("train", "smoke", "--out", out, *small)
    assert called.code == 0, called
    return out


@pytest.fixture(scope="module")
def v2(cli, softmax, tmp_path_factory):
    """The folder that ``convert --to diff_v2`` wrote, and what it said."""
    out = tmp_path_factory.mktemp("v2") / "model"
    return out, cli("convert", softmax, "--to", "diff_v2", "--out", out)


def test_it_says_what_it_did_and_how_logits_compare(v2, softmax):
    out, called = v2
    assert called.code == 0, called
    done, verdict = called.out.splitlines()
    assert done == f"DIFF Transformer of this package to diff_v2: 25 tensors in {out}"
    assert "random tokens differ by" in verdict
    assert verdict.endswith(".")
    assert "rounding to float32 alone gives" in verdict
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (out / name).read_bytes() == (softmax / "model" / name).read_bytes()
    record = json.loads((out / "conversion.json").read_text())
    assert (record["attention_type"], record["preserved"]) == ("diff_v2", True)
    assert str(softmax) not in json.dumps(record)


def test_training_goes_on_without_a_bump(v2, softmax, cli, small, tmp_path):
    model, _ = v2
    again = [x for x in small if x != "--set" and not x.startswith("model.")]
    options = [part for setting in again for part in ("--set", setting)]
    called = cli(
        "train", "smoke", "--init-from", model, "--same-model", "--out", tmp_path / "run",
        *options, "--set", "train.seed=9", "--set", "train.evaluation_tokens=1000000",
    )  # fmt: skip
    assert called.code == 0, called
    before = json.loads((softmax / "results.json").read_text())["validation_loss"]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [row["validation_loss"] for row in map(json.loads, lines) if "validation_loss" in row]
    first, last = losses[0], losses[-1]
    assert first == pytest.approx(before, abs=1e-5)
    assert last != first
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["attention_type"], config["lambda_bias"]) == ("diff_v2", True)


def test_a_changed_output_is_said(softmax, cli, tmp_path):
    called = cli("convert", softmax, "--to", "diff", "--out", tmp_path / "v1")
    assert called.code == 0, called
    assert "the head norm changes the output of a softmax model" in called.out
    assert "--set head_norm=false keeps it" in called.out
    kept = ("--set", "head_norm=false", "--out", tmp_path / "kept", "--json")
    done = json.loads(cli("convert", softmax, "--to", "diff", *kept).out)
    assert done["preserved"]
    assert done["verification"]["difference"] <= 2 * done["verification"]["rounding"] + 1e-5


def test_misuse_is_one_line(v2, softmax, fails, tmp_path):
    model, _ = v2
    out, elsewhere = tmp_path / "out", ("--out", tmp_path / "out")
    for words, message in (
        (("convert", softmax, *elsewhere, "--to", "diffattn", "--from", "motiv"),
         "Did you mean 'motif'?"),
        (("convert", softmax, *elsewhere, "--to", "diffattn", "--set", "rope_teta=3"),
         "Did you mean 'rope_theta'?"),
        (("convert", softmax, *elsewhere, "--to", "diffattn"),
         "--to must be one of diff_v2, diff, shared_diff, gated_head"),
        (("convert", model, *elsewhere, "--to", "diff"),
         "--to must be one of original for DIFF Transformer of this package"),
        (("train", "smoke", "--same-model", "--init-from", model, "--attention", "diff", "--out",
          out), "got --attention too"),
    ):  # fmt: skip
        assert message in fails(*words, code=2)
    itself = ("convert", softmax, "--to", "diff_v2", "--out", softmax)
    assert "must be empty or new" in fails(*itself, code=1)
    assert not list(tmp_path.iterdir())
