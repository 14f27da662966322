"""Judging recorded outputs: cached, resumable, by several judges, and with failures."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from diffattn.errors import CheckpointError, ConfigError, DiffAttnError
from diffattn.files.io import read_jsonl
from diffattn.lab.evaluation.compare import compare_folder
from diffattn.lab.evaluation.judge.interface import (
    JudgeFailure,
    JudgeSettings,
    JudgeUnreachable,
    Reply,
    judge_settings,
)
from diffattn.lab.evaluation.judge.judges import EndpointJudge, LocalJudge, RecordedReplies
from diffattn.lab.evaluation.judge.session import judge_folder, recorded_outputs
from diffattn.lab.evaluation.protocol import parts
from diffattn.lab.evaluation.runner import evaluate
from diffattn.lab.records.evaluations import EvalResult, register
from judge_server import TRUE, completion, judge_server
from record_files import write_items

FALSE = 'No.\n**Conclusion: False**\n**Problematic Spans: ["it"]**'
SETTINGS = JudgeSettings(model="me/judge")


class Scripted:
    """Answers by what stands in the proposed summary."""

    workers = 1

    def __init__(self, say=lambda text: TRUE, settings=SETTINGS):
        self.say, self.settings, self.asked = say, settings, []

    def facts(self):
        return self.settings.facts()

    def reply(self, name, messages, stop):
        self.asked.append(name)
        answer = self.say(messages[1]["content"].split("#Proposed Summary#: ")[1])
        if isinstance(answer, Exception):
            raise answer
        return Reply(answer)


@pytest.fixture
def folder(recorded, tmp_path):
    """A copy of the evaluation for one test."""
    return Path(shutil.copytree(recorded, tmp_path / "evaluation"))


@pytest.fixture(scope="module")
def recorded(models, tmp_path_factory):
    """An evaluation of two models, with texts in place of what they wrote; one output is empty."""
    out = tmp_path_factory.mktemp("recorded")
    (part,) = parts(["hallucination"], ["hallucination.lookback=false"], quick=True)
    for label in ("softmax", "diff"):
        register(out, label, part.variant)
        own = out / label / part.variant
        evaluate(models[label], part, own)
        rows = read_jsonl(own / "items.jsonl")
        for i, row in enumerate(rows):
            row["output"] = "" if i == 5 else f"{label} {i}"
        write_items(own, rows)
    return out


def by_label(text):
    """softmax is right on one, diff on three; one reply of diff cannot be read."""
    label, number = text.split()[:2]
    if (label, number) == ("diff", "4"):
        return "Well."
    return TRUE if int(number) < {"softmax": 1, "diff": 3}[label] else FALSE


def test_verdicts_become_results_and_are_compared(folder):
    judge = Scripted(by_label)
    results = judge_folder(folder, judge)[0]
    assert [result.model["label"] for result in results] == ["softmax", "diff"]
    for result, right, unparsable in zip(results, (1, 3), (0, 1), strict=True):
        found = {metric.name: (metric.value, metric.n) for metric in result.metrics}
        assert found == {"accuracy": (right / 6, 6), "unparsable": (unparsable / 6, 6),
                         "empty": (1 / 6, 6)}  # fmt: skip
        shown = ["accuracy", "unparsable"] if unparsable else ["accuracy"]
        assert [metric.name for metric in result.headline()] == shown
        assert (result.num_items, result.num_failed) == (6, 0)
    variant = "hallucination.judged-me-judge"
    assert EvalResult.read(folder / "diff" / variant) == results[1]
    (one,) = [d for d in compare_folder(folder).differences if d.variant == variant]
    assert (one.score, one.primary, one.higher_is_better) == ("accuracy", True, True)
    assert one.p_holm is not None
    assert (one.n, one.test, one.verdict) == (6, "McNemar, exact", "inconclusive")
    assert one.difference == pytest.approx(2 / 6)
    rows = read_jsonl(folder / "diff" / variant / "items.jsonl")
    assert rows[3]["problematic_spans"] == ["it"]
    assert rows[4]["verdict"] is None
    assert rows[5] | {"id": ""} == {
        "id": "", "output": "", "verdict": None, "empty": True, "scores": {"accuracy": 0.0},
    }  # fmt: skip
    assert len(judge.asked) == 10  # empty outputs are not sent
    assert judge_folder(folder, judge)[0] == results
    assert len(judge.asked) == 10  # and no other a second time


def test_an_interrupted_call_keeps_what_it_had(folder):
    def stop_at_three(text):
        if text.startswith("softmax 3"):
            raise KeyboardInterrupt
        return TRUE

    with pytest.raises(KeyboardInterrupt):
        judge_folder(folder, Scripted(stop_at_three))
    own = folder / "softmax" / "hallucination.judged-me-judge"
    assert len(read_jsonl(own / "replies.jsonl")) == 3
    with (own / "replies.jsonl").open("a") as file:
        file.write('{"id": "half')  # killed while writing
    judge = Scripted()
    judge_folder(folder, judge)
    assert [name.split("-")[1] for name in judge.asked[:2]] == ["4", "5"]
    assert len(judge.asked) == 2 + 5


def test_failures_are_recorded_and_asked_again(folder):
    """A request that fails for itself does not end the call, as one without a server does."""
    settings = replace(SETTINGS, give_up_after=1)
    judge = Scripted(
        lambda text: JudgeFailure("busy") if "2" in text.split()[1] else TRUE, settings
    )
    results, _ = judge_folder(folder, judge)
    assert [result.num_failed for result in results] == [1, 1]
    rows = read_jsonl(folder / "diff" / "hallucination.judged-me-judge" / "items.jsonl")
    assert rows[2]["error"] == "busy"
    assert results[0].metrics[0].n == 5
    judge = Scripted(lambda text: FALSE)
    results = judge_folder(folder, judge)[0]
    assert [result.num_failed for result in results] == [0, 0]
    assert [name.split("-")[1] for name in judge.asked] == ["3", "3"]
    assert results[0].metrics[0].value == pytest.approx(4 / 6)


def test_an_endpoint_that_is_down_is_left_alone(folder):
    settings = JudgeSettings(model="me/judge", give_up_after=2)
    down = JudgeUnreachable("down")
    judge = Scripted(lambda text: TRUE if "0" in text.split()[1] else down, settings)
    results, missing = judge_folder(folder, judge)
    assert len(judge.asked) == 3  # the second model's outputs are not even tried
    assert [result.num_failed for result in results] == [4]
    assert missing == [
        "diff/hallucination.judged-me-judge: one verdict or more is needed, got 5 failures, "
        "first: not asked: the judge had failed too often before"
    ]
    judge = Scripted(settings=settings)
    results, missing = judge_folder(folder, judge)
    assert [result.num_failed for result in results] == [0, 0]
    assert len(judge.asked) == 4 + 5
    with pytest.raises(DiffAttnError, match=r"one verdict or more is needed, got 5 .*down"):
        judge_folder(folder, Scripted(lambda text: down, JudgeSettings(model="other")))
    with pytest.raises(DiffAttnError, match="wrong key"):  # no other request can succeed
        judge_folder(
            folder, Scripted(lambda text: DiffAttnError("wrong key"), JudgeSettings(model="c"))
        )


def test_another_judge_stands_beside_and_other_settings_are_refused(folder):
    judge_folder(folder, Scripted())
    changed = JudgeSettings(model="me/judge", temperature=0.0)
    with pytest.raises(CheckpointError, match="must hold verdicts of the same judge"):
        judge_folder(folder, Scripted(settings=changed))
    named = JudgeSettings(model="me/judge", temperature=0.0, name="cold", document="read")
    results, _ = judge_folder(folder, Scripted(settings=named))
    assert results[0].variant == "hallucination.judged-cold"
    assert {d.variant for d in compare_folder(folder).differences} == {
        "hallucination", "hallucination.judged-me-judge", "hallucination.judged-cold",
    }  # fmt: skip


def test_changed_outputs_are_judged_anew_and_verdicts_on_a_few_say_so(folder):
    """Else they would be compared with verdicts on all."""
    judge_folder(folder, Scripted())
    part = folder / "diff" / "hallucination"
    rows = read_jsonl(part / "items.jsonl")
    changes = {"diff 1": "diff 1 changed"}
    write_items(part, [row | {"output": changes.get(row["output"], row["output"])} for row in rows])
    judge = Scripted()
    judge_folder(folder, judge)
    assert [name.split("-")[1] for name in judge.asked] == ["2"]
    replace(EvalResult.read(part), selection={"limit": 6}).write(part)
    whole, few = judge_folder(folder, judge)[0]
    assert (whole.selection, few.selection) == ({}, {"limit": 6})
    assert few.unlike(whole) == "it was asked 6 items (--limit), softmax all"


def test_an_endpoint_with_workers(folder, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    script = [(500, {}, {}), (200, b"?", {}), (200, completion(), {})]
    with judge_server(*script) as (url, asked):
        settings = JudgeSettings(model="m", endpoint=url, workers=3, first_wait_seconds=0.001)
        results = judge_folder(folder, EndpointJudge(settings))[0]
    assert [result.metrics[0].value for result in results] == [5 / 6, 5 / 6]
    assert len(asked) == 12
    assert threading.active_count() < 10
    assert results[0].parameters["judge"]["endpoint"] == url


def test_a_local_judge_and_one_whose_context_is_short(folder, build):
    settings = JudgeSettings(model="local", max_tokens=3)
    judge = LocalJudge(build("softmax", max_length=8_000), settings)
    results = judge_folder(folder, judge)[0]
    assert results[0].metrics[1].value == pytest.approx(5 / 6)  # it writes nothing readable
    settings = JudgeSettings(model="short", max_tokens=3)
    judge = LocalJudge(build("softmax", max_length=64), settings)
    with pytest.raises(DiffAttnError, match="must fit the model's 64 tokens"):
        judge_folder(folder, judge)


def test_a_file_without_replies(tmp_path):
    path = tmp_path / "replies.jsonl"
    path.write_text('{"id": "a", "answer": "b"}\n')
    with pytest.raises(ConfigError, match=r"replies.jsonl:1: must hold the texts 'id' and 'reply'"):
        RecordedReplies(path, SETTINGS)


def test_a_folder_without_outputs_cannot_be_judged(folder):
    for label in ("softmax", "diff"):
        (folder / label / "hallucination" / "result.json").unlink()
    with pytest.raises(ConfigError, match="must hold a finished evaluation by 'hallucination'"):
        recorded_outputs(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["workers"], "--set: must be KEY=VALUE"),
        (["workers=0"], "workers must be at least 1, got 0"),
        (["temperature=hot"], "temperature must be a number, got 'hot'"),
        (["document=half"], "document must be 'whole' or 'read'"),
    ],
)
def test_wrong_settings(changes, message):
    with pytest.raises(ConfigError, match=message):
        judge_settings("m", None, changes)
    with pytest.raises(ConfigError, match="model and name must be text"):
        judge_settings("", None, [])
