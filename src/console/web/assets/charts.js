// Charts. The server says what they show and in which steps; this draws it with uPlot, keeps it new, and asks
// again for a part of the time that somebody marks. All charts of a page share one axis of time and one cursor.
"use strict";

(function () {
  const root = document.documentElement;
  if (!window.uPlot) return;

  // Values for people.
  const missing = (value) => value === null || value === undefined;

  function bytes(value) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (value >= 999.5 && unit < units.length - 1) {
      value /= 1024;
      unit += 1;
    }
    return (unit > 0 && value < 9.95 ? value.toFixed(1) : value.toFixed(0)) + " " + units[unit];
  }

  function number(value) {
    if (value !== 0 && Math.abs(value) < 0.095) return value.toPrecision(2);
    return Math.abs(value) < 99.5 && !Number.isInteger(value) ? value.toFixed(Math.abs(value) < 9.95 ? 2 : 1) : value.toFixed(0);
  }

  function percent(value) {
    const share = value * 100;
    return (share !== 0 && Math.abs(share) < 0.095 ? share.toPrecision(1) : share.toFixed(Math.abs(share) < 9.95 ? 1 : 0)) + " %";
  }

  function duration(value) {
    const size = Math.abs(value);
    if (size === 0 || size >= 1) return number(value) + " s";
    return size >= 0.001 ? number(value * 1000) + " ms" : number(value * 1000000) + " µs";
  }

  // What the longest word beside an axis takes, in pixels.
  function gutter(_chart, words) {
    const longest = Math.max(0, ...(words || []).map((word) => word.length));
    return Math.max(58, 18 + 6.6 * longest);
  }

  // Round numbers for bytes are powers of two.
  const binarySteps = Array.from({ length: 60 }, (_, exponent) => Math.pow(2, exponent));

  const scales = {
    "ratio": { text: percent },
    "bytes": { text: bytes, steps: binarySteps },
    "bytes-per-second": { text: (value) => bytes(value) + "/s", steps: binarySteps },
    "per-second": { text: (value) => number(value) + "/s" },
    "seconds": { text: duration, signed: true },
    "celsius": { text: (value) => value.toFixed(0) + " °C" },
    "number": { text: number },
  };

  const two = (part) => String(part).padStart(2, "0");

  // A split of the axis, as precise as its distance to the next.
  function split(seconds, step) {
    const time = new Date(seconds * 1000);
    if (step >= 25 * 86400) return time.getFullYear() + "-" + two(time.getMonth() + 1);
    if (step >= 86400) return two(time.getMonth() + 1) + "-" + two(time.getDate());
    const clock = two(time.getHours()) + ":" + two(time.getMinutes());
    if (step < 60) return clock + ":" + two(time.getSeconds());
    return clock === "00:00" ? two(time.getMonth() + 1) + "-" + two(time.getDate()) : clock;
  }

  // A time in the legend; with its date where a page shows several days.
  function moment(seconds, answer) {
    const time = new Date(seconds * 1000);
    const date = time.getFullYear() + "-" + two(time.getMonth() + 1) + "-" + two(time.getDate());
    if (answer.step >= 86400) return date;
    const clock = two(time.getHours()) + ":" + two(time.getMinutes()) + (answer.step < 60 ? ":" + two(time.getSeconds()) : "");
    return answer.to - answer.from > 86400 ? date + " " + clock : clock;
  }

  function colour(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  const lineColour = (index) => colour("--chart-" + (index % 6 + 1));
  const severityColour = { critical: "--bad", warning: "--busy", info: "--quiet" };

  // What is drawn now of one figure; a later answer replaces it without a new plot.
  // { chart, answer, plot, figure, place }

  function bounds(chart) {
    let least = 0, most = 0;
    for (const line of chart.lines) {
      for (const values of [line.values, line.high || [], line.low || []]) {
        for (const value of values) {
          if (value === null) continue;
          if (value > most) most = value;
          if (value < least) least = value;
        }
      }
    }
    const scale = scales[chart.scale] || scales.number;
    // Shares are of one whole, unless something is beyond it, or all of it is too small to be seen.
    if (chart.scale === "ratio" && most > 0.3 && most <= 1) most = 1;
    const room = (most - least) * 0.06;
    return [scale.signed && least < 0 ? least - room : 0, most === least ? 1 : most + (chart.scale === "ratio" && most === 1 ? 0 : room)];
  }

  // When alerts held: a strip on the axis of time, and a tint where the chart shows what they are about.
  function drawMarks(u, shown) {
    const { ctx, bbox } = u;
    const ratio = uPlot.pxRatio || 1;
    const strip = 4 * ratio;
    ctx.save();
    for (const mark of shown.answer.marks) {
      const from = Math.max(mark.from, shown.answer.from);
      const to = Math.min(mark.to === null ? shown.answer.to : mark.to, shown.answer.to);
      if (to < from) continue;
      const left = u.valToPos(from, "x", true);
      const width = Math.max(u.valToPos(to, "x", true) - left, 2 * ratio);
      ctx.fillStyle = colour(severityColour[mark.severity] || "--quiet");
      if (mark.chart === shown.chart.word) {
        ctx.globalAlpha = 0.12;
        ctx.fillRect(left, bbox.top, width, bbox.height);
      }
      ctx.globalAlpha = mark.chart === null || mark.chart === shown.chart.word ? 0.9 : 0.45;
      ctx.fillRect(left, bbox.top + bbox.height - strip, width, strip);
    }
    ctx.restore();
  }

  // Between the least and the greatest of each step.
  function drawAround(u, shown) {
    const { ctx } = u;
    shown.chart.lines.forEach((line, index) => {
      if (!line.high || !u.series[index + 1].show) return;
      ctx.save();
      ctx.fillStyle = lineColour(index);
      ctx.globalAlpha = 0.18;
      let begin = -1;
      const piece = (end) => {
        if (begin < 0) return;
        ctx.beginPath();
        for (let at = begin; at < end; at += 1) {
          ctx.lineTo(u.valToPos(shown.answer.times[at], "x", true), u.valToPos(line.high[at], "y", true));
        }
        for (let at = end - 1; at >= begin; at -= 1) {
          ctx.lineTo(u.valToPos(shown.answer.times[at], "x", true), u.valToPos(line.low[at], "y", true));
        }
        ctx.fill();
        begin = -1;
      };
      line.high.forEach((value, at) => {
        if (value === null) piece(at);
        else if (begin < 0) begin = at;
      });
      piece(line.high.length);
      ctx.restore();
    });
  }

  // A row of cells for each line: the deeper the greater.
  function drawCells(u, shown) {
    const { ctx, bbox } = u;
    const { times, step } = shown.answer;
    const lines = shown.chart.lines;
    const height = bbox.height / lines.length;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.fillStyle = colour("--chart-1");
    lines.forEach((line, row) => {
      const top = bbox.top + bbox.height - (row + 1) * height;
      line.values.forEach((value, at) => {
        if (value === null) return;
        const left = u.valToPos(times[at] - step / 2, "x", true);
        const right = u.valToPos(times[at] + step / 2, "x", true);
        ctx.globalAlpha = 0.05 + 0.95 * Math.min(1, Math.max(0, value));
        ctx.fillRect(left, top, right - left, Math.max(1, height - 1));
      });
    });
    ctx.restore();
  }

  const isCells = (chart) => chart.drawn === "cells";

  // The values under the cursor; the newest, where there is none.
  function legendTime(shown, seconds) {
    if (missing(seconds)) return "newest";
    const held = shown.answer.marks.filter((mark) => mark.from <= seconds && (mark.to === null || mark.to >= seconds));
    return [moment(seconds, shown.answer)].concat(held.map((mark) => mark.severity + ": " + mark.text)).join(", ");
  }

  function legendValue(shown, index, at) {
    const scale = scales[shown.chart.scale] || scales.number;
    const values = shown.chart.lines[index] ? shown.chart.lines[index].values : [];
    const value = missing(at) ? values.findLast((one) => one !== null) : values[at];
    return missing(value) ? "–" : scale.text(value);
  }

  function legendCell(u, shown, at) {
    if (missing(at) || u.cursor.top < 0) return shown.chart.lines.length + " cores";
    const row = Math.floor(u.posToVal(u.cursor.top, "y"));
    return shown.chart.lines[row] ? shown.chart.lines[row].label + ": " + legendValue(shown, row, at) : "–";
  }

  function axes(shown) {
    const scale = scales[shown.chart.scale] || scales.number;
    const line = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: colour("--quiet"), font: "11px system-ui, sans-serif", grid: line, ticks: line };
    const time = Object.assign({ space: 62, size: 28, values: (_, splits, _axis, _space, step) => splits.map((at) => split(at, step)) }, axis);
    const value = isCells(shown.chart)
      ? { size: 56, grid: { show: false }, splits: () => rows(shown.chart.lines.length),
          values: (_, splits) => splits.map((at) => (shown.chart.lines[Math.floor(at)] || { label: "" }).label) }
      : Object.assign({ size: gutter, values: (_, values) => values.map(scale.text) }, scale.steps ? { incrs: scale.steps } : {});
    return [time, Object.assign({}, axis, value)];
  }

  // The middles of some rows, few enough to be read.
  function rows(count) {
    const each = Math.ceil(count / 8);
    return Array.from({ length: Math.ceil(count / each) }, (_, index) => index * each + 0.5);
  }

  function series(shown) {
    const time = { label: "time", value: (_, seconds) => legendTime(shown, seconds) };
    if (isCells(shown.chart)) {
      return [time, { label: "core", stroke: colour("--chart-1"), points: { show: false }, paths: () => null,
        value: (u, _value, _series, at) => legendCell(u, shown, at) }];
    }
    return [time].concat(shown.chart.lines.map((one, index) => ({
      label: one.label,
      stroke: lineColour(index),
      width: 1.5,
      // The seventh line has the first one's colour, and is dashed.
      dash: index >= 6 ? [6, 4] : undefined,
      // A point alone makes no line.
      points: { show: (u, at) => u.data[at].filter((value) => !missing(value)).length < 3 },
      value: (_u, _value, _series, at) => legendValue(shown, index, at),
    })));
  }

  function options(shown) {
    const cells = isCells(shown.chart);
    const box = shown.figure.querySelector(".plot");
    return {
      width: box.clientWidth,
      height: shown.place.classList.contains("small") ? 120 : 168,
      legend: { live: true },
      cursor: {
        drag: { x: true, y: false, setScale: false },
        points: { size: 6, show: !cells },
        sync: { key: "muster", scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        bind: { dblclick: (_u, _target, _handler) => () => { zoom(shown.place, null); return null; } },
      },
      scales: {
        x: { time: true, range: () => [shown.answer.from, shown.answer.to] },
        y: { range: () => (cells ? [0, shown.chart.lines.length] : bounds(shown.chart)) },
      },
      axes: axes(shown),
      series: series(shown),
      hooks: {
        drawAxes: [(u) => { drawMarks(u, shown); if (!cells) drawAround(u, shown); }],
        draw: cells ? [(u) => { drawCells(u, shown); drawMarks(u, shown); }] : [],
        setSelect: [(u) => {
          const { left, width } = u.select;
          if (width < 6) return;
          const part = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          zoom(shown.place, part);
        }],
      },
    };
  }

  function data(shown) {
    const { chart, answer } = shown;
    const lines = isCells(chart) ? [answer.times.map(() => 0)] : chart.lines.map((line) => line.values);
    return [answer.times].concat(lines);
  }

  const shape = (chart) => chart.drawn + "\n" + chart.lines.map((line) => line.label).join("\n");

  // One figure with what it shows now.
  function draw(shown, anew) {
    const { figure, chart } = shown;
    const box = figure.querySelector(".plot");
    const empty = chart.lines.every((line) => line.values.every((value) => value === null));
    const newest = chart.lines.slice(0, 6).map((line, index) => line.label + " " + legendValue(shown, index));
    box.setAttribute("aria-label", chart.title + (empty ? ": no measurements in this time" : ", newest: " + newest.join(", ")));
    figure.querySelector("figcaption .more").textContent = chart.more > 0 ? " and " + chart.more + " more" : "";
    if (shown.plot && !anew && !empty && shown.shape === shape(chart)) {
      shown.plot.setData(data(shown));
      return;
    }
    if (shown.plot) shown.plot.destroy();
    shown.plot = null;
    box.replaceChildren();
    if (empty) {
      const nothing = document.createElement("p");
      nothing.className = "nothing";
      nothing.textContent = "no measurements in this time";
      box.append(nothing);
      return;
    }
    shown.shape = shape(chart);
    shown.plot = new uPlot(options(shown), data(shown), box);
  }

  function newFigure(chart) {
    const figure = document.createElement("figure");
    figure.className = "chart";
    figure.dataset.chart = chart.word;
    const caption = document.createElement("figcaption");
    const more = document.createElement("span");
    more.className = "more";
    caption.append(chart.title, more);
    const box = document.createElement("div");
    box.className = "plot";
    box.setAttribute("role", "img");
    figure.append(caption, box);
    return figure;
  }

  // Everything that a place shows: place → { figures: word → shown, zoom, due }
  const states = new Map();

  function show(place, answer) {
    const state = states.get(place);
    state.step = answer.step;
    const words = new Set(answer.charts.map((chart) => chart.word));
    for (const [word, shown] of state.figures) {
      if (words.has(word)) continue;
      if (shown.plot) shown.plot.destroy();
      shown.figure.remove();
      state.figures.delete(word);
    }
    const order = [state.bar];
    let group = "";
    for (const chart of answer.charts) {
      if (chart.group !== group) {
        group = chart.group;
        order.push(heading(state, group));
      }
      const shown = state.figures.get(chart.word) || { figure: newFigure(chart), place: place, plot: null };
      Object.assign(shown, { chart: chart, answer: answer });
      state.figures.set(chart.word, shown);
      order.push(shown.figure);
    }
    const now = [...place.children];
    if (now.length !== order.length || order.some((element, index) => now[index] !== element)) place.replaceChildren(...order);
    // Now that all have their places, their widths are known.
    for (const chart of answer.charts) draw(state.figures.get(chart.word), false);
    place.dataset.drawn = String(answer.charts.length);
    state.bar.hidden = !state.zoom;
    if (state.zoom) state.bar.firstChild.textContent = moment(answer.from, answer) + " – " + moment(answer.to, answer) + " ";
  }

  function heading(state, group) {
    if (!state.headings.has(group)) {
      const element = document.createElement("h3");
      element.textContent = group;
      state.headings.set(group, element);
    }
    return state.headings.get(group);
  }

  function refresh(place) {
    const state = states.get(place);
    const part = state.zoom ? "&from=" + state.zoom[0] + "&to=" + state.zoom[1] : "";
    const url = place.dataset.charts + "?range=" + place.dataset.range + part;
    state.due = Date.now() + Math.min(600, Math.max(10, (state.step || 0) / 4)) * 1000;
    // One after the other, so that a slow one is not overtaken.
    state.asking = state.asking
      .then(() => fetch(url, { credentials: "same-origin", headers: { Accept: "application/json" } }))
      .then((answer) => (answer.ok ? answer.json() : Promise.reject(answer.status)))
      .then((answer) => show(place, answer))
      // The table below says what there is; what was drawn before stays.
      .catch(() => undefined);
  }

  function zoom(place, part) {
    states.get(place).zoom = part;
    refresh(place);
  }

  function newBar(place) {
    const bar = document.createElement("p");
    bar.className = "zoomed";
    bar.hidden = true;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Show all of it again";
    button.addEventListener("click", () => zoom(place, null));
    bar.append(document.createTextNode(""), button);
    return bar;
  }

  for (const place of document.querySelectorAll(".charts[data-charts]")) {
    const state = { figures: new Map(), headings: new Map(), zoom: null, asking: Promise.resolve(), due: 0, bar: newBar(place) };
    states.set(place, state);
    refresh(place);
  }

  // New measurements: the region beside the charts hears of them first, and so does this. A part of the time that somebody
  // looks at stands still.
  function renew() {
    if (document.hidden) return;
    for (const [place, state] of states) {
      if (!state.zoom && Date.now() >= state.due) refresh(place);
    }
  }
  document.addEventListener("htmx:afterRequest", (event) => {
    const target = event.detail.target;
    if (target && (target.id === "latest" || target.id === "glance") && event.detail.successful) renew();
  });
  document.addEventListener("visibilitychange", renew);

  function redraw() {
    for (const state of states.values()) {
      for (const shown of state.figures.values()) draw(shown, true);
    }
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let resizing = 0;
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    // Telephones change the height all the time.
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(resizing);
    resizing = setTimeout(redraw, 150);
  });
})();
