"""Pages full of hostile records, in a browser: charts are drawn, and nothing of a record runs."""

import re
from pathlib import Path

import pytest

from diffattn.errors import CheckpointError
from diffattn.lab.report.page.render import source_hash
from lab.inspection.devtools import Opened, open_page
from lab.report.page_reader import unpack
from trials.hostile_values import CANARY, MARK, MARKUP, at, places, replaced, write_record
from trials.made_up_folders import FOLDERS, Folder, read

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
RAN = f'data-{MARK}="1"'
ATTACKS = (
    f"<script>{CANARY}</script>",
    f"<img src=data:, onerror={CANARY}>",
    f"<svg onload={CANARY}></svg>",
    f'<iframe srcdoc="<script>parent.{CANARY}</script>"></iframe>',
    f'<object data="data:text/html,<script>parent.{CANARY}</script>"></object>',
    f'<script src="data:text/javascript,{CANARY}"></script>',
    f'<script type="module">{CANARY}</script>',
    f'<a id=a href="javascript:{CANARY}">a</a>',
    f"<body onfocus={CANARY} onpageshow={CANARY}>",
    f"<details open ontoggle={CANARY}></details>",
    f"<video><source onerror={CANARY}></video>",
    f"<input autofocus onfocus={CANARY}>",
    f'<form action="javascript:{CANARY}"><button id=b>b</button></form>',
    f'<base href="javascript:{CANARY}//"><style>@import "data:,";</style>',
)
"""What a page must not run, even if it stood there as it is."""
# What a reader may do: point at every chart and press every button.
USE = """
addEventListener("load", function () {
  setTimeout(function () {
    for (const chart of document.querySelectorAll(".js-plotly-plot")) {
      for (let curve = 0; curve < chart.data.length; curve++) {
        const point = chart.data[curve].type === "heatmap" ? [0, 0] : 0;
        Plotly.Fx.hover(chart, [{ curveNumber: curve, pointNumber: point }]);
      }
    }
    for (const button of document.querySelectorAll("button")) button.click();
    document.documentElement.dataset.used = 1;
  }, 1000);
});
"""


def hostile(folder: Folder) -> int:
    """Put markup into every text that a page with a chart can be made with; how many there are."""
    number = 0
    for record in folder.records:
        value = read(record)
        for path in list(places(value)):
            if not isinstance(at(value, path), str):
                continue
            changed = replaced(value, path, MARKUP[number % len(MARKUP)])
            write_record(record, changed)
            try:
                page = folder.build()
            except CheckpointError:
                continue
            if 'class="chart' in page:
                value, number = changed, number + 1
        write_record(record, value)
    return number


def drawn(opened: Opened) -> int:
    """Charts that the library has drawn."""
    return len(re.findall(r'<div[^>]* class="chart[^"]* js-plotly-plot', opened.document))


def violations(opened: Opened) -> list[str]:
    """What the browser says of the policy; the chart library has notes of its own there."""
    return [line for line in opened.console if "Content Security Policy" in line]


def without_policy(page: str) -> str:
    assert len(POLICY.findall(page)) == 1
    return POLICY.sub("", page)


def unfolded(page: str) -> str:
    """The page with its folds open: a chart inside of one is drawn when it opens."""
    return page.replace("<details", "<details open")


@pytest.mark.scheduled
@pytest.mark.parametrize("kind", FOLDERS)
def test_hostile_texts_are_shown_and_never_run(kind, tmp_path, stub):
    """With the policy and without: what escapes and what the policy stops each hold alone."""
    folder = FOLDERS[kind](tmp_path / "folder")
    assert hostile(folder) >= 10
    stub.undo()
    page = unfolded(folder.build())
    guarded, bare = tmp_path / "guarded.html", tmp_path / "bare.html"
    guarded.write_text(page, encoding="utf-8")
    bare.write_text(
        without_policy(page).replace("</head>", f"<script>{USE}</script></head>"), encoding="utf-8"
    )
    for path in (guarded, bare):
        opened = open_page(path, tmp_path)
        assert RAN not in opened.document
        assert violations(opened) == []
        assert drawn(opened) == page.count('class="chart') > 0
    assert 'data-used="1"' in opened.document


@pytest.mark.scheduled
def test_the_policy_alone_stops_what_would_run(tmp_path):
    """And without it the very same page runs it: the trial above would see it."""
    page = FOLDERS["evaluation"](tmp_path / "folder").build()
    clicks = "<script>onload=function(){a.click();b.click()}</script>"
    for attack in ATTACKS:
        path = tmp_path / "page.html"
        path.write_text(page.replace("<main>", f"<main>{attack}"), encoding="utf-8")
        opened = open_page(path, tmp_path)
        assert RAN not in opened.document, attack
        assert drawn(opened) > 0, attack
        assert violations(opened) or attack != ATTACKS[0]
    path.write_text(
        without_policy(page).replace("<main>", f"<main>{ATTACKS[0]}{clicks}"), encoding="utf-8"
    )
    assert RAN in open_page(path, tmp_path).document


def test_the_policy_names_the_script_of_the_page(tmp_path, stub):
    """Two hashes: of the one script that stands in the page, and of the code that it unpacks."""
    page = FOLDERS["evaluation"](Path(tmp_path) / "folder").build()
    policy = POLICY.findall(page)[0]
    assert "unsafe-inline'; img-src" in policy
    assert policy.count("unsafe") == 1  # of styles
    for rule in ("default-src", "object-src", "base-uri", "form-action"):
        assert f"{rule} 'none'" in policy
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    assert len(scripts) == 1
    code = unpack(page, "code")
    assert f"script-src '{source_hash(scripts[0])}' '{source_hash(code)}';" in policy
    assert source_hash("") == "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="
