// What makes a page of rawlog answer to pointer and keyboard. Everything is readable without it.
"use strict";
(() => {
  const all = (where, what) => [...where.querySelectorAll(what)];
  const number = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const bytes = (value) => {
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let at = 0;
    while (value >= 999.5 && at < units.length - 1) { value /= 1000; at += 1; }
    return `${number.format(at ? Math.round(value * 10) / 10 : value)} ${units[at]}`;
  };
  const shown = (value, unit) => (unit.startsWith("B/") ? `${bytes(value)}${unit.slice(1)}` : `${number.format(value)} ${unit}`);
  const moment = (seconds) => new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC";

  // Charts -------------------------------------------------------------------------------------------------------------
  const drawn = new Map();

  function draw(figure) {
    const plot = figure.querySelector(".plot");
    if (!plot.clientWidth) return;
    const before = drawn.get(figure);
    if (before) before.destroy();
    const data = JSON.parse(figure.querySelector("script").textContent);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const isTime = data.kind === "time";
    const count = (isTime ? data.x : data.labels).length;
    // The last time is as wide as the others: its end is one more point.
    const x = isTime ? [...data.x, data.x[count - 1] + data.width] : data.labels.map((_, at) => at);
    const tops = data.series.map((one) => (isTime ? [...one.values, one.values[count - 1]] : one.values));
    const tall = (unit) => (_, values) => values.map((one) => (unit.startsWith("B/") ? bytes(one) : compact.format(one)));
    const bars = uPlot.paths.bars({ size: [isTime ? 1 : 0.8, 100], align: isTime ? 1 : 0, gap: 1 });
    const stepped = uPlot.paths.stepped({ align: 1 });
    const series = data.series.map((one, at) => ({
      label: one.label, scale: at ? "second" : "y", width: at ? 1.5 : 1, points: { show: false },
      stroke: colour(at ? "--second" : "--accent"), fill: at ? undefined : colour("--accent-soft"),
      paths: isTime ? stepped : bars,
    }));
    const scales = { x: { time: isTime }, y: { range: (_, low, high) => [0, high * 1.08 || 1] }, second: { range: (_, low, high) => [0, high * 1.08 || 1] } };
    if (!isTime) scales.x.range = [-0.6, x.length - 0.4];
    else scales.x.range = [x[0], x[count]];
    const clock = (chart, list) => {
      const span = chart.scales.x.max - chart.scales.x.min;
      return list.map((one) => {
        const whole = new Date(one * 1000).toISOString();
        if (span > 200 * 86400) return whole.slice(0, 7);
        if (span > 4 * 86400) return whole.slice(5, 10);
        return span > 86400 ? `${whole.slice(5, 10)} ${whole.slice(11, 16)}` : span > 600 ? whole.slice(11, 16) : span > 5 ? whole.slice(11, 19) : whole.slice(14, 23);
      });
    };
    const axes = [isTime ? { ...axis, size: 32, space: 80, values: clock } : { ...axis, size: 32, splits: () => x.filter((_, at) => at % Math.ceil(x.length / Math.max(3, plot.clientWidth / 75)) === 0), values: (_, list) => list.map((at) => data.labels[at] ?? "") }];
    axes.push({ ...axis, scale: "y", size: 56, values: tall(data.series[0].unit) });
    if (data.series[1]) axes.push({ ...axis, scale: "second", side: 1, size: 64, grid: { show: false }, values: tall(data.series[1].unit) });
    const out = figure.querySelector(".reading");
    const tell = (chart) => {
      if (chart.cursor.idx == null) { out.textContent = ""; return; }
      const at = Math.min(chart.cursor.idx, count - 1);
      const where = isTime ? moment(data.x[at]) : `from ${data.labels[at]}`;
      out.textContent = [where, ...data.series.map((one) => shown(one.values[at], one.unit))].join(" · ");
    };
    const options = {
      width: plot.clientWidth, height: plot.clientHeight, series: [{}, ...series], scales, axes, legend: { show: false },
      tzDate: (stamp) => uPlot.tzDate(new Date(stamp * 1000), "Etc/UTC"),
      cursor: { points: { size: 7 }, drag: { x: isTime, y: false } }, hooks: { setCursor: [tell] },
    };
    const chart = new uPlot(options, [x, ...tops], plot);
    chart.root.setAttribute("aria-hidden", "true");
    drawn.set(figure, chart);
    figure.dataset.drawn = String(count);
    plot.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -count, End: count }[event.key];
      if (!step) return;
      event.preventDefault();
      const now = chart.cursor.idx == null ? (step > 0 ? -1 : count) : chart.cursor.idx;
      const at = Math.max(0, Math.min(count - 1, now + step));
      chart.setCursor({ left: chart.valToPos(x[at], "x") + (isTime ? 1 : 0), top: chart.valToPos(data.series[0].values[at], "y") });
    };
  }

  const charts = typeof uPlot === "function" ? all(document, "figure.chart") : [];
  if (charts.length) {
    const near = new IntersectionObserver((seen) => seen.forEach((one) => {
      if (one.isIntersecting && !drawn.has(one.target)) draw(one.target);
    }), { rootMargin: "300px" });
    charts.forEach((one) => near.observe(one));
    let wide = innerWidth;
    const again = () => drawn.forEach((_, figure) => draw(figure));
    addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; again(); } });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  }

  // Tables -------------------------------------------------------------------------------------------------------------
  all(document, "table.sortable th button").forEach((button) => button.addEventListener("click", () => {
    const head = button.closest("th"), body = head.closest("table").tBodies[0], at = head.cellIndex;
    const up = head.getAttribute("aria-sort") === "descending";
    all(head.parentNode, "th").forEach((one) => one.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const value = (row) => { const cell = row.cells[at]; return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value); };
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    const rows = [...body.rows].map((row) => [value(row), row]).sort((a, b) => order(a[0], b[0]) * (up ? 1 : -1));
    body.append(...rows.map((one) => one[1]));
  }));
  all(document, "input[data-filter]").forEach((box) => box.addEventListener("input", () => {
    const wanted = box.value.toLowerCase();
    all(box.closest(".filtered"), "tbody tr").forEach((row) => { row.hidden = !row.textContent.toLowerCase().includes(wanted); });
  }));

  // Bytes and fields ---------------------------------------------------------------------------------------------------
  const explained = document.querySelector(".explained");
  if (explained) {
    const rows = all(explained, "tr[data-n]"), spans = all(explained, "pre [data-n]");
    const light = (at) => {
      const row = rows[at];
      if (!row) return;
      const last = Number(row.dataset.last), [from, to] = (row.dataset.covers || "0-0").split("-").map(Number);
      rows.forEach((one, number) => one.classList.toggle("lit", number === at));
      spans.forEach((one) => {
        const number = Number(one.dataset.n), place = rows[number];
        one.classList.toggle("lit", number >= at && number <= last);
        one.classList.toggle("covered", to > from && place.dataset.at >= from && place.dataset.at < to);
      });
    };
    const show = (what) => what && what.scrollIntoView({ block: "nearest" });
    explained.addEventListener("mouseover", (event) => {
      const on = event.target.closest("[data-n]");
      if (on) light(Number(on.dataset.n));
    });
    explained.addEventListener("focusin", (event) => {
      const on = event.target.closest("tr[data-n]");
      if (on) { light(Number(on.dataset.n)); show(spans.find((one) => one.classList.contains("lit"))); }
    });
    explained.addEventListener("click", (event) => {
      const on = event.target.closest("pre [data-n]");
      if (on) { light(Number(on.dataset.n)); show(rows[Number(on.dataset.n)]); }
    });
    explained.addEventListener("keydown", (event) => {
      const row = event.target.closest("tr[data-n]");
      const step = { ArrowDown: 1, ArrowUp: -1, Home: -rows.length, End: rows.length }[event.key];
      if (!row || !step) return;
      event.preventDefault();
      const at = Math.max(0, Math.min(rows.length - 1, Number(row.dataset.n) + step));
      rows.forEach((one, number) => { one.tabIndex = number === at ? 0 : -1; });
      rows[at].focus();
    });
  }

  // A link into a closed part opens it.
  const reveal = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let one = target; one; one = one.parentElement) if (one.tagName === "DETAILS") one.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
