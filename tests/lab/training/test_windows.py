"""Documents of one sequence that are kept apart: nothing of one reaches another."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import set_seed

from continued_runs import assert_same_run, stop_and_continue
from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.catalog.models import TYPES
from diffattn.lab.data.ngrams import QUARTERS
from diffattn.lab.data.tokens import TokenDataset
from diffattn.lab.training.callbacks import DivergenceError
from diffattn.lab.training.config import DataConfig, GuardConfig, WindowConfig
from diffattn.lab.training.prepare import prepare_data
from diffattn.lab.training.run import train
from diffattn.lab.training.settings import apply_settings
from diffattn.lab.training.trainer import (
    RunTrainer,
    first_windows,
    training_order,
    training_windows,
)
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM
from diffattn.probes.activations import layer_lambdas

APART = WindowConfig(documents="apart")
SEQ_LEN = 256  # about the length of a document
LONG = {"seq_len": SEQ_LEN, "batch_tokens": 2 * SEQ_LEN}


@pytest.fixture(scope="module")
def apart(make_run, data, tmp_path_factory):
    """``apart(attention_type)``: a run with documents apart, and its folder."""
    made = {}

    def run(attention_type):
        if attention_type not in made:
            steps = {"num_steps": 3, "warmup_steps": 1, "micro_batch_sequences": 1}
            config = replace(make_run(attention_type, **LONG, **steps), windows=APART)
            folder = tmp_path_factory.mktemp("apart") / attention_type
            train(config, data, folder)
            made[attention_type] = config, folder
        return made[attention_type]

    return run


def documents_of(item):
    """The parts of a window, one per document."""
    starts = (item["position_ids"] == 0).nonzero().flatten().tolist()
    return [item["input_ids"][a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]


@torch.no_grad()
def losses_alone(model, dataset):
    """Loss of every token but the first of each document, read alone."""
    losses = []
    for item in dataset:
        for tokens in documents_of(item):
            if len(tokens) > 1:
                logits = model(tokens[None]).logits[0, :-1]
                entropy = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none")
                losses += entropy.tolist()
    return losses


@pytest.mark.parametrize(
    "attention_type",
    ["diff", *(pytest.param(t, marks=pytest.mark.scheduled) for t in TYPES if t != "diff")],
)
def test_validation_reads_every_document_alone(apart, data, attention_type):
    _, folder = apart(attention_type)
    model = DiffTransformerForCausalLM.from_pretrained(folder / "model").eval()
    dataset = TokenDataset(data.validation, SEQ_LEN, apart=True)
    assert max(len(documents_of(item)) for item in dataset) > 1
    alone = losses_alone(model, dataset)
    results = read_json(folder / "results.json")
    assert results["validation_loss"] == pytest.approx(np.mean(alone), rel=1e-5)
    counted = sum(results["validation_parts"][name]["tokens"] for name in QUARTERS)
    assert counted == len(alone) < len(dataset) * (SEQ_LEN - 1)


def test_a_training_step_is_that_of_the_documents_alone(apart, data):
    """The first step's gradient norm and loss, accumulated over windows of unequal counts."""
    config, folder = apart("diff")
    set_seed(config.train.seed)
    model = DiffTransformerForCausalLM(config.model)
    dataset = TokenDataset(data.train, SEQ_LEN, apart=True)
    items = list(training_order(dataset, config.train))[: config.train.batch_sequences]
    texts = [tokens for item in items for tokens in documents_of(item) if len(tokens) > 1]
    counted = sum(len(tokens) - 1 for tokens in texts)
    losses = [model(x[None], labels=x[None]).loss * (len(x) - 1) / counted for x in texts]
    loss = sum(losses)
    loss.backward()
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
    first = next(row for row in read_jsonl(folder / "metrics.jsonl") if "train_loss" in row)
    assert first["step"] == 1
    assert first["train_loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert first["gradient_norm"] == pytest.approx(norm, rel=1e-4)


def test_a_post_mortem_computes_the_step_of_the_run(apart, data, tmp_path, monkeypatch):
    """Of documents apart, in micro batches of unequal counts: not the mean of their losses."""
    config, folder = apart("diff")
    first = next(row for row in read_jsonl(folder / "metrics.jsonl") if "train_loss" in row)
    real = RunTrainer.compute_loss
    monkeypatch.setattr(RunTrainer, "compute_loss", lambda *a, **k: real(*a, **k) * math.nan)
    with pytest.raises(DivergenceError, match="the loss must stay finite, got nan at step 1"):
        train(replace(config, guard=GuardConfig(spike="stop")), data, tmp_path / "run")
    norms = read_json(tmp_path / "run" / "postmortem.json")["gradient_norms"]
    assert math.hypot(*norms.values()) == pytest.approx(first["gradient_norm"], rel=1e-5)


def test_what_is_measured_reads_documents_alone(make_run, data, tmp_path, monkeypatch):
    """V2's λ depends on the tokens before: in the log, in rows of the watch, and at the end.

    No more windows are read at once than in a step, whose memory is counted.
    """
    steps = {"num_steps": 1, "evaluate_every": 1, "warmup_steps": 0}
    config = replace(make_run("diff_v2", engine={"watch_every": 1}, **LONG, **steps), windows=APART)
    read = []
    attend = DiffTransformerForCausalLM.forward

    def counted(model, input_ids, **kwargs):
        read.append(input_ids.numel())
        return attend(model, input_ids, **kwargs)

    monkeypatch.setattr(DiffTransformerForCausalLM, "forward", counted)
    results = train(config, data, tmp_path / "run")
    assert max(read) == 2 * SEQ_LEN
    model = DiffTransformerForCausalLM.from_pretrained(tmp_path / "run" / "model")
    probe = first_windows(TokenDataset(data.validation, SEQ_LEN, apart=True), 8)
    expected = pytest.approx(layer_lambdas(model, **probe), rel=1e-6)
    joined = layer_lambdas(model, probe["input_ids"])
    assert joined != expected
    assert results["lam"] == expected
    assert read_jsonl(tmp_path / "run" / "metrics.jsonl")[-1]["lam"] == expected
    (row,) = read_jsonl(tmp_path / "run" / "watch.jsonl")
    assert [layer["lam"] for layer in row["layers"]] == expected


def test_a_run_says_so_and_is_not_continued_otherwise(apart, data):
    config, folder = apart("diff")
    recorded = read_json(folder / "run.json")
    assert recorded["config"]["windows"]["documents"] == "apart"
    assert recorded["backends"] == {"diff_attention": "chunked"}
    with pytest.raises(CheckpointError, match="must hold run 'diff-tiny' with the same settings"):
        train(replace(config, windows=WindowConfig()), data, folder)


UPSAMPLED = WindowConfig(upsample_longer_than=200, upsample_factor=4.0)


def test_an_upsampled_run_continues_to_the_bit(make_run, corpus, tmp_path):
    for number in range(4):
        folder = tmp_path / "text" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        text = (corpus / f"{number:02d}.txt").read_text(encoding="utf-8")
        (folder / f"long{number}.txt").write_text(text)
        for part, line in enumerate(text.splitlines()):
            (folder / f"{number}-{part}.txt").write_text(line)
    source = DataConfig(source=str(tmp_path / "text"), vocab_size=300, validation_fraction=0.2)
    data = prepare_data(source, tmp_path / "data")
    few = make_run("diff", num_steps=6, evaluate_every=2)
    config = replace(few, data=data.config, windows=UPSAMPLED)
    messages = []
    train(config, data, tmp_path / "whole", on_message=messages.append)
    assert messages == [line for line in messages if "up-sampled within each of 2 sources" in line]
    stop_and_continue(config, data, tmp_path / "run", 4)
    assert_same_run(tmp_path / "run", tmp_path / "whole")
    windows = training_windows(data.train, config)
    assert len(windows) == 6 * 4
    assert windows.indices.nbytes == 8 * 6 * 4
    assert (windows.indices == training_windows(data.train, config).indices).all()
    other = replace(config, train=replace(config.train, data_seed=1))
    assert (windows.indices != training_windows(data.train, other).indices).any()
    read = [item["input_ids"] for item in windows]
    plain = training_windows(data.train, replace(config, windows=WindowConfig()))
    assert not all(map(torch.equal, read, [item["input_ids"] for item in plain]))


def test_upsampling_is_named_in_records_and_checked(make_run, data, tmp_path):
    config = apply_settings(make_run(), ["windows.upsample_longer_than=50"])
    upsampled = {"upsample_longer_than": 50, "upsample_factor": 10.0}
    assert config.resolved()["windows"] == {"documents": "joined"} | upsampled
    for setting in ("windows.upsample_longer_than=0", "windows.upsample_factor=3"):
        with pytest.raises(ConfigError, match=r"upsample_.* must (be at least 1|come)"):
            apply_settings(make_run(), [setting])
    with pytest.raises(ConfigError, match=r"upsample_factor must be more than 1"):
        replace(config.windows, upsample_factor=1.0)
    config = apply_settings(make_run(), ["windows.upsample_longer_than=100000"])
    with pytest.raises(ConfigError, match="must lie between the lengths of the documents"):
        train(config, data, tmp_path / "run")
    assert not (tmp_path / "run").exists()
