"""The page of all answers: what it holds, that nothing in it runs, and that it stays small."""

import json
import re

import pytest

from diffattn.lab.report.evaluation.answers import answers_of, write_answers
from lab.inspection.devtools import open_page

BAD = "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"


def rows(scores, output, **more):
    return [
        {"id": f"item-{i}", "scores": {"recall": x}, "output": f"{output} {i}", "length": 8,
         "prompt": {"sha256": "1", "characters": 5_000, "begins": "begin", "ends": f"end {i}"}}
        | more
        for i, x in enumerate(scores)
    ]  # fmt: skip


def parts(**of):
    return [answers_of("needle", of, list(of))]


def test_what_all_share_stands_once_and_the_rest_by_model():
    (part,) = parts(a=rows([1, 0], "yes"), b=rows([1, 1], "no"))
    # Where scores differ comes first.
    assert [item["id"] for item in part["items"]] == ["item-1", "item-0"]
    item = part["items"][0]
    assert item["facts"] == {"length": "8"}
    assert item["prompt"] == {"begins": "begin", "ends": "end 1", "between": 4_990}
    assert item["models"]["a"] == {"scores": {"recall": 0.0}, "fields": {"output": "yes 1"}}
    assert part["summary"].startswith("2 of 2 items are shown, those with different scores first")


def test_another_text_stands_by_its_model_and_failures_are_said():
    other = rows([1], "no", prompt={"sha256": "2", "characters": 5, "begins": "other"})
    (part,) = parts(a=rows([1], "yes"), b=other)
    (item,) = part["items"]
    assert "prompt" not in item
    assert item["models"]["b"]["prompt"] == {"begins": "other", "ends": "", "between": 0}
    (part,) = parts(a=rows([1], "yes"), b=[{"id": "item-0", "error": "ItemError: bad"}])
    assert part["items"][0]["models"]["b"] == {"error": "ItemError: bad"}


def test_the_size_is_bounded_and_what_is_cut_is_said():
    long = rows([0] * 400, "x" * 5_000)
    part = answers_of("needle", {"a": long}, ["a"], most_bytes=50_000)
    assert len(json.dumps(part["items"])) < 55_000
    assert 10 < len(part["items"]) < 400
    assert "of 400 items are shown" in part["summary"]
    assert "3,002 more characters)" in part["items"][0]["models"]["a"]["fields"]["output"]


def test_hostile_text_stays_text(tmp_path):
    hostile = [*rows([1], BAD, question=BAD), {"id": BAD, "error": BAD}]
    page = write_answers(tmp_path / "a.html", {BAD: {BAD: hostile}}, [BAD])
    text = page.read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("</script>") == text.count("<script") == 2
    assert "http" not in re.sub(r"Content-Security-Policy", "", text).replace("http-equiv", "")
    results = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL
    )
    assert json.loads(results[1])["parts"][0]["items"][0]["facts"]["question"] == BAD


@pytest.mark.scheduled
def test_pickers_and_answers_in_a_browser(tmp_path):
    hostile = rows([1, 0, 1], BAD)
    given = {"needle": {"a": hostile, "b": rows([1, 1, 1], "no")}}
    page = write_answers(tmp_path / "a.html", given, ["a", "b"])
    text = page.read_text(encoding="utf-8")
    # Its policy lets no other script run, so the copy that is driven has none.
    text = re.sub(r"<meta http-equiv=.*?>", "", text)
    drive = """<script>addEventListener("load", function () {
      const show = document.getElementById("show");
      show.value = "differ"; show.dispatchEvent(new Event("change"));
      document.querySelector(".item").open = true;
    });</script>"""
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", f"{drive}</body>"), encoding="utf-8")
    for path in (page, copy):
        opened = open_page(path, tmp_path)
        assert opened.console == ()
        assert "<title>Answers of a, b</title>" in opened.document
    assert opened.document.count('class="item"') == 1
    assert "1 fit the choice." in opened.document
    for shown in ("item-1", "end 1", "4,990 characters", "&lt;img src=x", "a 0", "b 1"):
        assert shown in opened.document
