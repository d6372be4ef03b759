// The page's loop: asks how the server is, draws it, and says so where nobody answers.
//
//   connecting --> starting --> ready <--> restarting     as GET /startup says
//        |             any of them <--> unreachable       nobody answers
//        +--> locked (401) --key--> connecting            the key is missing or wrong
//
// A tab that is left open must not keep a server awake that would scale to zero: the loop rests while the page is
// hidden, and after a while without a sign of life from the person in front of it.
"use strict";

const STARTING_MS = 150;
const READY_MS = 1000;
const LONGEST_RETRY_MS = 8000;
const IDLE_MS = 5 * 60 * 1000;

const STATES = {
  connecting: ["Connecting"],
  starting: ["Starting", "The model is being loaded. Requests that are sent now wait for it."],
  ready: ["Ready"],
  restarting: ["Engine restarting", "The engine died and is being started again. Requests are turned away until it is ready."],
  failed: ["Engine failed", "The engine cannot run, and the server is stopping. Its log says why."],
  stopped: ["Shutting down", "The server answers what runs and takes no new requests."],
  unreachable: ["Unreachable"],
  locked: ["Locked"],
};

const SAID_BY_NOTICE = ["restarting", "failed", "stopped"];

let model = "";
let timer = null; // until the next look
let looking = false; // an answer is awaited
let failures = 0;
let lastSign = performance.now();
let execAt = Infinity; // performance.now() at the server's exec: at the latest, by what its answers held so far
let portOpen = null; // tells one start from the next
let drawn = "";

async function look() {
  clearTimeout(timer);
  timer = null;
  if (looking || document.hidden) return;
  if (performance.now() - lastSign > IDLE_MS && running === null) {
    notice("Paused, so that an open page does not keep the server awake. Move the pointer or press a key to go on.");
    return;
  }
  looking = true;
  const answers = await askServer().catch((error) => ({ error }));
  looking = false;
  const delay = answers.error ? drawFailure(answers.error) : drawAnswers(answers);
  if (delay !== null) timer = setTimeout(look, delay);
}

async function askServer() {
  const startup = await (await briefly("startup")).json();
  // A start is not to be slowed down by who looks at it, and its counters stand still.
  const samples = startup.state === "starting" ? null : parseMetrics(await (await briefly("metrics")).text());
  return { startup, samples };
}

/** How long the answers hold, in ms. */
function drawAnswers({ startup, samples }) {
  failures = 0;
  drawState(startup);
  drawStart(startup);
  if (samples) drawLive(samples);
  return samples ? READY_MS : STARTING_MS;
}

/** When to try again, in ms; null: not before there is another key. */
function drawFailure(error) {
  pauseLive();
  if (error instanceof Refused && error.status === 401) {
    lock(error.message);
    return null;
  }
  const delay = Math.min(READY_MS * 2 ** failures++, LONGEST_RETRY_MS);
  enter("unreachable");
  const reason = error instanceof Refused ? error.message : `Nobody answers at ${location.host}`;
  notice(`${reason}. Trying again in ${delay / 1000} s.`);
  return delay;
}

function enter(state) {
  document.body.dataset.state = state;
  show("state", STATES[state]?.[0] ?? state);
  document.title = [STATES[state]?.[0] ?? state, model, "Pilotlight"].filter(Boolean).join(" · ");
}

function drawState(startup) {
  model = startup.model;
  enter(startup.state);
  byId("key").hidden = true;
  notice(STATES[startup.state]?.[1] ?? "", SAID_BY_NOTICE.includes(startup.state));
  show("version", startup.version);
  show("model", startup.model);
  byId("model").title = startup.model; // it may be cut
  show("device", startup.device ?? "");
}

function drawStart(startup) {
  const { seconds } = startup;
  show("port-open", duration(seconds.port_open));
  show("ready", duration(seconds.ready));
  show("first-token", duration(seconds.first_token));
  const wait = startup.spans.find((span) => span.name === WAIT);
  const apart = wait && seconds.first_token !== null && duration(seconds.first_token - (wait.end - wait.start));
  show("first-token-label", apart ? `${firstOf(startup)} · ${apart} without the wait for a request` : firstOf(startup));
  const rest = seconds.ready !== null && `${duration(startup.unattributed)} unattributed`;
  show("unattributed", [rest, startup.origin === "proc" && "exec to 10 ms"].filter(Boolean).join(" · "));
  const text = JSON.stringify(startup);
  const runs = startup.spans.some((span) => span.end === null);
  if (text === drawn && !runs) return;
  drawn = text;
  drawWaterfall(startup, serverNow(startup));
}

/** An empty text hides it. What is no trouble looks calm. */
function notice(text, isTrouble = true) {
  const element = byId("notice");
  element.hidden = !text;
  element.classList.toggle("calm", !isTrouble);
  show("notice", text);
}

function lock(message) {
  enter("locked");
  notice("");
  byId("key").hidden = false;
  if (sessionStorage.getItem(KEY)) show("key-error", message);
  byId("key-text").focus();
}

function wake() {
  lastSign = performance.now();
  if (timer === null && document.body.dataset.state !== "locked") look();
}

/** Seconds since the server's exec, at least: for the ends of spans that still run. */
function serverNow({ spans, seconds }) {
  if (seconds.port_open !== portOpen) [portOpen, execAt] = [seconds.port_open, Infinity];
  const seen = Math.max(0, ...spans.map((span) => span.end ?? span.start));
  execAt = Math.min(execAt, performance.now() / 1000 - seen);
  return performance.now() / 1000 - execAt;
}

byId("key").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey(byId("key-text").value);
  byId("key-text").value = "";
  enter("connecting");
  look();
});
for (const sign of ["pointerdown", "pointermove", "keydown", "focus"]) addEventListener(sign, wake);
document.addEventListener("visibilitychange", () => {
  pauseLive();
  wake();
});
startChat(() => model);
look();
