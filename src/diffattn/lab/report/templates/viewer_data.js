"use strict";
// The numbers of the page: unpacked when they are first shown.

const data = JSON.parse(document.getElementById("data").textContent);
const weightOf = Float32Array.from({ length: data.levels + 1 }, (_, q) => (q / data.levels) ** 2);
const sumLevels = 65535;
const unpackedLayers = new Map();

// How many weights stand before row t of the causal half of a map.
function rowStart(t) {
  return (t * (t + 1)) / 2;
}

// How far a weight can lie from what its code stands for, where the scale is 1.
function halfStep(q) {
  return (q + 0.25) / (data.levels * data.levels);
}

async function inflated(id) {
  const text = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is older than 2023");
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// λ, scales of rows, codes and sums over segments of one layer.
function layerOf(number, place) {
  const id = "m" + number + "l" + place;
  if (!unpackedLayers.has(id)) unpackedLayers.set(id, readLayer(id, data.models[number], place));
  return unpackedLayers.get(id);
}

async function readLayer(id, model, place) {
  const text = data.texts[model.text];
  const tokens = text.tokens.length;
  const heads = model.heads[place];
  const lambdas = model.lambdas[place] || 0;
  const scale = model.sumScales[place];
  const kinds = model.maps === 2 ? 3 : 1;
  const floats = lambdas + (model.scaled[place] ? heads * model.maps * tokens : 0);
  const numCodes = heads * model.maps * rowStart(tokens);
  const numSums = scale === null ? 0 : kinds * heads * tokens * text.segments.length;
  const buffer = await inflated(id);
  const end = 4 * floats + numCodes;
  if (buffer.byteLength !== end + 2 * numSums) throw new Error("the page is damaged");
  return {
    tokens, heads, maps: model.maps,
    lam: lambdas ? new Float32Array(buffer.slice(0, 4 * lambdas)) : null,
    scales: model.scaled[place] ? new Float32Array(buffer.slice(4 * lambdas, 4 * floats)) : null,
    codes: new Uint8Array(buffer, 4 * floats, numCodes),
    sums: numSums ? new Uint16Array(buffer.slice(end)) : null,
    sumUnit: scale === null ? 0 : scale / sumLevels,
    segments: text.segments.length,
  };
}

function lambdaAt(layer, head, t) {
  if (!layer.lam) return 0;
  return layer.lam.length === 1 ? layer.lam[0] : layer.lam[head * layer.tokens + t];
}

function headsOf(layer, head) {
  return head === "mean" ? Array.from({ length: layer.heads }, (_, i) => i) : [head];
}

// A1, A2, what acts, how far that can be off, and λ of every query: of one head or the mean.
function planesOf(layer, head) {
  const size = rowStart(layer.tokens);
  const chosen = headsOf(layer, head);
  const share = 1 / chosen.length;
  const planes = {
    a1: new Float32Array(size), a2: layer.maps === 2 ? new Float32Array(size) : null,
    d: new Float32Array(size), error: new Float32Array(size),
    lam: layer.maps === 2 ? new Float32Array(layer.tokens) : null,
  };
  for (const h of chosen) {
    const first = layer.codes.subarray(h * layer.maps * size, (h * layer.maps + 1) * size);
    const second = layer.codes.subarray((h * layer.maps + 1) * size, (h * layer.maps + 2) * size);
    for (let t = 0; t < layer.tokens; t++) {
      const lam = lambdaAt(layer, h, t);
      const scale = (map) => (layer.scales ? layer.scales[(h * layer.maps + map) * layer.tokens + t] : 1);
      const scale1 = share * scale(0), scale2 = planes.a2 ? share * scale(1) : 0;
      if (planes.lam) planes.lam[t] += share * lam;
      for (let i = rowStart(t); i < rowStart(t + 1); i++) {
        const w1 = scale1 * weightOf[first[i]];
        const w2 = planes.a2 ? scale2 * weightOf[second[i]] : 0;
        planes.a1[i] += w1;
        if (planes.a2) planes.a2[i] += w2;
        planes.d[i] += w1 - lam * w2;
        planes.error[i] += scale1 * halfStep(first[i]) + (planes.a2 ? Math.abs(lam) * scale2 * halfStep(second[i]) : 0);
      }
    }
  }
  return planes;
}

// Sums over segments of one query's attention, over layers and heads: A1, A2, signed, absolute.
function segmentSums(layers, head, t) {
  const sums = { a1: [], a2: [], d: [], absolute: [] };
  for (let k = 0; k < layers[0].segments; k++) {
    let a1 = 0, a2 = 0, signed = 0, absolute = 0, count = 0;
    for (const layer of layers) {
      const at = (kind, h) =>
        layer.sums[((kind * layer.heads + h) * layer.tokens + t) * layer.segments + k] * layer.sumUnit;
      for (const h of headsOf(layer, head)) {
        const first = at(0, h), second = layer.maps === 2 ? at(1, h) : 0;
        a1 += first;
        a2 += second;
        signed += first - lambdaAt(layer, h, t) * second;
        absolute += layer.maps === 2 ? at(2, h) : first;
        count += 1;
      }
    }
    sums.a1.push(a1 / count);
    sums.a2.push(a2 / count);
    sums.d.push(signed / count);
    sums.absolute.push(absolute / count);
  }
  return sums;
}

// Each segment's part of the whole: sums over layers and heads first, then one division.
function sharesOf(sums) {
  const whole = sums.reduce((a, b) => a + b, 0);
  return sums.map((x) => (whole ? x / whole : NaN));
}
