"""A page of the viewer, driven as a reader does it."""

import json

SHOWN_DIGITS = 0.5e-4
"""Numbers are printed with four digits."""
CONTRAST = """(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = numbers(getComputedStyle(element).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const light = (colour) => luminance(colour.slice(0, 3)) + 0.05;
  let least = 99;
  for (const e of document.querySelectorAll("body *")) {
    const text = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!text || !e.getClientRects().length) continue;
    if (e.closest("script, option, .unseen, noscript")) continue;
    const ratio = light(numbers(getComputedStyle(e).color)) / light(behind(e));
    least = Math.min(least, Math.max(ratio, 1 / ratio));
  }
  return least;
})()"""
"""The least contrast of any text with what is behind it."""


def shown(page, path, width=1200, height=900, dark=False):
    """Open a page and wait until every model is drawn."""
    page.open(path.as_uri(), width, height, dark)
    page.until("[...document.querySelectorAll('.card')].every(card => card.dataset.ready)")


def card(number, rest=""):
    return f'.card[data-model="{number}"] {rest}'


def ready(page, number, layer, head):
    page.until(f"document.querySelector('{card(number)}').dataset.ready === '{layer},{head}'")


def wait_for(page, selector, text):
    page.until(f"document.querySelector({json.dumps(selector)}).textContent.includes('{text}')")


def text_of(page, selector):
    return page.run(f"document.querySelector({json.dumps(selector)}).textContent")


def number_of(text):
    return float(text.split("±")[0].replace("−", "-"))


def values(page, number):
    """The numbers of the cell that is chosen or pointed at, and how far the last can be off."""
    cells = page.run(
        f"[...document.querySelectorAll('{card(number, '.cell td')}')]"
        ".map(cell => [cell.dataset.value, cell.textContent])"
    )
    results = {kind: number_of(text) for kind, text in cells}
    return results, number_of(cells[-1][1].split("±")[1]) + 2 * SHOWN_DIGITS


def pixel(page, number, kind, query, key):
    """Colour of a cell."""
    return page.run(
        f"""(() => {{
            const card = cards[{number}], canvas = card.canvases.{kind}.canvas;
            const at = place(canvas, card.view, card.text.tokens), half = at.margin + at.cell / 2;
            const x = half + {key} * at.cell, y = half + {query} * at.cell;
            const copy = document.createElement("canvas");
            const context = copy.getContext("2d", {{ willReadFrequently: true }});
            context.imageSmoothingEnabled = false;
            context.drawImage(canvas, Math.floor(x), Math.floor(y), 1, 1, 0, 0, 1, 1);
            const of = context.getImageData(0, 0, 1, 1);
            return [...of.data].slice(0, 3);
        }})()"""
    )
