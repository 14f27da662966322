// Everything from the data enters the page as text, never as markup.
document.addEventListener("DOMContentLoaded", function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const STEP = 50;
  let shown = STEP;

  function make(tag, text, name) {
    const node = document.createElement(tag);
    if (text !== undefined) node.textContent = text;
    if (name) node.className = name;
    return node;
  }

  function fill(select, pairs) {
    const before = select.value;
    select.replaceChildren();
    for (const [value, text] of pairs) {
      const option = make("option", text);
      option.value = value;
      select.append(option);
    }
    if (pairs.some((pair) => pair[0] === before)) select.value = before;
  }

  function part() { return data.parts[Number(at("part").value)] || data.parts[0]; }

  function score(item, label) {
    const side = item.models[label];
    if (!side || !side.scores) return null;
    const value = side.scores[at("score").value];
    return value === undefined ? null : value;
  }

  const number = (x) => (x === null ? "—" : String(Math.round(x * 1e4) / 1e4).replace("-", "−"));

  function choices() {
    const of = part();
    fill(at("score"), of.scores.map((name) => [name, name]));
    const pairs = [["all", "all items"]];
    if (of.labels.length > 1) {
      pairs.push(["differ", "where models differ"], ["same", "where all agree"]);
      for (const label of of.labels) pairs.push(["best:" + label, label + " alone scores highest"]);
    }
    pairs.push(["zero", "where all score 0"], ["failed", "failed for a model"]);
    fill(at("show"), pairs);
  }

  function wanted(item, of) {
    const rule = at("show").value;
    const values = of.labels.map((label) => score(item, label));
    const known = values.filter((x) => x !== null);
    if (rule === "failed") return of.labels.some((label) => (item.models[label] || {}).error);
    if (rule === "differ") return known.length > 1 && known.some((x) => x !== known[0]);
    if (rule === "same") return known.length > 1 && known.every((x) => x === known[0]);
    if (rule === "zero") return known.length > 0 && known.every((x) => x === 0);
    if (rule.startsWith("best:")) {
      const best = score(item, rule.slice(5));
      return best !== null && known.length > 1 && known.filter((x) => x >= best).length === 1;
    }
    return true;
  }

  function facts(fields) {
    const list = make("dl");
    for (const [key, value] of Object.entries(fields)) list.append(make("dt", key), make("dd", value));
    return list;
  }

  function prompt(of) {
    const block = make("pre", of.begins);
    if (of.ends) {
      block.append(make("span", "\n… " + of.between.toLocaleString("en") + " characters …\n", "between"));
      block.append(document.createTextNode(of.ends));
    }
    return block;
  }

  function body(item, of) {
    const all = make("div");
    if (item.prompt) all.append(make("h4", "What was read"), prompt(item.prompt));
    if (Object.keys(item.facts).length) all.append(facts(item.facts));
    const sides = make("div", undefined, "sides");
    for (const label of of.labels) {
      const side = item.models[label];
      const block = make("div");
      block.append(make("h4", label));
      if (!side) block.append(make("p", "not asked"));
      else if (side.error) block.append(make("p", "failed: " + side.error));
      else {
        if (side.prompt) block.append(make("p", "It read another text:"), prompt(side.prompt));
        if (side.fields.output !== undefined) block.append(make("pre", side.fields.output));
        const scores = {};
        for (const [key, value] of Object.entries(side.scores)) scores[key] = number(value);
        const others = Object.assign({}, side.fields);
        delete others.output;
        block.append(facts(scores), facts(others));
      }
      sides.append(block);
    }
    all.append(sides);
    return all;
  }

  function draw() {
    const of = part();
    if (!of) return;
    const text = at("find").value.toLowerCase();
    const chosen = of.items.filter(
      (item) => wanted(item, of) && (!text || JSON.stringify(item).toLowerCase().includes(text))
    );
    const place = at("items");
    place.replaceChildren();
    for (const item of chosen.slice(0, shown)) {
      const box = make("details", undefined, "item");
      const head = make("summary", item.id);
      for (const label of of.labels) {
        const side = item.models[label];
        const value = side && side.error ? "failed" : number(score(item, label));
        head.append(make("span", label + " " + value, "chip"));
      }
      box.append(head);
      box.addEventListener("toggle", function () {
        if (box.open && box.children.length === 1) box.append(body(item, of));
      });
      place.append(box);
    }
    at("summary").textContent = of.summary + " " + chosen.length.toLocaleString("en") + " fit the choice.";
    at("more").hidden = chosen.length <= shown;
  }

  function redraw() { shown = STEP; draw(); }

  fill(at("part"), data.parts.map((of, index) => [String(index), of.variant]));
  choices();
  draw();
  at("part").addEventListener("change", function () { choices(); redraw(); });
  at("score").addEventListener("change", redraw);
  at("show").addEventListener("change", redraw);
  at("find").addEventListener("input", redraw);
  at("more").addEventListener("click", function () { shown += STEP; draw(); });
  at("pickers").addEventListener("submit", function (event) { event.preventDefault(); });
});
