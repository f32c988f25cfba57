"use strict";

// ------------------------------------------------------------------ tables that sort by a click
function sortable(table) {
  table.querySelectorAll("thead th").forEach((heading, column) => {
    if (!heading.textContent.trim()) return;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = heading.textContent;
    heading.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      sortBy(table, column, up);
    });
  });
}

function sortBy(table, column, up) {
  table.querySelectorAll("thead th").forEach((heading, k) => {
    if (k === column) heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    else heading.removeAttribute("aria-sort");
  });
  const body = table.tBodies[0];
  const rows = [...body.rows].map(row => [sortKey(row.cells[column].textContent), row]);
  rows.sort(([a], [b]) => compareKeys(a, b, up));
  body.append(...rows.map(([, row]) => row));
}

// Numbers before words, and what is missing last in either direction.
function sortKey(text) {
  text = text.trim();
  const number = Number(text.replace(/%$/, ""));
  if (text === "" || text === "-") return { kind: 2, value: 0 };
  return Number.isNaN(number) ? { kind: 1, value: text } : { kind: 0, value: number };
}

function compareKeys(a, b, up) {
  if (a.kind !== b.kind) return a.kind - b.kind;
  const order = a.kind === 1 ? a.value.localeCompare(b.value) : a.value - b.value;
  return up ? order : -order;
}

function sortState(table) {
  const headings = [...table.querySelectorAll("thead th")];
  const column = headings.findIndex(heading => heading.hasAttribute("aria-sort"));
  return column < 0 ? null : [column, headings[column].getAttribute("aria-sort") === "ascending"];
}

// ------------------------------------------------------------------ small drawings
const escaped = text => String(text).replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);
// The end of a long name stays: it tells "x[1]" from "x[2]".
const short = (text, length) => text.length <= length ? text
  : text.slice(0, Math.max(1, length - 7)) + "\u2026" + text.slice(-6);
const known = value => value !== null && value !== undefined;

function shown(value, digits = 5) {
  if (!known(value)) return "-";
  const rounded = Number(value.toPrecision(digits)), size = Math.abs(rounded);
  return size > 0 && size < 1e-4 ? rounded.toExponential() : String(rounded);
}

// At most `count` round numbers within an interval.
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough);
  const marks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++)
    marks.push(Number((k * step).toPrecision(12)));
  return marks;
}

function extent(values) {
  const numbers = values.filter(known);
  let [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  if (!(low < high)) [low, high] = [low - (Math.abs(low) || 1), high + (Math.abs(high) || 1)];
  const room = 0.05 * (high - low);
  return [low - room, high + room];
}

const scale = (low, high, from, to) => value => from + (to - from) * (value - low) / (high - low);

function paint(svg, height, parts, description) {
  svg.setAttribute("height", height);
  svg.setAttribute("viewBox", `0 0 ${svg.clientWidth || 300} ${height}`);
  svg.setAttribute("aria-label", description);
  svg.innerHTML = parts.join("");  // the parser knows that this is SVG
}

function bottomAxis(at, marks, top, bottom) {
  return marks.map(mark => `<line class="grid" x1="${at(mark)}" x2="${at(mark)}" y1="${top}"
    y2="${bottom}"/><text class="quiet" x="${at(mark)}" y="${bottom + 16}"
    text-anchor="middle">${shown(mark)}</text>`);
}

// ------------------------------------------------------------------ the explorer
class Explorer {
  constructor(root, data) {
    this.root = root;
    this.data = data;
    this.slider = root.querySelector("#radius");
    this.methods = data.methods;
    this.chosen = this.methods.find(m => m.radii.length > 1) || this.methods[0];
    this.erm = this.methods.find(m => m.family === "erm") || null;
    this.slider.addEventListener("input", () => this.draw());
    root.querySelectorAll("input[name=method]").forEach((input, k) => {
      input.addEventListener("change", () => { this.chosen = this.methods[k]; this.draw(); });
      input.checked = this.methods[k] === this.chosen;
    });
    let waiting = 0;
    window.addEventListener("resize", () => {
      cancelAnimationFrame(waiting);
      waiting = requestAnimationFrame(() => this.draw());
    });
    root.querySelectorAll("table").forEach(sortable);
    this.draw();
  }

  get radius() { return this.data.radii[Number(this.slider.value)]; }

  // Where a method stands at the radius: ERM is the same at all of them.
  place(method, radius = this.radius) {
    return method.family === "erm" && method.radii.length === 1 ? 0 : method.radii.indexOf(radius);
  }

  draw() {
    const text = shown(this.radius, 4);
    this.root.querySelector("#radius-value").textContent = text;
    this.slider.setAttribute("aria-valuetext", `radius ${text}`);
    this.drawCurves();
    this.drawStrips();
    this.drawDecision();
    this.drawWorst();
    this.fillNow();
    this.fillMoved();
  }

  width(svg) { return svg.clientWidth || 300; }

  drawCurves() {
    const svg = this.root.querySelector("#curves"), method = this.chosen;
    const width = this.width(svg), [left, right, top, bottom] = [58, width - 12, 8, 210];
    const curves = [{ name: "promise", colour: method.colour, values: method.promise, dash: "" }];
    this.data.sets.forEach((name, s) => curves.push({
      name: `mean, ${name}`, colour: this.data.colours[s], values: method.losses[s].mean, dash: "",
    }));
    if (this.erm && this.erm !== method)
      this.data.sets.forEach((name, s) => curves.push({
        name: s ? "" : "ERM's means", colour: this.erm.colour, flat: true, dash: "7 4",
        values: method.radii.map(() => this.erm.losses[s].mean[0]),
      }));
    const count = method.radii.length;
    const across = k => count > 1 ? left + (right - left) * k / (count - 1) : (left + right) / 2;
    const [low, high] = extent(curves.flatMap(c => c.values));
    const up = scale(low, high, bottom, top);
    const parts = ticks(low, high, 5).map(t => `<line class="grid" x1="${left}" x2="${right}"
      y1="${up(t)}" y2="${up(t)}"/><text class="quiet" x="${left - 6}" y="${up(t) + 4}"
      text-anchor="end">${shown(t)}</text>`);
    const every = Math.ceil(count * 52 / Math.max(1, right - left));
    method.radii.forEach((radius, k) => {
      if (k % every === 0) parts.push(`<text class="quiet" x="${across(k)}" y="${bottom + 18}"
        text-anchor="middle">${shown(radius, 2)}</text>`);
    });
    for (const curve of curves) {
      const points = curve.values.map((v, k) => known(v) ? `${across(k)},${up(v)}` : null);
      parts.push(`<polyline points="${points.filter(known).join(" ")}" fill="none"
        stroke="${curve.colour}" stroke-width="2" stroke-dasharray="${curve.dash}"/>`);
      if (!curve.flat || count === 1) points.forEach(p => { if (p) { const [x, y] = p.split(",");
        parts.push(`<circle cx="${x}" cy="${y}" r="3" fill="${curve.colour}"/>`); } });
    }
    const now = this.place(method);
    if (now >= 0) parts.push(`<line class="now" x1="${across(now)}" x2="${across(now)}"
      y1="${top}" y2="${bottom}"/>`);
    const value = now < 0 ? "not solved here" : shown(method.promise[now]);
    paint(svg, bottom + 26, parts, `Promise ${value} at radius ${shown(this.radius, 4)}.`);
    this.root.querySelector("#curves-key").innerHTML = curves.filter(c => c.name).map(c =>
      `<span><b style="color: ${c.colour}">${c.flat ? "- -" : "&#9679;"}</b> ${
        escaped(short(c.name, 40))}</span>`).join(" &nbsp; ");
  }

  // The axis is that of all radii, so that what moves is seen to move.
  lossRange() {
    if (!this.range) {
      const values = this.methods.flatMap(m => [...m.promise, ...m.losses.flatMap(l => [
        ...l.mean, ...l.cvar, ...l.quantiles.flatMap(q => [0.02, 0.98].map(p => q[Math.round(p * (q.length - 1))])),
      ])]);
      this.range = extent(values);
    }
    return this.range;
  }

  drawStrips() {
    const svg = this.root.querySelector("#strips"), width = this.width(svg);
    const [low, high] = this.lossRange(), left = Math.min(150, 0.32 * width), right = width - 12;
    const at = scale(low, high, left, right), parts = [], row = 24;
    const letters = Math.floor(left / 6.6);
    const height = this.data.sets.length * (22 + row * this.methods.length) + 6;
    parts.push(...bottomAxis(at, ticks(low, high, Math.max(2, (right - left) / 55)), 0, height));
    let y = 4;
    this.data.sets.forEach((name, s) => {
      parts.push(`<text class="quiet" x="0" y="${y + 13}">${escaped(short(name, 40))}</text>`);
      y += 20;
      for (const method of this.methods) {
        const k = this.place(method), middle = y + row / 2;
        parts.push(`<text x="${left - 8}" y="${middle + 4}" text-anchor="end">${
          escaped(short(method.name, letters))}<title>${escaped(method.name)}</title></text>`);
        if (k >= 0)
          parts.push(...this.strip(method, s, k, at, middle, low, high));
        y += row;
      }
      y += 2;
    });
    paint(svg, height + 22, parts, `Losses at radius ${shown(this.radius, 4)}.`);
  }

  strip(method, s, k, at, middle, low, high) {
    const losses = method.losses[s], colour = method.colour, parts = [];
    const quantiles = losses.quantiles[k] || [];
    quantiles.forEach((loss, j) => {
      if (loss < low || loss > high) return;
      const dy = 14 * ((j * 0.618034) % 1) - 7;
      parts.push(`<circle cx="${at(loss).toFixed(1)}" cy="${(middle + dy).toFixed(1)}" r="1.8"
        fill="${colour}" opacity="0.4"/>`);
    });
    const inside = value => Math.min(high, Math.max(low, value));
    const [mean, tail] = [inside(losses.mean[k]), inside(losses.cvar[k])].map(at);
    parts.push(`<line x1="${mean}" x2="${tail}" y1="${middle}" y2="${middle}" stroke="${colour}"
      stroke-width="2"/>`);
    if (known(method.promise[k])) { const x = at(inside(method.promise[k]));
      parts.push(`<line x1="${x}" x2="${x}" y1="${middle - 10}" y2="${middle + 10}"
        stroke="${colour}" stroke-width="3.5"/>`); }
    const d = this.data.maximise ? -5 : 5;
    parts.push(`<path d="M${tail - d},${middle - 5} L${tail + d},${middle} L${tail - d},${middle + 5}
      Z" fill="${colour}"/>`, `<circle cx="${mean}" cy="${middle}" r="4.5" fill="${colour}"
      stroke="var(--paper)" stroke-width="1.2"/>`);
    return parts;
  }

  bars(svg, names, values, others, range, colour, other, description) {
    const width = this.width(svg), left = Math.min(130, 0.34 * width), right = width - 56, row = 19;
    const [low, high] = range, at = scale(low, high, left, right), zero = at(0), parts = [];
    const bottom = names.length * row + 4;
    parts.push(...bottomAxis(at, ticks(low, high, Math.max(2, (right - left) / 45)), 0, bottom));
    names.forEach((name, i) => {
      const y = i * row + 4, value = values[i];
      parts.push(`<text x="${left - 8}" y="${y + 11}" text-anchor="end">${escaped(short(name,
        Math.floor(left / 6.8)))}<title>${escaped(name)}</title></text>`);
      if (known(value)) parts.push(`<rect x="${Math.min(zero, at(value))}" y="${y}" height="13"
        width="${Math.abs(at(value) - zero)}" fill="${colour}"/>
        <text class="quiet" x="${right + 6}" y="${y + 11}">${
        Math.abs(value) < 1e-4 * (high - low) ? "0" : shown(value, 3)}</text>`);
      if (others && known(others[i])) parts.push(`<line x1="${at(others[i])}" x2="${at(others[i])}"
        y1="${y - 2}" y2="${y + 15}" stroke="${other}" stroke-width="2.5"/>`);
    });
    parts.push(`<line class="grid" x1="${zero}" x2="${zero}" y1="0" y2="${bottom}"/>`);
    paint(svg, bottom + 24, parts, description);
  }

  drawDecision() {
    const method = this.chosen, k = this.place(method), erm = this.erm;
    const other = erm && erm !== method ? erm.decision[0] : null;
    const all = this.methods.flatMap(m => m.decision).filter(known).flat();
    this.bars(this.root.querySelector("#decision"), this.data.coordinates,
      k >= 0 && method.decision[k] ? method.decision[k] : [], other, extent([0, ...all]),
      method.colour, erm ? erm.colour : "", `The decision of ${method.name} at this radius.`);
  }

  drawWorst() {
    const figure = this.root.querySelector("#worst-case"), method = this.chosen;
    const k = this.place(method), worst = k >= 0 ? method.worst[k] : null;
    const all = method.worst.filter(known).flatMap(w => w.shift);
    figure.hidden = !all.length;
    if (!all.length) return;
    this.bars(this.root.querySelector("#worst"), this.data.entries, worst ? worst.shift : [], null,
      extent([0, ...all]), method.colour, "", "What the adversary moves.");
    this.root.querySelector("#worst-note").textContent = worst
      ? `expected loss ${shown(worst.expected)}, transport cost ${shown(worst.cost)}, `
        + `dual ${shown(worst.dual)}` : "none at this radius";
  }

  fill(id, rows) {
    const table = this.root.querySelector(id), state = sortState(table);
    const kinds = [...table.querySelectorAll("thead th")].map(heading => heading.className);
    table.tBodies[0].innerHTML = rows.map(cells => "<tr>" + cells.map((cell, i) =>
      i === 0 ? `<th scope="row">${escaped(cell)}</th>`
        : `<td class="${kinds[i]}">${escaped(cell)}</td>`).join("") + "</tr>"
    ).join("");
    if (state) sortBy(table, ...state);
  }

  fillNow() {
    const rows = [];
    for (const method of this.methods) {
      const k = this.place(method);
      this.data.sets.forEach((name, s) => {
        const losses = method.losses[s], at = list => k < 0 ? null : list[k];
        const excess = at(losses.excess);
        rows.push([method.name, name, ...[at(method.promise), at(losses.mean), at(losses.error),
          excess, at(losses.cvar), at(losses.worst)].map(v => shown(v)),
          k < 0 ? "not solved at this radius" : method.status[k]]);
      });
    }
    this.fill("#now", rows);
  }

  fillMoved() {
    const method = this.chosen, k = this.place(method), worst = k >= 0 ? method.worst[k] : null;
    this.root.querySelector("#moved-case").hidden = !worst;
    this.fill("#moved", (worst ? worst.samples : []).map(([sample, ...numbers]) =>
      [`${sample}`, ...numbers.map(v => shown(v))]));
  }
}

document.querySelectorAll("table.report").forEach(sortable);
const explorer = document.querySelector("#explorer");
if (explorer) new Explorer(explorer, JSON.parse(document.querySelector("#explored").textContent));
