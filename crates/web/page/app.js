// The page of omr web: a tree of groups and eight charts of the chosen one. uPlot draws axes and grid;
// the values are drawn here, column by column. null is unknown, and never zero.
"use strict";
(() => {
  const SPANS = [[1800, "30 min"], [7200, "2 h"], [21600, "6 h"], [86400, "24 h"], [259200, "3 d"], [604800, "7 d"]];
  const COLD = 120; // seconds: the age from which on memory is called cold
  const SIDE = 76; // pixels left of each plot, so that all plots begin at the same place
  const MOST_ROWS = 1000, LONGEST = 512;
  const GROUPS_EVERY = 5000, CHARTS_EVERY = 30000, SILENT = 8000; // milliseconds
  const LANES = ["machine", "background", "foreground", "protected"];
  const DID = { nothing: "no event", held: "held", acted: "acted", stopped: "stopped by work" };
  const COLOURS = {
    "used within 2 min": "used", "used or cold": "maybe", "cold": "cold", "age unknown": "age", "page cache": "cache",
    "swap": "swap", "in zram": "swap", "in zswap": "zswap", "swap on disk": "disk", "free": "free",
    "anon taken": "cold", "file taken": "cache", "to slower memory": "zswap", "anon back": "lost", "file back": "lost-file",
    "sweeps and hints": "own", "samples and agings": "zswap",
  };
  const DECIDED = { acted: "good", stopped: "lost", held: "held", nothing: "age" };
  // The eight charts: the names of their parts in the answer, and their width.
  const CHARTS = [
    { id: "unused", of: ["unused"], wide: true }, { id: "promise", of: ["promise"] }, { id: "taken", of: ["taken"] },
    { id: "timeline", of: [], wide: true }, { id: "waited", of: ["waited"] }, { id: "place", of: ["place"] },
    { id: "cost", of: ["writes", "cpu"] }, { id: "sleep", of: ["sleep"] },
  ];

  const $ = (id) => document.getElementById(id);
  const made = (tag, properties, ...below) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...below.filter((one) => one !== null));
    return node;
  };
  const set = (node, attributes) => {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null) node.removeAttribute(name); else node.setAttribute(name, value);
    }
    return node;
  };
  const put = (node, text) => { if (node.textContent !== text) node.textContent = text; };

  // ---- Words, as the command line writes them.

  // Escapes control characters, and drops those that turn the direction of text or have no width.
  const printable = (text) => [...String(text).slice(0, LONGEST * 4)].slice(0, LONGEST).join("")
    .replace(/[\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\u00ad]/g, "")
    .replace(/[\u0000-\u001f\u007f-\u009f]/g, (c) => `\\u{${c.codePointAt(0).toString(16)}}`)
    + (text.length > LONGEST ? "…" : "");
  const cut = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
  const named = (path) => printable(`/${path}`);

  function bytes(value) {
    const names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = 0, hundredths = value * 100;
    for (; hundredths >= 99950 && unit < names.length - 1; unit += 1) hundredths = Math.floor(value * 100 / 1024 ** (unit + 1) + 0.5);
    if (unit === 0) return `${value} B`;
    if (hundredths >= 9995) return `${Math.floor((hundredths + 50) / 100)} ${names[unit]}`;
    if (hundredths >= 1000) return `${(Math.floor((hundredths + 5) / 10) / 10).toFixed(1)} ${names[unit]}`;
    return `${(hundredths / 100).toFixed(2)} ${names[unit]}`;
  }
  function short(ms) {
    const seconds = Math.floor(ms / 1000);
    if (ms < 100) return `${Math.floor(ms)} ms`;
    if (seconds < 10) return `${seconds}.${Math.floor(ms % 1000 / 100)} s`;
    if (seconds < 120) return `${seconds} s`;
    return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
  }
  const rate = (value) => `${(value / 1e4).toFixed(4).replace(/\.?0+$/, "")} %/min`;
  const share = (value) => `${value / 100 >= 10 ? Math.round(value / 10) / 10 : value / 100} %`;
  const UNITS = {
    "bytes": { name: "bytes", text: bytes }, "milliseconds": { name: "seconds", text: short },
    "permyriad": { name: "% of the time", text: share },
    "promotion-rate": { name: "% of the working set in a minute", text: rate },
  };
  const text = (unit, value) => value === null || value === undefined ? "unknown" : UNITS[unit].text(value);
  function range(unit, value) {
    if (!value) return "?";
    const [least, most] = [UNITS[unit].text(value.least), UNITS[unit].text(value.most)];
    return least === most ? least : `${least} to ${most}`;
  }
  const seconds = (time) => time ? time.secs + time.nanos / 1e9 : null;
  const percent = (part, whole) => {
    const value = 100 * part / whole;
    return value > 0 && value < 1 ? "less than 1 %" : `${Math.round(value)} %`;
  };
  const length = (s) => s >= 172800 ? `${Math.floor(s / 86400)} d` : s >= 7200 ? `${Math.floor(s / 3600)} h`
    : s >= 120 ? `${Math.floor(s / 60)} min` : `${Math.floor(s)} s`;
  const iso = (time) => new Date(Math.min(time, 8e12) * 1000).toISOString();
  const moment = (time) => iso(time).slice(0, 19).replace("T", " ");
  const clock = (time) => iso(time).slice(11, 16);
  // The time of a column: with seconds where columns are short, with the day where the window is long.
  function when(time, window) {
    const day = Math.floor(window.from / 86400) !== Math.floor((window.to - 1) / 86400);
    const each = (window.to - window.from) / window.columns;
    return iso(time).slice(day ? 5 : 11, each < 60 ? 19 : 16).replace("T", " ");
  }

  // ---- State.

  const snapshot = (() => {
    const data = $("omr-data");
    return data ? JSON.parse(data.textContent) : null;
  })();
  const state = {
    group: "", span: 7200, at: null, groups: [], charts: null, status: null, statusTime: null, missing: null,
    serverGone: null, heard: performance.now(), failed: new Map(), folded: new Set(), filter: "", sort: "memory",
    column: null, focus: null, asking: 0, explained: null,
  };
  const nowSeconds = () => snapshot ? snapshot.made : Math.floor(Date.now() / 1000);

  function readHash() {
    const hash = new URLSearchParams(location.hash.slice(1));
    const number = (name) => { const value = Number(hash.get(name)); return hash.has(name) && Number.isFinite(value) ? Math.floor(value) : null; };
    state.group = hash.get("group") ?? "";
    state.span = Math.min(Math.max(number("window") ?? 7200, 60), 604800 * 5);
    if (snapshot && !hash.has("group")) state.group = snapshot.group ?? "";
    const at = number("at");
    state.at = at !== null && at >= 0 && at < nowSeconds() ? at : null;
  }
  function writeHash() {
    const hash = new URLSearchParams();
    if (state.group) hash.set("group", state.group);
    hash.set("window", state.span);
    if (state.at !== null) hash.set("at", state.at);
    if (location.hash.slice(1) !== hash.toString()) history.pushState(null, "", `#${hash}`);
  }

  // ---- Asking the server.

  async function ask(path, parameters, signal) {
    const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null));
    const answer = await fetch(`${path}?${query}`, { signal, cache: "no-store" });
    if (!answer.ok) throw new Error((await answer.text()).slice(0, 400) || `the server answers ${answer.status}`);
    return answer.json();
  }
  const asked = { groups: null, charts: null };
  async function load(what, path, parameters, take) {
    asked[what]?.abort();
    const abort = asked[what] = new AbortController();
    try {
      const answer = await ask(path, parameters, abort.signal);
      if (asked[what] !== abort) return;
      state.failed.delete(what);
      take(answer);
    } catch (error) {
      if (abort.signal.aborted) return;
      // A server that is gone has an alarm of its own.
      if (error instanceof TypeError) state.failed.delete(what); else state.failed.set(what, error.message);
    } finally {
      if (asked[what] === abort) asked[what] = null;
      alarms();
    }
  }
  function loadGroups() {
    if (snapshot) { state.groups = snapshot.groups; drawTree(); return null; }
    return load("groups", "api/groups", { at: state.at }, (answer) => {
      state.groups = answer.groups;
      state.noGroups = answer.missing;
      drawTree();
      drawHead();
    });
  }
  let took = 0;
  function loadCharts() {
    if (snapshot) { takeCharts(snapshot.charts[state.group] ?? null); return null; }
    const width = $("grid").clientWidth || 900;
    const columns = Math.min(Math.max(Math.round(width / 3.6), 60), 300);
    const began = performance.now();
    return load("charts", "api/charts", { group: state.group, at: state.at, span: state.span, columns }, (answer) => {
      took = performance.now() - began;
      state.chartsTime = nowSeconds();
      state.noCharts = answer.missing;
      takeCharts(answer.charts);
    });
  }

  function listen() {
    const events = new EventSource("api/events");
    events.addEventListener("status", (event) => {
      const answer = JSON.parse(event.data);
      const wasGone = state.serverGone !== null;
      state.heard = performance.now();
      state.serverGone = state.refused = null;
      const wasMissing = state.missing !== null;
      state.missing = answer.status ? null : answer.missing ?? "the daemon does not answer";
      if (answer.status) [state.status, state.statusTime] = [answer.status, answer.time];
      drawState();
      if (wasGone || wasMissing !== (state.missing !== null)) refresh();
    });
    events.onerror = () => {
      state.serverGone ??= nowSeconds();
      drawState();
      // A browser tries again by itself, but not after an answer that is an error.
      if (events.readyState !== EventSource.CLOSED) return;
      setTimeout(listen, 3000);
      ask("api/groups", { at: 0 }).then(() => null, (error) => error instanceof TypeError ? null : error.message).then((why) => {
        state.refused = why;
        drawState();
      });
    };
    const watch = setInterval(() => {
      if (events.readyState === EventSource.CLOSED) return clearInterval(watch);
      if (performance.now() - state.heard > SILENT) {
        // A server that hangs sends no error.
        state.serverGone ??= nowSeconds();
        state.heard = performance.now();
        drawState();
        events.close();
        clearInterval(watch);
        listen();
      }
    }, 1000);
  }

  function refresh() {
    loadGroups();
    loadCharts();
  }

  // ---- The header.

  function alarms() {
    const lines = [];
    if (state.serverGone !== null) {
      const last = state.statusTime ? ` The data is of ${clock(state.statusTime)} UTC.` : "";
      lines.push(`${state.refused ?? "The server of this page does not answer."} The page tries again by itself.${last}`);
    } else if (state.missing && !snapshot) {
      const last = state.statusTime ? `; the last status is of ${clock(state.statusTime)} UTC` : "";
      lines.push(`${state.missing}; the history is shown all the same${last}`);
    }
    const records = state.serverGone === null ? [state.noGroups, state.noCharts, ...state.failed.values()] : [];
    for (const line of new Set(records)) if (line && line !== state.missing) lines.push(line);
    const shown = [...$("alarms").children].map((line) => line.textContent);
    const wanted = lines.map(printable);
    if (shown.join("\n") !== wanted.join("\n")) {
      $("alarms").replaceChildren(...wanted.map((line) => made("p", { className: "alarm", textContent: line })));
    }
  }

  function drawState() {
    alarms();
    const status = state.status;
    let [dot, word, doing] = ["", "connecting", ""];
    if (snapshot) {
      [word, doing] = ["snapshot", `of ${printable(snapshot.host)}, made at ${moment(snapshot.made)} UTC by omr ${printable(snapshot.version)}; it does not change`];
      if (snapshot.made - snapshot.window.to > 60) doing += `; its charts end at ${moment(snapshot.window.to)} UTC`;
      if (snapshot.missing) doing += `; ${printable(snapshot.missing)}`;
    } else if (state.serverGone !== null) [dot, word] = ["bad", "no server"];
    else if (state.missing) [dot, word] = ["warn", "no daemon"];
    else if (status) [dot, word] = ["live", "live"];
    if (status && !snapshot) {
      const sweep = status.sweep;
      doing = sweep ? `sweeping ${cut(named(sweep.group), 80)}: ${bytes(sweep.freed)} of ${bytes(sweep.asked)}; ${printable(status.reason)}` : printable(status.reason);
      if (status.preparing) doing = `preparing for ${printable(status.preparing.for)}: ${bytes(status.preparing.freed)} freed`;
      if (status.giving_back) doing = `giving back ${bytes(status.giving_back.back)} of ${bytes(status.giving_back.taken)}`;
      if (status.mode !== "act") doing = `mode ${status.mode}: ${doing}`;
      const goal = status.goal;
      if (goal?.words && goal.words !== status.reason) doing += `; ${printable(goal.words)}`;
      if (goal?.presence_words) doing += `; ${printable(goal.presence_words)}`;
    }
    if (state.at !== null && !snapshot) doing = `the past: charts end at ${moment(state.at)} UTC`;
    const old = !snapshot && (state.serverGone !== null || state.missing !== null);
    if (old && state.statusTime && doing && state.at === null) doing = `${length(Math.max(nowSeconds() - state.statusTime, 0))} ago: ${doing}`;
    $("dot").className = dot;
    put($("link"), word);
    put($("doing"), doing);
    $("state").title = doing;
    document.body.classList.toggle("old", old);
    drawHead();
  }

  function drawTools() {
    for (const input of $("spans").querySelectorAll("input")) input.checked = Number(input.value) === state.span;
    const at = iso(state.at ?? nowSeconds()).slice(0, 16);
    if (document.activeElement !== $("at")) $("at").value = at;
    $("now").disabled = $("forth").disabled = state.at === null;
  }

  // ---- The tree.

  const order = {
    memory: (group) => group.memory, cold: (group) => group.cold?.least ?? null, swap: (group) => group.swap,
    back: (group) => group.came_back, name: () => null,
  };
  function rows() {
    const { groups } = state, below = groups.map(() => []), key = order[state.sort];
    const wanted = groups.map((group) => !state.filter || group.path.includes(state.filter));
    for (let index = groups.length - 1; index >= 0; index -= 1) {
      const above = groups[index].above;
      if (above === null || !wanted[index]) continue;
      wanted[above] = true;
      below[above].push(index);
    }
    const compare = (a, b) => (key(groups[b]) ?? -1) - (key(groups[a]) ?? -1) || (groups[a].path < groups[b].path ? -1 : 1);
    const list = [];
    const open = wanted[0] ? [[0, 0]] : [];
    while (open.length) {
      const [index, depth] = open.pop();
      const children = below[index].sort(compare), path = groups[index].path;
      const folded = !state.filter && children.length > 0 && state.folded.has(path);
      list.push({ group: groups[index], depth, hasBelow: children.length > 0, folded });
      if (!folded) for (let at = children.length - 1; at >= 0; at -= 1) open.push([children[at], depth + 1]);
    }
    return list;
  }
  const has = (path) => !snapshot || Object.hasOwn(snapshot.charts, path);

  function label(group) {
    const above = group.above === null ? null : state.groups[group.above].path;
    if (above === null) return "/";
    return printable(above && group.path.startsWith(`${above}/`) ? group.path.slice(above.length + 1) : group.path);
  }
  const size = (value) => value === null || value === undefined ? "?" : bytes(value);
  const third = { swap: (group) => size(group.swap), back: (group) => group.came_back === 0 ? "–" : size(group.came_back) };

  function drawTree() {
    const list = rows(), tree = $("tree");
    const had = document.activeElement?.closest?.("[role=treeitem]")?.dataset.path;
    const column = third[state.sort] ?? ((group) => size(group.cold?.least));
    put($("third"), third[state.sort] ? state.sort : "cold");
    const focus = list.some((row) => row.group.path === state.focus) ? state.focus : state.group;
    const isThere = list.some((row) => row.group.path === focus), shown = list.slice(0, MOST_ROWS);
    // Rows stay where they are: a click that began on one ends on the same one.
    while (tree.children.length > shown.length) tree.lastChild.remove();
    while (tree.children.length < shown.length) {
      const name = made("span", { className: "name" }, made("span", { className: "fold" }), document.createTextNode(""));
      tree.append(set(made("li", { className: "row" }, name, made("span"), made("span")), { role: "treeitem" }));
    }
    shown.forEach(({ group, depth, hasBelow, folded }, at) => {
      const node = tree.children[at], [name, memory, other] = node.children;
      node.dataset.path = group.path;
      put(name.firstChild, hasBelow ? folded ? "▸" : "▾" : "");
      put(name.lastChild, label(group));
      put(memory, size(group.memory));
      put(other, column(group));
      name.classList.toggle("active", group.sweeping);
      name.style.paddingLeft = `${Math.min(depth, 8) * 8}px`;
      node.classList.toggle("absent", !has(group.path));
      set(node, {
        "aria-level": depth + 1, "aria-selected": group.path === state.group, title: named(group.path),
        tabindex: group.path === focus || (at === 0 && !isThere) ? 0 : -1,
        "aria-expanded": hasBelow ? !folded : null, "aria-disabled": has(group.path) ? null : "true",
      });
    });
    if (had !== undefined) [...tree.children].find((node) => node.dataset.path === had)?.focus({ preventScroll: true });
    let count = `${list.length} of ${state.groups.length} groups`;
    if (list.length > MOST_ROWS) count = `the first ${MOST_ROWS} of ${list.length} groups; a filter shows others`;
    if (!list.length) {
      count = state.filter ? "no group has this in its path" : state.at !== null
        ? "no samples of this time, nor of the three hours before" : "no groups are known yet";
    } else if (snapshot) count += "; grey ones have no charts in this snapshot";
    put($("count"), count);
  }

  function choose(path) {
    if (!has(path)) return;
    state.focus = path;
    go({ group: path });
  }
  function fold(path, folded) {
    if (folded ?? !state.folded.has(path)) state.folded.add(path); else state.folded.delete(path);
    drawTree();
  }
  function treeKey(event) {
    const node = event.target.closest("[role=treeitem]");
    if (!node || event.ctrlKey || event.altKey || event.metaKey) return;
    const path = node.dataset.path, nodes = [...$("tree").children], at = nodes.indexOf(node);
    const to = (index) => {
      const next = nodes[Math.min(Math.max(index, 0), nodes.length - 1)];
      state.focus = next.dataset.path;
      nodes.forEach((one) => set(one, { tabindex: one === next ? 0 : -1 }));
      next.focus();
    };
    const open = node.getAttribute("aria-expanded"), level = Number(node.getAttribute("aria-level"));
    const keys = {
      ArrowDown: () => to(at + 1), ArrowUp: () => to(at - 1), Home: () => to(0), End: () => to(nodes.length - 1),
      PageDown: () => to(at + 10), PageUp: () => to(at - 10), Enter: () => choose(path),
      " ": () => open === null ? choose(path) : fold(path),
      ArrowRight: () => open === "false" ? fold(path, false) : open === "true" && to(at + 1),
      ArrowLeft: () => {
        if (open === "true") return fold(path, true);
        for (let above = at - 1; above >= 0; above -= 1) {
          if (Number(nodes[above].getAttribute("aria-level")) < level) return to(above);
        }
        return null;
      },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  // ---- The chosen group.

  const last = (series) => series?.values.findLast((value) => value !== null) ?? null;
  const sum = (list) => list.reduce((total, series) => series.values.reduce(
    (part, value) => value ? { least: (part?.least ?? 0) + value.least, most: (part?.most ?? 0) + value.most } : part, total), null);
  const series = (chart, name) => chart?.series.find((one) => one.name === name);
  const shaped = (chart, ...shapes) => chart.series.filter((one) => shapes.includes(typeof one.shape === "string" ? one.shape : "age"));

  function drawHead() {
    const group = state.groups.find((one) => one.path === state.group);
    const { charts } = state, isNow = state.at === null;
    put($("group"), state.group ? named(state.group) : "The whole machine");
    $("group").title = named(state.group);
    const about = [];
    if (group) {
      if (group.class) about.push(group.class);
      if (group.threshold) about.push(`taken from age ${short(seconds(group.threshold) * 1000)} on`);
      if (snapshot ? snapshot.status : isNow) about.push(group.sweeping ? "being swept now" : group.last ? `last sweep ${short(seconds(group.last) * 1000)} ago` : "no sweep yet");
      if (group.swap !== null) about.push(`${bytes(group.swap)} in swap`);
      if (group.stalled !== null) about.push(`waited for memory ${share(group.stalled)} of the time`);
    } else if (state.groups.length) about.push("this group is not there now");
    put($("about"), about.join(" · "));
    const figures = [];
    const used = charts && last(series(charts.place, "used within 2 min"));
    const maybe = charts && last(series(charts.place, "used or cold"));
    const inUse = used && { least: used.least, most: used.most + (maybe?.most ?? 0) };
    figures.push(["memory", size(group?.memory), state.group ? "of it and all groups below" : "of all groups"]);
    const upTo = (value) => value.most > value.least ? `at most ${bytes(value.most)}` : null;
    figures.push(["used", inUse ? bytes(inUse.least) : "?", [inUse && upTo(inUse), "within 2 min"].filter(Boolean).join("; ")]);
    const cold = group?.cold;
    figures.push(["cold", cold ? bytes(cold.least) : "?", [cold && upTo(cold), "unused for 2 min"].filter(Boolean).join("; ")]);
    const today = isNow && !state.group ? (snapshot ? snapshot.status : state.status)?.today : null;
    const of = (taken, back) => taken > 0 ? `${percent(back, taken)} of it` : "nothing was taken";
    if (today) {
      figures.push(["taken today", bytes(today.freed), `${today.sweeps} ${today.sweeps === 1 ? "sweep" : "sweeps"}`]);
      figures.push(["came back", bytes(today.came_back), `${of(today.freed, today.came_back)}, within minutes`]);
      figures.push(["waited", `${today.regret_incomplete ? "≥ " : ""}${short(today.waited_ms)}`, "tasks, for sweeps, today"]);
    } else if (charts) {
      const window = `in these ${length(charts.window.to - charts.window.from)}`;
      const [taken, back] = [sum(shaped(charts.taken, "up")), sum(shaped(charts.taken, "down"))];
      figures.push(["taken", taken ? bytes(taken.least) : "?", window]);
      figures.push(["came back", back ? bytes(back.least) : "?", `of all reclaim, ${window}`]);
      const regret = sum([series(charts.waited, "regret")].filter(Boolean));
      figures.push(["waited", regret ? short(regret.least) : "?", `tasks, for sweeps, ${window}`]);
    }
    const list = $("figures");
    if (list.children.length !== figures.length) {
      list.replaceChildren(...figures.map(() => made("div", {}, made("dt"), made("dd"), made("dd"))));
    }
    list.querySelectorAll("div").forEach((node, at) => node.classList.toggle("today", Boolean(today) && at > 2));
    figures.forEach((figure, at) => figure.forEach((word, part) => put(list.children[at].children[part], word)));
    document.title = `${state.group ? cut(named(state.group), 60) : "omr"}${snapshot ? ` on ${printable(snapshot.host)}` : ""}${state.group ? " – omr" : ""}`;
  }

  function drawEmpty() {
    const { charts } = state;
    let words = null;
    if (charts && isBlank(charts)) {
      words = state.at === null || snapshot
        ? "Nothing is recorded in this time. While the daemon runs, the history gets its first sample of each group after about ten minutes: then charts 1, 2 and 6 begin. Charts 3, 4, 5 and 7 begin with the first sweep, or after an hour. Chart 8 needs a machine that can hibernate."
        : "Nothing is recorded in this time. The daemon did not run, or the history does not reach back that far.";
    } else if (!charts && snapshot) words = "This snapshot has no charts of this group.";
    $("empty").replaceChildren(...(words ? [made("p", { textContent: words })] : []));
  }
  const isEmpty = (chart) => chart.series.every((one) => one.values.every((value) => value === null));
  const isBlank = (charts) => CHARTS.every(({ of }) => of.every((name) => isEmpty(charts[name])))
    && charts.timeline.lanes.every((lane) => lane.every((cell) => cell === null));

  // ---- Drawing in canvases.

  // Colours of the scheme, as canvases take them.
  let palette = new Map();
  const probe = made("span");
  probe.hidden = true;
  document.body.append(probe);
  function colour(name) {
    if (!palette.has(name)) {
      probe.style.color = `var(--${name})`;
      palette.set(name, getComputedStyle(probe).color);
    }
    return palette.get(name);
  }
  // Cividis, which people with any colour vision can read.
  const CIVIDIS = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56]];
  function heat(value, largest) {
    const at = largest > 0 ? Math.min(value / largest, 1) * (CIVIDIS.length - 1) : 0, low = Math.floor(at), part = at - low;
    const next = CIVIDIS[Math.min(low + 1, CIVIDIS.length - 1)];
    return `rgb(${CIVIDIS[low].map((from, of) => Math.round(from + (next[of] - from) * part)).join()})`;
  }
  const hatches = new Map();
  function hatch(context) {
    const size = Math.round(7 * devicePixelRatio), key = `${colour("hatch")} ${size}`;
    if (!hatches.has(key)) {
      const tile = made("canvas", { width: size, height: size }), pen = tile.getContext("2d");
      pen.strokeStyle = colour("hatch");
      pen.lineWidth = Math.max(devicePixelRatio, 1);
      for (const by of [-size, 0, size]) {
        pen.beginPath();
        pen.moveTo(by - 1, size + 1);
        pen.lineTo(by + size + 1, -1);
        pen.stroke();
      }
      hatches.set(key, context.createPattern(tile, "repeat"));
    }
    return hatches.get(key);
  }

  const begin = (window, column) => window.from + Math.ceil((window.to - window.from) * Math.min(column, window.columns) / window.columns);
  function columnAt(window, time) {
    const column = Math.floor((time - window.from) * window.columns / (window.to - window.from));
    return column >= 0 && column < window.columns ? column : null;
  }
  // The left and right edge of each column, in whole pixels of the canvas.
  const edges = (plot, window) => Array.from({ length: window.columns + 1 },
    (_, column) => Math.round(plot.bbox.left + plot.bbox.width * (begin(window, column) - window.from) / (window.to - window.from)));

  // Calls `draw` for each run of columns with the same key.
  function runs(columns, key, draw) {
    for (let from = 0, to; from < columns; from = to) {
      for (to = from + 1; to < columns && key(to) === key(from);) to += 1;
      draw(from, to);
    }
  }
  function drawUnknown(plot, xs, isUnknown) {
    const { ctx: pen, bbox } = plot;
    pen.fillStyle = hatch(pen);
    runs(xs.length - 1, isUnknown, (from, to) => { if (isUnknown(from)) pen.fillRect(xs[from], bbox.top, xs[to] - xs[from], bbox.height); });
  }

  // A kind of panel has: y (the scale), draw, and the label of its axis.
  function heatPanel(chart) {
    const { window } = chart, ages = chart.series.length;
    const largest = chart.series.reduce((most, one) => one.values.reduce((so, value) => Math.max(so, value?.most ?? 0), most), 0);
    return {
      chart, kind: "heat", height: 26 + 21 * ages, top: ages, largest,
      ticks: chart.series.map((_, at) => at + 0.5), tick: (value) => chart.series[Math.floor(value)]?.name ?? "",
      draw(plot) {
        const xs = edges(plot, window), { ctx: pen, bbox } = plot;
        const y = (row) => Math.round(bbox.top + bbox.height * (1 - row / ages));
        chart.series.forEach((one, row) => {
          const [top, bottom] = [y(row + 1) + 1, y(row)];
          const strip = Math.max(Math.round((bottom - top) * 0.25), 2);
          const key = (at) => { const value = one.values[at]; return value ? `${value.least} ${value.most}` : "?"; };
          runs(window.columns, key, (from, to) => {
            const value = one.values[from], [x, width] = [xs[from], xs[to] - xs[from]];
            pen.fillStyle = value ? heat(value.least, largest) : hatch(pen);
            pen.fillRect(x, top, width, bottom - top);
            if (value && value.most > value.least) {
              pen.fillStyle = heat(value.most, largest);
              pen.fillRect(x, top, width, strip);
            }
          });
        });
        // Memory of all ages above the line may be taken.
        const age = (index) => chart.series[index].shape.age;
        const row = (threshold) => { const at = chart.series.findIndex((_, index) => age(index) >= threshold); return at < 0 ? ages : at; };
        const line = (thresholds) => {
          pen.beginPath();
          let open = null;
          thresholds.forEach((threshold, column) => {
            if (threshold === null || threshold === undefined) { open = null; return; }
            const height = y(row(threshold));
            if (open === null) pen.moveTo(xs[column], height); else if (open !== height) pen.lineTo(xs[column], height);
            pen.lineTo(xs[column + 1], height);
            open = height;
          });
        };
        for (const [shade, width] of [["rgba(0,0,0,.75)", 4], [colour("threshold"), 2]]) {
          pen.strokeStyle = shade;
          pen.lineWidth = width * devicePixelRatio;
          line(chart.thresholds);
          pen.stroke();
          if (chart.threshold !== null) {
            // The threshold of now: a mark at the right edge.
            const height = y(row(chart.threshold)), size = (width + 4) * devicePixelRatio, right = bbox.left + bbox.width;
            pen.fillStyle = shade;
            pen.beginPath();
            pen.moveTo(right + devicePixelRatio, height);
            pen.lineTo(right + size + devicePixelRatio, height - size * 0.8);
            pen.lineTo(right + size + devicePixelRatio, height + size * 0.8);
            pen.fill();
          }
        }
      },
    };
  }

  function stackPanel(chart) {
    const { window } = chart, up = shaped(chart, "up", "part"), down = shaped(chart, "down");
    const at = (list, column) => list.reduce((total, one) => one.values[column] ? (total ?? 0) + one.values[column].most : total, null);
    let [most, least] = [0, 0];
    for (let column = 0; column < window.columns; column += 1) {
      most = Math.max(most, at(up, column) ?? 0);
      least = Math.max(least, at(down, column) ?? 0);
    }
    const limit = chart.limit;
    return {
      chart, kind: "stack", height: 168, top: Math.max(most, limit ?? 0) * 1.04, bottom: least * 1.04, list: [...up, ...down],
      draw(plot) {
        const xs = edges(plot, window), { ctx: pen } = plot, zero = Math.round(plot.valToPos(0, "y", true));
        drawUnknown(plot, xs, (column) => at(up, column) === null && at(down, column) === null);
        for (const [list, sign] of [[up, 1], [down, -1]]) {
          for (let column = 0; column < window.columns; column += 1) {
            let total = 0, from = zero;
            for (const one of list) {
              const value = one.values[column]?.most ?? 0;
              if (!value) continue;
              total += value;
              let to = Math.round(plot.valToPos(sign * total, "y", true));
              // A little is visible.
              if (to === from && total === value) to = from - sign;
              pen.fillStyle = colour(COLOURS[one.name] ?? "own");
              pen.fillRect(xs[column], Math.min(from, to), xs[column + 1] - xs[column], Math.abs(to - from));
              from = to;
            }
          }
        }
        if (down.length) rule(plot, zero, "dim", 1);
        drawLimit(plot, limit);
      },
    };
  }
  function rule(plot, y, shade, width, dash = []) {
    const { ctx: pen, bbox } = plot;
    pen.strokeStyle = colour(shade);
    pen.lineWidth = width * devicePixelRatio;
    pen.setLineDash(dash.map((one) => one * devicePixelRatio));
    pen.beginPath();
    pen.moveTo(bbox.left, y);
    pen.lineTo(bbox.left + bbox.width, y);
    pen.stroke();
    pen.setLineDash([]);
  }
  const drawLimit = (plot, limit) => { if (limit !== null) rule(plot, Math.round(plot.valToPos(limit, "y", true)), "limit", 1.5, [6, 4]); };

  function linePanel(chart, one, alone) {
    const { window, limit } = chart;
    const most = one.values.reduce((so, value) => Math.max(so, value?.most ?? 0), limit ?? 0);
    return {
      chart, kind: "line", height: alone ? 214 : 58, top: most * 1.08, list: [one], small: !alone,
      draw(plot) {
        const xs = edges(plot, window), { ctx: pen } = plot, thin = Math.max(Math.round(devicePixelRatio), 1);
        const y = (value) => Math.round(plot.valToPos(value, "y", true)), zero = y(0), shade = colour("own");
        drawUnknown(plot, xs, (column) => one.values[column] === null);
        const key = (column) => { const value = one.values[column]; return value ? `${value.least} ${value.most}` : "?"; };
        runs(window.columns, key, (from, to) => {
          const value = one.values[from], [x, width] = [xs[from], xs[to] - xs[from]];
          if (!value) return;
          const [least, upper] = [value.least ? Math.min(y(value.least), zero - thin) : zero, value.most ? Math.min(y(value.most), zero - thin) : zero];
          pen.fillStyle = shade;
          // Full up to the least, lighter up to the most.
          pen.globalAlpha = 0.85;
          pen.fillRect(x, least, width, zero - least);
          pen.globalAlpha = 0.3;
          pen.fillRect(x, upper, width, least - upper);
          pen.globalAlpha = 1;
          if (value.most) pen.fillRect(x, upper, width, thin);
        });
        rule(plot, zero, "dim", 1);
        drawLimit(plot, limit);
      },
    };
  }

  function lanesPanel(timeline) {
    const { window } = timeline;
    return {
      timeline, chart: timeline, kind: "lanes", height: 130, top: 4,
      ticks: [0.5, 1.5, 2.5, 3.5], tick: (value) => LANES[3 - Math.floor(value)] ?? "",
      draw(plot) {
        const xs = edges(plot, window), { ctx: pen, bbox } = plot, dot = devicePixelRatio;
        timeline.lanes.forEach((cells, lane) => {
          const [top, bottom] = [lane, lane + 1].map((row) => Math.round(bbox.top + bbox.height * row / 4));
          const middle = (top + bottom) / 2, pad = 3 * dot;
          runs(window.columns, (at) => cells[at]?.did ?? "?", (from, to) => {
            const did = cells[from]?.did, [x, width] = [xs[from], Math.max(xs[to] - xs[from], 1)];
            if (!did) {
              pen.fillStyle = hatch(pen);
              pen.fillRect(x, top + pad, width, bottom - top - 2 * pad);
              return;
            }
            pen.fillStyle = colour(DECIDED[did]);
            if (did === "nothing") pen.fillRect(x, Math.round(middle), width, Math.max(dot, 1));
            else if (did === "held") pen.fillRect(x, middle - 2.5 * dot, width, 5 * dot);
            else pen.fillRect(x, top + pad, Math.max(width, 2 * dot), bottom - top - 2 * pad);
            // Also without colours: a stop has a gap in the middle.
            if (did === "stopped") {
              pen.fillStyle = colour("plot");
              pen.fillRect(x, middle - 2 * dot, Math.max(width, 2 * dot), 4 * dot);
            }
          });
        });
      },
    };
  }

  function panels(id, list, timeline) {
    if (id === "timeline") return [lanesPanel(timeline)];
    const found = [];
    for (const chart of list) {
      if (shaped(chart, "age").length) found.push(heatPanel(chart));
      if (shaped(chart, "part", "up", "down").length) found.push(stackPanel(chart));
      found.push(...shaped(chart, "line").map((one) => linePanel(chart, one, false)));
    }
    if (found.length === 1 && found[0].kind === "line") found[0] = linePanel(found[0].chart, found[0].list[0], true);
    else if (id === "cost") for (const panel of found) panel.height = 84;
    else if (id === "waited") for (const panel of found) panel.height = 54;
    else if (id === "place") found[0].height = 240;
    return found;
  }

  const POWERS = Array.from({ length: 60 }, (_, power) => 2 ** power);
  const TIMES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000, 60000, 120000, 300000, 600000, 1800000, 3600000, 7200000, 14400000];
  const STEPS = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400, 172800, 604800];

  // Round times for the axis, none of them cut off at an edge.
  function times(window, width) {
    const span = window.to - window.from, least = span * 52 / width, edge = span * 18 / width;
    const step = STEPS.find((one) => one >= least) ?? Math.ceil(least / 604800) * 604800;
    const found = [];
    for (let time = Math.ceil(window.from / step) * step; time < window.to; time += step) {
      if (time - window.from >= edge && window.to - time >= edge) found.push(time);
    }
    return found;
  }

  function options(panel, width, isLast) {
    const { window, unit } = panel.chart, font = '11px system-ui, "Segoe UI", "DejaVu Sans", sans-serif';
    const words = unit ? UNITS[unit].text : null, span = window.to - window.from;
    const { top = 0, bottom = 0 } = panel;
    const axis = { stroke: () => colour("dim"), font, ticks: { show: false }, grid: { stroke: () => colour("grid"), width: 1 }, gap: 6 };
    const y = panel.ticks
      ? { ...axis, size: SIDE, grid: { show: false }, splits: () => panel.ticks, values: (_, splits) => splits.map(panel.tick) }
      : {
        ...axis, size: SIDE, space: panel.height < 100 ? 22 : 34, incrs: unit === "bytes" ? POWERS : unit === "milliseconds" ? TIMES : undefined,
        splits: top + bottom > 0 ? undefined : () => [0],
        values: (_, splits) => splits.map((value) => value === 0 ? "0" : words(Math.abs(value)).replace("/min", "").replace(/\.0+ /, " ")),
      };
    return {
      width, height: panel.height + (isLast ? 22 : 0), padding: [6, 10, isLast ? 0 : 4, 0], legend: { show: false },
      cursor: { show: false }, select: { show: false },
      scales: { x: { time: false, range: () => [window.from, window.to] }, y: { range: () => [-bottom, top || 1] } },
      axes: [
        { ...axis, show: isLast, size: 22, splits: (plot) => times(window, plot.bbox.width / devicePixelRatio), values: (_, splits) => splits.map((time) => {
          // Midnight has the name of its day.
          return time % 86400 === 0 && span >= 3600 ? iso(time).slice(5, 10) : clock(time);
        }) }, y],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: { drawClear: [(plot) => {
        plot.ctx.fillStyle = colour("plot");
        plot.ctx.fillRect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
      }], draw: [(plot) => {
        const { ctx: pen, bbox } = plot;
        pen.save();
        pen.beginPath();
        // The mark of the threshold is right of the plot.
        pen.rect(bbox.left, bbox.top - 1, bbox.width + 10 * devicePixelRatio, bbox.height + 2);
        pen.clip();
        panel.draw(plot);
        pen.restore();
      }] },
    };
  }

  // ---- The figures.

  const figures = CHARTS.map((about, index) => {
    const id = `chart-${about.id}`, unit = made("span", { className: "unit" }), time = made("span", { className: "time" });
    const title = made("h3", { id: `${id}-title` }), answer = made("p", { className: "answer", id: `${id}-answer` });
    const plot = made("div", { className: "plot", tabIndex: 0 });
    const legend = made("ul", { className: "legend" }), facts = made("dl", { className: "facts" }), notes = made("p", { className: "notes" });
    const table = made("div", { className: "table", tabIndex: 0 });
    const numbers = made("details", { id: `${id}-numbers` }, made("summary", { textContent: "Numbers" }), table);
    set(table, { role: "region", "aria-label": `Numbers of chart ${index + 1}` });
    set(plot, {
      role: "application", "aria-roledescription": "chart", "aria-labelledby": title.id, "aria-describedby": answer.id,
      "aria-details": numbers.id,
    });
    const node = made("figure", { id, className: about.wide ? "wide" : "" }, made("figcaption", {}, title, unit, time), answer, plot, legend, facts, notes, numbers);
    set(node, { "aria-labelledby": title.id });
    const figure = { ...about, index, node, title, unit, time, answer, plot, legend, facts, notes, numbers, table, panels: [], plots: [], lines: [] };
    if (about.id === "timeline") {
      const button = made("button", { type: "button", textContent: "Explain now" });
      button.addEventListener("click", () => explain(null));
      figure.why = made("section", { className: "why", hidden: true });
      set(figure.why, { "aria-label": "Explanation" });
      figure.explainNow = button;
      time.before(button);
      node.insertBefore(figure.why, numbers);
    }
    numbers.addEventListener("toggle", () => drawTable(figure));
    plot.addEventListener("pointermove", (event) => pointer(figure, event));
    plot.addEventListener("pointerleave", () => { if (document.activeElement !== plot) moveTo(null); });
    plot.addEventListener("click", (event) => {
      pointer(figure, event);
      if (about.id === "timeline" && state.column !== null) explain(state.column);
    });
    plot.addEventListener("keydown", (event) => plotKey(figure, event));
    return figure;
  });
  $("grid").append(...figures.map((figure) => figure.node));

  const list = (figure) => figure.of.map((name) => state.charts[name]);
  const swatch = (name, thin) => {
    const key = made("span", { className: thin ? "key thin" : "key" });
    if (thin) key.style.borderColor = `var(--${name})`; else key.style.background = `var(--${name})`;
    return key;
  };

  function takeCharts(charts) {
    state.charts = charts;
    if (state.column !== null && (!charts || state.column >= charts.window.columns)) state.column = null;
    drawEmpty();
    drawHead();
    $("grid").hidden = !charts;
    if (charts) figures.forEach(drawFigure);
    moveTo(state.column);
    if (charts) performance.mark("omr-charts");
  }

  function drawFigure(figure) {
    const { id } = figure, charts = list(figure), timeline = state.charts.timeline;
    const first = charts[0] ?? timeline;
    // The two charts of the cost answer one question.
    const question = id === "cost" ? "What did it cost?" : first.question;
    figure.title.replaceChildren(made("span", { className: "number", textContent: `${figure.index + 1} ` }), document.createTextNode(question));
    put(figure.unit, id === "timeline" ? "" : id === "cost" ? "bytes, seconds" : UNITS[first.unit].name);
    const [words, over] = answers[id](state.charts);
    put(figure.answer, words);
    figure.answer.classList.toggle("over", over === true);
    figure.panels = panels(id, charts, timeline);
    const notes = charts.length ? charts.flatMap((chart) => [...chart.notes].reverse()) : [...timeline.notes].reverse();
    const skipped = figure.index === 0 ? state.charts.skipped.map(printable) : [];
    put(figure.notes, [...skipped, ...notes].join("; "));
    const facts = charts.flatMap((chart) => chart.facts);
    figure.facts.replaceChildren(...facts.map((fact) => made("div", {}, made("dt", { textContent: fact.name }), made("dd", { textContent: text(fact.unit, fact.value) }))));
    drawLegend(figure);
    drawPlots(figure);
    drawTable(figure);
  }

  function drawLegend(figure) {
    const items = [], item = (...parts) => items.push(made("li", {}, ...parts)), word = (words) => document.createTextNode(words);
    figure.values = [];
    const several = figure.panels.length > 1;
    for (const panel of figure.panels) {
      if (panel.kind === "heat") {
        const scale = made("span", { className: "scale" });
        scale.style.background = `linear-gradient(90deg, ${CIVIDIS.map((_, at) => heat(at, CIVIDIS.length - 1)).join()})`;
        item(word("0"), scale, word(`${bytes(panel.largest)}; a cell is the least, its upper edge the most`));
        if (panel.chart.threshold !== null || panel.chart.thresholds.some((one) => one !== null)) {
          item(swatch("threshold", true), word("threshold: memory above the line may be taken"));
        }
      } else if (panel.kind === "lanes") {
        for (const did of ["acted", "stopped", "held", "nothing"]) item(swatch(DECIDED[did], did === "held" || did === "nothing"), word(DID[did]));
      } else if (panel.kind === "stack") {
        for (const one of panel.list) {
          if (one.values.every((value) => value === null)) continue;
          const value = made("b");
          figure.values.push([value, one, panel.chart.unit]);
          item(swatch(COLOURS[one.name] ?? "own"), word(`${one.name} `), value);
        }
      } else if (!several && panel.list.length) {
        const value = made("b");
        figure.values.push([value, panel.list[0], panel.chart.unit]);
        item(swatch("own"), word(`${panel.list[0].name} `), value);
      }
      if (panel.chart.limit !== null && panel.chart.limit !== undefined) item(swatch("limit", true), word(`at most ${text(panel.chart.unit, panel.chart.limit)}`));
    }
    if (hasUnknown(figure)) item(made("span", { className: "key unknown" }), word("unknown"));
    figure.legend.replaceChildren(...items);
  }
  const hasUnknown = (figure) => figure.id === "timeline" ? state.charts.timeline.lanes.some((lane) => lane.includes(null))
    : list(figure).some((chart) => chart.series.some((one) => one.values.some((value) => value !== null) && one.values.includes(null)) || isEmpty(chart));

  function drawPlots(figure) {
    const width = figure.plot.clientWidth;
    figure.plots.forEach((plot) => plot.destroy());
    [figure.plots, figure.lines] = [[], []];
    const several = figure.panels.length > 1;
    const nodes = figure.panels.map((panel, at) => {
      const line = made("div", { className: "line", hidden: true }), node = made("div", { className: "panel" });
      if (several) {
        const name = panel.kind === "stack" ? panel.chart.unit === "milliseconds" ? "own CPU time" : "taken above the line, came back below it" : panel.list[0].name;
        const value = made("b");
        if (panel.kind === "line") figure.values.push([value, panel.list[0], panel.chart.unit]);
        node.append(made("div", { className: "label" }, made("span", { textContent: name }), value));
      }
      const holder = made("div", { className: "panel" }, line);
      node.append(holder);
      const data = [[panel.chart.window.from, panel.chart.window.to], [0, 0]];
      figure.plots.push(new uPlot(options(panel, Math.max(width, 120), at === figure.panels.length - 1), data, holder));
      figure.lines.push(line);
      const isNothing = panel.timeline ? panel.timeline.lanes.every((lane) => lane.every((cell) => cell === null))
        : (panel.list ?? panel.chart.series).every((one) => one.values.every((value) => value === null));
      if (isNothing && panel.height > 60) holder.append(made("div", { className: "none" }, made("span", { textContent: "nothing is known of this time" })));
      return node;
    });
    figure.plot.replaceChildren(...nodes);
    figure.width = width;
  }

  // ---- The answers in words.

  const atLeast = (value) => value ? bytes(value.least) : null;
  const answers = {
    unused({ unused }) {
      const of = (age) => last(unused.series.find((one) => one.shape.age === age));
      const parts = [[COLD, "2 min"], [1800, "30 min"], [28800, "8 h"]].map(([age, name]) => [of(age), name]).filter(([value]) => value);
      if (!parts.length) return ["The ages of its memory are not known in this time."];
      return [`At the last sample ${parts.map(([value, name]) => `${range("bytes", value)} unused for ${name}`).join(", ")}.`];
    },
    promise({ promise }) {
      const values = promise.series.flatMap((one) => one.values.filter((value) => value !== null)), limit = promise.limit;
      if (!values.length) return ["The promotions are not known in this time."];
      if (limit === null) return [`At most ${rate(Math.max(...values.map((value) => value.most)))}; no objective is known.`];
      const [over, maybe] = [values.filter((value) => value.least > limit).length, values.filter((value) => value.least <= limit && value.most > limit).length];
      const most = `the most is ${rate(Math.max(...values.map((value) => value.most)))}, ${rate(limit)} is allowed`;
      if (over) return [`No: over the objective in ${percent(over, values.length)} of the known time${maybe ? `, perhaps in another ${percent(maybe, values.length)}` : ""}; ${most}.`, true];
      return [maybe ? `Perhaps not in ${percent(maybe, values.length)} of the known time; ${most}.` : `Yes: ${most}.`];
    },
    taken({ taken }) {
      const [up, down, out] = [sum(shaped(taken, "up")), sum(shaped(taken, "down")), last(shaped(taken, "line")[0])];
      if (!up && !down) return ["Not known in this time."];
      return [`${up ? bytes(up.least) : "An unknown amount"} taken and ${down ? bytes(down.least) : "an unknown amount"} came back in this time${out ? `; ${bytes(out.least)} still out` : ""}.`];
    },
    timeline({ timeline }) {
      const cells = timeline.lanes.flat().filter(Boolean);
      if (!cells.length) return ["No decisions are recorded in this time."];
      const events = (did) => cells.filter((cell) => cell.did === did).reduce((total, cell) => total + cell.events, 0);
      const freed = cells.reduce((total, cell) => total + cell.freed, 0);
      const stopped = cells.filter((cell) => cell.did === "stopped").length;
      if (!events("acted") && !stopped) return [`omr did nothing here in this time${events("held") ? "; it held, for a reason" : ""}. Click, or Enter at the cursor, explains a moment.`];
      return [`${events("acted") + events("stopped")} acts, ${bytes(freed)} freed; stopped by work in ${stopped} ${stopped === 1 ? "column" : "columns"}. Click, or Enter at the cursor, explains a moment.`];
    },
    waited({ waited }) {
      const total = (name) => { const of = series(waited, name); return of ? sum([of]) : null; };
      const [some, regret] = [total("some task waited (PSI)"), total("regret")];
      if (!some && !regret) return ["Not known in this time."];
      return [`Some task waited ${some ? short(some.least) : "for an unknown time"} in all; because of sweeps ${regret ? short(regret.least) : "for an unknown time"}.`];
    },
    place({ place }) {
      const parts = place.series.map((one) => [one.name, last(one)]).filter(([, value]) => value && value.most > 0).sort((a, b) => b[1].most - a[1].most);
      if (!parts.length) return ["Not known in this time."];
      return [`At the last sample: ${parts.slice(0, 4).map(([name, value]) => `${name} ${range("bytes", value)}`).join(", ")}.`];
    },
    cost({ writes, cpu }) {
      const [written, own] = [last(writes.series[0]), sum(cpu.series)];
      const budget = writes.limit === null ? "" : `, ${bytes(writes.limit)} is allowed`, over = writes.limit !== null && written !== null && written.least > writes.limit;
      return [`${written ? bytes(written.least) : "An unknown amount"} written to swap${budget}; omr itself took ${own ? short(own.least) : "an unknown amount"} of CPU time.`, over];
    },
    sleep({ sleep }) {
      const image = last(sleep.series[0]);
      const words = sleep.now ? `${sleep.now[0].toUpperCase()}${printable(sleep.now.slice(1))}.` : null;
      return [words ?? (image ? `The last forecast of the image is ${atLeast(image)} at most.` : "Not known in this time.")];
    },
  };

  // ---- The tables.

  function tableOf(figure) {
    const tables = [];
    if (figure.id === "timeline") {
      const { timeline } = state.charts, { window } = timeline;
      const lines = [];
      for (let column = 0; column < window.columns; column += 1) {
        const cells = timeline.lanes.map((lane) => lane[column]);
        if (cells.some((cell) => cell && cell.events > 0)) lines.push([column, cells.map(cellText)]);
      }
      tables.push([timeline, LANES, lines]);
    }
    for (const chart of list(figure)) {
      const lines = [];
      for (let column = 0; column < chart.window.columns; column += 1) {
        const values = chart.series.map((one) => one.values[column] ?? null);
        if (values.some((value) => value !== null)) lines.push([column, values.map((value) => range(chart.unit, value))]);
      }
      const names = chart.series.map((one) => one.name);
      const thresholds = chart.thresholds.length === chart.window.columns && chart.thresholds.some((one) => one !== null);
      if (thresholds) {
        names.push("threshold");
        for (const [column, cells] of lines) cells.push(chart.thresholds[column] === null ? "?" : short(chart.thresholds[column] * 1000));
      }
      tables.push([chart, names, lines]);
    }
    return tables;
  }
  const cellText = (cell) => cell === null ? "?" : cell.events === 0 ? "–" : `${DID[cell.did]}, ${cell.events} ×, ${bytes(cell.freed)}`;

  // The rows are made when somebody looks at them.
  function drawTable(figure) {
    if (!figure.numbers.open || !state.charts) { figure.table.replaceChildren(); return; }
    const tables = tableOf(figure).map(([chart, names, lines]) => {
      const head = made("tr", {}, ...["time, UTC", ...names].map((name) => set(made("th", { textContent: name }), { scope: "col" })));
      const body = lines.map(([column, cells]) => made("tr", {},
        set(made("th", { textContent: when(begin(chart.window, column), chart.window) }), { scope: "row" }), ...cells.map((cell) => made("td", { textContent: cell }))));
      const caption = lines.length ? `${chart.question} ${moment(chart.window.from)} to ${moment(chart.window.to)} UTC; times of which nothing is known are left out` : `${chart.question} Nothing is known of this time.`;
      return made("table", {}, made("caption", { textContent: caption }), made("thead", {}, head), made("tbody", {}, ...body));
    });
    const { scrollTop, scrollLeft } = figure.table;
    figure.table.replaceChildren(...tables);
    Object.assign(figure.table, { scrollTop, scrollLeft });
  }

  // ---- The cursor: one for all charts.

  function pointer(figure, event) {
    const plot = figure.plots[0];
    if (!plot || !state.charts) return;
    const box = plot.over.getBoundingClientRect(), part = (event.clientX - box.left) / box.width;
    const { window } = state.charts;
    moveTo(part >= 0 && part < 1 ? columnAt(window, window.from + part * (window.to - window.from)) : null);
  }
  function moveTo(column) {
    state.column = column;
    if (!state.charts) return;
    const { window } = state.charts;
    for (const figure of figures) {
      put(figure.time, column === null ? "" : when(begin(window, column), window));
      for (const [node, one, unit] of figure.values ?? []) put(node, range(unit, column === null ? last(one) : one.values[column]));
      figure.plots.forEach((plot, at) => {
        const line = figure.lines[at];
        line.hidden = column === null;
        if (column === null) return;
        const ratio = devicePixelRatio, middle = (begin(window, column) + begin(window, column + 1)) / 2;
        const x = (plot.bbox.left + plot.bbox.width * (middle - window.from) / (window.to - window.from)) / ratio;
        line.style.transform = `translateX(${Math.round(x)}px)`;
        line.style.top = `${plot.bbox.top / ratio}px`;
        line.style.height = `${plot.bbox.height / ratio}px`;
      });
    }
  }
  function say(figure) {
    const { window, timeline } = state.charts, column = state.column;
    if (column === null) return;
    const words = figure.id === "timeline"
      ? timeline.lanes.map((lane, at) => `${LANES[at]} ${lane[column] ? lane[column].events ? cellText(lane[column]) : DID.nothing : "unknown"}`)
      : list(figure).flatMap((chart) => {
        const values = chart.series.map((one) => [one.name, one.values[column]]);
        if (values.every(([, value]) => value === null)) return [`${figure.id === "cost" ? `${chart.question} ` : ""}unknown`];
        const parts = values.filter(([, value]) => value !== null).map(([name, value]) => `${name} ${range(chart.unit, value)}`);
        const threshold = chart.thresholds[column];
        return threshold ? [...parts, `threshold ${short(threshold * 1000)}`] : parts;
      });
    put($("live"), `${when(begin(window, column), window)} UTC: ${words.join(", ")}`);
  }
  function plotKey(figure, event) {
    if (!state.charts || event.ctrlKey || event.altKey || event.metaKey) return;
    const columns = state.charts.window.columns, by = event.shiftKey ? 10 : 1, at = state.column;
    const keys = {
      ArrowLeft: () => Math.max((at ?? columns) - by, 0), ArrowRight: () => Math.min((at ?? -1) + by, columns - 1),
      PageUp: () => Math.max((at ?? columns) - 10, 0), PageDown: () => Math.min((at ?? -1) + 10, columns - 1),
      Home: () => 0, End: () => columns - 1, Escape: () => null,
    };
    if (event.key === "Enter") {
      event.preventDefault();
      explain(at);
    } else if (keys[event.key]) {
      event.preventDefault();
      moveTo(keys[event.key]());
      say(figure);
    }
  }

  // ---- Explanations.

  async function explain(column) {
    const figure = figures[3], { why } = figure, group = state.group, ticket = state.asking += 1;
    let title = `${named(group)} now`, lines = [], times = {};
    if (column !== null) {
      // The column, and those next to it: places on the screen are rough.
      const { window } = state.charts, each = (window.to - window.from) / window.columns;
      times = { from: Math.max(Math.floor(begin(window, column) - each), 0), to: Math.ceil(begin(window, column + 1) + each) };
      title = `${named(group)} from ${moment(times.from)} to ${moment(times.to).slice(11)} UTC`;
    }
    const show = (list) => {
      const close = made("button", { type: "button", textContent: "Close" });
      close.addEventListener("click", () => { why.hidden = true; figure.plot.focus(); });
      why.replaceChildren(made("h4", {}, made("span", { textContent: title }), close), made("ul", {}, ...list.map((line) => made("li", { textContent: line }))));
      why.hidden = false;
    };
    if (snapshot && column === null) lines = snapshot.explain[group] ?? ["this snapshot has no explanation of this group"];
    else if (snapshot) {
      lines = state.charts.timeline.lanes.map((lane, at) => `${LANES[at]}: ${lane[column] ? lane[column].events ? cellText(lane[column]) : DID.nothing : "unknown"}`);
      // A snapshot of the past has the events of its window, each with its time.
      const events = (snapshot.explain[group] ?? []).filter((line) => {
        const time = Date.parse(line.slice(0, 20)) / 1000;
        return time >= times.from && time < times.to;
      });
      if (events.length) lines = events; else lines.push("this snapshot has no more about this moment");
    } else {
      show(["asking …"]);
      try {
        lines = (await ask("api/explain", { group, ...times })).lines;
        if (!lines.length) lines = ["no event is recorded; the ledger has what omr did, and not why it held"];
      } catch (error) {
        lines = [error instanceof TypeError ? "the server of this page does not answer" : error.message];
      }
    }
    if (ticket !== state.asking || group !== state.group) return;
    // An explanation may have long names of groups, but is no place for thousands of characters.
    lines = lines.map(printable);
    show(lines);
    put($("live"), `${title}: ${lines.slice(0, 3).join("; ")}`);
  }

  // ---- Going somewhere.

  function go(to) {
    const before = { group: state.group, at: state.at, span: state.span };
    Object.assign(state, to);
    if (state.at !== null && state.at >= nowSeconds()) state.at = null;
    writeHash();
    show(before);
  }
  function show(before) {
    drawTools();
    drawState();
    if (before.at !== state.at) loadGroups(); else drawTree();
    if (before.group !== state.group || before.at !== state.at) figures[3].why.hidden = true;
    loadCharts();
  }
  function travel(by) {
    const from = state.at ?? nowSeconds();
    go({ at: Math.max(Math.floor(from + by * state.span / 2), 0) });
  }

  // ---- The start.

  for (const [value, name] of SPANS) {
    const input = set(made("input", { type: "radio", name: "span", value }), { "aria-label": name });
    input.addEventListener("change", () => go({ span: value }));
    $("spans").append(made("label", {}, input, made("span", { textContent: name })));
  }
  $("back").addEventListener("click", () => travel(-1));
  $("forth").addEventListener("click", () => travel(1));
  $("now").addEventListener("click", () => go({ at: null }));
  $("at").addEventListener("change", () => {
    const time = Date.parse(`${$("at").value}Z`) / 1000;
    if (Number.isFinite(time) && time >= 0) go({ at: time }); else drawTools();
  });
  $("filter").addEventListener("input", () => { state.filter = $("filter").value; drawTree(); });
  $("filter").addEventListener("keydown", (event) => {
    if (event.key === "Escape") { $("filter").value = state.filter = ""; drawTree(); }
    if (event.key === "ArrowDown") $("tree").querySelector("[tabindex='0']")?.focus();
  });
  $("sort").addEventListener("change", () => { state.sort = $("sort").value; drawTree(); });
  $("tree").addEventListener("keydown", treeKey);
  $("tree").addEventListener("click", (event) => {
    const node = event.target.closest("[role=treeitem]");
    if (!node) return;
    const onFold = event.target.closest(".fold") && node.hasAttribute("aria-expanded");
    if (onFold || node.dataset.path === state.group) fold(node.dataset.path); else choose(node.dataset.path);
  });
  window.addEventListener("popstate", () => {
    const before = { group: state.group, at: state.at, span: state.span };
    readHash();
    show(before);
  });

  const stored = { get: () => { try { return localStorage.getItem("omr-theme"); } catch { return null; } }, set: (value) => { try { localStorage.setItem("omr-theme", value); } catch { /* not allowed */ } } };
  function paint() {
    palette = new Map();
    for (const figure of figures) figure.plots.forEach((plot) => plot.redraw(false, true));
  }
  function theme(value) {
    if (value) document.documentElement.dataset.theme = value; else delete document.documentElement.dataset.theme;
    $("theme").value = value;
    paint();
  }
  $("theme").addEventListener("change", () => { stored.set($("theme").value); theme($("theme").value); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  theme(["light", "dark"].includes(stored.get()) ? stored.get() : "");

  new ResizeObserver(() => {
    if (!state.charts) return;
    for (const figure of figures) if (Math.abs(figure.plot.clientWidth - figure.width) > 1) { figure.values = []; drawLegend(figure); drawPlots(figure); }
    moveTo(state.column);
  }).observe($("grid"));

  readHash();
  if (snapshot) {
    [state.status, state.statusTime] = [snapshot.status, snapshot.made];
    put($("host"), printable(snapshot.host));
    $("tools").querySelectorAll("#spans, #travel").forEach((node) => { node.hidden = true; });
    if (!has(state.group)) state.group = "";
  }
  drawTools();
  drawState();
  refresh();
  if (!snapshot) {
    listen();
    setInterval(() => { if (!document.hidden && state.at === null && state.serverGone === null) loadGroups(); }, GROUPS_EVERY);
    // Records that take long to read are read more seldom.
    let next = 0;
    setInterval(() => {
      drawTools();
      if (document.hidden || state.at !== null || state.serverGone !== null || asked.charts) return;
      next ||= performance.now() + CHARTS_EVERY;
      if (performance.now() >= next) { next = performance.now() + Math.max(CHARTS_EVERY, took * 20); loadCharts(); }
    }, 1000);
  }
})();
