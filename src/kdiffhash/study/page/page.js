"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const byId = (id) => document.getElementById(id);
const RATES = ["FNR at 1 %", "FNR at 0.1 %", "FNR at 0.01 %", "FPR95"];
const middle = data.lengths.includes(128) ? 128 : data.lengths[data.lengths.length - 1];
const preferred = ["sift", "rootsift", "dif-paper", "kdif-paper", "kdif", "kernel-lda", "refined"].filter((name) => name in data.methods);
const state = {
  case: 0, bits: new Set([middle]), rate: 1, at: null, query: 0,
  methods: new Set(preferred.length > 1 ? preferred : Object.keys(data.methods)),
};

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "g", "circle", "rect"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const colour = (name) => data.methods[name][dark.matches ? "dark" : "light"];
const percent = (value) => (100 * value).toFixed(1);
const label = (curve) => data.methods[curve.method].title + (curve.isCode ? `, ${curve.bits} bits` : "");

function chip(group, text, checked, type, change, name) {
  const input = make("input", { type, name: group.id, value: text });
  input.checked = checked;
  input.addEventListener("change", () => { change(input.checked); draw(); });
  const sample = name ? [make("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" }, make("line", {
    x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": 3, "data-method": name, "stroke-dasharray": data.methods[name].dash }))] : [];
  group.append(make("label", { class: "chip" }, input, ...sample, text));
}
const toggle = (set, item) => (on) => (on ? set.add(item) : set.delete(item));

function controls() {
  data.cases.forEach((one, i) => byId("case").append(make("option", { value: i }, `${one.train} → ${one.test}`)));
  byId("case").addEventListener("change", (event) => { state.case = Number(event.target.value); draw(); });
  for (const n of data.lengths) chip(byId("bits"), String(n), state.bits.has(n), "checkbox", toggle(state.bits, n));
  for (const [name, method] of Object.entries(data.methods)) {
    chip(byId("methods"), method.title, state.methods.has(name), "checkbox", toggle(state.methods, name), name);
  }
  RATES.forEach((text, i) => chip(byId("rates"), text, i === state.rate, "radio", () => { state.rate = i; }));
}

/* A plot: a frame with scales; draws itself at the width it has, so that text stays readable on a phone. */
function frame(svg, x, y, height) {
  const width = Math.max(320, svg.parentElement.clientWidth), left = 44, right = 26, top = 8, bottom = 38;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const sx = (v) => left + (width - left - right) * (x.scale(v) - x.scale(x.low)) / (x.scale(x.high) - x.scale(x.low));
  const sy = (v) => height - bottom - (height - top - bottom) * (v - y.low) / (y.high - y.low);
  for (const tick of x.ticks) {
    svg.append(make("line", { class: "axis", x1: sx(tick.at), x2: sx(tick.at), y1: top, y2: height - bottom }),
      make("text", { x: sx(tick.at), y: height - bottom + 16, "text-anchor": "middle" }, tick.text));
  }
  for (const tick of y.ticks) {
    svg.append(make("line", { class: "axis", x1: left, x2: width - right, y1: sy(tick.at), y2: sy(tick.at) }),
      make("text", { x: left - 6, y: sy(tick.at) + 4, "text-anchor": "end" }, tick.text));
  }
  svg.append(make("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, x.title),
    make("text", { transform: `translate(11 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, y.title));
  return { sx, sy, left, right: width - right, top, bottom: height - bottom, width };
}
const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function chosen(list) {
  return list.filter((one) => state.methods.has(one.method) && (!one.isCode || state.bits.has(one.bits)));
}

let roc = null;
function drawRoc() {
  const svg = byId("roc-plot"), log = (v) => Math.log10(v);
  const ticks = [1e-4, 1e-3, 1e-2, 1e-1, 1].map((at) => ({ at, text: `${+(100 * at).toFixed(4)} %` }));
  roc = frame(svg, { scale: log, low: 1e-4, high: 1, ticks, title: "false positive rate" },
    { low: 0, high: 1, ticks: [0, .2, .4, .6, .8, 1].map((at) => ({ at, text: `${Math.round(100 * at)}` })), title: "true positive rate, %" }, 400);
  roc.curves = chosen(data.cases[state.case].curves);
  for (const curve of roc.curves) {
    const points = data.fpr.map((f, i) => [f, curve.tpr[i]]).filter(([f]) => f >= 1e-4);
    const width = curve.isCode ? 1.2 + 1.6 * data.lengths.indexOf(curve.bits) / data.lengths.length : 2;
    svg.append(make("path", { d: path(points.map(([f, t]) => [roc.sx(f), roc.sy(t)])), fill: "none", class: "curve",
      stroke: colour(curve.method), "stroke-width": width, "stroke-dasharray": data.methods[curve.method].dash }));
  }
  legend(byId("roc-legend"), [...new Set(roc.curves.map((curve) => curve.method))]);
  roc.cursor = make("line", { class: "cursor", y1: roc.top, y2: roc.bottom, visibility: "hidden" });
  svg.append(roc.cursor);
  readRoc();
}
function readRoc() {
  const values = byId("roc-values");
  values.replaceChildren();
  if (state.at === null) return;
  const f = data.fpr[state.at];
  roc.cursor.setAttribute("x1", roc.sx(f));
  roc.cursor.setAttribute("x2", roc.sx(f));
  roc.cursor.setAttribute("visibility", "visible");
  values.append(make("div", {}, make("strong", {}, `at ${(100 * f).toPrecision(2)} % false positives`)));
  const read = roc.curves.map((curve) => [curve.tpr[state.at], curve]).sort((a, b) => b[0] - a[0]);
  for (const [t, curve] of read) values.append(make("div", {}, `${percent(t)} % ${label(curve)}`));
}
function listenRoc() {
  const svg = byId("roc-plot"), first = data.fpr.findIndex((f) => f >= 1e-4);
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * roc.width / box.width;
    let best = first;
    for (let i = first; i < data.fpr.length; i++) {
      if (Math.abs(roc.sx(data.fpr[i]) - x) < Math.abs(roc.sx(data.fpr[best]) - x)) best = i;
    }
    state.at = best;
    readRoc();
  };
  svg.addEventListener("pointermove", nearest);
  svg.addEventListener("pointerdown", nearest);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!step) return;
    event.preventDefault();
    const from = state.at ?? data.fpr.findIndex((f) => f >= 1e-3);
    state.at = Math.min(data.fpr.length - 1, Math.max(first, from + step));
    readRoc();
  });
}

function drawSize() {
  const svg = byId("size-plot");
  const shown = data.cases[state.case].sizes.filter((one) => state.methods.has(one.method));
  const all = [...data.lengths, ...shown.filter((one) => !one.isCode).map((one) => one.bits)];
  const ticks = [...new Set(all)].sort((a, b) => a - b).map((at) => ({ at, text: String(at) }));
  const top = Math.max(.05, ...shown.map((one) => one.high[state.rate]));
  const step = [.01, .02, .05, .1, .2].find((s) => top / s <= 6) ?? .2, levels = [];
  for (let i = 0; i * step < top + step; i++) levels.push({ at: i * step, text: `${Math.round(1000 * i * step) / 10}` });
  const plot = frame(svg, { scale: Math.log2, low: ticks[0].at / 1.15, high: ticks[ticks.length - 1].at * 1.15, ticks, title: "bits" },
    { low: 0, high: levels[levels.length - 1].at, ticks: levels, title: `${RATES[state.rate]}, %` }, 360);
  legend(byId("size-legend"), [...state.methods].filter((name) => shown.some((one) => one.method === name)));
  for (const name of state.methods) {
    const mine = shown.filter((one) => one.method === name);
    if (!mine.length) continue;
    const points = mine.map((one) => [plot.sx(one.bits), plot.sy(one.rates[state.rate])]);
    const stroke = colour(name);
    const level = mine[0].isCode ? points : [[plot.left, points[0][1]], [plot.right, points[0][1]]];
    svg.append(make("path", { d: path(level), fill: "none", class: "curve", stroke, "stroke-width": 2, "stroke-dasharray": data.methods[name].dash }));
    mine.forEach((one, i) => {
      const [x, y] = points[i];
      const dot = make("circle", { cx: x, cy: y, r: 4, fill: stroke });
      dot.append(make("title", {}, `${label(one)}: ${percent(one.rates[state.rate])} % (${percent(one.low[state.rate])} to ${percent(one.high[state.rate])})`));
      svg.append(make("line", { x1: x, x2: x, y1: plot.sy(one.low[state.rate]), y2: plot.sy(one.high[state.rate]), stroke }), dot);
    });
  }
}

function gallery() {
  if (!data.gallery) return;
  byId("gallery").hidden = false;
  const differ = (query) => {  // how much the numbers of correct matches of the methods differ
    const counts = Object.values(query.matches).map((matches) => matches.filter((match) => match.correct).length);
    return Math.max(...counts) - Math.min(...counts);
  };
  const spreads = data.gallery.queries.map(differ);
  state.query = spreads.indexOf(Math.max(...spreads));
  data.gallery.queries.forEach((query, i) => {
    const button = make("button", { type: "button", "aria-pressed": String(i === state.query), "aria-label": `Query ${i + 1}` },
      make("img", { src: data.gallery.images[query.row], alt: "" }));
    button.addEventListener("click", () => {
      state.query = i;
      [...byId("queries").children].forEach((other, j) => other.setAttribute("aria-pressed", String(i === j)));
      drawFound();
    });
    byId("queries").append(button);
  });
  drawFound();
}
function drawFound() {
  const rows = Object.entries(data.gallery.queries[state.query].matches).map(([title, matches]) => {
    const correct = matches.filter((match) => match.correct).length;
    const row = make("div", { class: "found" }, make("h3", {}, `${title}: ${correct} of ${matches.length} correct`));
    for (const match of matches) {
      const distance = match.distance < 10 ? match.distance.toFixed(2) : Math.round(match.distance);
      row.append(make("figure", { class: `match ${match.correct ? "correct" : "wrong"}` },
        make("img", { src: data.gallery.images[match.row], alt: match.correct ? "correct match" : "wrong match" }),
        make("figcaption", {}, `${match.correct ? "✓" : "✗"} ${distance}`)));
    }
    return row;
  });
  byId("found").replaceChildren(...rows);
}

function legend(group, names) {
  group.replaceChildren(...names.map((name) => make("li", {}, make("svg", { viewBox: "0 0 26 8", "aria-hidden": "true" }, make("line", {
    x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": 3, stroke: colour(name), "stroke-dasharray": data.methods[name].dash })), data.methods[name].title)));
}

function draw() {
  for (const line of document.querySelectorAll("[data-method]")) line.setAttribute("stroke", colour(line.dataset.method));
  drawRoc();
  drawSize();
}
controls();
listenRoc();
gallery();
draw();
dark.addEventListener("change", draw);
addEventListener("resize", draw);
