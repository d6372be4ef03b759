// The start, drawn from GET /startup: a row for each span, one axis for both processes, seconds since exec.
"use strict";

const WAIT = "wait for a request"; // a server that nobody asks waits for hours: the axis is cut there
const TICK_STEPS = [1, 2, 5].flatMap((digit) => [1e-3, 1e-2, 0.1, 1, 10, 100, 1000].map((size) => digit * size)).sort((a, b) => a - b);

/** `now` is the end of what still runs, in the server's seconds since exec. */
function drawWaterfall(startup, now) {
  const spans = startup.spans.map((span) => ({ ...span, until: span.end ?? Math.max(now, span.start) }));
  const axis = makeAxis(spans, startup.seconds);
  const groups = [...new Set(spans.map((span) => span.process))].map((process) => {
    const rows = spans.filter((span) => span.process === process).sort((a, b) => a.start - b.start || a.until - b.until);
    return make("li", {}, make("h3", {}, process), make("ol", {}, ...rows.map((span) => drawRow(span, axis))));
  });
  const plot = drawPlot(axis, startup);
  byId("waterfall").replaceChildren(plot, make("ol", { class: "processes" }, ...groups));
  stagger([...plot.querySelectorAll(".moment span")]);
}

/** From seconds to a share of the width. A long wait keeps a twelfth of it, whatever it took. */
function makeAxis(spans, seconds) {
  const end = Math.max(1e-3, ...spans.map((span) => span.until), ...Object.values(seconds).map((value) => value ?? 0));
  const wait = spans.find((span) => span.name === WAIT);
  const cut = wait && wait.until - wait.start > end / 3 ? wait : null;
  const drawn = cut ? (end - (cut.until - cut.start)) / (11 / 12) : end;
  const cutWidth = cut ? drawn / 12 : 0;
  const place = (time) => {
    if (!cut || time <= cut.start) return time / drawn;
    if (time >= cut.until) return (time - (cut.until - cut.start) + cutWidth) / drawn;
    return (cut.start + ((time - cut.start) / (cut.until - cut.start)) * cutWidth) / drawn;
  };
  return { place, cut, end, drawn };
}

function drawRow(span, axis) {
  const length = span.until - span.start;
  const left = axis.place(span.start);
  const bar = make("i", {});
  bar.style.left = `${left * 100}%`;
  bar.style.width = `${(axis.place(span.until) - left) * 100}%`;
  const kinds = [span.critical && "critical", span.end === null && "running", span.name === axis.cut?.name && "cut"];
  // A rate of what still runs would be a guess: its bytes are known, not how many have come.
  const rate = span.bytes && span.end !== null && length > 0 ? `${bytes(span.bytes / length)}/s` : "";
  const end = span.end === null ? "running" : `to ${duration(span.end)}`;
  const moved = span.bytes ? `, ${bytes(span.bytes)}` : "";
  return make(
    "li",
    {
      class: kinds.filter(Boolean).join(" "),
      title: `${span.process} ${span.name}: from ${duration(span.start)} ${end}${moved}${span.critical ? ", critical" : ""}`,
    },
    make("span", { class: "name" }, span.name),
    make("span", { class: "track", "aria-hidden": "true" }, bar),
    make("span", { class: "rate" }, rate),
    make("span", { class: "time" }, duration(length)),
  );
}

/** What lies behind the rows: ticks and their labels above, the start's moments below. */
function drawPlot(axis, startup) {
  const { seconds } = startup;
  const step = TICK_STEPS.find((size) => axis.drawn / size <= 6) ?? axis.drawn;
  const last = axis.cut ? axis.cut.start : axis.end; // behind a cut the distances are no longer those of the labels
  const marks = [];
  for (let index = 0; index * step <= last; index++) {
    marks.push(mark("tick", axis.place(index * step), tickLabel(index * step)));
  }
  for (const [name, label] of [["port_open", "port open"], ["ready", "ready"], ["first_token", firstOf(startup)]]) {
    if (seconds[name] !== null) marks.push(mark("moment", axis.place(seconds[name]), label));
  }
  return make("div", { class: "plot", "aria-hidden": "true" }, ...marks);
}

/** What the start ended with: an answer that is not streamed counts when it is whole. */
function firstOf(startup) {
  return startup.spans.some((span) => span.name === "answer") ? "first answer" : "first token";
}

/** "0", "250 ms", "1.5 s": no more digits than it takes. */
function tickLabel(seconds) {
  return seconds === 0 ? "0" : duration(seconds).replace(/\.(\d*?)0+ /, (_, kept) => (kept ? `.${kept} ` : " "));
}

function mark(kind, share, label) {
  const line = make("div", { class: share > 0.6 ? `${kind} late` : kind }, make("span", {}, label));
  line.style.left = `${share * 100}%`;
  return line;
}

/** Puts each label on the first line where it has room. */
function stagger(labels) {
  const taken = [];
  for (const label of labels) {
    const { left, right } = label.getBoundingClientRect();
    let line = 0;
    while (taken.some((other) => other.line === line && left < other.right + 6 && other.left < right + 6)) line++;
    taken.push({ left, right, line });
    label.style.setProperty("--line", line);
  }
  byId("waterfall").style.setProperty("--lines", Math.max(0, ...taken.map(({ line }) => line)) + 1);
}
