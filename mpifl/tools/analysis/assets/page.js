"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  document.documentElement.classList.add("js");

  // -- table: a click on a column's title sorts the rows by it, numbers by their value, missing ones last
  const key = (cell) => {
    const text = cell.textContent.trim();
    if (text === "" || text === "-") return [2, 0, ""];
    if (text.startsWith("never")) return [1, 0, ""];
    const found = text.match(/^([<>])?\s*(-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|-?inf\b)/i);
    if (!found) return [0, 0, text];
    const number = /inf/i.test(found[2]) ? Infinity * (found[2][0] === "-" ? -1 : 1) : Number(found[2].replace(/,/g, ""));
    return [0, number + (found[1] === ">" ? Number.EPSILON * 4 : 0), text];
  };
  const compare = (a, b, sign) => {
    if (a[0] !== b[0]) return a[0] - b[0];
    if (a[1] !== b[1]) return sign * (a[1] < b[1] ? -1 : 1);
    return sign * a[2].localeCompare(b[2], "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const titles = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    titles.forEach((title, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...title.childNodes);
      button.title = "Sort by " + button.textContent;
      title.replaceChildren(button);
      button.addEventListener("click", () => {
        const ascending = title.getAttribute("aria-sort") !== "ascending";
        titles.forEach((each) => each.removeAttribute("aria-sort"));
        title.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        const rows = [...body.rows].map((row) => [key(row.cells[column]), row]);
        rows.sort((a, b) => compare(a[0], b[0], ascending ? 1 : -1));
        body.append(...rows.map((row) => row[1]));
      });
    });
  }

  // -- curves
  const box = byId("plot");
  if (!box) return;
  const metric = byId("metric"), against = byId("x"), log = byId("log"), bands = byId("bands"), place = byId("place");
  const items = [...document.querySelectorAll("#lines li")];
  const ticks = items.map((item) => item.querySelector("input"));
  const outputs = items.map((item) => item.querySelector("output"));
  const WIDE = 1.5; // decades of a loss from which its axis is logarithmic, as in the figures
  let plot = null, shown = [], nearest = -1;

  const curve = (k) => data.curves[metric.value + " " + against.value][k];
  const of = (list, select) => list.find((each) => each.key === select.value);
  const format = (v) => v === null || v === undefined ? "–"
    : v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e6) ? v.toExponential(2) : String(Number(v.toPrecision(4)));

  function wide() {
    if (!of(data.metrics, metric).loss) return false;
    const known = ticks.flatMap((tick, k) => tick.checked ? curve(k)[1].filter((v) => v > 0) : []);
    return known.length > 0 && Math.log10(known.reduce((a, b) => Math.max(a, b)) / known.reduce((a, b) => Math.min(a, b))) > WIDE;
  }

  // Value of a curve at x: that of the last evaluation before it.
  function at(k, x) {
    const [xs, ys] = curve(k);
    let low = 0, high = xs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle + 1; else high = middle;
    }
    return low ? ys[low - 1] : null;
  }

  function point(u) {
    const { left, top } = u.cursor;
    if (left === null || left < 0) {
      place.textContent = "\u00a0";
      outputs.forEach((output) => { output.textContent = ""; });
      mark(-1);
      return;
    }
    const x = u.posToVal(left, "x");
    place.textContent = of(data.xs, against).label + ": " + format(x);
    let best = -1, distance = 40;
    shown.forEach((k) => {
      const y = at(k, x);
      outputs[k].textContent = format(y);
      const gap = y === null ? Infinity : Math.abs(u.valToPos(y, "y") - top);
      if (gap < distance) { distance = gap; best = k; }
    });
    mark(best);
  }

  function mark(k) {
    if (k === nearest) return;
    nearest = k;
    items.forEach((item, each) => item.classList.toggle("near", each === k));
    if (plot) plot.setSeries(k < 0 ? null : 1 + 3 * shown.indexOf(k), { focus: k >= 0 });
  }

  function draw() {
    if (plot) plot.destroy();
    nearest = -1;
    shown = ticks.flatMap((tick, k) => tick.checked && curve(k)[0].length ? [k] : []);
    outputs.forEach((output) => { output.textContent = ""; });
    const logarithmic = log.checked;
    const clean = (ys) => logarithmic ? ys.map((v) => v > 0 ? v : null) : ys;
    const tables = shown.map((k) => {
      const [xs, mean, low, high] = curve(k);
      const gaps = xs.map(() => null);
      return [xs, clean(mean), low ? clean(low) : gaps, high ? clean(high) : gaps];
    });
    const joined = tables.length ? uPlot.join(tables) : [[0, 1]];
    const series = [{}], filled = [];
    shown.forEach((k) => {
      const group = data.groups[k];
      const single = curve(k)[0].length === 1;
      const edge = { spanGaps: true, points: { show: false }, stroke: "transparent", width: 0 };
      if (bands.checked) filled.push({ series: [series.length + 2, series.length + 1], fill: group.colour + "2b" });
      series.push({ label: group.name, stroke: group.colour, dash: group.dash, width: 2, spanGaps: true,
        points: { show: single, size: 7 } }, { ...edge }, { ...edge });
    });
    const font = "13px system-ui, sans-serif";
    const axis = { font, labelFont: font, labelGap: 4, grid: { stroke: "#e3e5e9", width: 1 }, ticks: { stroke: "#c3c7ce", width: 1 } };
    const y = of(data.metrics, metric), x = of(data.xs, against);
    const values = (u, splits) => splits.map((v) => v === null ? "" : format(v));
    plot = new uPlot({
      width: box.clientWidth, height: height(), legend: { show: false }, series, bands: filled,
      focus: { alpha: 0.35 },
      scales: {
        x: { time: false },
        y: logarithmic ? { distr: 3 } : y.loss ? {} : { range: (u, low, high) => zoomed(u) ? [low, high] : [0, 100] },
      },
      axes: [
        { ...axis, label: x.label, values, space: 70, size: 34 },
        { ...axis, label: y.label, size: 64, ...(logarithmic ? { values: (u, splits) => splits.map((v) => v === null ? "" : decade(v)) } : { values }) },
      ],
      cursor: { drag: { x: true, y: true, uni: 30 }, points: { show: false } },
      hooks: { setCursor: [point] },
    }, joined, box);
    box.querySelector("canvas").setAttribute("aria-hidden", "true");
  }

  const zoomed = (u) => u.select.width > 0 || (Number.isFinite(u.scales.x.min) && u.data[0].length > 1
    && (u.scales.x.min > u.data[0][0] || u.scales.x.max < u.data[0][u.data[0].length - 1]));
  const decade = (v) => { const e = Math.log10(v); return Math.abs(e - Math.round(e)) < 1e-9 ? format(v) : ""; };
  const height = () => Math.max(300, Math.min(520, Math.round(box.clientWidth * 0.55)));

  const redraw = () => { draw(); };
  for (const select of [metric, against]) select.addEventListener("change", () => { log.checked = wide(); redraw(); });
  for (const box of [log, bands]) box.addEventListener("change", redraw);
  byId("reset").addEventListener("click", redraw);
  ticks.forEach((tick) => tick.addEventListener("change", redraw));
  for (const [id, value] of [["all", true], ["none", false]]) {
    byId(id).addEventListener("click", () => { ticks.forEach((tick) => { tick.checked = value; }); redraw(); });
  }
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") redraw();
    if (!step || !plot) return;
    event.preventDefault();
    const width = plot.over.clientWidth, left = plot.cursor.left;
    const next = left === null || left < 0 ? (step > 0 ? 0 : width) : Math.max(0, Math.min(width, left + step * width / 50));
    plot.setCursor({ left: next, top: plot.over.clientHeight / 2 });
  });
  const resize = () => { if (plot && box.clientWidth) plot.setSize({ width: box.clientWidth, height: height() }); };
  new ResizeObserver(resize).observe(box);
  log.checked = wide();
  draw();
})();
