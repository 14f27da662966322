"""What a page of a study holds: its tags, its texts and the data of its charts."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser

import plotly.offline

from diffattn.lab.report.build import build_report

SECTIONS = ["results", "parts", "maps", "costs", "committed", "provenance"]
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Outline(HTMLParser):
    """Ids, loading attributes and balance of the tags of a page."""

    def __init__(self):
        super().__init__()
        self.ids, self.loads, self.open, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        self.loads += [values[key] for key in ("src", "href", "srcset", "action") if key in values]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "script" not in self.open and "style" not in self.open:
            self.text.append(data)


def own_part(page):
    """The page without the plotly script, which is not ours to judge."""
    code = unpack(page, "code")
    assert code.count(plotly.offline.get_plotlyjs()) == 1
    return page.replace(packed(page, "code"), "")


def build(study, **options):
    path = build_report(study, **options)
    assert path == study / "report.html"
    return own_part(path.read_text(encoding="utf-8"))


def shown(study):
    """The text of the page, with its characters escaped as in the file."""
    body = re.sub(r"<script.*?</script>|<style.*?</style>", "", build(study), flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def outline_of(page):
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    return outline


def figures(page):
    """Id and specification of every chart."""
    return json.loads(unpack(page, "figures"))


def packed(page, name):
    """The compressed text of an element, as it stands in the page."""
    (text,) = re.findall(rf'<script type="text/plain" id="{name}">(.*?)</script>', page)
    return text


def unpack(page, name):
    """The text that the page's loader makes of it."""
    return gzip.decompress(base64.b64decode(packed(page, name))).decode()
