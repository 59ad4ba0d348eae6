// Script of the web UI: times in the viewer's zone, charts, dialogs, and notices.
"use strict";
(() => {
  // ISO 8601 in every language of the browser: 2026-11-26 14:03:11
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

  // Close a dialog before it is swapped out, so that the focus returns to the button that opened it.
  document.addEventListener("htmx:before:swap", (event) => {
    const open = document.querySelector("#dialog dialog[open]");
    if (open && event.detail.ctx.target && event.detail.ctx.target.id === "dialog") open.close();
  });

  function openDialogs() {
    const dialog = document.querySelector("#dialog dialog:not([open])");
    // until htmx handles the form, submitting it would leave the page
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

  // ---- age of the data: each update includes it, because the server may have cached the data for some seconds
  const updated = document.getElementById("updated");
  let current = Date.now();
  const showAge = () => { updated.textContent = `updated ${Math.max(0, Math.round((Date.now() - current) / 1000))} s ago`; };
  if (updated) {
    document.addEventListener("current", (event) => { current = Date.now() - 1000 * Number(event.detail.data); showAge(); });
    setInterval(showAge, 1000);
    showAge();
  }

  // ---- stream of changes: each one is morphed into the page, which keeps focus, selection and scroll positions
  const banner = (name, text) => {
    const found = document.getElementById(name);
    if (text) found.querySelector("span").textContent = text;
    found.hidden = text === undefined;
  };
  document.addEventListener("htmx:sse:error", () => banner("connection", ""));
  document.addEventListener("htmx:sse:after:connection", () => banner("connection"));
  document.addEventListener("current", () => banner("away"));
  document.addEventListener("away", (event) => banner("away", event.detail.data));
  // the extension does not reconnect a stream that never began
  setInterval(() => {
    const main = document.querySelector("#content[hx-sse\\:connect]");
    if (main && !main._htmx?.sse && !document.hidden) main.dispatchEvent(new Event("reconnect"));
  }, 10000);
  // keep opened elements open, and the texts of times that did not change
  htmx.registerExtension("keep", {
    htmx_before_morph_attr: (_old, { attrName }) => attrName !== "open",
    htmx_before_morph_node: (old, { newNode }) => old.nodeName !== "TIME" || old.dateTime !== newNode.dateTime,
  });

  // ---- dialogs: a click on [data-close], or beside the dialog, closes it
  document.addEventListener("click", (event) => {
    const dialog = event.target.closest("dialog");
    if (dialog && (event.target.closest("[data-close]") || event.target === dialog)) dialog.close();
    const notice = event.target.closest("[data-dismiss]");
    if (notice) notice.closest(".banner").remove();
  });
  // remove a closed dialog, which the next change of the page would open again
  document.addEventListener("close", (event) => { if (event.target.matches("#dialog dialog")) event.target.remove(); }, true);
})();
