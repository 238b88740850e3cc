"use strict";
// Sorts and filters tables, and shows tooltips on the points of charts. Without it the page has the same content.

const element = (name, properties = {}, ...children) => {
  const created = Object.assign(document.createElement(name), properties);
  created.append(...children);
  return created;
};

// ---- tables

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

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
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
}

function makeSortable(table) {
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    const button = element("button", { type: "button", textContent: heading.textContent });
    button.addEventListener("click", () => sortBy(table, column, heading.getAttribute("aria-sort") === "ascending"));
    heading.dataset.title = heading.textContent; // for print, where headings that repeat on a page have no buttons
    heading.replaceChildren(button);
  });
}

function makeSearchable(table) {
  const rows = Array.from(table.tBodies[0].rows);
  const texts = rows.map((row) => Array.from(row.cells, (cell) => cell.textContent).join("\n").toLowerCase());
  const search = element("input", { type: "search", name: "search", autocomplete: "off" });
  const count = element("output");
  count.setAttribute("aria-live", "polite");
  const controls = element("div", { className: "controls" }, element("label", {}, "Search", search));
  const chosen = [];
  Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
    if (!("choices" in heading.dataset)) return;
    const values = rows.map((row) => row.cells[column].textContent);
    const select = element("select", { name: `column-${column}` }, element("option", { value: "", textContent: "all" }));
    const distinct = Array.from(new Set(values)).sort(collator.compare);
    select.append(...distinct.map((value, at) => element("option", { value: String(at), textContent: value })));
    chosen.push({ values, select, distinct });
    controls.append(element("label", {}, heading.textContent, select));
  });
  const reset = element("button", { type: "button", textContent: "Show all" });
  controls.append(reset, count);

  const apply = () => {
    const terms = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let seen = 0;
    rows.forEach((row, at) => {
      const fits =
        terms.every((term) => texts[at].includes(term)) &&
        chosen.every(({ values, select, distinct }) => select.value === "" || values[at] === distinct[Number(select.value)]);
      row.hidden = !fits;
      seen += fits;
    });
    count.textContent = `${seen.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`;
    reset.disabled = seen === rows.length;
  };
  controls.addEventListener("input", apply);
  reset.addEventListener("click", () => {
    search.value = "";
    for (const { select } of chosen) select.value = "";
    apply();
    search.focus();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && search.value !== "") {
      search.value = "";
      apply();
    }
  });
  apply();
  table.closest(".box").before(controls);
}

for (const table of document.querySelectorAll("table")) {
  if ("searchable" in table.dataset) makeSearchable(table);
  makeSortable(table);
}

// ---- charts

const tip = document.getElementById("tip");
const MAX_DISTANCE = 24; // pixels between the pointer and the point whose tooltip is shown
let active = null;

function hideTip() {
  active?.classList.remove("active");
  active = null;
  tip.hidden = true;
}

function showTip(point) {
  if (point === active) return;
  hideTip();
  active = point;
  point.classList.add("active");
  tip.textContent = point.getAttribute("aria-label");
  tip.hidden = false;
  const at = point.getBoundingClientRect();
  const left = Math.min(Math.max(8, at.left + at.width / 2 + 12), innerWidth - tip.offsetWidth - 8);
  const below = at.bottom + 10 + tip.offsetHeight < innerHeight || at.top < tip.offsetHeight + 10;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${(below ? at.bottom + 10 : at.top - tip.offsetHeight - 10) + scrollY}px`;
}

function nearest(points, x, y) {
  let best = null;
  let shortest = MAX_DISTANCE * MAX_DISTANCE;
  for (const point of points) {
    const at = point.getBoundingClientRect();
    const dx = Math.max(at.left - x, 0, x - at.right);
    const dy = Math.max(at.top - y, 0, y - at.bottom);
    // The horizontal distance from the centre, at a small weight, decides between overlapping points.
    const middle = (at.left + at.right) / 2 - x;
    const distance = dx * dx + dy * dy + 1e-4 * middle * middle;
    if (distance < shortest) [best, shortest] = [point, distance];
  }
  return best;
}

function addTooltips(svg) {
  const points = Array.from(svg.querySelectorAll("[data-group]"));
  if (!points.length) return;
  // The narrow chart comes after the wide one, and has the same points without texts.
  const wide = svg.closest("figure").querySelectorAll(".wide [data-group]");
  points.forEach((point, at) => {
    const title = point.querySelector("title");
    point.setAttribute("aria-label", title?.textContent ?? wide[at]?.getAttribute("aria-label") ?? "");
    point.setAttribute("role", "img");
    point.setAttribute("tabindex", at ? "-1" : "0");
    title?.remove(); // else the browser shows its own tooltip too
  });
  const groups = points.map((point) => Number(point.dataset.group));

  // A roving tabindex: the chart is one tab stop, and arrow keys move between points and between groups.
  const moved = (from, key) => {
    const group = groups[from];
    if (key === "ArrowRight") return Math.min(from + 1, points.length - 1);
    if (key === "ArrowLeft") return Math.max(from - 1, 0);
    if (key === "ArrowDown") return groups.findIndex((other) => other > group);
    if (key === "ArrowUp") return groups.indexOf(Math.max(...groups.filter((other) => other < group)));
    if (key === "Home") return 0;
    if (key === "End") return points.length - 1;
    return -1;
  };
  svg.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const from = points.indexOf(document.activeElement);
    const to = from < 0 ? -1 : moved(from, event.key);
    if (to < 0) return;
    event.preventDefault();
    points[from].setAttribute("tabindex", "-1");
    points[to].setAttribute("tabindex", "0");
    points[to].focus();
  });
  svg.addEventListener("focusin", (event) => {
    if (!points.includes(event.target)) return;
    if (event.target.matches(":focus-visible")) svg.scrollIntoView({ block: "nearest", behavior: "instant" });
    showTip(event.target);
  });
  svg.addEventListener("focusout", hideTip);
  const showNearest = (event) => {
    const point = nearest(points, event.clientX, event.clientY);
    if (point) showTip(point);
    else hideTip();
  };
  svg.addEventListener("pointermove", showNearest);
  svg.addEventListener("pointerdown", showNearest);
  svg.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && hideTip());
}

for (const svg of document.querySelectorAll(".chart svg")) addTooltips(svg);
addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
