"""Copy the runs of another study that have the same settings, seed and tokens."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from diffattn.errors import ConfigError
from diffattn.files.folders import verify_manifest
from diffattn.files.io import read_json, read_jsonl
from diffattn.lab.records.run import RunRecord, config_hash, require_schema
from diffattn.lab.records.stored_runs import runs_folder
from diffattn.lab.studies.study import Member
from diffattn.lab.studies.workers import is_done
from diffattn.lab.training.callbacks import METRICS
from diffattn.lab.training.run import RESULTS


def require_studies(folders: Iterable[Path]) -> None:
    """Refuse folders that hold no ``study.json`` or no runs."""
    for folder in folders:
        if not is_reusable(folder):
            raise ConfigError(
                "reproduce: reuse must name folders of studies (study.json, and runs/ or "
                f"runs.jsonl.gz), got {folder}."
            )
        path = folder / "study.json"
        require_schema(read_json(path), path)


def is_reusable(folder: Path) -> bool:
    """Whether a folder holds a study with run directories or their table."""
    return (folder / "study.json").exists() and runs_folder(folder).is_dir()


def reuse_runs(
    members: Sequence[Member], data_facts: dict[str, Any], runs: Path, studies: Iterable[Path]
) -> list[str]:
    """Copy finished runs with the same settings, seed and tokens into a study.

    A copy keeps its record: its ``run.json`` names the run, date, commit and machine of the other
    study. If several studies have a run, the first is used. ``data_facts``: hashes and counts."""
    waiting = [m.config for m in members if not (runs / m.config.name).exists()]
    finished: dict[str, Path] = {}
    for study in studies if waiting else ():
        for run in sorted(runs_folder(Path(study)).glob("[!.]*")):  # no unfinished copy
            if is_done(run):
                finished.setdefault(config_hash(RunRecord.read(run).config), run)
    copied = []
    for config in waiting:
        settings = config.resolved()
        settings["data"] |= data_facts
        if source := finished.get(config_hash(settings)):
            read_jsonl(source / METRICS, recorded=read_json(source / RESULTS).get("metrics"))
            if (source / "model").exists():  # records are committed without weights
                verify_manifest(source / "model")
            unfinished = runs / f".{config.name}.copying"
            shutil.rmtree(unfinished, ignore_errors=True)
            shutil.copytree(source, unfinished)
            unfinished.rename(runs / config.name)
            copied.append(config.name)
    return copied
