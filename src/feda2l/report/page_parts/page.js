"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
nameMethods();

function drawBytes() {
  const setting = data.settings[chosen.setting], place = find("bytes", ".plot");
  if (setting.methods.every(method => method.bytes === 0)) return say(place, "These records have no sent bytes.");
  const all = setting.methods.map(method => method.name);
  const bars = (values, name, colour) => ({ type: "bar", orientation: "h", y: all, x: values.map(value => value === null ? null : value / 1e6), name, marker: { color: colour }, hovertemplate: "%{y}: %{x:,.1f} MB<extra>" + name + "</extra>" });
  plot(place, [
    bars(setting.methods.map(method => method.bytes_to_target), "until the target", COLOURS[0]),
    bars(setting.methods.map(method => method.bytes), "whole run", COLOURS[9]),
  ], { barmode: "group", showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom" }, height: 150 + 42 * all.length, xaxis: { title: { text: "MB" } }, yaxis: { autorange: "reversed" } });
}

function drawPartition() {
  const run = data.runs[chosen.run], place = find("partition", ".plot"), found = data.partitions[run.partition];
  if (found === undefined || typeof found === "string") return say(place, `No partition: ${found || "the spec does not say"}.`);
  const x = [], y = [], size = [];
  found.counts.forEach((row, node) => row.forEach((count, label) => { if (count) { x.push(label); y.push(node); size.push(count); } }));
  const most = Math.max(...size), few = found.classes.length <= 20;
  plot(place, [{
    x, y, mode: "markers", text: x.map(label => found.classes[label]), customdata: size,
    marker: { size, sizemode: "area", sizeref: 2 * most / (innerWidth < 600 ? 18 : 28) ** 2, color: COLOURS[0], opacity: 0.75, line: { width: 0 } },
    hovertemplate: "node %{y}, %{text}: %{customdata} samples<extra></extra>",
  }], {
    height: Math.min(160 + 26 * found.counts.length, 800), yaxis: { title: { text: "node" }, range: [found.counts.length - 0.4, -0.6], dtick: found.counts.length <= 30 ? 1 : undefined },
    xaxis: { title: { text: "class" }, ...(few ? { tickvals: found.classes.map((_, label) => label), ticktext: found.classes } : {}) },
  });
}

// --- the page -------------------------------------------------------------------------------------------------

const USES = { setting: ["curves", "distance", "bytes"], run: ["rates", "graph", "partition", "spec"], node: ["rates"] };

for (const table of data.tables) {
  const place = document.getElementById("tables");
  if (table.title !== "results") place.append(make("h3", table.title, { class: "table-title" }));
  place.append(make("p", table.setting, { class: "setting" }));
  for (const sheet of table.sheets) drawSheet(sheet, place, false);
}
drawSheet(data.related, document.getElementById("related"), true);
const notes = make("ul");
notes.append(...data.notes.map(note => make("li", note)));
document.getElementById("notes").append(data.notes.length ? notes : make("p", "Nothing: all runs are in the tables.", { class: "said" }));

for (const select of document.querySelectorAll("[data-choose]")) {
  const what = select.dataset.choose;
  if (what !== "node") {
    const several = data.settings.length > 1;
    const options = what === "setting" ? data.settings.map(s => s.name) : data.runs.map(run => several ? `${run.setting}: ${run.name}` : run.name);
    select.append(...options.map((text, number) => new Option(text, number)));
    if (options.length < 2) select.parentElement.hidden = true;
  }
  select.addEventListener("change", () => {
    chosen[what] = Number(select.value);
    for (const other of document.querySelectorAll(`[data-choose=${what}]`)) other.value = select.value;
    draw(USES[what]);
  });
}
const adapting = data.runs.findIndex(run => /name = "feda2l"/.test(run.spec));
if (adapting > 0) {
  chosen.run = adapting;
  for (const select of document.querySelectorAll("[data-choose=run]")) select.value = adapting;
}
showPanels({ curves: drawCurves, rates: drawRates, graph: drawGraph, distance: drawDistance, bytes: drawBytes, partition: drawPartition, spec: drawSpec });
