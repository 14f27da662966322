"""Models with several attention types, as commands take or refuse them."""

import json

import pytest

MIX = "softmax,diff"


@pytest.fixture(scope="module")
def mixed(cli, small, tmp_path_factory):
    """A run of the smoke recipe with softmax attention in its first layer."""
    folder = tmp_path_factory.mktemp("mixed") / "run"
    done = cli("train", "smoke", "--attention", MIX, *small, "--out", folder)
    assert done.code == 0, done
    return folder


def test_a_run_trains_and_writes(cli, mixed):
    record = json.loads((mixed / "run.json").read_text())
    assert record["config"]["model"]["attention_type"] == MIX
    assert set(record["backends"]) == {"softmax_attention", "diff_attention"}
    results = json.loads((mixed / "results.json").read_text())
    assert results["lam"][0] == 0 < abs(results["lam"][1])
    done = cli("generate", mixed, "--prompt", "the", "--max-new-tokens", 2)
    assert done.code == 0, done


def test_a_page_shows_layers_of_one_kind(cli, fails, mixed, tmp_path):
    page = ("inspect", mixed, "--text", "abc", "--out", tmp_path / "page.html")
    assert fails(*page, code=2).endswith("must have as many maps, got [1, 2]. Choose --layers.")
    for layer in (0, 1):
        assert cli(*page, "--layers", layer).code == 0


def test_analysis_and_conversion_refuse(fails, corpus, mixed, tmp_path):
    analysed = fails("analyze", mixed, "--file", corpus, "--out", tmp_path / "a", code=2)
    assert analysed.endswith(
        f"must have the same numbers of heads and maps, got attention_type {MIX!r}."
    )
    converted = fails("convert", mixed, "--to", "diffllama", "--out", tmp_path / "c", code=2)
    assert converted.endswith(f"attention_type must be the same in all layers, got {MIX!r}.")


@pytest.mark.scheduled
def test_a_plan_counts_the_type_that_needs_most(cli):
    fixed = ("train.micro_batch_sequences=1", "engine.activation_checkpointing=false")
    fixed += ("engine.parallel=ddp", "engine.loss_chunk_tokens=null")  # there is nothing to search
    changes = [word for setting in fixed for word in ("--set", setting)]

    def activations(kind):
        done = cli("plan", "smoke", "--gpu", "h100", "--json", "--attention", kind, *changes)
        return json.loads(done.out)["plans"][kind]["memory"]["activations"]

    assert activations(MIX) == max(activations("softmax"), activations("diff"))
