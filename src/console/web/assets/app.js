// What pages do beyond links and forms. Each of them works without this file; with it, ages stay true,
// charts are drawn, commands can be copied, and regions that are fetched again keep their place.
"use strict";

(function () {
  const root = document.documentElement;
  root.classList.add("scripted");

  // Ages. The server's clock counts: what is old is told by it, however wrong this clock is.
  const clockDifference = Number(root.dataset.nowMs) - Date.now();

  function span(ms) {
    const s = Math.floor(ms / 1000);
    if (s < 60) return s + " s";
    if (s < 3600) return Math.floor(s / 60) + " min";
    if (s < 172800) return Math.floor(s / 3600) + " h";
    return Math.floor(s / 86400) + " days";
  }

  function age(atMs, nowMs) {
    return nowMs < atMs ? "in " + span(atMs - nowMs) : span(nowMs - atMs) + " ago";
  }

  function refreshAges() {
    if (document.hidden) return;
    const now = Date.now() + clockDifference;
    for (const element of document.querySelectorAll("time[data-ms]")) {
      const text = age(Number(element.dataset.ms), now);
      if (element.textContent !== text) element.textContent = text;
    }
  }
  setInterval(refreshAges, 1000);

  // Whether this page follows what changes. A page that nobody sees gives its connection back: a
  // browser has few for one server.
  const sources = new Set();
  const live = document.getElementById("live");

  function say(word, broken) {
    if (!live) return;
    live.hidden = false;
    live.textContent = word;
    live.classList.toggle("broken", broken);
  }

  if (window.htmx) {
    htmx.createEventSource = function (url) {
      const source = new EventSource(url);
      sources.clear();
      sources.add(source);
      return source;
    };
  }
  document.addEventListener("htmx:sseOpen", () => say("live", false));
  document.addEventListener("htmx:sseError", () => say("not live", true));

  let hiding = 0;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) {
      hiding = setTimeout(() => sources.forEach((source) => source.close()), 20000);
      return;
    }
    refreshAges();
    for (const source of sources) {
      // The extension connects again when it is told of an error of a closed connection.
      if (source.readyState === EventSource.CLOSED) source.onerror(new Event("error"));
    }
    drawCharts();
  });

  // Regions. What somebody has selected is not taken away, and what was scrolled stays where it was;
  // a text that stood at its end stays at its end.
  const scrolled = new Map();

  function selectionWithin(element) {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && element.contains(selection.anchorNode);
  }

  document.addEventListener("htmx:beforeSwap", (event) => {
    const target = event.detail.target;
    if (!target.classList.contains("region") || !event.detail.shouldSwap) return;
    if (selectionWithin(target)) {
      event.detail.shouldSwap = false;
      setTimeout(() => htmx.trigger(target, "again"), 2000);
      return;
    }
    for (const pre of target.querySelectorAll("pre[id]")) {
      const atEnd = pre.scrollTop + pre.clientHeight >= pre.scrollHeight - 4;
      scrolled.set(pre.id, atEnd ? Infinity : pre.scrollTop);
    }
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    for (const pre of event.detail.target.querySelectorAll("pre[id]")) {
      // One that was not there before begins at its end too: the newest lines are what one waits for.
      const top = scrolled.has(pre.id) ? scrolled.get(pre.id) : Infinity;
      pre.scrollTop = Math.min(top, pre.scrollHeight);
    }
    refreshAges();
    addCopyButtons(event.detail.target);
  });

  // Command lines to copy.
  function addCopyButtons(within) {
    if (!navigator.clipboard) return;
    for (const pre of within.querySelectorAll("pre.cli")) {
      if (pre.parentElement.classList.contains("copyable")) continue;
      const frame = document.createElement("div");
      frame.className = "copyable";
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Copy";
      button.addEventListener("click", () => {
        navigator.clipboard.writeText(pre.textContent).then(() => {
          button.textContent = "Copied";
          setTimeout(() => { button.textContent = "Copy"; }, 2000);
        });
      });
      pre.replaceWith(frame);
      frame.append(pre, button);
    }
  }
  addCopyButtons(document);

  // Charts. The server says what they show; this draws it.
  const plots = new Map();

  function number(value) {
    return value === null || value === undefined ? "–" : value.toFixed(2);
  }

  function bytes(value) {
    if (value === null || value === undefined) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (value >= 999.5 && unit < units.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return (unit > 0 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)) + " " + units[unit];
  }

  const scales = {
    "ratio": { text: (v) => (v === null || v === undefined ? "–" : (v * 100).toFixed(v < 0.0995 ? 1 : 0) + " %"), top: 1, base: 10 },
    "bytes": { text: bytes, base: 2 },
    "bytes-per-second": { text: (v) => (v === null || v === undefined ? "–" : bytes(v) + "/s"), base: 2 },
    "number": { text: number, base: 10 },
  };

  // Round numbers for bytes are powers of two.
  const binarySteps = Array.from({ length: 60 }, (_, exponent) => Math.pow(2, exponent));

  function clock(seconds, step) {
    const two = (part) => String(part).padStart(2, "0");
    const time = new Date(seconds * 1000);
    if (step >= 86400) return two(time.getMonth() + 1) + "-" + two(time.getDate());
    const minutes = two(time.getHours()) + ":" + two(time.getMinutes());
    return step < 60 ? minutes + ":" + two(time.getSeconds()) : minutes;
  }

  function colour(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  function highest(chart) {
    const value = Math.max(0, ...chart.lines.flatMap((one) => one.values));
    return (scales[chart.scale] || scales.number).top || (value > 0 ? value * 1.08 : 1);
  }

  // `shown.chart` is what is drawn now; a later answer replaces it without a new plot.
  function options(shown, plot) {
    const scale = scales[shown.chart.scale] || scales.number;
    const line = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: colour("--quiet"), font: "11px system-ui, sans-serif", grid: line, ticks: line };
    return {
      width: plot.clientWidth,
      height: plot.clientHeight - 32,
      cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: {
        x: { time: true, range: () => [shown.chart.from, shown.chart.to] },
        y: { range: () => [0, highest(shown.chart)] },
      },
      axes: [
        Object.assign({ space: 60, size: 30, values: (_, splits, _axis, _space, step) => splits.map((at) => clock(at, step)) }, axis),
        Object.assign({ size: 62, values: (_, values) => values.map(scale.text) }, axis,
          scale.base === 2 ? { incrs: binarySteps } : {}),
      ],
      series: [{ label: "time", value: (_, v) => (v === null ? "–" : clock(v, 1)) }].concat(
        shown.chart.lines.map((one, index) => ({
          label: one.label,
          stroke: colour("--chart-" + (index % 6 + 1)),
          width: 1.5,
          // A point alone makes no line.
          points: { show: (u, index) => u.data[index].filter((value) => typeof value === "number").length < 3 },
          value: (_, v) => scale.text(v),
        }))),
    };
  }

  function draw(figure, chart, anew) {
    const plot = figure.querySelector(".plot");
    const before = plots.get(figure);
    const lines = chart.lines.filter((one) => one.values.some((value) => value !== null));
    const now = Object.assign({}, chart, { lines: lines });
    const data = () => uPlot.join(lines.map((one) => [one.times, one.values]), lines.map(() => [1, 2]));
    const labels = (of) => of.lines.map((one) => one.label).join("\n");
    if (before && !anew && lines.length > 0 && labels(before.shown.chart) === labels(now)) {
      before.shown.chart = now;
      before.plot.setData(data());
      return;
    }
    if (before) before.plot.destroy();
    plots.delete(figure);
    plot.replaceChildren();
    if (lines.length === 0) {
      const nothing = document.createElement("p");
      nothing.className = "nothing";
      nothing.textContent = "no measurements in this time";
      plot.append(nothing);
      return;
    }
    const shown = { chart: now };
    plots.set(figure, { shown: shown, plot: new uPlot(options(shown, plot), data(), plot) });
  }

  function drawChart(figure) {
    return fetch(figure.dataset.chart, { credentials: "same-origin", headers: { Accept: "application/json" } })
      .then((answer) => (answer.ok ? answer.json() : Promise.reject(answer.status)))
      .then((chart) => draw(figure, chart))
      // The table below the charts says what there is; a chart that was drawn before stays.
      .catch(() => undefined);
  }

  let drawing = Promise.resolve();
  function drawCharts() {
    if (document.hidden || !window.uPlot) return;
    const figures = [...document.querySelectorAll("figure[data-chart]")];
    // One round after the other, so that a slow one is not overtaken.
    drawing = drawing.then(() => Promise.all(figures.map(drawChart)));
  }

  function redraw() {
    for (const [figure, { shown }] of [...plots]) draw(figure, shown.chart, true);
  }

  drawCharts();
  // New measurements: the region beside the charts hears of them first, and so does this.
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.target && event.detail.target.id === "latest" && event.detail.successful) drawCharts();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let resizing = 0;
  window.addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(redraw, 150);
  });
})();
