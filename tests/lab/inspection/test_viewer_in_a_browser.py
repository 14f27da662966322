"""The page in a browser: what is picked, pointed at and typed shows the model's own numbers."""

import json

import pytest
import torch
from PIL import Image

from diffattn.lab.inference.language_model import LanguageModel
from diffattn.lab.inspection.maps import inspect_models, read_text
from diffattn.lab.inspection.request import NeedleText, Request
from diffattn.probes.attention_rows import attention_rows, segment_shares, segment_sums
from lab.inspection.devtools import browser
from lab.inspection.viewer_driver import (
    CONTRAST,
    SHOWN_DIGITS,
    card,
    number_of,
    pixel,
    ready,
    shown,
    text_of,
    values,
    wait_for,
)
from language_models import save

pytestmark = pytest.mark.scheduled

TEXT = "The city </script><script>alert(1)</script> is\n\tnaïve 🐱 \0and \u202eold."


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def folders(build, tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        kind: save(build(kind), root / kind) for kind in ("diff", "llama", "diff_v2", "diffllama")
    }


@pytest.fixture(scope="module")
def three(folders, tmp_path_factory):
    """One text, three models."""
    models = {name: folders[name] for name in ("diff", "llama", "diff_v2")}
    return inspect_models(models, Request(text=TEXT), tmp_path_factory.mktemp("page") / "a.html")


def exact(folders, kind, layer, head, query, key):
    """The same by the model itself; ``head`` may be a slice."""
    model = LanguageModel.load(folders[kind], device="cpu")
    ids = torch.tensor([model.encode_prompt(TEXT)])
    rows = attention_rows(model.network, ids)[layer]
    maps = rows.maps[head, :, query, key].double().reshape(-1, rows.maps.shape[1]).mean(0)
    signed = rows.signed[head, query, key].double().mean()
    lam = (1 - rows.signed[head, query].double().sum(-1)).mean()
    return maps.tolist(), float(lam), float(signed)


def test_it_opens_without_a_word_and_asks_for_nothing(page, three):
    shown(page, three)
    for number in range(3):
        start = page.run(f"data.models[{number}].start")
        ready(page, number, start["place"], start["head"])
    last = page.run("data.texts[0].tokens.length") - 1
    key = page.run("data.models[0].start.key")
    assert page.run("[chosen[0].query, chosen[0].key]") == [last, key]
    assert page.complaints() == []
    assert page.requests() == [three.as_uri()]
    tokens = page.run(
        f"[...document.querySelectorAll('{card(0, '.token')}')].map(token => token.textContent)"
    )
    whole = "".join(tokens)
    assert whole.startswith(
        "<|endoftext|>The␣city␣</script><script>alert(1)</script>␣is⏎⇥na‹C3›‹AF›ve"
    )
    assert "␀" in whole
    assert "‹F0›‹9F›‹90›‹B1›" in whole
    assert page.run("document.scripts.length") == 1 + 3 * 2 + 1


def test_the_browser_would_tell(page, three, tmp_path):
    """The controls: a script that is not ours is refused and said, and a request is seen."""
    broken = tmp_path / "broken.html"
    content = three.read_text(encoding="utf-8")
    broken.write_text(content.replace("</main>", "<script>document.title = 1</script></main>"))
    shown(page, broken)
    assert any("Content Security Policy" in json.dumps(event) for event in page.complaints())
    assert page.run("document.title").startswith("Where diff, llama, diff_v2 look in “The city </s")
    loading = tmp_path / "loading.html"
    loading.write_text("<!doctype html><img src='elsewhere.png'><script>nothing()</script>")
    page.open(loading.as_uri(), 800, 600)
    assert page.requests() == [loading.as_uri(), (tmp_path / "elsewhere.png").as_uri()]
    assert any("nothing is not defined" in json.dumps(event) for event in page.complaints())


@pytest.mark.parametrize(("number", "kind"), [(0, "diff"), (1, "llama"), (2, "diff_v2")])
def test_pickers_show_the_models_numbers(page, three, folders, number, kind):
    shown(page, three)
    page.choose("#together", False)
    for layer, head in ((0, "1"), (1, "mean"), (1, "0")):
        page.choose(card(number, ".layer"), str(layer))
        page.choose(card(number, ".head"), head)
        ready(page, number, layer, head)
        query, key = 9, 4
        page.run(
            f"document.querySelector('{card(number)}').querySelectorAll('.token')[{query}].click()"
        )
        page.point(1, 1)  # a pointer that rests says nothing
        x, y, width, height = page.box(card(number, f'.token[data-token="{key}"]'))
        page.point(x + width / 2, y + height / 2)
        wait_for(page, card(number, ".cell caption"), f"({key})")
        results, off = values(page, number)
        chosen = slice(None) if head == "mean" else slice(int(head), int(head) + 1)
        maps, lam, signed = exact(folders, kind, layer, chosen, query, key)
        assert abs(results["d"] - signed) <= off
        if kind != "llama":
            assert abs(results["a1"] - maps[0]) <= off
            assert abs(results["lam"] - lam) <= 2 * SHOWN_DIGITS
            assert abs(results["a2"] - maps[1]) <= off / min(1.0, abs(lam))
    assert page.complaints() == []


def show_mean(page, layer):
    """The mean of the heads of a layer, of all models."""
    page.choose(card(0, ".layer"), str(layer))
    page.choose(card(0, ".head"), "mean")
    ready(page, 0, layer, "mean")


def test_pointing_at_a_map_shows_that_cell_and_a_click_keeps_it(page, three, folders):
    shown(page, three)
    show_mean(page, 1)
    x, y, width, _ = page.box(card(0, 'canvas[data-kind="d"]'))
    cell, margin = page.run(
        "(a => [a.cell, a.margin])(place(cards[0].canvases.d.canvas, cards[0].view,"
        " cards[0].text.tokens))"
    )
    at = [start + 1 + margin + (i + 0.5) * cell for start, i in ((x, 3), (y, 12))]
    before = text_of(page, card(0, ".cell caption"))
    page.point(*at)
    wait_for(page, card(0, ".cell caption"), "(12)")
    caption = text_of(page, card(0, ".cell caption"))
    assert "(3)" in caption
    assert caption == text_of(page, card(2, ".cell caption"))  # the same text
    results, off = values(page, 0)
    _, _, signed = exact(folders, "diff", 1, slice(None), 12, 3)
    assert abs(results["d"] - signed) <= off
    page.point(5, 5)
    assert text_of(page, card(0, ".cell caption")) == before
    page.click(*at)
    page.point(5, 5)
    assert text_of(page, card(0, ".cell caption")) == caption
    page.point(x + width - 8, y + margin + 8)
    wait_for(page, card(0, ".cell caption"), "later")


def test_switches(page, three):
    shown(page, three)
    unseen = pixel(page, 0, "d", 3, 9)  # a later token
    assert pixel(page, 0, "d", 9, 0) != unseen
    first = f"document.querySelector('{card(1, '.top tbody')}').textContent.includes('(0)')"
    seen = [page.run(first)]
    page.choose("#hide-bos", True)
    wait_for(page, card(2, ".state"), "hidden")
    assert pixel(page, 0, "d", 9, 0) == unseen
    assert not page.run(first)
    assert page.run(f"document.querySelector('{card(0, '.token')}').style.backgroundColor") == ""
    page.choose("#hide-bos", False)
    page.until(f"!document.querySelector('{card(2, '.state')}').textContent.includes('hidden')")
    assert page.run(first) == seen[0]
    negative = page.run(
        "(() => { const p = cards[0].planes.d, i = p.indexOf(Math.min(...p)); let t = 0;"
        " while (rowStart(t + 1) <= i) t += 1; return [t, i - rowStart(t)]; })()"
    )
    red, _, blue = pixel(page, 0, "d", *negative)
    assert red > blue
    page.choose("#absolute", True)
    wait_for(page, card(0, "figure:last-child figcaption"), "|")
    red, _, blue = pixel(page, 0, "d", *negative)
    assert blue > red
    page.choose("#shown", "acting")
    page.until(f"document.querySelectorAll('{card(0, '.maps > figure')}').length === 1")
    page.choose("#zoom", "16")
    page.until("cards[0].view.size === 16")
    page.choose("#range", "=0.25")
    page.until(f"document.querySelector('{card(1, '.high')}').textContent === '0.250'")
    page.choose("#by", "a2")
    assert page.complaints() == []


def test_the_keyboard_does_it_all(page, three):
    shown(page, three)
    show_mean(page, 1)
    for _ in range(30):
        page.press("Tab")
        if page.run("document.activeElement.classList.contains('token')"):
            break
    here = "document.activeElement"
    last = page.run("data.texts[0].tokens.length") - 1
    assert page.run(f"Number({here}.dataset.token)") == last
    assert page.run(f"getComputedStyle({here}).outlineStyle") == "solid"
    assert page.run(f"{here}.getAttribute('aria-selected')") == "true"
    page.press("ArrowLeft")
    page.press("ArrowUp")
    assert page.run(f"Number({here}.dataset.token)") == last - 2
    wait_for(page, card(2, ".state"), f"({last - 2})")
    page.press("PageUp")
    assert page.run(f"Number({here}.dataset.token)") == last - 12
    page.press("h")
    ready(page, 0, 1, 0)
    page.press("h", shift=True)
    ready(page, 0, 1, "mean")
    page.press("l")
    ready(page, 1, 0, "mean")
    page.press("h")
    page.press("m")
    ready(page, 2, 0, "mean")
    page.press("b")
    assert page.run("document.getElementById('hide-bos').checked")
    page.press("b")
    page.press("a")
    assert page.run("document.getElementById('absolute').checked")
    page.press("End")
    page.press("Tab")
    assert page.run(f"{here}.tagName") == "CANVAS"
    assert "A₁, added of diff" in page.run(f"{here}.getAttribute('aria-label')")
    assert page.run(f"getComputedStyle({here}).outlineStyle") == "solid"
    page.press("Home")
    page.until("chosen[0].query === 0")
    page.press("ArrowDown")
    page.press("ArrowRight")
    assert page.run("[chosen[0].query, chosen[0].key]") == [1, 1]
    page.press("ArrowLeft")
    assert page.run("chosen[0].key") == 0
    wait_for(page, "#live", "difference")
    assert "query “T” (1), key “<|endoftext|>” (0)" in text_of(page, "#live")
    page.run("document.activeElement.blur()")
    page.press("a")  # no letter acts where neither a text nor a map has the focus
    assert page.run("document.getElementById('absolute').checked")
    assert page.complaints() == []


@pytest.mark.parametrize("kind", ["diff", "diffllama", "llama"])
def test_shares_of_segments_are_the_protocols(page, folders, tmp_path, text, kind):
    source = tmp_path / "text.txt"
    source.write_text(text)
    request = Request(text=NeedleText(length=300, haystack=str(source)))
    path = inspect_models({kind: folders[kind]}, request, tmp_path / "page.html", device="cpu")
    shown(page, path)
    page.choose(card(0, ".layer"), "1")
    page.choose(card(0, ".head"), "1")
    ready(page, 0, 1, 1)
    tables = [
        page.run(
            f"[...document.querySelectorAll('.{name} tbody tr')]"
            ".map(row => [...row.cells].map(cell => cell.textContent))"
        )
        for name in ("here", "everywhere")
    ]
    for rows in tables:
        names = ", ".join(row[0].split(" (")[0] for row in rows)
        assert names == "BOS, noise before, needle, noise after, question, noise"
    spans = page.run("data.texts[0].segments.map(s => [s[1], s[2]])")
    model = LanguageModel.load(folders[kind], device="cpu")
    ids, _ = read_text(model, request)
    layers = attention_rows(model.network, torch.tensor([ids]))
    sums = segment_sums(layers, spans)
    kinds = ["map_1"] if kind == "llama" else ["map_1", "map_2", "signed", "absolute"]
    for rows, chosen in zip(tables, (slice(1, 2), slice(None)), strict=True):
        for column, name in enumerate(kinds):
            expected = segment_shares(sums[name][chosen, chosen], 5)["global"]
            expected.append(expected[1] + expected[3])
            results = [number_of(row[column + 2].removesuffix(" %")) for row in rows]
            assert results == pytest.approx([100 * x for x in expected], abs=0.06), name
    tokens = [b - a for a, b in spans]
    even = [number_of(row[1].removesuffix(" %")) for row in rows[:5]]
    assert even == pytest.approx([100 * count / sum(tokens) for count in tokens], abs=0.06)
    assert page.run("document.querySelectorAll('.tokens .segment').length") == 5
    assert page.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 390])
def test_text_is_readable_at_every_width_in_light_and_dark(page, three, width, dark, tmp_path):
    shown(page, three, width, dark=dark)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run(CONTRAST) >= 4.5
    path = tmp_path / "page.png"
    page.screenshot(path)
    picture = Image.open(path).convert("L")
    assert (picture.getpixel((2, 2)) < 60) == dark
    assert page.complaints() == []


def test_a_damaged_page_says_so(page, three, tmp_path):
    content = three.read_text(encoding="utf-8")
    start = content.index('id="m0l1">') + 40
    broken = tmp_path / "broken.html"
    broken.write_text(content[:start] + "AAAAAAAA" + content[start + 8 :], encoding="utf-8")
    page.open(broken.as_uri(), 1200, 900)
    page.choose(card(0, ".layer"), "1")
    wait_for(page, card(0, ".state"), "These maps cannot")
    page.until(f"document.querySelector('{card(1)}').dataset.ready")
