"""Weights pass through memory, they do not gather there."""

import subprocess
import sys
import textwrap

import pytest

MODEL = textwrap.dedent(
    """
    import sys
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=256, intermediate_size=1024, num_attention_heads=8,
        num_key_value_heads=8, num_hidden_layers=int(sys.argv[2]),
    )
    LlamaForCausalLM(config).save_pretrained(sys.argv[1])
    """
)
# Anonymous memory alone: pages of a file that is read can be dropped at any time.
CONVERSION = textwrap.dedent(
    """
    import sys, threading
    from diffattn.models.conversion.convert import convert

    def held():
        status = open("/proc/self/status").read()
        return int(status.split("RssAnon:")[1].split()[0]) * 1024

    folder = sys.argv[1]
    convert(folder + "/first", "diff_v2", folder + "/loaded")  # what is loaded once
    before, most, done = held(), 0, threading.Event()

    def watch():
        global most
        while not done.wait(0.002):
            most = max(most, held())

    threading.Thread(target=watch, daemon=True).start()
    size = convert(folder + "/model", "diff_v2", folder + "/out", shard_bytes=8_000_000).size
    done.set()
    print(size, max(0, most - before))
    """
)


def measured(folder, layers):
    """Bytes of weights, and bytes that converting them took at most."""
    folder.mkdir()

    def run(program, *arguments):
        return subprocess.run(
            [sys.executable, "-c", program, *map(str, arguments)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    run(MODEL, folder / "first", 2)
    run(MODEL, folder / "model", layers)
    return map(int, run(CONVERSION, folder).split()[-2:])


@pytest.mark.scheduled
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_part_of_the_model_is_in_memory(tmp_path):
    """A file of 8 MB and a block in float64, whatever the number of layers."""
    size, held = measured(tmp_path / "model", 48)
    assert size > 200_000_000
    assert held < size / 3
