"""Commands that fill one folder at the same time lose nothing of each other."""

import shutil

import pytest

from diffattn.lab.records.evaluations import Comparison, EvalResult, evaluation_marker
from tally import trial
from trials import commands

PROTOCOLS = ("key_values", "hallucination", "nll_by_position")


@pytest.fixture(scope="module")
def side_by_side(warm):
    """Run command lines at the same time, each in a process of its own; their faults."""

    def run(*calls):
        with warm.Pool(len(calls), maxtasksperchild=1) as pool:
            return pool.map(commands.call, calls, chunksize=1)

    return run


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    return {kind: commands.model_folder(home / kind, kind) for kind in ("softmax", "diff")}


def first(faults):
    return next(filter(None, faults), None)


def lost(out, labels, protocols):
    """The first part of an evaluation folder that is not there."""
    marker = evaluation_marker(out)
    for label in labels:
        for protocol in protocols:
            if label not in marker["models"] or protocol not in marker["variants"]:
                return f"{label}/{protocol} is not named"
            EvalResult.read(out / label / protocol).read_items(out / label / protocol)
    if len(labels) > 1:
        compared = {difference.variant for difference in Comparison.read(out).differences}
        if missing := set(protocols) - compared:
            return f"{sorted(missing)} not compared"
    return None


def shares(models):
    """Ways to give processes protocols and models; together they have all of two or three."""
    each = [{label: path} for label, path in models.items()]
    for cut in (1, 2):
        yield PROTOCOLS, [(models, PROTOCOLS[:cut]), (models, PROTOCOLS[cut:])]
    yield PROTOCOLS, [(models, PROTOCOLS)] * 2
    yield PROTOCOLS, [(part, PROTOCOLS) for part in each]
    two = PROTOCOLS[:2]
    yield two, [(part, [protocol]) for part in each for protocol in two]


@pytest.mark.scheduled
def test_evaluations(side_by_side, models, tmp_path):
    with trial("evaluations side by side", minimum=10) as tally:
        for number, (protocols, parts) in enumerate([*shares(models)] * 2):
            out = tmp_path / str(number)
            fault = first(side_by_side(*(commands.evaluate_line(out, *part) for part in parts)))
            tally.check(f"{parts}", fault or lost(out, models, protocols))


@pytest.mark.scheduled
def test_judges_and_reports(side_by_side, models, tmp_path):
    out = tmp_path / "evaluation"
    assert commands.call(commands.evaluate_line(out, models, ["hallucination"])) is None
    replies = commands.write_replies(out, tmp_path)

    def judge(folder, name):
        options = ["--model", "any", "--replies", replies, "--set", f"name={name}"]
        return ["judge", folder, *options]

    with trial("judges and reports side by side", minimum=10) as tally:
        for number in range(5):
            copy = shutil.copytree(out, tmp_path / f"judged{number}")
            faults = side_by_side(
                judge(copy, "one"),
                judge(copy, "two"),
                commands.evaluate_line(copy, models, ["key_values"]),
                ["report", copy, "--out", copy / "report.html"],
            )
            parts = ["hallucination.judged-one", "hallucination.judged-two", "key_values"]
            fault = first(faults) or lost(copy, models, parts)
            tally.check("two judges, an evaluation and a report", fault)
            fault = first(side_by_side(["report", copy], ["report", copy]))
            page = (copy / "report.html").read_text(encoding="utf-8")
            whole = page.rstrip().endswith("</html>") and "judged-two" in page
            tally.check("two reports", fault or (None if whole else "half a page"))


@pytest.mark.scheduled
def test_studies_runs_and_packings(side_by_side, tmp_path):
    """One of two does the work, the other says so; the same command then finds all of it."""
    text = commands.corpus(tmp_path / "text")
    small = commands.settings(text, 2)
    other = [part.replace("num_steps=2", "num_steps=4") for part in small]
    kinds = {
        "train": ["train", "smoke", "--attention", "diff"],
        "reproduce": ["reproduce", "text", "--scale", "smoke", "--workers", "1"],
    }
    cases = {
        f"{name}, {what}": ([*start, *small], [*start, *second])
        for name, start in kinds.items()
        for what, second in {"the same": small, "another": other}.items()
    }
    pack = ["pack", text, "--vocab-size"]
    cases |= {"pack, the same": ([*pack, 270], [*pack, 270])}
    cases |= {"pack, another": ([*pack, 270], [*pack, 280])}
    with trial("studies, runs and packings side by side", minimum=6) as tally:
        for name, calls in cases.items():
            out = tmp_path / name
            faults = side_by_side(*([*call, "--out", out] for call in calls))
            refused = [fault for fault in faults if fault]
            fault = None
            if len(refused) > 1 or any("must" not in line for line in refused):
                fault = f"faults {faults}"
            for call, refusal in zip(calls, faults, strict=True):
                if refusal is None and fault is None:
                    fault = commands.call([*call, "--out", out])
            tally.check(name, fault)
