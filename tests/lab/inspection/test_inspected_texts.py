"""Texts as models read them: never cut unsaid, and needles with the protocol's segments."""

import dataclasses

import pytest

from diffattn.errors import ConfigError
from diffattn.lab.evaluation.long_context.attention_segments import AttentionSegments, segment_spans
from diffattn.lab.inspection.maps import read_text
from diffattn.lab.inspection.request import NeedleText, Request, chosen_text


def test_a_text_is_whole_and_begins_with_bos_where_that_is_wanted(models, build):
    ids, viewed = read_text(models["diff"], Request(text="the city"))
    assert ids[0] == models["diff"].bos
    assert viewed.begins_with_bos
    assert "".join(viewed.pieces) == "<|endoftext|>the city"
    assert (viewed.segments, viewed.notes) == ((), ())
    ids, viewed = read_text(build("softmax", add_bos=False), Request(text="the city"))
    assert not viewed.begins_with_bos
    assert "".join(viewed.pieces) == "the city"
    assert len(ids) == len(viewed.pieces)
    # A special token in the text is text.
    ids, _ = read_text(models["diff"], Request(text="a<|endoftext|>"))
    assert ids.count(models["diff"].bos) == 1


def test_a_longer_text_is_refused_or_cut_and_said(models):
    model, text = models["diff"], "the city " * 30
    length = len(model.encode_prompt(text))
    request = Request(text=text, max_tokens=10)
    with pytest.raises(ConfigError, match=f"at most 10 tokens .--max-tokens., got {length} of"):
        read_text(model, request)
    ids, viewed = read_text(model, dataclasses.replace(request, cut=True))
    assert len(ids) == len(viewed.pieces) == 10
    assert viewed.notes == (f"The first 10 of {length} tokens are shown; the text goes on.",)


def test_the_models_own_limit_holds_before_the_users(build):
    model = build("diff", max_length=12)
    request = Request(text="the city " * 30, max_tokens=500)
    with pytest.raises(ConfigError, match="at most the 12 tokens of diff, got"):
        read_text(model, request)
    assert len(read_text(model, dataclasses.replace(request, cut=True))[0]) == 12


def test_a_needle_is_the_protocols_item(models, tmp_path, text):
    source = tmp_path / "text.txt"
    source.write_text(text)
    needle = NeedleText(length=300, depth=25.0, haystack=str(source), sample=2)
    ids, viewed = read_text(models["diff"], Request(text=needle))
    protocol = AttentionSegments(length=300, num_needles=needle.num_needles, haystack=str(source))
    (prompt,) = protocol.build_prompts(models["diff"], (25.0,), **protocol.settings(2))
    assert ids == list(prompt.ids)
    assert [(s.start, s.end) for s in viewed.segments] == segment_spans(prompt)
    first = viewed.segments[2]
    assert first.name == "needle"
    inside = "".join(viewed.pieces[first.start : first.end])
    assert f"The special magic {prompt.cities[0]} number is: {prompt.numbers[0]}" in inside
    assert prompt.numbers[0] in viewed.notes[0]


@pytest.mark.parametrize(
    ("needle", "limit", "message"),
    [
        (NeedleText(length=600), 512, "at most 512 tokens .--max-tokens., got 600"),
        (NeedleText(length=40), 512, "Choose a greater length"),
        (NeedleText(num_needles=0), 512, "num_needles must be 1 or more"),
        (NeedleText(haystack="/no/such"), 512, "/no/such"),
    ],
)
def test_needles_that_do_not_fit(models, needle, limit, message):
    with pytest.raises(ConfigError, match=message):
        read_text(models["diff"], Request(text=needle, max_tokens=limit))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", None, False, []), "--text must hold one token or more, got none"),
        (("a", None, False, ["length=3"]), "--set is for --needle, got a text"),
        ((None, None, True, ["length=x"]), "length must be a whole number, got 'x'"),
        ((None, None, True, ["depth=101"]), "depth must be from 0 to 100 percent, got 101"),
    ],
)
def test_misuse(arguments, message):
    with pytest.raises(ConfigError, match=message):
        chosen_text(*arguments)


def test_files(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\ntwo")
    assert chosen_text(None, path, False, []) == "one\ntwo"
    assert chosen_text(None, None, False, []) is None
    for data, message in (
        (b"\xff\xfe\x00", "must be UTF-8 text, got other data"),
        (b"", r"a\.txt must hold one token or more, got none"),
    ):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=message):
            chosen_text(None, path, False, [])
    with pytest.raises(ConfigError, match="must exist, got none"):
        chosen_text(None, tmp_path / "b.txt", False, [])
