"""The study for leases: cut off, continued, merged from two machines, the same in the end."""

import shutil

import pytest

from diffattn.errors import CheckpointError, ConfigError
from diffattn.files.io import read_json
from diffattn.lab.studies import workers
from diffattn.lab.studies.text import comparison as scales
from record_files import change_record
from small_corpus import corpus
from tools import lease

__all__ = ["corpus"]
SAME = ("results.json", "counts.json")


@pytest.fixture(scope="module")
def study(corpus):
    """Three models with two seeds at one rate; ``test_comparison.py`` has the order of sweeps."""
    few = scales._SCALES["lease"] | {"learning_rates": (), "seeds": (0, 1)}
    few |= {"variants": ("softmax", "diff_v2_gate", "shared_diff")}
    settings = [
        f"data.source={corpus}", "data.vocab_size=300", "data.validation_fraction=0.2",
        "model.hidden_size=32", "model.num_hidden_layers=1", "model.num_heads=4",
        "model.head_dim=8", "train.seq_len=16", "train.batch_tokens=32", "train.num_steps=4",
        "train.warmup_steps=1", "train.log_every=1", "train.evaluate_every=2",
        "train.evaluation_tokens=64",
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(scales._SCALES, "lease", few)
        return scales.comparison("lease", settings=settings)


@pytest.fixture(scope="module")
def unbroken(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "lease"
    lease.train(study, folder, ())
    return folder


def train_until(study, folder, run):
    """Train until the middle of a run, and cut it off there."""
    real = workers.run_here

    def stop(planned, data, runs, *, on_progress):
        def show(name, event):
            on_progress(name, event)
            if name == run and event.get("step") == 3:
                raise KeyboardInterrupt

        real(planned, data, runs, on_progress=show)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "run_here", stop)
        with pytest.raises(KeyboardInterrupt):
            lease.train(study, folder, ())


def brought_home(folder, target):
    """What travels: no weights, checkpoints or tokens."""
    left = shutil.ignore_patterns("model", "checkpoints", "data")
    return shutil.copytree(folder, target, ignore=left)


@pytest.fixture(scope="module")
def trained(study, tmp_path_factory):
    """Records of two machines: the second begins with those of the first, and so does the first."""
    first = tmp_path_factory.mktemp("machines") / "first home"
    train_until(study, first, "shared_diff-seed0")
    second = brought_home(first, first.with_name("second home"))
    train_until(study, first, "softmax-seed1")
    assert (second / "counts.json").exists()
    lease.train(study, second, [first])
    (second / "results.json").unlink()
    shutil.rmtree(second / "runs" / "shared_diff-seed0")  # the first alone has it
    return second, first


@pytest.fixture
def machines(trained, tmp_path):
    return [brought_home(folder, tmp_path / folder.name) for folder in trained]


@pytest.mark.scheduled
def test_a_study_that_is_cut_off_and_merged_ends_as_an_unbroken_one(
    study, unbroken, machines, tmp_path
):
    lease.merge(study, tmp_path / "merged", machines)
    for name in SAME:
        assert (tmp_path / "merged" / name).read_bytes() == (unbroken / name).read_bytes()
    for run in (unbroken / "runs").iterdir():
        for name in ("metrics.jsonl", "results.json"):
            merged = tmp_path / "merged" / "runs" / run.name / name
            assert merged.read_bytes() == (run / name).read_bytes()
    assert read_json(tmp_path / "merged" / "study.json")["seeds"] == [0, 1]
    assert (tmp_path / "merged" / "report.html").exists()


def test_the_part_that_is_whole_is_judged(study, machines, tmp_path):
    second, first = machines
    for home, variants in (
        (first, ["softmax", "diff_v2_gate", "shared_diff"]),
        (second, ["softmax", "diff_v2_gate"]),
    ):
        merged = tmp_path / f"merged {home.name}"
        lease.merge(study, merged, [home])
        assert read_json(merged / "study.json")["variants"] == variants
        assert list(read_json(merged / "results.json")["variants"]) == variants
    (first / "runs" / "softmax-seed0" / "results.json").unlink()
    with pytest.raises(CheckpointError, match="must hold every model's first seed, got fewer"):
        lease.merge(study, tmp_path / "none", [first])
    assert not (tmp_path / "none").exists()


def test_other_tokens_are_refused(study, unbroken, machines, tmp_path):
    data = read_json(machines[0] / "study.json")["data"]
    change_record(machines[0] / "study.json", data=data | {"train_hash": "0" * 64})
    with pytest.raises(CheckpointError, match="of leases with the same tokens, got 2 texts"):
        lease.merge(study, tmp_path / "merged", machines)
    with pytest.raises(CheckpointError, match=r"must be new .* got 1 texts and a folder"):
        lease.merge(study, unbroken, [unbroken])
    with pytest.raises(ConfigError, match="must name folders of studies"):
        lease.merge(study, tmp_path / "merged", [tmp_path])
