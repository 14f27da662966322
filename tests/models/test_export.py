"""Exported models decode: ExecuTorch's path, with a static cache allocated by the configuration's
numbers, and ONNX Runtime's, with a dynamic cache."""

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import GenerationConfig
from transformers.integrations.executorch import (
    TorchExportableModuleWithStaticCache,
    convert_and_export_with_cache,
)

# transformers' own: it sets a context variable while a model collects hidden states.
IGNORED = "ignore:While compiling, we found certain side effects:UserWarning"


@pytest.fixture
def exportable(attention_type, make_config, build):
    model = build(make_config(attention_type))
    sizes = {"batch_size": 1, "max_cache_len": 16}
    model.generation_config = GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=16, cache_config=sizes
    )
    return model


def token_by_token(module, ids):
    return torch.cat(
        [
            module(input_ids=ids[:1, i : i + 1], cache_position=torch.tensor([i]))
            for i in range(ids.shape[1])
        ],
        dim=1,
    )


def test_the_exportable_module_decodes(exportable, ids, assert_only_rounding, logits_of):
    with torch.no_grad():
        logits = token_by_token(TorchExportableModuleWithStaticCache(exportable), ids)
    assert_only_rounding([logits], exportable, logits_of(input_ids=ids[:1]))


@pytest.mark.scheduled
@pytest.mark.filterwarnings(IGNORED)
@pytest.mark.parametrize("name", ["diffattn", "sdpa"])
def test_the_exported_program_decodes(
    exportable, ids, implementation, assert_only_rounding, logits_of, name
):
    with implementation(exportable, name):
        program = convert_and_export_with_cache(exportable).module()
    with torch.no_grad():
        logits = token_by_token(program, ids)
    assert_only_rounding([logits], exportable, logits_of(input_ids=ids[:1]))


@pytest.mark.scheduled
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's exporter copies tree specs
def test_the_onnx_step_decodes(
    attention_type, make_config, build, ids, assert_only_rounding, logits_of, tmp_path
):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    path = Path(__file__).parents[2] / "examples" / "onnx_step.py"
    spec = importlib.util.spec_from_file_location("example_onnx_step", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    model = build(make_config(attention_type))
    example.export_step(model, tmp_path)
    cache = example.empty_cache(model.config, len(ids))
    logits = example.decode(tmp_path, ids, 6, cache)
    assert_only_rounding([logits], model, logits_of(input_ids=ids))
