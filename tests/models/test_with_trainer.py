"""Transformers' Trainer treats our models as its own, however they are wrapped."""

import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import Trainer
from transformers import TrainingArguments as Arguments
from transformers.trainer_pt_utils import LabelSmoother

from diffattn.errors import CheckpointError
from diffattn.lab.training.trainer import parameter_groups
from diffattn.models.config.attention_types import ATTENTION_TYPES
from diffattn.models.configuration_diff_transformer import DiffTransformerConfig
from diffattn.models.modeling_diff_transformer import DiffTransformerForCausalLM

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
SIZES = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}


def language_model(kind="diff"):
    torch.manual_seed(0)
    config = DiffTransformerConfig(attention_type=kind, num_heads=2, **SIZES)
    return DiffTransformerForCausalLM(config)


def batch(rows=2, ignored=4):
    ids = torch.randint(50, (rows, 9), generator=torch.Generator().manual_seed(rows))
    return {"input_ids": ids, "labels": ids.masked_fill(ids < ignored, -100)}


def as_sharded(model):
    """With the class that FSDP2 makes of the model's."""
    kind = type(model)
    model.__class__ = type(f"FSDP{kind.__name__}", (kind,), {})
    return model


def adapted(model):
    return get_peft_model(model, LoraConfig(target_modules=["q_proj"], r=2))


def compiled(model):
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "none": lambda model: model,
    "sharded": as_sharded,
    "peft": adapted,
    "compiled": compiled,
    "parallel": nn.DataParallel,
    "compiled parallel": lambda model: compiled(nn.DataParallel(model)),
}


def trainer(model, tmp_path, **settings):
    arguments = Arguments(str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True, **settings)
    return Trainer(model=model, args=arguments)


@pytest.mark.parametrize(
    ("kind", "wrapper"),
    [
        ("softmax", "none"),
        *(("diff_v2", name) for name in WRAPPERS if name != "compiled parallel"),
        pytest.param("diff_v2", "compiled parallel", marks=pytest.mark.scheduled),
    ],
)
def test_smoothed_labels_are_those_of_the_next_token(kind, wrapper, tmp_path):
    model = language_model(kind)
    inputs = batch()
    smoother = LabelSmoother(epsilon=0.2)
    with torch.no_grad():
        logits = {"logits": model(inputs["input_ids"]).logits}
        wanted = smoother(logits, inputs["labels"], shift_labels=True)
        there = trainer(model, tmp_path, label_smoothing_factor=0.2)
        given = there.compute_loss(WRAPPERS[wrapper](model), dict(inputs))
    assert given.item() == pytest.approx(wanted.item(), rel=1e-5)


def test_predictions_are_logits_when_the_loss_is_computed_in_chunks(tmp_path):
    model = language_model("diff_v2")
    model.loss_chunk_tokens = 5
    there = trainer(model, tmp_path)
    rows = [{name: row[i].tolist() for name, row in batch(3).items()} for i in range(3)]
    done = there.predict(rows)
    with torch.no_grad():
        expected = model.eval()(**batch(3))
    assert torch.tensor(done.predictions).equal(expected.logits)
    assert done.metrics["test_loss"] == pytest.approx(expected.loss.item(), rel=1e-5)
    assert there.evaluate(rows)["eval_loss"] == pytest.approx(expected.loss.item(), rel=1e-5)
    assert model(**batch(3), skip_logits=True).logits is None
    assert model.train()(**batch(3)).logits is None


def test_auto_classes_that_came_before_the_package_take_it_and_ask_nothing(tmp_path):
    """In all other tests the package comes first."""
    language_model().save_pretrained(tmp_path)
    program = (
        "from transformers import AutoModel\nimport diffattn\n"
        f"print(type(AutoModel.from_pretrained({str(tmp_path)!r})).__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("diffattn.models.")


@pytest.mark.parametrize("kind", [DiffTransformerForCausalLM, DiffTransformerConfig])
def test_a_run_directory_stands_for_its_model(kind, tmp_path):
    language_model().save_pretrained(tmp_path / "run" / "model")
    assert type(kind.from_pretrained(tmp_path / "run")) is kind
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "run.json").write_text("{}")
    with pytest.raises(CheckpointError, match="got a run that has not ended"):
        kind.from_pretrained(tmp_path / "begun")
    with pytest.raises(CheckpointError, match=r"must hold a model .*, got several: .*run\. Name"):
        kind.from_pretrained(tmp_path)


@pytest.mark.parametrize("attention_type", ATTENTION_TYPES)
def test_a_stock_trainer_decays_what_the_papers_recipe_decays(
    attention_type, make_config, tmp_path
):
    """Matrices, and neither λ nor norms."""
    bias = attention_type == "diff_v2"
    config = make_config(
        attention_type, head_norm=True, lambda_bias=bias, qkv_bias=True, qk_norm=True
    )
    model = DiffTransformerForCausalLM(config)
    trainer_groups = trainer(model, tmp_path, weight_decay=0.1).create_optimizer().param_groups
    for group, expected in zip(trainer_groups, parameter_groups(model, 0.1), strict=True):
        assert group["weight_decay"] == expected["weight_decay"]
        assert [id(x) for x in group["params"]] == [id(x) for x in expected["params"]]
        assert group["params"]
