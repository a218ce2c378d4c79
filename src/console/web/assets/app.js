// What pages do beyond links and forms. Each of them works without this file; with it, ages stay true,
// commands can be copied, and regions that are fetched again keep their place. Charts are in charts.js.
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

  // What has happened is not ahead, though its host's clock may be; what is due may be either.
  function age(atMs, nowMs, isDue) {
    if (!isDue) atMs = Math.min(atMs, nowMs);
    return nowMs < atMs ? "in " + span(atMs - nowMs) : span(nowMs - atMs) + " ago";
  }

  function refreshAges() {
    if (document.hidden) return;
    const now = Date.now() + clockDifference;
    for (const element of document.querySelectorAll("time[data-ms]")) {
      const text = age(Number(element.dataset.ms), now, "due" in element.dataset);
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
    // A region that was replaced as a whole is not the one that the event names.
    const old = event.detail.target;
    const target = old.isConnected ? old : document.getElementById(old.id) || old;
    for (const pre of target.querySelectorAll("pre[id]")) {
      // One that was not there before begins at its end too: the newest lines are what one waits for.
      const top = scrolled.has(pre.id) ? scrolled.get(pre.id) : Infinity;
      pre.scrollTop = Math.min(top, pre.scrollHeight);
    }
    refreshAges();
    addCopyButtons(target);
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    // A region that replaces another listens from now on: what changed since it was rendered had nobody to hear it.
    const old = event.detail.target;
    const target = old.isConnected ? null : document.getElementById(old.id);
    if (target && target.classList.contains("region")) htmx.trigger(target, "again");
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
})();
