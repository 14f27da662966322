"""The main job, end to end and small: real text, real worker processes, every file."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import diffattn
from diffattn.errors import CheckpointError, ConfigError, DiffAttnError
from diffattn.models.configuration_diff_transformer import ATTENTION_TYPES
from diffattn.records.io import read_json, read_jsonl
from diffattn.records.run import RunRecord, config_hash
from diffattn.report.study_files import read_study
from diffattn.studies import reproduce as module
from diffattn.studies import workers
from diffattn.studies.reproduce import comparison, published_beside, reproduce
from diffattn.training.prepare import open_data
from diffattn.training.trainer import train

NAMES = [f"{name}-seed0" for name in ATTENTION_TYPES]


def snapshot(folder, suffix=""):
    files = [path for path in sorted(folder.rglob(f"*{suffix}")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="session")
def heard():
    """Lines said and events told while the study was made."""
    return {"lines": [], "events": []}


@pytest.fixture(scope="session")
def study(settings, tmp_path_factory, heard):
    """A whole smoke study; read-only."""
    out = tmp_path_factory.mktemp("study") / "smoke"
    path = diffattn.reproduce(
        "smoke",
        out=out,
        settings=settings,
        workers=2,
        say=heard["lines"].append,
        tell=lambda name, event: heard["events"].append((name, event)),
    )
    assert path == out / "report.html"
    return out


@pytest.fixture
def copied(study, tmp_path):
    """The study in a folder that a test may spoil."""
    return shutil.copytree(study, tmp_path / "copy")


def test_files_of_a_study(study):
    assert {path.name for path in study.iterdir()} == {
        "study.json", "results.json", "costs.json", "maps.json", "report.html", "data", "runs",
    }  # fmt: skip
    folders = {path.name for path in (study / "runs").iterdir() if path.is_dir()}
    assert folders == set(NAMES)
    for name in NAMES:
        assert (study / "runs" / f"{name}.log").read_text() == ""  # no warning, no bar
        assert RunRecord.read(study / "runs" / name).name == name


def test_what_was_said_and_told(study, heard):
    lines, events = heard["lines"], heard["events"]
    assert lines[0].startswith("training a byte-level BPE of 300 entries on ")
    assert lines[1:] == ["packing 1 documents", "training 4 models of 4 steps each", "comparing"]
    assert {name for name, event in events if event.get("done")} == set(NAMES)
    last = {name: event for name, event in events if "step" in event}
    assert {name: event["step"] for name, event in last.items()} == dict.fromkeys(NAMES, 4)


def test_results_are_those_of_the_runs(study):
    results = read_json(study / "results.json")
    runs = {name: read_json(study / "runs" / name / "results.json") for name in NAMES}
    for kind in ATTENTION_TYPES:
        entry = results["types"][kind]
        assert entry["runs"] == [f"{kind}-seed0"]
        assert entry["validation_loss"]["values"] == [runs[f"{kind}-seed0"]["validation_loss"]]
    for entry in results["differences"]:
        (pair,) = entry["runs"]
        first, second = (runs[name]["validation_loss"] for name in pair)
        assert entry["values"] == [first - second]
    assert len({run["validation_loss"] for run in runs.values()}) == 4
    assert read_study(study).gaps == ()


def test_costs_of_every_run_stand_apart(study):
    costs = read_json(study / "costs.json")["runs"]
    assert list(costs) == NAMES
    for name, cost in costs.items():
        assert cost["run"] == name
        assert cost["tokens_per_second"] > 0
        assert cost["peak_bytes"] > 50e6
    text = (study / "results.json").read_text() + (study / "study.json").read_text()
    assert "seconds" not in text


def test_maps_of_one_example(study):
    maps = read_json(study / "maps.json")
    length = len(maps["tokens"])
    assert length == 16  # the whole context
    assert list(maps["layers"]) == list(ATTENTION_TYPES)
    for kind, entry in maps["layers"].items():
        assert entry["run"] == f"{kind}-seed0"
        assert (entry["layer"], entry["head"]) == (1, 0)
        assert ("map_2" in entry) == (kind != "softmax")
        for name in ("map_1", "map_2"):
            rows = torch.tensor(entry.get(name, entry["map_1"]))
            assert rows.shape == (length, length)
            torch.testing.assert_close(rows.sum(-1), torch.ones(length), atol=1e-3, rtol=0)
        if kind != "softmax":
            sums = torch.tensor(entry["difference"]).sum(-1)
            assert 1 - sums.mean().item() == pytest.approx(entry["lam"], abs=1e-3)


def test_record_of_the_study(study, settings):
    record = read_json(study / "study.json")
    config = comparison("smoke", settings=settings)
    assert record["config_hash"] == config_hash(config.resolved())
    assert (record["schema"], record["scale"], record["match"]) == (1, "smoke", "params")
    assert record["config"]["train"]["num_steps"] == 4
    hashes = {
        json.dumps(RunRecord.read(study / "runs" / name).config["data"]) for name in NAMES
    }  # fmt: skip
    assert len(hashes) == 1  # the very same tokens for every run
    assert record["data"]["train_hash"] in hashes.pop()


def test_report_shows_the_study(study):
    page = (study / "report.html").read_text(encoding="utf-8")
    for name in NAMES:
        assert name in page
    loss = read_json(study / "results.json")["types"]["diff"]["validation_loss"]["mean"]
    assert f"{loss:.4f}" in page


SET_ORDER = pytest.mark.xfail(
    reason="λ vectors are drawn in the order of a set, which differs between processes "
    "(DiffTransformerPreTrainedModel._init_weights)",
)


@pytest.mark.parametrize(
    "attention_type",
    [
        "softmax",
        pytest.param("diff", marks=SET_ORDER),
        "diff_v2",
        pytest.param("shared_diff", marks=SET_ORDER),
    ],
)
def test_another_process_gives_the_same_bytes(attention_type, study, settings, tmp_path):
    member = comparison("smoke", settings=settings).members()[ATTENTION_TYPES.index(attention_type)]
    train(member.config, open_data(study / "data"), tmp_path / "here", facts=member.facts)
    for name in ("metrics.jsonl", "results.json", "model/model.safetensors"):
        expected = (study / "runs" / member.config.name / name).read_bytes()
        assert (tmp_path / "here" / name).read_bytes() == expected, name


def test_the_second_call_is_quick_and_changes_nothing(copied, settings, monkeypatch):
    monkeypatch.setattr(workers, "_start", None)  # no process is started
    before = snapshot(copied)
    lines = []
    reproduce("smoke", out=copied, settings=settings, say=lines.append)
    assert lines == ["checking 1 documents", "comparing"]
    assert snapshot(copied) == before


def test_what_is_derived_comes_back(copied, settings):
    before = snapshot(copied)
    for name in ("results.json", "costs.json", "maps.json", "report.html"):
        (copied / name).unlink()
    reproduce("smoke", out=copied, settings=settings, say=lambda line: None)
    assert snapshot(copied) == before


@pytest.mark.parametrize(
    "options",
    [
        {"settings": ["train.num_steps=5"]},
        {"seeds": (1,)},
        {"match": "heads"},
        {"scale": "laptop"},
    ],
    ids=str,
)
def test_another_configuration_is_misuse(options, copied, settings):
    before = snapshot(copied)
    arguments = {"scale": "smoke", "settings": settings} | options
    arguments["settings"] = (*settings, *options.get("settings", ()))
    scale = arguments.pop("scale")
    with pytest.raises(ConfigError, match="must hold this configuration to be continued"):
        reproduce(scale, out=copied, say=lambda line: None, **arguments)
    assert snapshot(copied) == before


def test_changed_text_is_misuse(copied, settings, corpus):
    before = snapshot(copied)
    text = corpus.read_text(encoding="utf-8")
    try:
        corpus.write_text(text + " more", encoding="utf-8")
        with pytest.raises(ConfigError, match=r"must be unchanged .* got another corpus_hash"):
            reproduce("smoke", out=copied, settings=settings, say=lambda line: None)
    finally:
        corpus.write_text(text, encoding="utf-8")
    assert snapshot(copied) == before


def test_other_tokens_of_the_same_text_are_misuse(copied, settings):
    record = read_json(copied / "study.json")
    record["data"]["tokenizer_hash"] = "0" * 64  # as another version of a library would give
    (copied / "study.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match="got another tokenizer_hash"):
        reproduce("smoke", out=copied, settings=settings, say=lambda line: None)


def test_folders_of_somebody_else_are_left_alone(settings, tmp_path):
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("dear reader")
    (tmp_path / "file").write_text("dear reader")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "study.json").write_text("{")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "study.json").write_text("[]")
    (tmp_path / "data" / "data").mkdir(parents=True)
    (tmp_path / "data" / "data" / "mine.csv").write_text("1,2")
    before = snapshot(tmp_path)
    for name, kind, message in (
        ("foreign", CheckpointError, "must be empty or hold a study"),
        ("file", ConfigError, "--out must be a folder, got the file"),
        ("damaged", CheckpointError, "must be JSON"),
        ("list", CheckpointError, "schema must be 1"),
        ("data", CheckpointError, "must be an empty folder or hold packed data"),
    ):
        with pytest.raises(kind, match=message):
            reproduce("smoke", out=tmp_path / name, settings=settings, say=lambda line: None)
    assert snapshot(tmp_path) == before


def test_impossible_wishes_leave_no_trace(settings, tmp_path):
    out = tmp_path / "out"
    for options, message in (
        ({"scale": "smok"}, "Did you mean 'smoke'"),
        ({"workers": 0}, "workers must be 1 or more, got 0"),
        ({"settings": ["data.source=/no/such/file"]}, "must be 'stdlib'"),
    ):
        arguments = {"scale": "smoke", "settings": settings} | options
        scale = arguments.pop("scale")
        with pytest.raises(ConfigError, match=message):
            reproduce(scale, out=out, say=lambda line: None, **arguments)
    assert not out.exists()


def test_text_that_is_too_short_can_be_mended_in_the_same_folder(settings, tmp_path, monkeypatch):
    """Nothing is claimed before it is known that every run can read its data."""
    long = (*settings, "train.seq_len=20000", "train.batch_tokens=20000")
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="seq_len must be between 1 and"):
        reproduce("smoke", out=out, settings=long, say=lambda line: None)
    monkeypatch.setattr(workers, "_start", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # as far as the runs
        reproduce("smoke", out=out, settings=settings, say=lambda line: None)


@pytest.mark.scheduled
def test_the_failure_of_a_run_is_one_line(settings, tmp_path):
    diverging = (*settings, "train.learning_rate=1e25", "train.max_grad_norm=0")
    out = tmp_path / "out"
    with pytest.raises(DiffAttnError, match=r"^softmax-seed0: training: .* must stay finite") as e:
        reproduce("smoke", out=out, settings=diverging, workers=1, say=lambda line: None)
    assert "\n" not in str(e.value)
    assert not (out / "results.json").exists()
    assert not (out / "runs" / "diff-seed0").exists()


def test_a_damaged_model_is_named_when_its_maps_are_read(copied, settings):
    path = copied / "runs" / "diff-seed0" / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="diff-seed0/model: must be a whole checkpoint"):
        reproduce("smoke", out=copied, settings=settings, say=lambda line: None)


def test_the_published_study_stands_beside_every_other(copied, tmp_path, monkeypatch):
    package = tmp_path / "package"
    monkeypatch.setattr(module, "__file__", str(package / "reproduce.py"))
    assert published_beside(copied) is None  # none is there
    published = package / "published" / "study"
    shutil.copytree(copied, published)
    assert published_beside(copied) == published
    record = read_json(published / "study.json") | {"scale": "study"}
    (published / "study.json").write_text(json.dumps(record))
    assert published_beside(published) is None
    (copied / "study.json").write_text("[]")
    with pytest.raises(CheckpointError, match="schema must be 1"):
        published_beside(copied)


def test_rows_are_unique_in_every_run(study):
    for name in NAMES:
        rows = read_jsonl(study / "runs" / name / "metrics.jsonl")
        keys = [(row["step"], "train_loss" in row) for row in rows]
        assert len(set(keys)) == len(keys)
        assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)


def test_default_folder_is_named_after_the_scale(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    claimed = []
    monkeypatch.setattr(module, "_check_claim", lambda folder, config: claimed.append(folder))
    monkeypatch.setattr("diffattn.training.prepare.prepare_data", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        reproduce("smoke", settings=settings)
    assert claimed == [Path("runs/smoke")]
