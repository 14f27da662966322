// What is chosen, what is shown, and what a reader does.

const byId = (id) => document.getElementById(id);
const controls = ["hide-bos", "absolute", "own-range", "range", "by", "shown", "zoom"];
// Of every text: the query and key that are chosen, and those under the pointer. At first the last
// query, in the head that looks most at one token, and that token.
const chosen = data.texts.map((text, i) => {
  const { start } = data.models.find((model) => model.text === i);
  return { query: text.tokens.length - 1, key: start.key, over: null };
});
const cards = Array.from(document.querySelectorAll(".card"), (element) => {
  const number = Number(element.dataset.model);
  const model = data.models[number];
  return {
    element, number, model, text: data.texts[model.text], chosen: chosen[model.text],
    place: model.start.place, head: model.start.head,
    find: (selector) => element.querySelector(selector), spans: [], canvases: {}, limits: {},
  };
});
const names = {
  a1: "A₁, added", a2: "A₂, subtracted", d: "A₁ − λA₂, what acts",
  absolute: "|A₁ − λA₂|, its size", softmax: "A, the one map of softmax attention",
};

function made(tag, content, className) {
  const element = document.createElement(tag);
  if (content !== undefined) element.textContent = content;
  if (className) element.className = className;
  return element;
}

function shown(value, digits = 4) {
  if (!Number.isFinite(value)) return "—";
  const text = Math.abs(value).toFixed(digits);
  return (value < 0 && Number(text) ? "−" : "") + text;
}

function percent(value) {
  return Number.isFinite(value) ? shown(100 * value, 1) + " %" : "—";
}

function named(text, i) {
  return "“" + text.tokens[i] + "” (" + i + ")";
}

function firstShown() {
  return byId("hide-bos").checked ? 1 : 0;
}

function isDiff(card) {
  return card.model.maps === 2;
}

// What colours the text and orders the list, of the chosen query; softmax has one map for all.
function rowOf(card) {
  const by = isDiff(card) ? byId("by").value : "d", { query } = card.chosen;
  const row = card.planes[by].slice(rowStart(query), rowStart(query + 1));
  return by === "d" && byId("absolute").checked ? row.map(Math.abs) : row;
}

function kindsShown(card) {
  return isDiff(card) && byId("shown").value === "all" ? ["a1", "a2", "d"] : ["d"];
}

function title(card, kind) {
  if (!isDiff(card)) return names.softmax;
  return kind === "d" && byId("absolute").checked ? names.absolute : names[kind];
}

function build(card) {
  const tokens = card.find(".tokens");
  const breaks = new Set(card.text.breaks);
  const starts = new Map(card.text.segments.filter(([, a, b]) => b > a).map(([name, a]) => [a, name]));
  card.text.tokens.forEach((token, i) => {
    if (starts.has(i)) tokens.append(made("span", starts.get(i), "segment"));
    const span = made("span", token, "token");
    span.setAttribute("role", "option");
    span.id = "t" + card.number + "-" + i;
    span.dataset.token = i;
    card.spans.push(span);
    tokens.append(span);
    if (breaks.has(i)) tokens.append(made("br"));
  });
  fill(card.find(".layer"), card.model.layers.map((layer, i) => [i, String(layer)]), card.place);
  fillHeads(card);
  listen(card, tokens);
}

function fill(select, options, value) {
  select.replaceChildren(...options.map(([key, name]) => {
    const option = made("option", name);
    option.value = key;
    return option;
  }));
  select.value = value;
}

function fillHeads(card) {
  const heads = card.model.heads[card.place];
  const each = Array.from({ length: heads }, (_, i) => [i, String(i)]);
  if (card.head !== "mean" && card.head >= heads) card.head = heads - 1;
  fill(card.find(".head"), heads > 1 ? [["mean", "mean of " + heads], ...each] : each, card.head);
}

function buildMaps(card) {
  const wanted = kindsShown(card);
  if (wanted.join() === Object.keys(card.canvases).join()) return;
  card.canvases = {};
  card.find(".maps").replaceChildren(...wanted.map((kind) => {
    const figure = made("figure"), canvas = made("canvas"), scale = made("div", undefined, "scale");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-roledescription", "attention map");
    canvas.dataset.kind = kind;
    figure.append(made("figcaption"), canvas, scale);
    scale.append(made("span", "", "low"), made("canvas"), made("span", "", "high"));
    scale.querySelector("canvas").setAttribute("aria-hidden", "true");
    listenMap(card, canvas);
    card.canvases[kind] = { figure, canvas };
    return figure;
  }));
}

// Everything of a card that depends on what is chosen.
async function refresh(card) {
  const wanted = [card.place, card.head].join();
  try {
    const layer = await layerOf(card.number, card.place);
    if (wanted !== [card.place, card.head].join()) return; // something else was chosen meanwhile
    if (card.planesOf !== wanted) card.planes = planesOf(layer, card.head);
    card.planesOf = wanted;
    card.layer = layer;
    buildMaps(card);
    setLimits(card);
    draw(card);
    describe(card);
    await describeSegments(card);
    card.element.dataset.ready = wanted;
  } catch (error) {
    card.find(".state").textContent = "These maps cannot be shown: " + error.message + ".";
    throw error;
  }
}

function setLimits(card) {
  const range = byId("range").value, first = firstShown();
  const now = [card.planesOf, range, first, byId("own-range").checked].join();
  if (card.limitsOf === now) return;
  card.limitsOf = now;
  const maps = isDiff(card) ? [card.planes.a1, card.planes.a2] : [card.planes.d];
  const limit = (planes) => (range[0] === "=" ? Number(range.slice(1)) : quantile(planes, Number(range), first));
  const shared = limit(maps);
  card.limits = { a1: shared, a2: shared, d: byId("own-range").checked ? limit([card.planes.d]) : shared };
}

function draw(card) {
  const view = windowOf(card.text.tokens.length, Number(byId("zoom").value), card.chosen.query, card.chosen.key);
  card.view = view;
  for (const [kind, { figure, canvas }] of Object.entries(card.canvases)) {
    const absolute = kind === "d" && byId("absolute").checked;
    figure.querySelector("figcaption").textContent = title(card, kind);
    canvas.setAttribute("aria-label", title(card, kind) + " of " + card.model.label + "; up and down: query, left and right: key");
    drawMap(canvas, card.planes[kind], card.text.tokens, view, {
      limit: card.limits[kind], first: firstShown(), absolute, query: card.chosen.query, key: card.chosen.key,
    });
    drawScale(figure.querySelector(".scale canvas"));
    figure.querySelector(".low").textContent = shown(-card.limits[kind], 3);
    figure.querySelector(".high").textContent = shown(card.limits[kind], 3);
  }
  colourText(card);
}

// The query's row of the map, in the map's own colours.
function colourText(card) {
  const { query } = card.chosen, row = rowOf(card), first = firstShown();
  const kind = isDiff(card) ? byId("by").value : "d";
  card.spans.forEach((span, j) => {
    const seen = j <= query && j >= first;
    const colour = seen ? colourOf(row[j], card.limits[kind]) : null;
    span.style.backgroundColor = colour ? css(colour) : "";
    span.style.color = colour ? inkOn(colour) : "";
    span.classList.toggle("query", j === query);
    span.classList.toggle("key", j === card.chosen.key);
    span.setAttribute("aria-selected", j === query);
    span.tabIndex = j === query ? 0 : -1;
  });
  bringIntoSight(card.find(".tokens"), card.spans[query]);
}

// Within the text's own frame: the page stays where it is.
function bringIntoSight(frame, span) {
  const top = span.offsetTop; // from the frame, which is positioned
  if (top < frame.scrollTop || top + span.offsetHeight > frame.scrollTop + frame.clientHeight) {
    frame.scrollTop = top - frame.clientHeight / 2;
  }
}

function describe(card) {
  const { text, planes } = card, at = card.chosen.over || card.chosen;
  const query = at.query, key = Math.min(at.key, at.query), i = rowStart(query) + key;
  const rows = isDiff(card)
    ? [["A₁", "a1", planes.a1[i]], ["A₂", "a2", planes.a2[i]], ["λ", "lam", planes.lam[query]],
       ["A₁ − λA₂", "d", planes.d[i]]]
    : [["A", "d", planes.d[i]]];
  const table = card.find(".cell");
  const later = at.key > at.query;
  table.caption.textContent =
    "Query " + named(text, query) + (later ? " does not see the later " + named(text, at.key) : " looks at " + named(text, key));
  table.tBodies[0].replaceChildren(...(later ? [] : rows).map(([name, kind, value]) => {
    const line = made("tr"), cell = made("td", shown(value));
    cell.dataset.value = kind;
    if (kind === "d") cell.append(made("small", " ± " + shown(Math.ceil(1e4 * planes.error[i]) / 1e4)));
    const header = made("th", name);
    header.scope = "row";
    line.append(header, cell);
    return line;
  }));
  describeState(card);
  describeTop(card);
}

// Of the chosen query alone: a line that grew under the pointer would move the maps.
function describeState(card) {
  const { text, planes } = card, { query } = card.chosen;
  const row = planes.d.subarray(rowStart(query), rowStart(query + 1));
  const most = row.indexOf(Math.max(...row.subarray(Math.min(firstShown(), query))));
  card.find(".state").textContent =
    "Layer " + card.model.layers[card.place] + ", " +
    (card.head === "mean" ? "mean of " + card.layer.heads + " heads" : "head " + card.head) +
    ": query " + named(text, query) + " looks most at " + named(text, most) + ", " + shown(row[most], 2) +
    (planes.lam ? "; λ = " + shown(planes.lam[query]) + ", so the row sums to " + shown(row.reduce((a, b) => a + b, 0)) : "") +
    "." + (firstShown() ? " The first token is hidden." : "");
}

function header(table, words) {
  table.tHead.replaceChildren(made("tr"));
  table.tHead.rows[0].append(...words.map((word) => {
    const cell = made("th", word);
    cell.scope = "col";
    return cell;
  }));
}

function line(words, className) {
  const row = made("tr", undefined, className);
  words.forEach((word, i) => row.append(made(i ? "td" : "th", word)));
  row.cells[0].scope = "row";
  return row;
}

function describeTop(card) {
  const { query } = card.chosen, start = rowStart(query), row = rowOf(card);
  const keys = Array.from({ length: query + 1 }, (_, j) => j).slice(firstShown());
  keys.sort((a, b) => Math.abs(row[b]) - Math.abs(row[a]) || a - b);
  const kinds = isDiff(card) ? ["a1", "a2", "d"] : ["d"];
  const table = card.find(".top");
  table.caption.textContent = "Where the chosen query looks most";
  header(table, ["key", ...(isDiff(card) ? ["A₁", "A₂", "A₁ − λA₂"] : ["A"])]);
  table.tBodies[0].replaceChildren(...keys.slice(0, 8).map((j) =>
    line([named(card.text, j), ...kinds.map((kind) => shown(card.planes[kind][start + j]))])));
}

// Shares of attention on the parts of a needle's text, as protocol attention_segments defines them.
async function describeSegments(card) {
  const segments = card.text.segments, query = card.chosen.query;
  if (!segments.length) return;
  const all = await Promise.all(card.model.layers.map((_, i) => layerOf(card.number, i)));
  if (all.length < card.model.numLayers) {
    card.find(".everywhere").caption.textContent = "Shares over the layers of this page and all heads";
  }
  const kinds = isDiff(card) ? ["a1", "a2", "d", "absolute"] : ["a1"];
  const labels = isDiff(card) ? ["A₁", "A₂", "A₁ − λA₂", "|A₁ − λA₂|"] : ["A"];
  const even = segments.map(([, a, b]) => Math.max(0, Math.min(b, query + 1) - a));
  for (const [name, layers, head] of [["here", [card.layer], card.head], ["everywhere", all, "mean"]]) {
    const table = card.find("." + name), sums = segmentSums(layers, head, query);
    const columns = [even, ...kinds.map((kind) => sums[kind])].map(sharesOf);
    header(table, ["segment", "even", ...labels]);
    const rows = segments.map(([part, a, b], k) => line([part + " (" + (b - a) + ")", ...columns.map((column) => percent(column[k]))]));
    rows.push(line(["noise", ...columns.map((column) => percent(column[1] + column[3]))], "total"));
    table.tBodies[0].replaceChildren(...rows);
  }
  card.find(".shares").hidden = false;
}

function inText(card, change) {
  for (const other of cards) if (other.chosen === card.chosen) change(other);
}

// Choose a query and a key of a text: all models that read it follow.
function choose(card, query, key) {
  const last = card.text.tokens.length - 1;
  card.chosen.query = Math.max(0, Math.min(last, query));
  card.chosen.key = Math.max(0, Math.min(card.chosen.query, key));
  card.chosen.over = null;
  inText(card, refresh);
  announce(card);
}

function point(card, cell) {
  card.chosen.over = cell;
  inText(card, (other) => other.planes && describe(other));
}

async function announce(card) {
  await layerOf(card.number, card.place);
  if (!card.planes) return;
  const { query, key } = card.chosen, i = rowStart(query) + key;
  const values = isDiff(card)
    ? "A₁ " + shown(card.planes.a1[i]) + ", A₂ " + shown(card.planes.a2[i]) + ", difference " + shown(card.planes.d[i])
    : "A " + shown(card.planes.d[i]);
  byId("live").textContent = card.model.label + ": query " + named(card.text, query) + ", key " + named(card.text, key) + ": " + values;
}

// A layer or head for this model, and for the others if they go together and have it.
function pick(card, place, head) {
  const layer = card.model.layers[place];
  const others = byId("together") && byId("together").checked ? cards : [card];
  for (const other of others) {
    const there = other === card ? place : other.model.layers.indexOf(layer);
    if (there < 0) continue;
    other.place = there;
    if (head === "mean" ? other.model.heads[there] > 1 : head < other.model.heads[there]) other.head = head;
    fillHeads(other);
    other.find(".layer").value = there;
    refresh(other);
  }
}

function step(card, what, by) {
  if (what === "layer") {
    const count = card.model.layers.length;
    return pick(card, (card.place + by + count) % count, card.head);
  }
  const heads = Array.from(card.find(".head").options, (option) => option.value);
  const at = (heads.indexOf(String(card.head)) + by + heads.length) % heads.length;
  return pick(card, card.place, heads[at] === "mean" ? "mean" : Number(heads[at]));
}

function toggle(id) {
  byId(id).checked = !byId(id).checked;
  cards.forEach(refresh);
}

// Letters; only while a text or a map has the focus.
function letter(card, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return false;
  const by = event.shiftKey ? -1 : 1, key = event.key.toLowerCase();
  if (key === "l") step(card, "layer", by);
  else if (key === "h") step(card, "head", by);
  else if (key === "m" && card.model.heads[card.place] > 1) pick(card, card.place, "mean");
  else if (key === "b") toggle("hide-bos");
  else if (key === "a") toggle("absolute");
  else return false;
  return true;
}

const jumps = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };

function listen(card, tokens) {
  tokens.addEventListener("keydown", (event) => {
    const by = { ...jumps, ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey) {
      choose(card, card.chosen.query + by, card.chosen.key);
      card.spans[card.chosen.query].focus();
    } else if (!letter(card, event)) return;
    event.preventDefault();
  });
  const tokenOf = (event) => event.target.closest("[data-token]");
  tokens.addEventListener("click", (event) => {
    const span = tokenOf(event);
    if (span) choose(card, Number(span.dataset.token), card.chosen.key);
    if (span) span.focus();
  });
  tokens.addEventListener("pointerover", (event) => {
    const span = tokenOf(event);
    if (span) point(card, { query: card.chosen.query, key: Number(span.dataset.token) });
  });
  tokens.addEventListener("pointerleave", () => point(card, null));
  card.find(".layer").addEventListener("change", (event) => pick(card, Number(event.target.value), card.head));
  card.find(".head").addEventListener("change", (event) => {
    pick(card, card.place, event.target.value === "mean" ? "mean" : Number(event.target.value));
  });
}

function listenMap(card, canvas) {
  canvas.addEventListener("pointermove", (event) => point(card, cellAt(canvas, card.view, card.text.tokens, event)));
  canvas.addEventListener("pointerleave", () => point(card, null));
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(canvas, card.view, card.text.tokens, event);
    if (cell) choose(card, cell.query, cell.key);
  });
  canvas.addEventListener("keydown", (event) => {
    const sideways = { ArrowLeft: -1, ArrowRight: 1 }[event.key], by = jumps[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (sideways) choose(card, card.chosen.query, card.chosen.key + sideways);
    else if (by) choose(card, card.chosen.query + by, card.chosen.key);
    else if (!letter(card, event)) return;
    event.preventDefault();
  });
}

function redraw() {
  for (const card of cards) if (card.planes) draw(card);
}

for (const id of controls) byId(id).addEventListener("change", () => cards.forEach(refresh));
if (data.texts.every((text) => text.bos)) byId("bos-name").textContent = "the first token (BOS)";
darkScheme.addEventListener("change", redraw);
window.addEventListener("beforeprint", () => { printing = true; redraw(); });
window.addEventListener("afterprint", () => { printing = false; redraw(); });
let width = window.innerWidth;
window.addEventListener("resize", () => { if (width !== window.innerWidth) { width = window.innerWidth; redraw(); } });
byId("options").open = window.matchMedia("(min-width: 40rem)").matches;
cards.forEach(build);
cards.forEach(refresh);
