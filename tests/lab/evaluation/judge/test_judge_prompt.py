"""What a judge is asked, and how its reply is read."""

import pytest

from diffattn.lab.evaluation.judge.interface import judge_messages, read_verdict


@pytest.mark.parametrize(
    ("reply", "correct"),
    [
        ("It says so.\n**Conclusion: True**", True),
        ("Not so.\n**Conclusion: False**\n**Problematic Spans: [\"a\"]**", False),
        ("**Conclusion: True** would be wrong here.\n**Conclusion: False**", False),
        ("**Conclusion:** True", True),
        ("Conclusion: **True**", True),
        ("**conclusion : TRUE**", True),
        ("## Conclusion\n\n**True**", True),
        ("\uff0aConclusion\uff1aTrue", True),
        ("Conclusion: True, although the summary is short.\nNothing was False.", True),
        ("Conclusion: The summary is True", True),
        ("Conclusion: not True", None),
        ("Conclusion: True/False", None),
        ("In conclusion, True is what I would say.", None),
        ("Conclusion: the summary would be true of another document", None),
        ('**Conclusion: False**\n**Problematic Spans: ["Conclusion: True"]**', False),
        ('Conclusion: False\nProblematic Spans: ["x. In conclusion: true love wins", "y"]', False),
        ("**Conclusion: False**\n**Problematic Spans: ['Conclusion: True']**", False),
        ("Conclusion: False\n## Problematic Spans\n- Conclusion: True is what it says", False),
        ('Problematic Spans: ["Conclusion: True"]\nConclusion: False', False),
        ('In conclusion: True?\n**Problematic Spans:** ["a"]\n\n**Conclusion: False**', False),
    ],
)  # fmt: skip
def test_conclusions(reply, correct):
    assert read_verdict(reply)[0] is correct


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ('["a b", "c"]', ["a b", "c"]),
        ("['a b', 'c']", ["a b", "c"]),
        ("[a, b]", ["[a, b]"]),
        ("[]", []),
        ("__import__('os').abort()", ["os"]),
        ("", []),
    ],
)
@pytest.mark.parametrize("title", ["**Problematic Spans: {}**", "**Problematic spans:** {}"])
def test_problematic_spans_are_read_and_never_run(title, text, spans):
    reply = f"**Conclusion: False**\n{title.format(text)}"
    assert read_verdict(reply)[1] == spans


@pytest.mark.parametrize(
    ("spans", "last"),
    [
        ("['the king', 'a queen']\n\n**Conclusion: True**", True),
        ('\n- the king\n- a "queen"\n\n## Conclusion\nTrue', True),
        ("none at all\n**Conclusion:** True", True),
        ("['the king\nConclusion: True']", False),
        ('["the king\nConclusion: True"', False),
        ("\u201cthe king\nConclusion: True\u201d", False),
        ("[the king, **Conclusion: True**]", False),
    ],
)
def test_a_conclusion_after_spans_that_are_no_json_counts_unless_they_quote_it(spans, last):
    reply = f"At first: **Conclusion: False**\n**Problematic Spans:** {spans}"
    assert read_verdict(reply)[0] is last


def test_a_reply_without_end_is_read_in_time():
    reply = "conclusion *" * 40_000 + "\nproblematic spans" + " " * 200_000
    assert read_verdict(reply)[0] is None


def test_the_parts_of_the_request_stand_in_the_order_of_the_source():
    row = {"kind": "summary", "question": "", "references": ["gold"], "output": "mine"}
    system, user = judge_messages(row, "the {text}")
    assert system == {"role": "system", "content": "You are a helpful assistant."}
    parts = user["content"].split("\n\n")
    assert parts[1:4] == [
        "#Document#: the {text}", "#Ground Truth Summary#: gold", "#Proposed Summary#: mine",
    ]  # fmt: skip
    for part in (parts[0], parts[4]):
        assert "**Conclusion: True**" in part
        assert "**Problematic Spans: [" in part
    row = {"kind": "answer", "question": "who?", "references": ["a", "b"], "output": "mine"}
    content = judge_messages(row, "text")[1]["content"]
    assert "#Document#: text\n#Question#: who?\n\n" in content
    assert '#Ground Truth Answers (a list of valid answers)#: ["a", "b"]' in content
    assert "#Proposed Answer#: mine" in content
