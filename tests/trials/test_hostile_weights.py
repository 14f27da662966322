"""Files of weights from strangers: damaged headers, indexes that lead elsewhere, absurd sizes."""

import json
import struct
from functools import partial

import pytest

from children import in_child
from hostile_folders import damaged, fault, try_folder, use, written
from tally import sample, trial


def weights(content, header, *, length=None):
    """A file of weights with another header."""
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return struct.pack("<Q", len(text) if length is None else length) + text + content


def weight_cases(raw):
    """``(name, bytes)``: damaged files of weights."""
    (length,) = struct.unpack("<Q", raw[:8])
    header, content = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    for size in (0, 7, 8, 100, len(raw) - 1, len(raw) // 2):
        yield f"cut to {size}", raw[:size]
    for other in (0, 1, length - 1, length + 1, 10**8 + 1, 2**40, 2**63, 2**64 - 1):
        yield f"header of {other}", weights(content, header, length=other)
    for text in (b"[]", b"7", b"null", b"{", b"\xff\xfe", b'{"a": 1}', b"[" * 10_000):
        yield f"header {text[:8]!r}", weights(content, text)
    for i in (0, len(names) - 1):
        entry = header[names[i]]
        begin, end = entry["data_offsets"]
        for change in (
            {"dtype": "F99"}, {"dtype": "F64"}, {"dtype": "I8"}, {"dtype": None}, {"dtype": 1},
            {"shape": [10**9, 10**9]}, {"shape": [2**63]}, {"shape": [-1]}, {"shape": "x"},
            {"shape": [1.5]}, {"shape": []}, {"shape": [0]}, {"shape": None},
            {"data_offsets": [end, begin]}, {"data_offsets": [begin, end + 10**12]},
            {"data_offsets": [-8, end]}, {"data_offsets": [begin]}, {"data_offsets": None},
            {"data_offsets": [0, 0]}, {"data_offsets": [2**64, 2**64]}, {"data_offsets": "x"},
            {"shape": [*entry["shape"], 1]}, {"shape": entry["shape"][::-1] or [1]},
        ):  # fmt: skip
            same = entry["shape"] == entry["shape"][::-1] and "shape" in change
            if same and change["shape"] == entry["shape"]:
                continue
            yield f"{names[i]}: {change}", weights(content, header | {names[i]: entry | change})
        others = {name: x for name, x in header.items() if name != names[i]}
        yield f"without {names[i]}", weights(content, others)
        yield f"{names[i]} under another name", weights(content, others | {"else": entry})
        yield f"{names[i]} no object", weights(content, header | {names[i]: 7})
    extra = {"dtype": "F32", "shape": [1], "data_offsets": [len(content), len(content) + 4]}
    yield "one more", weights(content + bytes(4), header | {"extra": extra})


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.scheduled), 40])
def test_damaged_weights(whole, tmp_path, step):
    raw = (whole("diff") / "model.safetensors").read_bytes()
    with trial(f"hostile weights{sample(step > 1)}", minimum=65 // step) as tally:
        for name, content in list(weight_cases(raw))[::step]:
            change = partial(written, "model.safetensors", content)
            try_folder(tally, name, whole("diff"), tmp_path, change, must_fail=True)


def index_cases():
    for table in (
        None, [], "x", 7, {"a": 1}, {"a": "../model.safetensors"}, {"a": "/etc/passwd"},
        {"a": "x.bin"}, {"a": "none.safetensors"}, {},
    ):  # fmt: skip
        yield f"weight_map {table}", json.dumps({"metadata": {}, "weight_map": table}).encode()
    for raw in (b"", b"[]", b"{", b"7", b'{"x": NaN}'):
        yield f"index {raw!r}", raw


@pytest.mark.scheduled
def test_damaged_indexes(whole, tmp_path):
    with trial("hostile indexes of weights", minimum=15) as tally:
        for name, content in index_cases():

            def change(folder, content=content):
                (folder / "model.safetensors").unlink()
                (folder / "model.safetensors.index.json").write_bytes(content)

            try_folder(tally, name, whole("diff"), tmp_path, change, must_fail=True)


def test_a_file_that_claims_more_than_there_is_memory(whole, tmp_path):
    """A sparse file holds any number of zeros."""

    def change(folder):
        path = folder / "model.safetensors"
        content = 2**42
        header = {"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, content]}}
        path.write_bytes(weights(b"", header))
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size + content)
        (folder / "config.json").write_text(
            json.dumps(json.loads((folder / "config.json").read_text()) | {"hidden_size": 2**20})
        )

    folder = damaged(whole("diff"), tmp_path, change)
    outcome = in_child(lambda: use(folder))
    assert fault(outcome, names=["memory"], must_fail=True) is None
