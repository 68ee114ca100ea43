"use strict";
const data = { settings: [], runs: [] };  // as in the page of a report
const told = new Map();  // by id: the table line and the curve of a run
let detail = {};  // heat maps, graph and spec of the chosen run
let ids = null, folder = "", note = "", lost = false;
const choice = { setting: null, run: null, byHand: false };  // by name and id, as positions change when runs are added
const ORDER = ["running", "failed", "non_finite", "stopped", "waiting", "finished"];
const SPEC_LESS = { heat: "being read", nodes: [], edges: "being read", spec: "", environment: "" };

// --- words ----------------------------------------------------------------------------------------------------

const isNumber = value => value !== null && value !== undefined;
const number = value => isNumber(value) ? String(Number(value.toPrecision(4))) : "";
const scoreOf = (value, metric) => !isNumber(value) ? "" : metric === "accuracy" ? `${(100 * value).toFixed(2)} %` : number(value);
const roundOf = run => isNumber(run.round) ? `${run.round}/${run.rounds}` : "";
const last = values => values.length ? values[values.length - 1] : null;

function duration(seconds) {
  if (!isNumber(seconds)) return "";
  if (seconds < 90) return `${seconds.toFixed(0)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(0)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

function bytes(count) {
  if (!count) return "";
  const power = Math.min(Math.floor(Math.log10(count) / 3), 5);
  return `${number(count / 1000 ** power)} ${["B", "kB", "MB", "GB", "TB", "PB"][power]}`;
}

function sayStatus() {
  const place = document.getElementById("status"), all = [...told.values()];
  const count = state => all.filter(run => run.state === state).length;
  const counts = ORDER.filter(count).map(state => `${count(state)} ${state}`).join(", ");
  let is = ORDER.find(count) || "none", text = counts;
  if (is === "non_finite") is = "failed";
  if (lost) {
    is = "gone";
    text = "The connection to feda2l watch is lost; the runs continue. Start it again, and this page updates.";
  } else if (ids === null) text = "Looking for runs…";
  else if (!all.length) text = "There is no run here yet. This page updates as soon as one starts.";
  else if (all.length === 1 && is === "running") text = `Running: round ${roundOf(all[0])}` + (isNumber(all[0].left) ? `, about ${duration(all[0].left)} left` : "");
  else if (is === "running") {
    const left = all.map(run => run.left).filter(isNumber);
    if (left.length) text += `; about ${duration(Math.max(...left))} left for ${left.length === 1 ? "it" : "these"}`;
  } else if (is === "finished") text = all.length === 1 ? "The run is finished." : `All ${all.length} runs are finished.`;
  else if (count("stopped")) text += ". Stopped before the end: run the same command again to resume (a run or a swarm with --resume).";
  place.dataset.is = is;
  if (place.textContent !== text) place.textContent = text;
  const begun = all.filter(run => run.rounds), sum = key => begun.reduce((total, run) => total + run[key], 0);
  const head = is === "running" ? `${Math.floor(100 * sum("round") / sum("rounds"))} %` : is === "none" ? "" : is;
  document.title = [head, folder, "FedA2L live"].filter(Boolean).join(" · ");
  document.getElementById("folder").textContent = folder;
}

// --- tables ---------------------------------------------------------------------------------------------------

function setText(cell, text) {
  if (cell.textContent !== text) cell.textContent = text;
}

function setState(cell, state) {
  if (!cell.firstChild) cell.append(make("span", "", { class: "state" }));
  cell.firstChild.dataset.is = state;
  setText(cell.firstChild, state);
}

function rowsOf(section, keys, cells) {
  // keep rows where possible, so that focus and selection are kept
  const body = find(section, "tbody"), known = new Map([...body.rows].map(row => [row.dataset.key, row]));
  const rows = keys.map(key => {
    const row = known.get(key) || make("tr", undefined, { "data-key": key });
    while (row.cells.length < cells) row.insertCell();
    return row;
  });
  if (rows.length !== body.rows.length || rows.some((row, place) => body.rows[place] !== row)) body.replaceChildren(...rows);
  return rows;
}

function drawRuns() {
  const all = sorted(), metrics = new Set(all.map(run => run.metric).filter(Boolean));
  setText(find("runs", ".metric"), metrics.size === 1 ? [...metrics][0] : "score");
  rowsOf("runs", all.map(run => run.id), 7).forEach((row, place) => {
    const run = all[place], [name, state, round, score, loss, left, sent] = row.cells;
    if (run.state === "waiting") setText(name, run.name);
    else {
      if (!name.querySelector("button")) {
        const button = make("button", run.name, { type: "button" });
        button.addEventListener("click", () => choose("run", run.id));
        name.replaceChildren(button);
      }
      setText(name.firstChild, run.name);
    }
    setState(state, run.state);
    if (!round.firstChild) round.append(make("progress", undefined, { max: 1, "aria-label": "rounds done" }), make("span"));
    round.firstChild.value = run.rounds ? run.round / run.rounds : 0;
    setText(round.lastChild, roundOf(run));
    setText(score, scoreOf(last(run.score), run.metric));
    setText(loss, number(run.loss));
    setText(left, duration(run.left));
    setText(sent, bytes(run.sent));
    if (run.id === choice.run) row.setAttribute("aria-current", "true");
    else row.removeAttribute("aria-current");
  });
  const words = all.filter(run => run.words).map(run => `${run.name}: ${run.state}: ${run.words}`);
  const notes = find("runs", ".notes"), lines = note ? [note, ...words] : words;
  if (notes.textContent !== lines.join("")) notes.replaceChildren(...lines.map(line => make("li", line)));
}

function drawSwarm() {
  const run = told.get(choice.run), nodes = run ? run.swarm : [];
  document.getElementById("swarm").hidden = !nodes.length;
  document.querySelector("nav [href='#swarm']").hidden = !nodes.length;
  if (!nodes.length) return;
  setText(find("swarm", ".lead"), `The processes of ${run.name}, each from its own records.`);
  setText(find("swarm", ".metric"), run.metric);
  rowsOf("swarm", nodes.map(node => node.name), 7).forEach((row, place) => {
    const node = nodes[place], [name, state, round, score, loss, received, pace] = row.cells;
    setText(name, node.name);
    setState(state, node.state);
    setText(round, `${node.round}/${run.rounds}`);
    setText(score, scoreOf(node.score, run.metric));
    setText(loss, number(node.loss));
    setText(received, isNumber(node.received) ? String(node.received) : "");
    setText(pace, number(node.pace));
  });
}

// --- data of the figures ---------------------------------------------------------------------------

const sorted = () => [...told.values()].sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || a.name.localeCompare(b.name, undefined, { numeric: true }));
const begun = () => sorted().filter(run => run.state !== "waiting");

function compose() {
  // colours and options are ordered by name, as they must not move when a run ends
  const runs = begun().sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true })), settings = new Map();
  for (const run of runs) {
    const key = `${run.setting}, ${run.metric}`;
    if (!settings.has(key)) settings.set(key, { name: run.setting, metric: run.metric, target: run.target, methods: [] });
    const { x, distance_x, distance } = run;
    settings.get(key).methods.push({ name: run.method, label: run.name, seeds: 1, x, mean: run.score, distance_x, distance });
  }
  data.settings = [...settings.values()];
  data.runs = runs.map(run => ({ name: run.name, setting: run.setting, metric: run.metric, ...SPEC_LESS, ...(detail.id === run.id ? detail : {}) }));
  nameMethods();
  chosen.setting = Math.max(0, data.settings.findIndex(setting => setting.name === choice.setting));
  chosen.run = Math.max(0, runs.findIndex(run => run.id === choice.run));
  fillSelects("setting", data.settings.map(setting => [setting.name, setting.name]), choice.setting);
  fillSelects("run", runs.map(run => [run.name, run.id]), choice.run);
}

function fillSelects(what, options, value) {
  for (const select of document.querySelectorAll(`[data-choose=${what}]`)) {
    if (JSON.stringify([...select.options].map(option => [option.text, option.value])) !== JSON.stringify(options))
      select.replaceChildren(...options.map(([text, value]) => new Option(text, value)));
    if (value !== null) select.value = value;
    select.parentElement.hidden = options.length < 2;
  }
}

function choose(what, value) {
  choice[what] = value;
  if (what === "run") {
    choice.byHand = true;
    connect();
  }
  refresh();
}

function chooseByItself() {
  const working = [...told.values()].filter(run => run.state === "running");
  const current = told.get(choice.run), running = working.find(run => run.method.includes("feda2l")) || working[0];
  const better = current && (choice.byHand || current.state === "running" || !running) ? current : running || begun()[0];
  if (!better || better.id === choice.run) return;
  Object.assign(choice, { run: better.id, byHand: false });
  connect();
}

let cost = 0, pending = 0;
function refresh() {
  // a page with many curves is slow to draw, so it is redrawn less often
  if (!pending) pending = setTimeout(() => { pending = 0; drawAll(); }, Math.min(4 * cost, 10000));
}

function drawAll() {
  const started = performance.now(), there = begun().length > 0;
  sayStatus();
  document.querySelector("nav").hidden = document.querySelector("main").hidden = told.size === 0;
  if (document.hidden) return;
  drawRuns();
  drawSwarm();
  for (const name of Object.keys(panels)) document.getElementById(name).hidden = !there;
  if (there) {
    compose();
    draw(Object.keys(panels));
  }
  cost = performance.now() - started;
}

// --- the stream -----------------------------------------------------------------------------------------------

let source = null;
function connect() {
  if (source) source.close();
  const own = source = new EventSource(choice.run === null ? "events" : `events?run=${encodeURIComponent(choice.run)}`);
  let first = true;
  own.addEventListener("news", event => {
    const news = JSON.parse(event.data);
    ({ folder, note } = news);
    if (first) told.clear();
    first = lost = false;
    for (const run of news.runs) told.set(run.id, run);
    if (news.ids !== null) {
      ids = new Set(news.ids);
      for (const id of told.keys()) if (!ids.has(id)) told.delete(id);
    }
    chooseByItself();
    refresh();
  });
  own.addEventListener("detail", event => {
    detail = JSON.parse(event.data);
    refresh();
  });
  own.addEventListener("error", () => {
    if (own !== source) return;
    first = lost = true;  // everything is sent again after a reconnection
    sayStatus();
    if (own.readyState === EventSource.CLOSED) setTimeout(() => { if (own === source) connect(); }, 1500);
  });
}

for (const select of document.querySelectorAll("[data-choose]")) {
  select.addEventListener("change", () => {
    if (select.dataset.choose !== "node") return choose(select.dataset.choose, select.value);
    chosen.node = Number(select.value);
    draw(["rates"]);
  });
}
find("curves", ".lead").textContent = "One line per run, one colour per method. Choose a method to hide or show it.";
find("distance", ".lead").textContent = "Distance of the nodes' models to their mean after mixing.";
document.addEventListener("visibilitychange", refresh);
showPanels({ curves: drawCurves, rates: drawRates, graph: drawGraph, distance: drawDistance, spec: drawSpec });
connect();
