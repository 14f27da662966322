"""What every committed study is asked, whatever it is of."""

from diffattn.files.io import read_json
from diffattn.lab.records.run import RunRecord


def as_it_was_run(config, folder):
    """The recipe, if it is the one that was run: if it moves on, the study must be run again."""
    study = read_json(folder / "study.json")
    assert {key: study[key] for key in config.resolved()} == config.resolved()
    return config


def run_results(config, folder):
    """``results.json`` of every run, by name; there is no other run in the folder."""
    names = [member.config.name for member in config.members()]
    assert {path.name for path in (folder / "runs").iterdir()} == set(names)
    return {name: read_json(folder / "runs" / name / "results.json") for name in names}


def clean_records(members, folder):
    """``run.json`` of every run, each from a commit without changes and of its recipe's model."""
    records = [RunRecord.read(folder / "runs" / member.config.name) for member in members]
    assert {record.dirty for record in records} == {False}
    for member, record in zip(members, records, strict=True):
        assert record.commit
        assert record.config["model"] == member.config.model.settings()
    return records


def assert_records_only(folder, most):
    """Weights and tokens stay out, and fewer than so many bytes: the repository carries these."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".jsonl"}
    assert sum(path.stat().st_size for path in files) < most
