"""The page holds the maps, in little room, and nothing in it runs but its own script."""

import re
import unicodedata
from dataclasses import replace

import numpy as np
import pytest

from diffattn.lab.report.page.render import source_hash
from diffattn.lab.report.viewer.page import shown, write_viewer
from diffattn.lab.report.viewer.values import Segment, ViewedModel, ViewedText
from lab.report.page_reader import outline_of
from lab.report.viewer.viewed_models import (
    half_step,
    made_up_layer,
    made_up_model,
    page_data,
    read_layer,
)

HOSTILE = (
    "</script>", "<script>alert(1)</script>", "<!--", "]]>", "'\"`&amp;", "\u2028", "\0", "\ud800",
    "{{ 7 * 7 }}", "<img src=x onerror=alert(1)>",
)  # fmt: skip
SEGMENTS = (
    Segment(name="BOS", start=0, end=1), Segment(name="noise before", start=1, end=2),
    Segment(name="needle", start=2, end=4), Segment(name="noise after", start=4, end=4),
    Segment(name="question", start=4, end=5),
)  # fmt: skip


def page_of(path, *models):
    write_viewer(path, models)
    return path.read_bytes().decode("utf-8")


@pytest.mark.parametrize(
    ("maps", "per_token", "row_scales"), [(1, False, True), (2, False, False), (2, True, True)]
)
def test_the_page_holds_the_maps(tmp_path, maps, per_token, row_scales):
    pieces = ("<s>", "a", "b", "c", "d")
    made = [
        made_up_layer(
            np.random.default_rng(i), i, 5, maps=maps, per_token=per_token, row_scales=row_scales,
            segments=SEGMENTS,
        )
        for i in range(2)
    ]  # fmt: skip
    text = ViewedText(pieces=pieces, begins_with_bos=True, segments=SEGMENTS)
    layers = tuple(layer for layer, _, _ in made)
    model = ViewedModel(label="m", facts=(), text=text, layers=layers, num_layers=2)
    page = page_of(tmp_path / "page.html", model)
    for place, (layer, weights, lam) in enumerate(made):
        found_lam, results, sums = read_layer(page, 0, place)
        steps = half_step(layer.codes, layer.scales) + 1e-7
        assert (np.abs(results - weights[..., *np.tril_indices(5)]) <= steps).all()
        if lam is None:
            assert found_lam is None
        else:
            assert np.array_equal(found_lam, lam.ravel())
        assert np.abs(sums - layer.sums).max() <= 0.51 * layer.sums.max() / 65535


def test_pages_are_reproducible_and_print_the_largest_error(tmp_path):
    model = made_up_model()
    first, second = (page_of(tmp_path / name, made_up_model()) for name in ("a", "b"))
    assert first == second
    largest = max(layer.error for layer in model.layers)
    assert f"The largest error on this page is {largest:.1g}." in first


def test_hostile_tokens_and_labels_are_text(tmp_path):
    model = made_up_model(label="<b onclick=alert(1)>&'\"</script>", pieces=("<s>", *HOSTILE))
    page = page_of(tmp_path / "page.html", model)
    outline = outline_of(page)
    assert outline.loads == ["data:,", "#keys"]
    tags = re.findall(r"<([a-z]+)", re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL))
    assert not {"b", "img"} & set(tags)
    tokens = page_data(page)["texts"][0]["tokens"]
    assert "49" not in tokens
    assert tokens[1:4] == list(HOSTILE[:3])
    assert tokens[6:9] == ["‹U+2028›", "␀", "‹U+D800›"]
    assert page_data(page)["models"][0]["label"] == model.label
    # All that runs is one element; the rest is data by its type.
    kinds = re.findall(r"<script([^>]*)>", page)
    assert kinds.count("") == 1
    assert {kind.split('"')[1] for kind in kinds if kind} == {
        "application/json", "application/octet-stream",
    }  # fmt: skip


def test_the_policy_allows_script_and_style_of_the_page_alone(tmp_path):
    page = page_of(tmp_path / "page.html", made_up_model())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)
    assert policy == (
        f"default-src 'none'; script-src '{source_hash(script)}'; style-src "
        f"'{source_hash(style)}'; img-src data:; object-src 'none'; base-uri 'none'; "
        "form-action 'none'"
    )
    assert not re.search(r"\sstyle=|\son[a-z]+=", page.replace(script, ""))
    assert not re.search(r"https?://|innerHTML|eval\(|fetch\(", page)


def test_models_with_equal_tokens_share_a_text(tmp_path):
    models = [
        made_up_model("a"), made_up_model("b", maps=1), made_up_model("c", ("<s>", " ", "a", "b")),
    ]  # fmt: skip
    page = page_of(tmp_path / "page.html", *models)
    data = page_data(page)
    assert [model["text"] for model in data["models"]] == [0, 0, 1]
    assert [model["maps"] for model in data["models"]] == [2, 1, 2]
    assert "These models cut the text into different tokens." in page
    assert "<h2>Tokens of a, b</h2>" in page
    both = page_of(tmp_path / "one.html", *models[:2])
    assert "different tokens" not in both
    assert "<h2>" not in both
    alone = page_of(tmp_path / "alone.html", made_up_model(maps=1))
    assert [page.count("<label hidden>") for page in (alone, both)] == [4, 0]


def test_other_texts_and_left_out_layers_are_said(tmp_path):
    short = made_up_model("b", ("<s>", "x"), layers=1)
    page = page_of(tmp_path / "page.html", made_up_model("a"), replace(short, num_layers=12))
    assert "These models do not read the same text" in page
    assert "b: 1 of 12 layers are on this page." in page


@pytest.mark.parametrize(
    ("piece", "text"),
    [
        (" the", "␣the"),
        ("\n\t ", "⏎⇥␣"),
        ("\r", "␍"),
        ("\0\x1b\x7f", "␀␛␡"),
        ("\x85\u2028\u00a0\u200b\ufeff", "‹U+0085›‹U+2028›‹U+00A0›‹U+200B›‹U+FEFF›"),
        ("\u202eabc", "‹U+202E›abc"),
        ("\ud800", "‹U+D800›"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        (b"\xe2\x82", "‹E2 82›"),
        ("", "∅"),
        ("<script>", "<script>"),
        ("猫🐱", "猫🐱"),
    ],
)
def test_tokens_as_shown(piece, text):
    assert shown(piece) == text


def test_no_character_is_shown_invisible():
    for code in [*range(0x3000), *range(0xE000, 0xE010), *range(0xFE00, 0x10000), 0xE0001]:
        for character in shown(chr(code)):
            category = unicodedata.category(character)
            assert category[0] not in "CZ", hex(code)


def test_lines_end_where_the_text_does(tmp_path):
    model = made_up_model(pieces=("<s>", "a\n", "\n", "\na", "", b"\n"))
    assert page_data(page_of(tmp_path / "page.html", model))["texts"][0]["breaks"] == [1, 2]
