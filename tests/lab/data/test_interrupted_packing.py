"""An interrupted packing begins anew, in any number of processes, and ends with the same files."""

import json
import multiprocessing
import random
import subprocess
import sys
import time

import pytest

from diffattn.errors import DiffAttnError
from diffattn.lab.data import encoding
from diffattn.lab.data.packing import pack


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch):
    """About 15 batches."""
    monkeypatch.setattr(encoding, "BATCH_CHARS", 400)


def test_processes_give_the_same_files(documents, packed, tokenizer, tmp_path):
    pack(documents, tokenizer, tmp_path, validation_fraction=0.2, workers=2)
    assert contents(tmp_path) == contents(packed)


@pytest.mark.scheduled
def test_a_killed_encoder_is_one_error_and_the_next_call_packs(
    documents, packed, tokenizer, tmp_path
):
    def kill_children(tokens):
        for child in multiprocessing.active_children():
            child.kill()

    settings = {"validation_fraction": 0.2, "workers": 2}
    with pytest.raises(DiffAttnError, match=r"got one that was killed .* begins anew"):
        pack(documents, tokenizer, tmp_path, on_progress=kill_children, **settings)
    pack(documents, tokenizer, tmp_path, **settings)
    assert contents(tmp_path) == contents(packed)


PROGRAM = """
import json, sys, time
from diffattn.lab.data import encoding, packing
from diffattn.lab.data.corpora import load_corpus
from diffattn.lab.data.tokenizer import load_tokenizer
encoding.BATCH_CHARS = 500
if __name__ == "__main__":
    tokenizer = load_tokenizer(sys.argv[2])
    def tell(tokens):
        print(tokens, flush=True)
        time.sleep(0.01)
    packing.pack(load_corpus(sys.argv[1]), tokenizer, sys.argv[3], workers=int(sys.argv[4]),
                 on_progress=tell)
"""


@pytest.mark.scheduled
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_at_any_time_it_ends_with_the_same_files_and_leaves_no_process(
    documents, tokenizer, tmp_path, workers
):
    rng = random.Random(workers)
    rows = "".join(json.dumps({"text": document.text}) + "\n" for document in documents * 2)
    (tmp_path / "rows.jsonl").write_text(rows)
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "program.py").write_text(PROGRAM)
    arguments = [tmp_path / "rows.jsonl", tmp_path / "tokenizer"]
    command = [sys.executable, str(tmp_path / "program.py"), *map(str, arguments)]
    subprocess.run([*command, tmp_path / "whole", "1"], check=True, stdout=subprocess.DEVNULL)
    kills = 0
    while not (tmp_path / "out" / "validation.json").exists():
        process = subprocess.Popen(
            [*command, tmp_path / "out", str(workers)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            for _ in range(rng.randint(1, 5) + 25 * kills):
                process.stdout.readline()
            time.sleep(rng.uniform(0, 0.02))
            kills += process.poll() is None
            process.kill()
            process.stdout.read()  # ends when nobody holds it any more: the encoders do too
        deadline = time.monotonic() + 10
        while alive_in(process.pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert kills < 60
    assert kills > 2
    subprocess.run([*command, tmp_path / "out", "1"], check=True, stdout=subprocess.DEVNULL)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def alive_in(session):
    """Processes of a session, but those that only wait for their end to be noticed."""
    done = subprocess.run(
        ["ps", "-s", str(session), "-o", "stat=,pid="], capture_output=True, text=True, check=False
    )
    return [line for line in done.stdout.splitlines() if not line.startswith("Z")]
