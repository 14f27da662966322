"""Every example runs: small in every push, as printed in its docstring in the scheduled tier."""

import importlib.util
import re
from pathlib import Path

import pytest

from children import launched, values

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested():
    source = Path(__file__).read_text(encoding="utf-8")
    tested = set(re.findall(r'example\("(\w+)"\)', source))
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


def test_nanogpt_learns():
    losses = example("nanogpt").main(["--steps", "20"])
    assert losses[-1] < losses[0] - 1


def test_nanogpt_has_the_parameters_of_softmax_attention():
    """As many as with four square projections and a feed-forward layer of four times the width."""
    nanogpt = example("nanogpt")
    block = nanogpt.Block(nanogpt.GPTConfig(), 0)
    width = nanogpt.GPTConfig().n_embd
    matrices = sum(p.numel() for p in block.parameters() if p.ndim == 2)
    assert matrices == 4 * width**2 + 2 * 4 * width**2


@pytest.mark.scheduled
def test_gpt2_learns_with_a_swapped_layer_of_as_many_weights(capsys):
    losses = example("gpt2_layer").main(["--layers", "2", "--width", "128", "--steps", "12"])
    assert losses[-1] < losses[0] - 1
    before, after = re.search(r"(\S+) before, (\S+) after", capsys.readouterr().out).groups()
    assert before == after == f"{4 * 128**2:,}"


def test_one_file_diff_learns_to_copy(capsys):
    example("one_file_diff").train_to_copy()
    losses = re.findall(r"loss (\S+)", capsys.readouterr().out)
    assert float(losses[0]) > 2
    assert float(losses[-1]) < 0.1


def test_vision_block_trains():
    assert 0.4 < example("vision_block").main(["--steps", "3"]) <= 1


@pytest.mark.scheduled
@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's exporter copies tree specs
def test_onnx_step_gives_the_logits_of_the_model():
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    assert example("onnx_step").main() < 1e-4


@pytest.mark.scheduled
def test_vision_block_and_nanogpt_as_printed():
    assert example("vision_block").main([]) > 0.9
    assert example("nanogpt").main([])[-1] < 3


def test_padding_changes_nothing():
    assert example("encoder_with_padding").main() < 1e-5


def test_arrays_of_another_library():
    assert example("other_frameworks").main() < 1e-12


@pytest.mark.parametrize("how", ["fsdp", "tensor"])
def test_two_processes_train_as_one(how):
    module = example("sharded")
    assert values(launched(2, lambda: module.main([how]))) == [None, None]
