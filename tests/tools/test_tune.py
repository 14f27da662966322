"""The tuner in the interpreter, at tiny size, with times that are made up."""

import ast
import json
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

from chips import launched_as_on
from diffattn.errors import BackendError, CheckpointError, ConfigError
from diffattn.files.io import write_json
from diffattn.ops.triton import configs
from tools import tune as module
from tools.measures.tuned_table import lines_path, lines_text, read_table
from tools.tune import TuneConfig, tune

TINY = TuneConfig(
    device="cpu", batch=1, num_heads=1, length=20, checked_length=20, head_dims=(32,), rounds=1,
    seconds=0.0, processes=0,
)  # fmt: skip
interpreted = pytest.mark.skipif(not configs.interpreted(), reason="runs in the interpreter")
FEW = {
    "fwd": [(128, 64, 8, 2), (16, 64, 4, 2)], "fwd_by_map": [(128, 64, 8, 2)],
    "bwd": [(16, 128, 8, 2), (32, 128, 8, 2)], "dv": [(32, 64, 4, 2)],
    "dkv": [(32, 128, 8, 2), (32, 64, 4, 2)], "dk": [(16, 128, 8, 2)], "dq": [(128, 64, 8, 2)],
    "softmax_fwd": [(128, 64, 4, 3)], "softmax_bwd": [(32, 128, 8, 2)],
    "softmax_dkv": [(64, 128, 8, 2)], "softmax_dq": [(128, 64, 8, 2)],
}  # fmt: skip


class FakeTimer:
    """Seconds by the tiles that a run would launch; nothing is launched."""

    def __init__(self, monkeypatch):
        interpreter = pytest.importorskip("triton.runtime.interpreter")
        launch, self.launched, self.timing = interpreter.GridExecutor.__call__, [], False

        def call(executor, *args, **options):
            if self.timing:
                self.launched.append((executor.fn.__name__, options))
            else:
                launch(executor, *args, **options)

        monkeypatch.setattr(interpreter.GridExecutor, "__call__", call)

    def repeats(self, seconds, timed):
        return 1

    def sample(self, timed, repeats):
        self.timing = True
        prepared = timed.prepare() if timed.prepare else None
        self.launched.clear()
        timed.run(prepared)
        self.timing = False
        launches = [(name, x) for name, x in self.launched if "preprocess" not in name]
        self.launched.clear()
        # Small tiles of queries are fast here, and so are passes of few launches.
        return sum(1.0 + options["BLOCK_M"] / 1_000 for _, options in launches)


@pytest.fixture
def few(monkeypatch):
    tiles = {name: tuple(configs.LaunchConfig(*x) for x in of) for name, of in FEW.items()}
    monkeypatch.setattr(module, "CANDIDATES", tiles)


@pytest.mark.scheduled
@interpreted
def test_the_whole_search(tmp_path, monkeypatch, few):
    monkeypatch.setattr(module, "ATTENTIONS", ("v1",))

    def refuse(rows, launched=module.launched_with):
        config = rows.get("dkv")
        if config and config.block_n == 64:
            raise OutOfResources(9, 1, "shared memory")
        return launched(rows)

    monkeypatch.setattr(module, "launched_with", refuse)
    out = tmp_path / "tune.json"
    messages = []
    with launched_as_on(80):
        record = tune(TINY, out, timer=FakeTimer(monkeypatch), on_message=messages.append)
    kept = json.loads(out.read_text())
    assert kept == json.loads(json.dumps(record)) | {"checksum": kept["checksum"]}
    assert kept["complete"]
    assert kept["row"] == 80
    assert {"commit", "versions", "hardware", "created", "settings"} <= set(kept)
    results = {(s["operator"], s["mode"], s["of"]): s for s in kept["searches"]}
    assert len(results) == len(messages) == 1 + 9 + 6
    first = kept["searches"][0]  # a session may be cut off: whether atomics pay is asked first
    assert (first["mode"], first["of"]) == ("backward", "shipped forms")
    assert {"bwd", "dkv + dq"} <= set(first["options"])
    assert all(option["seconds"] for option in first["options"].values())
    assert (first["best"], first["in_order"]) == ("bwd", "dkv + dq")
    forward = results["diff v1", "forward", "fwd"]
    assert (forward["seed"], forward["best"]) == (
        "128 x 32, 8 warps, 2 stages", "16 x 64, 4 warps, 2 stages",
    )  # fmt: skip
    assert forward["options"][forward["best"]]["seconds"]["median"] == 1.016
    refused = results["diff v1", "backward", "dkv"]["options"]["32 x 64, 4 warps, 2 stages"]
    assert refused["refused"].startswith("OutOfResources: out of resource: shared memory")
    assert refused["seconds"] is None
    forms = results["diff v1", "backward", "forms"]
    assert (forms["best"], forms["in_order"]) == ("bwd", "dkv + dq")
    assert set(forms["options"]) == {"bwd", "dkv + dq", "dk + dv + dq"}
    row = ast.literal_eval("{" + lines_path(out).read_text() + "}")[80]
    assert row["fwd"][0] == (16, 64, 4, 2)
    assert row["bwd"][0] == (16, 128, 8, 2)
    seeds = configs.SEEDS[80]
    assert row["fwd"][1] == seeds["fwd"][1]  # of a width that was not searched
    assert row["softmax_bwd"] == (*[None] * 4, (32, 128, 8, 2), *seeds["softmax_bwd"][5:])
    assert configs.SEEDS[80] == seeds
    with launched_as_on(80), read_table(out, "cpu").in_force():
        assert {name: line for name, line in configs.SEEDS[80].items() if any(line)} == row
    assert configs.SEEDS[80] == seeds


@interpreted
def test_a_lost_device_ends_the_search_and_what_was_found_stays(tmp_path, monkeypatch, few):
    real, seen = module._refusal, []

    def dies(subject, mode, rows):
        if mode == "backward":  # the shipped forms of both attentions, which come first
            return None
        seen.append(rows)
        if len(seen) < 3:  # after the two candidates of the first launch
            return real(subject, mode, rows)
        monkeypatch.setattr(module, "device_lost", lambda: True)
        return module._explain_failure(subject, rows, RuntimeError("illegal\naddress"))

    monkeypatch.setattr(module, "_refusal", dies)
    out = tmp_path / "tune.json"
    with (
        launched_as_on(90),
        pytest.raises(BackendError, match=r"fwd.*RuntimeError: illegal address$"),
    ):
        tune(TINY, out, timer=FakeTimer(monkeypatch), on_message=lambda _: None)
    kept = json.loads(out.read_text())
    assert [search["of"] for search in kept["searches"]] == ["shipped forms"] * 2 + ["fwd"]
    assert kept["ended"].endswith("RuntimeError: illegal address")
    assert not kept["complete"]


def test_what_is_checked_is_compiled_as_what_is_timed(few):
    """Triton compiles a batch of 1 apart from all others."""
    with launched_as_on(90):
        for timed, checked in ((1, 1), (3, 2)):
            subject = module._subjects(replace(TINY, batch=timed), 90)[0]
            shapes = [of.backward.args[0][0].shape[0] for of in (subject.small, subject.large)]
            assert shapes == [checked, timed]


def test_the_lines_of_the_table_as_they_stand():
    """Written as source they give the table back."""
    for row in configs.CAPABILITIES:
        text = lines_text(row, configs.SEEDS[row])
        assert ast.literal_eval("{" + text + "}") == {row: configs.SEEDS[row]}


def a_record(path, row=90, **lines):
    write_json(path, {"schema": 1, "row": row, "lines": configs.SEEDS[row] | lines})
    return path


@pytest.mark.parametrize(
    "lines",
    [
        {"fwd": [[16, 16, 4, 1]]},
        {"unknown": configs.SEEDS[90]["fwd"]},
        {"fwd": [[16, 16, 4]] * len(configs.SEEDS[90]["fwd"])},
        {"fwd": None},
    ],
    ids=("columns", "launch", "tile", "line"),
)
def test_lines_that_are_none_of_the_table_are_refused(tmp_path, lines):
    path = a_record(tmp_path / "tune.json", **lines)
    with launched_as_on(90), pytest.raises(CheckpointError, match="the record of 'python -m tools"):
        read_table(path, "cpu")


def test_a_table_of_another_chip_or_file_is_refused(tmp_path):
    other = tmp_path / "bench.json"
    write_json(other, {"schema": 1, "cases": []})
    with launched_as_on(90):
        with pytest.raises(ConfigError, match=r"for this device, row 90 .*, got row 80"):
            read_table(a_record(tmp_path / "tune.json", 80), "cpu")
        with pytest.raises(CheckpointError, match="the record of 'python -m tools"):
            read_table(other, "cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to tune")
def test_without_a_gpu_the_command_is_one_line(capsys):
    assert module.main(["--device", "cpu"]) == 2
    message = "tune: device must be 'cuda', got 'cpu', on which no kernel runs.\n"
    assert capsys.readouterr().err == message
