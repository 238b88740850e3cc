"use strict";
// Draws the page's charts by Plotly, filters charts and tables alike, and sorts tables. Without it the page has its
// text and tables. Texts of data are set as text, or were escaped for Plotly when the page was written.

const data = JSON.parse(document.getElementById("data").textContent);
const filters = data.filters;
const MAX_ROWS = 100; // of a table, before its button shows all
const NARROW = 560; // pixels of a chart's width, below which it has fewer ticks
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");
let printing = false;
const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

const element = (name, properties = {}, ...children) => {
  const created = Object.assign(document.createElement(name), properties);
  created.append(...children);
  return created;
};

// ---- filters

const shown = filters ? new Uint8Array(filters.names.length).fill(1) : null;
const isShown = (record) => shown === null || record === undefined || shown[record] === 1;
const pickers = [];
let search = null;

// The control of a facet: a list of boxes to tick, or a menu where values are not compared with one another. None chosen
// means all.
class Picker {
  constructor(facet) {
    this.facet = facet;
    this.initial = facet.initial === null ? [] : [facet.initial];
    this.several = facet.key !== filters.rankingFacet;
    if (this.several) this.buildBoxes();
    else this.buildMenu();
    this.choose(this.initial);
  }

  buildMenu() {
    this.menu = element("select", { name: this.facet.key }, element("option", { value: "", textContent: "all" }));
    this.menu.append(...this.facet.values.map((value, at) => element("option", { value: String(at), textContent: value })));
    this.menu.addEventListener("input", () => { this.chosen = new Set(this.menu.value === "" ? [] : [Number(this.menu.value)]); });
    this.control = element("label", {}, this.facet.name, this.menu);
  }

  buildBoxes() {
    this.boxes = this.facet.values.map((_, at) => element("input", { type: "checkbox", value: String(at), name: this.facet.key }));
    this.options = this.boxes.map((box, at) => element("label", {}, box, element("span", { textContent: this.facet.values[at] })));
    this.summary = element("summary");
    this.details = element("details", {}, this.summary, element("div", { className: "options" }, ...this.options));
    this.details.addEventListener("input", () => {
      this.chosen = new Set(this.boxes.filter((box) => box.checked).map((box) => Number(box.value)));
      this.show();
    });
    this.control = element("div", { className: "picker" }, element("span", { textContent: this.facet.name }), this.details);
  }

  choose(values) {
    this.chosen = new Set(values);
    this.show();
  }

  show() {
    if (!this.several) {
      this.menu.value = this.chosen.size ? String(this.chosen.values().next().value) : "";
      return;
    }
    this.boxes.forEach((box, at) => { box.checked = this.chosen.has(at); });
    const names = this.facet.values.filter((_, at) => this.chosen.has(at));
    const text = names.length > 2 ? `${names.length} of ${this.facet.values.length}` : names.join(", ") || "all";
    this.summary.replaceChildren(element("span", { textContent: text }));
    this.summary.setAttribute("aria-label", `${this.facet.name}: ${text}`);
  }

  // Hides values that no record has which the other filters leave.
  offer(present) {
    const offered = (at) => present.has(at) || this.chosen.has(at);
    if (this.several) this.options.forEach((option, at) => { option.hidden = !offered(at); });
    else for (const option of this.menu.options) option.hidden = option.disabled = option.value !== "" && !offered(Number(option.value));
  }

  get isInitial() {
    return this.chosen.size === this.initial.length && this.initial.every((at) => this.chosen.has(at));
  }
}

function matching(except) {
  const terms = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const used = pickers.filter(({ facet, chosen }) => facet !== except && chosen.size);
  return filters.names.map(
    (name, record) =>
      used.every(({ facet, chosen }) => chosen.has(facet.of[record])) &&
      (terms.length === 0 || terms.every((term) => filters.lowered[record].includes(term))),
  );
}

function bestOfShown() {
  const facet = filters.facets.find((one) => one.key === filters.rankingFacet);
  let best = null;
  const compared = new Set();
  filters.ranking.forEach((one, record) => {
    if (!one || !shown[record]) return;
    compared.add(facet ? facet.of[record] : 0);
    if (best === null || one[0] < best[0]) best = one;
  });
  return compared.size === 1 ? best[1] : "";
}

function applyFilters() {
  matching(null).forEach((fits, record) => { shown[record] = fits ? 1 : 0; });
  for (const picker of pickers) {
    const present = new Set();
    matching(picker.facet).forEach((fits, record) => { if (fits) present.add(picker.facet.of[record]); });
    picker.offer(present);
  }
  for (const table of document.querySelectorAll("table")) showRows(table);
  const count = shown.reduce((sum, one) => sum + one, 0);
  const output = document.querySelector("#filters output");
  output.textContent = `${count.toLocaleString("en")} of ${shown.length.toLocaleString("en")}`;
  document.querySelector("#filters .best").textContent =
    count ? bestOfShown() : "No result matches: change or reset the filters.";
  for (const chart of charts) chart.filter();
  for (const section of document.querySelectorAll("section")) {
    const figures = Array.from(section.querySelectorAll("figure.chart"));
    const tables = Array.from(section.querySelectorAll(".table"));
    if (figures.length) section.hidden = figures.every((one) => one.hidden);
    else if (tables.length && !section.querySelector(":scope > ul, :scope > p")) {
      section.hidden = tables.every((one) => one.classList.contains("empty"));
    }
  }
  for (const link of document.querySelectorAll("nav a")) {
    link.parentElement.hidden = document.getElementById(link.hash.slice(1))?.hidden ?? false;
  }
}

function writeState() {
  const state = new URLSearchParams();
  for (const { facet, chosen, isInitial } of pickers) {
    if (isInitial) continue;
    for (const at of chosen) state.append(facet.key, facet.values[at]);
    if (!chosen.size) state.set(facet.key, "all");
  }
  if (search.value) state.set("search", search.value);
  history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search);
}

function readState() {
  if (!location.hash.includes("=")) return;
  const state = new URLSearchParams(location.hash.slice(1));
  for (const picker of pickers) {
    const { facet } = picker;
    if (state.has(facet.key)) picker.choose(state.getAll(facet.key).map((one) => facet.values.indexOf(one)).filter((at) => at >= 0));
  }
  search.value = state.get("search") ?? "";
}

function buildFilters() {
  const box = document.getElementById("filters");
  filters.lowered = filters.names.map((name) => name.toLowerCase());
  const controls = element("div", { className: "controls" });
  controls.setAttribute("role", "search");
  controls.setAttribute("aria-label", "Filters of charts and tables");
  for (const facet of filters.facets) {
    if (facet.values.length < 2) continue;
    const picker = new Picker(facet);
    pickers.push(picker);
    controls.append(picker.control);
  }
  search = element("input", { type: "search", name: "search", autocomplete: "off", spellcheck: false });
  controls.append(element("label", {}, filters.search, search));
  const reset = element("button", { type: "button", textContent: "Reset" });
  controls.append(reset);
  const best = element("span", { className: "best" });
  const status = element("p", { className: "status" }, element("output"), " ", best);
  status.setAttribute("aria-live", "polite");
  box.append(controls, status);
  const changed = () => { applyFilters(); writeState(); };
  controls.addEventListener("input", changed);
  reset.addEventListener("click", () => {
    for (const picker of pickers) picker.choose(picker.initial);
    search.value = "";
    changed();
  });
  // Only one list is open, until it is left by a press elsewhere or by Escape.
  const lists = pickers.flatMap((picker) => picker.details ?? []);
  addEventListener("pointerdown", (event) => { for (const one of lists) if (!one.contains(event.target)) one.open = false; });
  controls.addEventListener("focusin", (event) => { for (const one of lists) if (!one.contains(event.target)) one.open = false; });
  controls.addEventListener("keydown", (event) => {
    const open = lists.find((one) => one.open);
    if (event.key !== "Escape" || !open) return;
    open.open = false;
    open.querySelector("summary").focus();
  });
  addEventListener("hashchange", () => {
    if (!location.hash.includes("=")) return;
    readState();
    applyFilters();
  });
  readState();
}

// ---- tables

function sortKey(cell, numeric) {
  const key = cell.dataset.key;
  if (key === "") return null;
  if (!numeric) return key ?? cell.textContent;
  const number = Number(key ?? cell.textContent.replaceAll(",", ""));
  return Number.isNaN(number) ? null : number;
}

function sortBy(table, column, descending) {
  const heading = table.tHead.rows[0].cells[column];
  const body = table.tBodies[0];
  const numeric = heading.classList.contains("number");
  const rows = Array.from(body.rows, (row) => ({ row, key: sortKey(row.cells[column], numeric) }));
  const compare = numeric ? (a, b) => a - b : collator.compare;
  const sign = descending ? -1 : 1;
  rows.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    return sign * compare(a.key, b.key);
  });
  body.append(...rows.map((one) => one.row));
  showRows(table);
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
}

// Shows the rows that are not filtered out; of many, the first, as the layout of a long table takes seconds.
function showRows(table) {
  const rows = Array.from(table.tBodies[0].rows);
  const fitting = rows.filter((row) => isShown(row.dataset.r === undefined ? undefined : Number(row.dataset.r)));
  const all = printing || table.classList.contains("all") || fitting.length <= MAX_ROWS;
  for (const row of rows) row.hidden = true;
  for (const row of all ? fitting : fitting.slice(0, MAX_ROWS)) row.hidden = false;
  table.closest(".table").classList.toggle("empty", rows.length > 0 && fitting.length === 0);
  const button = table.closest(".table").querySelector(".rest");
  button.hidden = all;
  button.textContent = `Show all ${fitting.length.toLocaleString("en")} rows`;
}

function makeExpandable(table) {
  const button = element("button", { type: "button", className: "more rest" });
  button.addEventListener("click", () => {
    table.classList.add("all");
    showRows(table);
  });
  table.closest(".box").after(button);
}

function makeSortable(table) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    const button = element("button", { type: "button", textContent: heading.textContent });
    button.addEventListener("click", () => sortBy(table, column, heading.getAttribute("aria-sort") === "ascending"));
    heading.dataset.title = heading.textContent; // for print, where headings that repeat on a page have no buttons
    heading.replaceChildren(button);
  });
}

function makeBrief(table) {
  const button = element("button", { type: "button", className: `more ${table.dataset.hides}`, textContent: "All columns" });
  const set = (brief) => {
    table.classList.toggle("brief", brief);
    button.setAttribute("aria-pressed", String(!brief));
  };
  button.addEventListener("click", () => set(!table.classList.contains("brief")));
  set(true);
  table.closest(".box").before(button);
}

for (const table of document.querySelectorAll("table")) {
  makeSortable(table);
  makeExpandable(table);
  showRows(table);
  if ("hides" in table.dataset) makeBrief(table);
}

// ---- charts

const charts = [];

function resolveColour(reference) {
  const [name, opacity] = reference.slice(1).split("/");
  const value = data.colours[name][dark.matches && !printing ? 1 : 0];
  if (opacity === "1") return value;
  const parts = [1, 3, 5].map((at) => parseInt(value.slice(at, at + 2), 16));
  return `rgba(${parts.join(",")},${opacity})`;
}

function resolveColours(value) {
  if (typeof value === "string") return value.startsWith("@") ? resolveColour(value) : value;
  if (Array.isArray(value)) return typeof value[0] === "object" ? value.map(resolveColours) : value;
  if (value === null || typeof value !== "object") return value;
  const texts = ["text", "hovertext", "hovertemplate", "ticktext", "title"]; // not colours, whatever they begin with
  return Object.fromEntries(
    Object.entries(value).map(([key, one]) => [key, texts.includes(key) && typeof one !== "object" ? one : resolveColours(one)]),
  );
}

const SYMBOLS = {
  circle: "M4,0A4,4 0 1 1 -4,0A4,4 0 1 1 4,0Z", square: "M-4,-4H4V4H-4Z", diamond: "M0,-5L5,0L0,5L-5,0Z",
  "triangle-up": "M0,-5L5,4H-5Z", "triangle-down": "M0,5L5,-4H-5Z",
  "triangle-left": "M-5,0L4,5V-5Z", "triangle-right": "M5,0L-4,5V-5Z",
  cross: "M-5,-1.7H-1.7V-5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5Z",
  x: "M-4.7,-2.4L-2.4,-4.7L0,-2.4L2.4,-4.7L4.7,-2.4L2.4,0L4.7,2.4L2.4,4.7L0,2.4L-2.4,4.7L-4.7,2.4L-2.4,0Z",
  pentagon: "M0,-5L4.8,-1.5L2.9,4H-2.9L-4.8,-1.5Z", hexagon: "M4.3,-2.5V2.5L0,5L-4.3,2.5V-2.5L0,-5Z",
  star: "M0,-6L1.4,-1.9H5.7L2.2,0.7L3.5,4.9L0,2.3L-3.5,4.9L-2.2,0.7L-5.7,-1.9H-1.4Z",
};
const DASHES = { dash: "4 3", dot: "2 2" };

function swatch(trace) {
  const make = (name, attributes) => {
    const created = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value);
    return created;
  };
  const svg = make("svg", { viewBox: "-14 -7 28 14", width: 28, height: 14, "aria-hidden": "true" });
  const marker = trace.marker ?? {};
  const colour = resolveColours(marker.color ?? trace.line?.color);
  if (trace.type === "bar") {
    svg.append(make("path", { d: "M-8,-5H8V5H-8Z", fill: colour }));
    return svg;
  }
  if (trace.mode.includes("lines")) {
    svg.append(make("path", { d: "M-14,0H14", stroke: colour, "stroke-width": 2, "stroke-dasharray": DASHES[trace.line?.dash] ?? "none" }));
  }
  if (trace.mode.includes("markers")) {
    const symbol = marker.symbol ?? "circle";
    const open = symbol.endsWith("-open");
    svg.append(make("path", { d: SYMBOLS[symbol.replace("-open", "")], fill: open ? "none" : colour, stroke: colour }));
  }
  return svg;
}

// Shortens the lines of labels in the middle, where most of them stay distinct: some systems differ at the start, others
// at the end. Only narrow charts have two lines for a label.
function shortenLabels(labels, longest, narrow) {
  const shorten = (line, share) => {
    const start = Math.round((longest - 1) * share);
    const letters = line.match(/&\w+;|./gsu) ?? [];
    if (letters.length <= longest) return line;
    return `${letters.slice(0, start).join("")}…${letters.slice(letters.length - (longest - 1 - start)).join("")}`;
  };
  let best = { distinct: -1 };
  for (const share of [0.5, 0.35, 0.65, 0.2, 0.8]) {
    const texts = labels.map((label) => {
      const lines = label.split("<br>");
      return (narrow ? lines : [lines.join(" ")]).map((line) => shorten(line, share)).join("<br>");
    });
    const distinct = new Set(texts).size;
    if (distinct > best.distinct) best = { distinct, texts };
  }
  return best.texts;
}

const ruler = document.createElement("canvas").getContext("2d");
function textWidth(text) {
  ruler.font = "12px system-ui, sans-serif";
  return ruler.measureText(text).width;
}

// The range of an axis, in lengths of the longest bar, at which every text fits inside its bar or beside it.
function roomBeside(trace, width, narrow) {
  const least = trace.text.some((text) => text.length > 12) ? 1.5 : 1.1;
  if (narrow) return least;
  const longest = Math.max(...trace.x);
  const texts = trace.text.map((text) => textWidth(text) + 12);
  const fits = (room) => trace.x.every((value, at) => {
    const bar = (value / longest / room) * width;
    return texts[at] <= bar || texts[at] + bar <= width;
  });
  return [least, 1.75, 2, 2.5, 3, 4].find((room) => room >= least && fits(room)) ?? 4;
}

class Chart {
  constructor(id, spec) {
    this.figure = document.getElementById(id);
    this.plot = this.figure.querySelector(".plot");
    this.spec = spec;
    this.off = new Set(); // names in the legend that were switched off
    this.near = false; // whether the figure is near the window
    this.stale = true;
    this.revision = 0;
    this.legend = element("div", { className: "legend" });
    this.legend.setAttribute("role", "group");
    this.legend.setAttribute("aria-label", "Series: press to hide or show; with Shift, to show one alone");
    this.note = element("p", { className: "quiet", hidden: true });
    this.plot.after(this.legend, this.note);
    this.filter();
  }

  filter() {
    this.selected = this.spec.kind === "bars" ? this.selectBars() : this.selectPoints();
    this.figure.hidden = this.selected.length === 0;
    this.revision += 1;
    // The page must not move when a chart comes near the window and is drawn.
    this.plot.style.minHeight = `${this.height()}px`;
    this.drawLegend();
    this.update();
  }

  selectPoints() {
    let found = [];
    for (const trace of this.spec.traces) {
      if (!isShown(trace.record)) continue;
      if (!trace.records) {
        found.push(trace);
        continue;
      }
      const kept = trace.records.map((_, at) => at).filter((at) => isShown(trace.records[at]));
      if (!kept.length) continue;
      const pick = (values) => kept.map((at) => values[at]);
      const points = { ...trace, x: pick(trace.x), y: pick(trace.y), records: pick(trace.records) };
      if (filters) points.hovertext = points.records.map((record) => filters.tooltips[record]);
      if (trace.frontier) found.push(...this.frontier(points));
      found.push(points);
    }
    if (this.spec.most !== null) {
      const names = Array.from(new Set(found.map((one) => one.series))).slice(0, this.spec.most);
      found = found.filter((one) => names.includes(one.series));
    }
    return found;
  }

  frontier(points) {
    const best = new Map();
    points.x.forEach((x, at) => { if (!best.has(x) || points.y[at] < best.get(x)) best.set(x, points.y[at]); });
    if (best.size < 2) return [];
    const x = Array.from(best.keys()).sort((a, b) => a - b);
    const { series, line } = points;
    return [{ type: "scatter", mode: "lines", x, y: x.map((at) => best.get(at)), line, series, hoverinfo: "skip" }];
  }

  selectBars() {
    const groups = new Set();
    let kept = [];
    this.spec.labels.forEach((_, at) => {
      if (this.spec.records.length && !isShown(this.spec.records[at])) return;
      if (this.spec.groups.length && groups.has(this.spec.groups[at])) return;
      groups.add(this.spec.groups[at]);
      kept.push(at);
    });
    const all = kept.length;
    kept = kept.slice(0, this.spec.most ?? all);
    this.note.hidden = kept.length === all;
    this.note.textContent = `The first ${kept.length} of ${all.toLocaleString("en")} bars are shown: filter to see others.`;
    this.labels = kept.map((at) => this.spec.labels[at]);
    if (!kept.length) return [];
    return this.spec.traces.map((trace) => {
      const pick = (values) => (Array.isArray(values) ? kept.map((at) => values[at]) : values);
      const bars = { ...trace, y: kept.map((_, place) => place), x: pick(trace.x) };
      if (trace.text) bars.text = pick(trace.text);
      if (trace.customdata) bars.customdata = pick(trace.customdata);
      if (trace.hovertext) bars.hovertext = pick(trace.hovertext);
      else if (filters && !trace.hovertemplate) bars.hovertext = kept.map((at) => filters.tooltips[this.spec.records[at]]);
      return bars;
    });
  }

  update() {
    this.stale = true;
    if (printing) this.draw();
    else drawSoon();
  }

  draw() {
    if (this.figure.hidden || !this.figure.checkVisibility()) return;
    this.stale = false;
    const width = printing ? PRINT_WIDTH : this.plot.clientWidth;
    this.plot.style.minHeight = printing ? "" : `${this.height()}px`;
    const narrow = width < NARROW;
    const traces = this.selected.map((trace, at) => {
      const { series, records, record, frontier, ...drawn } = trace;
      // Texts inside the thin bars of a printed chart would be too small to read.
      if (printing && drawn.textposition === "auto") drawn.textposition = "outside";
      // Beside a short bar of a narrow chart there is room for its first part.
      if (narrow && drawn.textposition === "auto") drawn.text = drawn.text.map((text) => text.split(" · ")[0]);
      if (typeof drawn.text === "string") drawn.text = drawn.x.map(() => drawn.text); // %{text} is of a point
      return { ...resolveColours(drawn), showlegend: false, visible: !this.off.has(series), uid: `${at}` };
    });
    const layout = this.layout(width, narrow);
    Plotly.react(this.plot, traces, layout, {
      displaylogo: false,
      plotlyServerURL: "",
      displayModeBar: touch.matches ? true : "hover",
      showSendToCloud: false, // the page sends nothing
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      doubleClick: "reset+autosize",
      toImageButtonOptions: { format: "svg", filename: this.figure.querySelector("h3").textContent.slice(0, 80) },
    });
    this.drawLegend();
  }

  height() {
    const narrow = !printing && this.plot.clientWidth < NARROW;
    const lines = narrow && this.labels?.some((label) => label.includes("<br>")) ? 2 : 1;
    if (this.spec.kind === "bars") return 76 + (printing ? 13 : lines > 1 ? 34 : 26) * this.labels.length;
    if (printing) return Math.min(this.spec.height, PRINT_HEIGHT);
    return narrow ? Math.min(this.spec.height, 340) : this.spec.height;
  }

  layout(width, narrow) {
    const colour = (name) => resolveColour(`@${name}/1`);
    const bars = this.spec.kind === "bars";
    const axis = (own) => ({
      gridcolor: colour("rule"), zerolinecolor: colour("rule"), linecolor: colour("quiet"), showline: true,
      tickcolor: colour("quiet"), ticks: "outside", automargin: true, fixedrange: false, ...own,
      title: { text: own.title ?? "", standoff: 8 },
    });
    const x = axis(this.spec.x);
    const y = axis(this.spec.y);
    if (narrow && x.tickvals) x.tickvals = x.tickvals.filter((_, at) => at % 2 === 1);
    if (narrow) x.nticks = 5;
    // Fixed ticks at 1, 2 and 5 leave a narrow range without a number; Plotly's own are linear there.
    const values = this.selected.flatMap((trace) => trace.y);
    if (y.dtick && Math.max(...values) < 8 * Math.min(...values)) Object.assign(y, { dtick: null, nticks: 5 });
    // Plotly's range has no room for texts beside the longest bars.
    const beside = bars ? this.selected.find((trace) => trace.textposition === "auto") : undefined;
    const labels = bars ? shortenLabels(this.labels, narrow ? 24 : 42, narrow) : [];
    if (beside) {
      const room = roomBeside(beside, width - 40 - Math.max(...labels.map(textWidth)), narrow);
      x.range = [0, Math.max(...beside.x) * room];
    }
    if (bars) {
      Object.assign(y, {
        tickvals: this.labels.map((_, place) => place), ticktext: labels,
        range: [this.labels.length - 0.4, -0.6], showgrid: false, ticks: "", fixedrange: true, zeroline: false,
      });
    }
    return {
      width, height: this.height(),
      autosize: false, margin: { l: 52, r: 14, t: 26, b: 44 }, barmode: "stack", bargap: 0.25,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: printing ? 10 : narrow ? 11 : 12, color: colour("ink") },
      xaxis: x, yaxis: y, shapes: resolveColours(this.spec.shapes), showlegend: false,
      hovermode: "closest", dragmode: touch.matches ? false : "zoom", uirevision: this.revision,
      hoverlabel: { align: "left", bgcolor: colour("panel"), bordercolor: colour("quiet"), font: { color: colour("ink"), size: 12 } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("quiet"), activecolor: colour("accent") },
    };
  }

  drawLegend() {
    const named = new Map();
    for (const trace of this.selected) {
      if (!trace.series) continue;
      const first = named.get(trace.series);
      if (!first || (first.fill && !trace.fill) || (!first.marker && trace.marker)) named.set(trace.series, trace);
    }
    // Of a single series, the page's texts name the points, and not a curve.
    this.legend.hidden = named.size < 2 && !this.selected.some((trace) => trace.record !== undefined);
    const focused = this.legend.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    this.legend.replaceChildren(
      ...Array.from(named, ([name, trace]) => {
        const button = element("button", { type: "button" }, swatch(trace), element("span", { textContent: name }));
        button.dataset.name = name;
        button.setAttribute("aria-pressed", String(!this.off.has(name)));
        button.addEventListener("click", (event) => this.toggle(name, Array.from(named.keys()), event.shiftKey));
        return button;
      }),
    );
    if (focused !== null) this.legend.querySelector(`[data-name="${CSS.escape(focused)}"]`)?.focus();
  }

  toggle(name, all, alone) {
    if (alone) this.off = new Set(all.every((one) => this.off.has(one) !== (one === name)) ? [] : all.filter((one) => one !== name));
    else if (!this.off.delete(name)) this.off.add(name);
    this.update();
  }
}

// Several changes before the next frame, such as typed letters, draw a chart once.
let scheduled = 0;
function drawSoon() {
  cancelAnimationFrame(scheduled);
  scheduled = requestAnimationFrame(() => { for (const chart of charts) if (chart.near && chart.stale) chart.draw(); });
}

const PRINT_WIDTH = 960; // pixels that fit a landscape page
const PRINT_HEIGHT = 230; // so that two charts with their captions fit one
const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const chart = charts.find((one) => one.figure === target);
      chart.near = isIntersecting;
      if (isIntersecting && chart.stale) chart.draw();
    }
  },
  { rootMargin: "400px" },
);
for (const [id, spec] of Object.entries(data.charts)) charts.push(new Chart(id, spec));
if (filters) {
  buildFilters();
  applyFilters();
}
for (const chart of charts) observer.observe(chart.figure);

const redraw = () => { for (const chart of charts) chart.update(); };
addEventListener("resize", redraw);
dark.addEventListener("change", redraw);
const setPrinting = (value) => {
  printing = value;
  for (const table of document.querySelectorAll("table")) showRows(table);
  redraw();
};
addEventListener("beforeprint", () => setPrinting(true));
addEventListener("afterprint", () => setPrinting(false));
