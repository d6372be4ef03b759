// What the server does now, from the counters and gauges of GET /metrics.
"use strict";

const HISTORY = 60; // samples in the sparkline: one a second
const SHORTEST = 20; // what its width stands for at first

const speeds = [];
let sampled = null; // the last generation_tokens and when it was read, while both belong to the same run of samples

/** `samples` as parseMetrics gives them. */
function drawLive(samples) {
  const now = { tokens: samples.generation_tokens_total, at: performance.now() };
  // A counter that went back is another server's.
  if (sampled && now.tokens >= sampled.tokens) speeds.push((now.tokens - sampled.tokens) / ((now.at - sampled.at) / 1000));
  sampled = now;
  if (speeds.length > HISTORY) speeds.shift();
  show("speed", speeds.length ? speed(speeds.at(-1)) : "–");
  drawSparkline();

  show("running", samples.num_requests_running.toLocaleString("en"));
  show("waiting", samples.num_requests_waiting.toLocaleString("en"));
  const total = samples["kv_cache_pages.total"];
  const used = total ? samples["kv_cache_pages.used"] / total : 0;
  show("kv", percent(used));
  fill("kv-meter", used, total ? samples["kv_cache_pages.cached"] / total : 0);
  const looked = samples.prefix_cache_queries_total;
  const hits = looked ? samples.prefix_cache_hits_total / looked : 0;
  show("prefix", looked ? percent(hits) : "–");
  fill("prefix-meter", hits);

  const parts = [
    `${samples.prompt_tokens_total.toLocaleString("en")} prompt tokens`,
    `${samples.generation_tokens_total.toLocaleString("en")} generated`,
    counted(samples.num_preemptions_total, "preemption"),
    counted(samples.requests_rejected_total, "request turned away", "requests turned away"),
    counted(samples.engine_restarts_total, "engine restart"),
  ];
  show("totals", parts.filter(Boolean).join(" · "));
}

/** A pause: the next sample begins a new run. */
function pauseLive() {
  sampled = null;
}

/** The area is the history, the newest at the right; its height is the highest of it. */
function drawSparkline() {
  const [width, height] = [Math.max(SHORTEST, speeds.length) - 1, 40];
  const svg = byId("sparkline");
  const top = Math.max(1, ...speeds);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", `Tokens per second over the last minute, at most ${speed(Math.max(0, ...speeds))}`);
  const points = speeds.map((value, index) => {
    const x = width - (speeds.length - 1 - index);
    return `${x} ${(height - 1 - (value / top) * (height - 3)).toFixed(2)}`;
  });
  if (points.length < 2) return;
  const line = `M${points.join("L")}`;
  const first = width - (speeds.length - 1);
  svg.replaceChildren(
    draw("path", { class: "area", d: `${line}L${width} ${height}L${first} ${height}Z` }),
    draw("path", { class: "line", d: line, "vector-effect": "non-scaling-stroke" }),
  );
}

/** The first share is what the meter says; those behind it are drawn only. */
function fill(id, ...shares) {
  const meter = byId(id);
  meter.setAttribute("aria-valuenow", Math.round(shares[0] * 100));
  shares.forEach((share, index) => (meter.children[index].style.width = `${share * 100}%`));
}

const speed = (value) => (value >= 9.95 ? Math.round(value).toLocaleString("en") : String(Number(value.toFixed(1))));
const percent = (share) => `${share > 0 && share < 0.1 ? (share * 100).toFixed(1) : Math.round(share * 100)} %`;
const counted = (count, one, many = `${one}s`) => count && `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
