// Colours and maps.

const palettes = {
  light: {
    stops: ["#b35806", "#f1a340", "#ffffff", "#67a9cf", "#053061"],
    unseen: "#dcdcdc", ink: "#1d1d1d", halo: "#ffffff", mark: "#000000",
  },
  dark: {
    stops: ["#ffb454", "#a8641c", "#101318", "#2b76b5", "#b5dcff"],
    unseen: "#3a3f47", ink: "#e8e8e8", halo: "#000000", mark: "#ffffff",
  },
};
const steps = 255;
const darkScheme = window.matchMedia("(prefers-color-scheme: dark)");
let printing = false;

function channels(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

// 2 * steps + 1 colours from -1 to 1.
function colourTable(stops) {
  const points = stops.map(channels);
  return Array.from({ length: 2 * steps + 1 }, (_, i) => {
    const x = (i / (2 * steps)) * (points.length - 1);
    const low = Math.min(Math.floor(x), points.length - 2);
    return points[low].map((c, k) => Math.round(c + (x - low) * (points[low + 1][k] - c)));
  });
}
for (const palette of Object.values(palettes)) palette.table = colourTable(palette.stops);

function palette() {
  return darkScheme.matches && !printing ? palettes.dark : palettes.light;
}

// The colour of a value on a scale from -limit to limit.
function colourOf(value, limit) {
  const x = limit > 0 ? Math.max(-1, Math.min(1, value / limit)) : 0;
  return palette().table[Math.round((x + 1) * steps)];
}

function css(colour) {
  return "rgb(" + colour.join(",") + ")";
}

function luminance(colour) {
  const [r, g, b] = colour.map((c) => (c <= 10 ? c / 3295 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Black or white, whichever reads better: a contrast of 4.5 or more on any colour.
function inkOn(colour) {
  return luminance(colour) > 0.179 ? "#000" : "#fff";
}

// The weight that a share of all weights shown does not exceed in size; zeros do not count.
function quantile(planes, share, first) {
  const values = [];
  for (const plane of planes) {
    const stride = share === 1 ? 1 : Math.max(1, Math.ceil(plane.length / 100000));
    for (let i = 0, t = 0; i < plane.length; i += stride) {
      while (rowStart(t + 1) <= i) t += 1;
      if (plane[i] && i - rowStart(t) >= first) values.push(Math.abs(plane[i]));
    }
  }
  if (!values.length) return 1;
  if (share === 1) return values.reduce((a, b) => Math.max(a, b));
  values.sort((a, b) => a - b);
  return values[Math.floor(share * (values.length - 1))] || values[values.length - 1];
}

// The part of the text that maps show: so many tokens around the chosen cell.
function windowOf(tokens, zoom, query, key) {
  const size = zoom && zoom < tokens ? zoom : tokens;
  const start = (centre) => Math.max(0, Math.min(tokens - size, centre - (size >> 1)));
  return { size, query: start(query), key: start(key) };
}

function place(canvas, view, names) {
  const ratio = printing ? 2 : window.devicePixelRatio || 1;
  const width = canvas.clientWidth || 320;
  const font = Math.min(12, (0.85 * width) / (view.size + 6));
  const labelled = font >= 7;
  let longest = 0;
  if (labelled) for (let i = 0; i < view.size; i++) {
    longest = Math.max(longest, label(names[view.query + i]).length, label(names[view.key + i]).length);
  }
  const margin = labelled ? Math.ceil(0.62 * font * longest) + 5 : 0;
  return { ratio, width, font, labelled, margin, cell: (width - margin) / view.size };
}

function label(name) {
  const characters = Array.from(name);
  return characters.length > 9 ? characters.slice(0, 8).join("") + "…" : name;
}

function drawMap(canvas, plane, names, view, options) {
  const at = place(canvas, view, names);
  canvas.width = canvas.height = Math.round(at.width * at.ratio);
  const context = canvas.getContext("2d");
  context.setTransform(at.ratio, 0, 0, at.ratio, 0, 0);
  context.clearRect(0, 0, at.width, at.width);
  context.imageSmoothingEnabled = at.cell * at.ratio < 1;
  context.imageSmoothingQuality = "high";
  context.drawImage(cellsOf(canvas, plane, view, options), at.margin, at.margin, at.width - at.margin, at.width - at.margin);
  if (at.labelled) drawLabels(context, at, names, view, palette().ink);
  mark(context, at, view, options, palette());
}

// One pixel per cell, kept until something else than the chosen cell changes.
const keptCells = new WeakMap();
function cellsOf(canvas, plane, view, options) {
  const colours = palette(), { limit, first, absolute } = options;
  const now = [plane, colours, view.size, view.query, view.key, limit, first, absolute];
  const kept = keptCells.get(canvas);
  if (kept && kept.of.every((x, i) => x === now[i])) return kept.cells;
  const cells = document.createElement("canvas");
  cells.width = cells.height = view.size;
  const image = new ImageData(view.size, view.size), pixels = new Uint32Array(image.data.buffer);
  const packed = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
  const table = Int32Array.from(colours.table, packed), unit = steps / limit;
  pixels.fill(packed(channels(colours.unseen)));
  for (let y = 0; y < view.size; y++) {
    const query = view.query + y, last = Math.min(query, view.key + view.size - 1);
    for (let key = Math.max(first, view.key); key <= last; key++) {
      const value = plane[rowStart(query) + key];
      const step = Math.round(unit * (absolute ? Math.abs(value) : value));
      pixels[y * view.size + key - view.key] = table[steps + Math.max(-steps, Math.min(steps, step))];
    }
  }
  cells.getContext("2d").putImageData(image, 0, 0);
  keptCells.set(canvas, { of: now, cells });
  return cells;
}

function drawLabels(context, at, names, view, ink) {
  context.fillStyle = ink;
  context.font = at.font + "px ui-monospace, Menlo, Consolas, monospace";
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let i = 0; i < view.size; i++) {
    const middle = at.margin + (i + 0.5) * at.cell;
    context.fillText(label(names[view.query + i]), at.margin - 3, middle);
    context.save();
    context.translate(middle, at.margin - 3);
    context.rotate(Math.PI / 2);
    context.fillText(label(names[view.key + i]), 0, 0);
    context.restore();
  }
}

// The chosen query's row and, in it, the chosen key.
function mark(context, at, view, options, colours) {
  const y = options.query - view.query, x = options.key - view.key;
  const end = Math.min(view.size, options.query + 1 - view.key);
  const boxes = [];
  if (y >= 0 && y < view.size && end > 0) {
    boxes.push([0, y, end, 1]);
    if (x >= 0 && x < view.size) boxes.push([x, y, 1, 1]);
  }
  for (const [left, top, width, height] of boxes) {
    const grown = Math.max(0, 4 - at.cell) / 2;
    const box = [
      at.margin + left * at.cell - grown, at.margin + top * at.cell - grown,
      width * at.cell + 2 * grown, height * at.cell + 2 * grown,
    ];
    for (const [colour, line] of [[colours.halo, 3], [colours.mark, 1]]) {
      context.strokeStyle = colour;
      context.lineWidth = line;
      context.strokeRect(...box);
    }
  }
}

// The query and key under a point of a map, or null beside it.
function cellAt(canvas, view, names, event) {
  const at = place(canvas, view, names);
  const box = canvas.getBoundingClientRect();
  const x = Math.floor((event.clientX - box.left - canvas.clientLeft - at.margin) / at.cell);
  const y = Math.floor((event.clientY - box.top - canvas.clientTop - at.margin) / at.cell);
  if (x < 0 || y < 0 || x >= view.size || y >= view.size) return null;
  return { query: view.query + y, key: view.key + x };
}

function drawScale(canvas) {
  canvas.width = 2 * steps + 1;
  canvas.height = 1;
  const context = canvas.getContext("2d");
  const image = new ImageData(2 * steps + 1, 1);
  palette().table.forEach((colour, i) => image.data.set([...colour, 255], 4 * i));
  context.putImageData(image, 0, 0);
}
