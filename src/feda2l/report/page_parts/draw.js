"use strict";
// Shared by the page of a report and the live page. Both have `data` with `settings` (curves) and `runs`.
const COLOURS = ["#4c8bd0", "#f58518", "#43a047", "#e0485a", "#9467bd", "#17a2b8", "#c49a00", "#a0674b", "#e377c2", "#808890"];
let names = [];  // of methods, each with its own colour
const colour = name => COLOURS[names.indexOf(name) % COLOURS.length];
const nameMethods = () => { names = [...new Set([...names, ...data.settings.flatMap(setting => setting.methods.map(method => method.name))])]; };
const chosen = { setting: 0, run: 0, node: 0 };
const hidden = new Set();
const touch = matchMedia("(pointer: coarse)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const find = (section, what) => document.querySelector(`#${section} ${what}`);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function make(tag, text, attributes) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  return element;
}

// --- tables ---------------------------------------------------------------------------------------------------

function sortKey(text) {
  if (text === "" || text === "-" || /not reached|diverged|no target/.test(text)) return Infinity;
  const beyond = /^(median )?>/.test(text);
  const found = text.replace(/,/g, "").match(/[-+]?\d+(\.\d+)?/);
  if (found === null) return text.toLowerCase();
  return Number(found[0]) + (beyond ? 0.5 : 0);
}

function sortRows(table, column, direction) {
  const body = table.tBodies[0];
  const free = [...body.rows].filter(row => !row.className), fixed = [...body.rows].filter(row => row.className);
  const words = column === 0 || table.tHead.rows[0].cells[column].dataset.words === "true";
  const key = row => words ? row.cells[column].textContent.toLowerCase() : sortKey(row.cells[column].textContent);
  free.sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === y) return 0;
    if (x === Infinity || y === Infinity) return x === Infinity ? 1 : -1;  // a target that was not reached is last in both directions
    return (x < y ? -1 : 1) * direction;
  });
  body.append(...free, ...fixed);
}

function drawSheet(sheet, parent, words) {
  if (!words) parent.append(make("h3", sheet.title));
  const box = make("div", undefined, { class: "scroll", tabindex: "0", role: "region", "aria-label": sheet.title });
  const table = make("table", undefined, words ? { class: "words" } : {});
  const isHeading = row => row.length > 1 && row.slice(1).every(cell => cell[0] === "");
  const sortable = !sheet.rows.some(isHeading);
  const head = table.createTHead().insertRow();
  sheet.header.forEach((text, column) => {
    const cell = make("th", undefined, { scope: "col" });
    text = text.replaceAll("`", "");
    if (!sortable) cell.textContent = text;
    else {
      cell.dataset.words = words || sheet.rows.every(row => typeof sortKey(row[column][0]) === "string");
      const button = make("button", text, { type: "button", title: "Sort by this column" });
      button.addEventListener("click", () => {
        const up = cell.getAttribute("aria-sort") === "ascending";
        for (const other of head.cells) other.removeAttribute("aria-sort");
        cell.setAttribute("aria-sort", up ? "descending" : "ascending");
        sortRows(table, column, up ? -1 : 1);
      });
      cell.append(button);
    }
    head.append(cell);
  });
  const body = table.createTBody();
  for (const row of sheet.rows) {
    const line = body.insertRow();
    if (isHeading(row)) line.className = "heading";
    else if (row[0][0].startsWith("Improv.")) line.className = "fixed";
    for (const [text, place] of row) {
      const cell = line.insertCell();
      if (place === 0) cell.textContent = text;
      else cell.append(make(place === 1 ? "strong" : "span", text, place === 1 ? {} : { class: "second" }));
    }
  }
  box.append(table);
  parent.append(box);
  const notes = make("ul", undefined, { class: "notes" });
  for (const note of sheet.notes) notes.append(make("li", note.replaceAll("**", "").replace(/<\/?u>|`/g, "")));
  parent.append(notes);
}

// --- plots ----------------------------------------------------------------------------------------------------

function layout(more) {
  const axis = { gridcolor: css("--grid"), zerolinecolor: css("--grid"), linecolor: css("--line"), automargin: true };
  const { xaxis, yaxis, ...rest } = more;
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--text"), size: 12 },
    margin: { l: 54, r: 12, t: 28, b: 44 }, height: 400, showlegend: false, dragmode: touch.matches ? false : "zoom",
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
    uirevision: JSON.stringify(chosen),  // keep the zoom until something else is chosen
  };
}

function plot(place, traces, more) {
  for (const sentence of place.querySelectorAll(".said")) sentence.remove();
  place.classList.add("drawn");
  Plotly.react(place, traces, layout(more), { responsive: true, displayModeBar: false });
}

function say(place, sentence) {
  if (place.classList.contains("drawn")) Plotly.purge(place);
  place.classList.remove("drawn");
  place.replaceChildren(make("p", sentence, { class: "said" }));
}

const scoreTitle = metric => metric === "accuracy" ? "mean test accuracy, %" : `mean test ${metric.toUpperCase()}`;
const scaled = (values, metric) => metric === "accuracy" ? values.map(value => value === null ? null : 100 * value) : values;

const lines = x => x.length === 1 ? "markers" : "lines";  // a line with one point is invisible

const level = (at, dash, text = "") => ({
  type: "line", xref: "paper", x0: 0, x1: 1, y0: at, y1: at, line: { color: css("--soft"), dash, width: 1 },
  label: { text, textposition: "end", font: { color: css("--soft") } },
});

function drawCurves() {
  const setting = data.settings[chosen.setting], place = find("curves", ".plot");
  const legend = find("curves", ".legend"), across = find("curves", ".across");
  // simulated seconds, if every method has them
  const timed = setting.methods.every(method => method.seconds !== undefined);
  across.parentElement.hidden = !timed;
  const bySeconds = timed && across.value === "seconds";
  const seeds = new Map();  // by method; the live page has one line per seed
  for (const method of setting.methods) seeds.set(method.name, (seeds.get(method.name) || 0) + method.seeds);
  const key = JSON.stringify([...seeds]);
  if (legend.dataset.key !== key) {
    legend.dataset.key = key;
    legend.replaceChildren(...[...seeds].map(([name, count]) => {
      const button = make("button", name, { type: "button", "aria-pressed": String(!hidden.has(name)), title: `${count} seed${count === 1 ? "" : "s"}` });
      button.style.setProperty("--swatch", colour(name));
      button.addEventListener("click", () => {
        if (!hidden.delete(name)) hidden.add(name);
        button.setAttribute("aria-pressed", String(!hidden.has(name)));
        drawCurves();
      });
      return button;
    }));
  }
  const drawLines = () => {
    const traces = [];
    for (const method of setting.methods) {
      const common = { x: bySeconds ? method.seconds : method.x, mode: "lines", visible: !hidden.has(method.name), name: method.label || method.name };
      const faint = { width: 0, color: colour(method.name) };
      if (method.seeds > 1) {
        traces.push({ ...common, y: scaled(method.low, setting.metric), line: faint, hoverinfo: "skip" });
        traces.push({ ...common, y: scaled(method.high, setting.metric), line: faint, hoverinfo: "skip", fill: "tonexty", fillcolor: colour(method.name) + "26" });
      }
      traces.push({ ...common, mode: lines(method.x), y: scaled(method.mean, setting.metric), line: { color: colour(method.name), width: 2 } });
    }
    const shapes = [];
    if (setting.target !== null) shapes.push(level(scaled([setting.target], setting.metric)[0], "dot"));
    if (setting.naive) shapes.push(level(setting.naive[1], "dash", `no training: ${setting.naive[0]}`));  // a live run has none
    plot(place, traces, { shapes, hovermode: innerWidth < 600 ? "closest" : "x unified", hoverlabel: { bgcolor: css("--panel"), font: { color: css("--text") } }, xaxis: { title: { text: bySeconds ? "simulated seconds" : "round" } }, yaxis: { title: { text: scoreTitle(setting.metric) } } });
  };
  if (setting.methods.every(method => method.x.length === 0)) say(place, "No round of these runs was evaluated.");
  else drawLines();
}

function unpack(heat, what) {
  const { low, high, values } = heat[what];
  if (values === "") return null;
  const bytes = Uint8Array.from(atob(values), letter => letter.charCodeAt(0));
  const whole = new Uint16Array(bytes.buffer);
  const size = heat.layers.length * heat.bins, from = chosen.node * size;
  return heat.layers.map((_, layer) => Array.from({ length: heat.bins }, (_, bin) => {
    const value = whole[from + layer * heat.bins + bin];
    return value === 65535 ? null : low + (high - low) * value / 65534;
  }));
}

function drawRates() {
  const run = data.runs[chosen.run], said = find("rates", ".said");
  const places = [...document.querySelectorAll("#rates .plot")];
  const nodes = find("rates", "[data-choose=node]");
  nodes.parentElement.hidden = typeof run.heat === "string";
  if (typeof run.heat === "string") {
    said.textContent = "";
    places.forEach((place, number) => number ? say(place, "") : say(place, `No heat maps: ${run.heat}.`));
    places.slice(1).forEach(place => place.replaceChildren());
    return;
  }
  chosen.node = Math.min(chosen.node, run.heat.nodes - 1);
  if (nodes.options.length !== run.heat.nodes) nodes.replaceChildren(...Array.from({ length: run.heat.nodes }, (_, node) => new Option(node, node)));
  nodes.value = chosen.node;
  const parts = [];
  if (run.heat.width > 1) parts.push(`Each column is the mean of ${run.heat.width} rounds.`);
  if (run.heat.of > run.heat.nodes) parts.push(`The first ${run.heat.nodes} of ${run.heat.of} nodes are shown.`);
  said.textContent = parts.join(" ");
  const short = name => innerWidth < 600 && name.length > 12 ? "…" + name.slice(-11) : name;
  for (const place of places) {
    const what = place.dataset.what, z = unpack(run.heat, what);
    const title = { rate: "learning rate", divergence: "divergence: how far training moved the layer", stability: "stability: share of the layer that mixing hardly changed" }[what];
    if (z === null) { say(place, `No ${what} was recorded.`); continue; }
    const { low, high, top } = run.heat[what];
    if (low === high) { say(place, `${title}: ${Number(low.toPrecision(5))} in every layer and round of every node.`); continue; }
    const x = Array.from({ length: run.heat.bins }, (_, bin) => bin * run.heat.width + (run.heat.width + 1) / 2);
    const labels = run.heat.layers.map(short);
    plot(place, [{
      type: "heatmap", x, y: run.heat.layers.map((_, layer) => layer), z, zmin: low, zmax: Math.max(top, low + 1e-12), colorscale: "Viridis",
      text: z.map((row, layer) => row.map(() => run.heat.layers[layer])), hovertemplate: `%{text}<br>round %{x}<br>${what} %{z:.4g}<extra></extra>`,
      colorbar: { thickness: 10, tickfont: { color: css("--text") }, outlinewidth: 0 },
    }], {
      title: { text: title, font: { size: 13 }, x: 0, xanchor: "left" }, height: Math.min(130 + 24 * run.heat.layers.length, 760),
      xaxis: { title: { text: "round" } }, yaxis: { autorange: "reversed", tickvals: labels.length > 40 ? undefined : labels.map((_, layer) => layer), ticktext: labels.length > 40 ? undefined : labels },
    });
  }
}

function drawGraph() {
  const run = data.runs[chosen.run], place = find("graph", ".plot");
  if (typeof run.edges === "string") return say(place, `No graph: ${run.edges}.`);
  const count = run.nodes.length;
  if (!count) return say(place, "No node has been scored yet.");
  const at = Array.from({ length: count }, (_, node) => [Math.sin(2 * Math.PI * node / count), Math.cos(2 * Math.PI * node / count)]);
  const x = [], y = [];
  for (const [i, j] of run.edges) {
    if (i >= count || j >= count) continue;
    x.push(at[i][0], at[j][0], null);
    y.push(at[i][1], at[j][1], null);
  }
  const scores = scaled(run.nodes, run.metric), free = { visible: false, range: [-1.25, 1.25] };
  const there = scores.filter(score => score !== null), middle = (Math.min(...there) + Math.max(...there)) / 2;
  const size = count > 40 ? 12 : 26, equal = there.every(score => score === there[0]);
  const said = equal && there.length ? `all nodes: ${Number(there[0].toPrecision(4))} ${run.metric === "accuracy" ? "%" : run.metric}` : "";
  plot(place, [
    { x, y, mode: "lines", line: { color: css("--soft"), width: run.edges.length > 300 ? 0.3 : 0.8 }, hoverinfo: "skip" },
    {
      x: at.map(p => p[0]), y: at.map(p => p[1]), mode: count > 40 ? "markers" : "markers+text", text: at.map((_, node) => node), textfont: { size: 11, color: scores.map(score => !equal && score > middle ? "#111" : "#fff") },
      marker: { size, color: scores, colorscale: "Cividis", showscale: !equal, line: { width: 1, color: css("--line") }, colorbar: { thickness: 10, outlinewidth: 0, title: { text: run.metric === "accuracy" ? "%" : run.metric } } },
      hovertemplate: "node %{text}: %{marker.color:.4g}<extra></extra>",
    },
  ], { xaxis: free, yaxis: { ...free, scaleanchor: "x" }, height: 430, margin: { l: 8, r: 8, t: 32, b: 8 }, title: { text: said, font: { size: 13 } } });
}

function drawDistance() {
  const setting = data.settings[chosen.setting], place = find("distance", ".plot");
  const there = setting.methods.filter(method => method.distance.length);
  if (!there.length) return say(place, "These records have no consensus distance.");
  const largest = Math.max(...there.flatMap(method => method.distance.map(Math.abs)));
  if (largest < 1e-9) return say(place, "The distance is 0 throughout: after mixing over this graph, all nodes have the same model.");
  const first = method => there.find(other => other.name === method.name) === method;
  plot(place, there.map(method => ({ legendgroup: method.name, showlegend: first(method), x: method.distance_x, y: method.distance.map(value => value > 0 ? value : null), name: method.name, mode: lines(method.distance_x), line: { color: colour(method.name), width: 2 } })), {
    showlegend: true, legend: { orientation: "h", y: -0.25 }, xaxis: { title: { text: "round" } }, yaxis: { type: "log", title: { text: "distance to the mean model" }, exponentformat: "power" },
  });
}

function drawSpec() {
  for (const what of ["spec", "environment"]) {
    const place = find("spec", `.${what}`), text = data.runs[chosen.run][what];
    if (place.textContent !== text) place.textContent = text;
  }
}

// --- panels ---------------------------------------------------------------------------------------------------

const panels = {};  // name of a section -> the function that draws it when it becomes visible
const drawn = new Set();
const draw = wanted => wanted.filter(name => drawn.has(name)).forEach(drawPanel);

function drawPanel(name) {
  try {
    panels[name]();
  } catch (error) {  // a failure of one panel must not affect the others
    console.error(error);
    const place = find(name, ".plot");
    if (place) place.replaceChildren(make("p", `This panel could not be drawn: ${error.message}`, { class: "said" }));
  }
}

function showPanels(own) {
  Object.assign(panels, own);
  const watch = new IntersectionObserver(entries => {
    for (const entry of entries) {
      if (!entry.isIntersecting || drawn.has(entry.target.id)) continue;
      drawn.add(entry.target.id);
      drawPanel(entry.target.id);
    }
  }, { rootMargin: "300px" });
  for (const name of Object.keys(panels)) watch.observe(document.getElementById(name));
  dark.addEventListener("change", () => draw(Object.keys(panels)));
  find("curves", ".across").addEventListener("change", () => draw(["curves"]));
  let waiting = 0, width = innerWidth;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; draw(Object.keys(panels)); } }, 200);
  });
}
