// What HTML can't do alone: times in the viewer's zone, charts, dialogs, and notices.
"use strict";
(() => {
  // as ISO 8601 has them, whatever the browser's language is: 2026-11-26 14:03:11
  const zoned = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
  const clock = new Intl.DateTimeFormat("sv-SE", { timeStyle: "short" });
  const clocks = (_plot, seconds) => seconds.map((one) => clock.format(new Date(1000 * one)));
  const charts = new WeakMap();

  function showTimes(root) {
    for (const time of root.querySelectorAll("time[datetime]")) {
      const text = zoned.format(new Date(time.dateTime));
      if (time.textContent !== text) time.textContent = text;
    }
  }

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // <figure class="chart" data-chart='{"times": [s, …], "series": [{"label", "values", "color"}, …]}'>
  function drawCharts(root) {
    for (const figure of root.querySelectorAll("figure.chart[data-chart]")) {
      const known = charts.get(figure);
      if (known && known.source === figure.dataset.chart) continue;
      const { times, series } = JSON.parse(figure.dataset.chart);
      const data = [times, ...series.map((one) => one.values)];
      const place = figure.querySelector(".plot");
      if (!times.length) { place.textContent = "No data yet."; continue; }
      if (known && known.plot.series.length === data.length && place.contains(known.plot.root)) {
        known.plot.setData(data);
        known.source = figure.dataset.chart;
        continue;
      }
      place.replaceChildren();
      const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
      const lines = series.map((one) => ({ label: one.label, stroke: colour(`--${one.color}`), width: 2, points: { show: false } }));
      const plot = new uPlot(
        { width: Math.max(place.clientWidth, 200), height: 180, series: [{}, ...lines], axes: [{ ...axis, space: 70, incrs: [60, 120, 300, 600], values: clocks }, { ...axis, size: 60 }], scales: { x: { range: (_plot, _first, last) => [last - 600, last] }, y: { range: (_plot, _least, most) => [0, Math.max(most ?? 0, 1) * 1.05] } }, legend: { live: false }, cursor: { drag: { x: false, y: false } } },
        data, place);
      charts.set(figure, { plot, source: figure.dataset.chart });
    }
  }

  function redrawCharts() {
    for (const figure of document.querySelectorAll("figure.chart[data-chart]")) {
      const known = charts.get(figure);
      if (known) known.plot.setSize({ width: Math.max(figure.querySelector(".plot").clientWidth, 200), height: 180 });
    }
  }

  // A dialog that is swapped out is closed before, so that the focus returns to the button that opened it.
  document.addEventListener("htmx:before:swap", (event) => {
    const open = document.querySelector("#dialog dialog[open]");
    if (open && event.detail.ctx.target && event.detail.ctx.target.id === "dialog") open.close();
  });

  function openDialogs() {
    const dialog = document.querySelector("#dialog dialog:not([open])");
    // a form that htmx has not taken yet would send the browser elsewhere
    if (dialog && !dialog.querySelector("form[hx-post]:not([data-htmx-powered])")) dialog.showModal();
  }

  function dressUp(root) {
    showTimes(root);
    drawCharts(root);
    openDialogs();
  }

  document.addEventListener("DOMContentLoaded", () => dressUp(document));
  document.addEventListener("htmx:after:swap", () => dressUp(document));
  document.addEventListener("htmx:after:process", openDialogs);
  addEventListener("resize", redrawCharts);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());

  // ---- how old the figures are: the server says it with each update, as it may have asked the broker a while ago
  const updated = document.getElementById("updated");
  let current = Date.now();
  const showAge = () => { updated.textContent = `updated ${Math.max(0, Math.round((Date.now() - current) / 1000))} s ago`; };
  if (updated) {
    document.addEventListener("current", (event) => { current = Date.now() - 1000 * Number(event.detail.data); showAge(); });
    setInterval(showAge, 1000);
    showAge();
  }

  // ---- the stream of changes: what changed is morphed into the page, so that focus, selection and scroll positions stay
  const banner = (name, text) => {
    const found = document.getElementById(name);
    if (text) found.querySelector("span").textContent = text;
    found.hidden = text === undefined;
  };
  document.addEventListener("htmx:sse:error", () => banner("connection", ""));
  document.addEventListener("htmx:sse:after:connection", () => banner("connection"));
  document.addEventListener("current", () => banner("away"));
  document.addEventListener("away", (event) => banner("away", event.detail.data));
  // the extension does not try again if a stream never began
  setInterval(() => {
    const main = document.querySelector("#content[hx-sse\\:connect]");
    if (main && !main._htmx?.sse && !document.hidden) main.dispatchEvent(new Event("reconnect"));
  }, 10000);
  // what the viewer opened stays open, and a time that did not change keeps its text
  htmx.registerExtension("keep", {
    htmx_before_morph_attr: (_old, { attrName }) => attrName !== "open",
    htmx_before_morph_node: (old, { newNode }) => old.nodeName !== "TIME" || old.dateTime !== newNode.dateTime,
  });

  // ---- dialogs: [data-close] closes one, and so does a click beside it
  document.addEventListener("click", (event) => {
    const dialog = event.target.closest("dialog");
    if (dialog && (event.target.closest("[data-close]") || event.target === dialog)) dialog.close();
    const notice = event.target.closest("[data-dismiss]");
    if (notice) notice.closest(".banner").remove();
  });
  // one that was closed must not be opened again by the next change of the page
  document.addEventListener("close", (event) => { if (event.target.matches("#dialog dialog")) event.target.remove(); }, true);
})();
