"""Packing takes the same memory whatever the size of the corpus."""

import json
import random
import subprocess
import sys

import pytest

PROGRAM = """
import json, resource, sys
from diffattn.lab.training.config import DataConfig
from diffattn.lab.training.prepare import prepare_data
data = prepare_data(DataConfig(source=sys.argv[1], vocab_size=1024), sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"bytes": data.train.num_bytes + data.validation.num_bytes, "peak": peak}))
"""


def corpus(path, megabytes):
    """JSON lines of documents of about 4 KB, with words of a bounded vocabulary."""
    rng = random.Random(0)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 9))) for _ in range(20_000)]
    paragraphs = [" ".join(rng.choices(words, k=150)) for _ in range(500)]
    size = 0
    with path.open("w", encoding="utf-8") as file:
        while size < megabytes * 1_000_000:
            text = "\n".join(rng.choices(paragraphs, k=4))
            size += len(text)
            file.write(json.dumps({"text": text}) + "\n")
    return path


@pytest.mark.scheduled
def test_peak_memory_does_not_grow_with_the_corpus(tmp_path):
    """30 and 120 MB of text: to hold it would take 90 MB more."""
    results = []
    for megabytes in (30, 120):
        source = corpus(tmp_path / f"{megabytes}.jsonl", megabytes)
        command = [sys.executable, "-c", PROGRAM, source, tmp_path / str(megabytes)]
        results.append(json.loads(subprocess.check_output(command)))
    small, large = results
    assert large["bytes"] > 3.9 * small["bytes"]
    grown = large["peak"] - small["peak"]
    assert grown < 0.3 * (large["bytes"] - small["bytes"]), results
