// A conversation with the model: one request at a time, its answer streamed, stopped on demand.
"use strict";

let turns = []; // what the model is told: {role, content}, without the system prompt
let running = null; // the AbortController of the answer that comes

function startChat(modelName) {
  const form = byId("ask");
  const prompt = byId("prompt");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (running === null && prompt.value.trim()) answer(modelName());
  });
  prompt.addEventListener("keydown", (event) => {
    // An Enter that ends the input of a character (Japanese, Chinese) is not meant for us.
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", () => {
    running?.abort();
    turns = [];
    byId("log").replaceChildren();
    byId("clear").hidden = true;
    prompt.focus();
  });
}

/** Sends what stands in the box, and writes the answer as it comes. */
async function answer(model) {
  const conversation = turns; // a new one may begin before this answer ends
  const question = { role: "user", content: byId("prompt").value };
  const request = { model, messages: [...systemPrompt(), ...conversation, question], ...limits() };
  byId("prompt").value = "";
  say("user", question.content);
  const { turn, text, note } = say("assistant", "");
  const controller = (running = new AbortController());
  turn.setAttribute("aria-busy", "true");
  setBusy(true);
  const sent = performance.now();
  let first = null;
  let usage = null;
  let finish = null;
  try {
    for await (const event of streamChat(request, controller.signal)) {
      usage = event.usage ?? usage;
      const choice = event.choices[0];
      finish = choice?.finish_reason ?? finish;
      if (!choice?.delta.content) continue;
      first ??= performance.now();
      following(() => text.appendData(choice.delta.content));
    }
    note.textContent = describe(usage, finish, first - sent, performance.now() - first);
  } catch (error) {
    const stopped = controller.signal.aborted;
    note.textContent = stopped ? "stopped" : error instanceof Refused ? error.message : `no answer: ${error.message}`;
    if (!stopped) {
      note.classList.add("error");
      note.setAttribute("role", "alert");
    }
  }
  if (text.data) {
    conversation.push(question, { role: "assistant", content: text.data });
  } else if (conversation === turns && byId("prompt").value === "") {
    byId("prompt").value = question.content; // it was not answered, so it is no part of the conversation
  }
  turn.removeAttribute("aria-busy");
  following(() => {});
  if (running === controller) {
    running = null;
    setBusy(false);
  }
}

function systemPrompt() {
  const content = byId("system").value;
  return content.trim() ? [{ role: "system", content }] : [];
}

/** What the person has set; the rest is the model's and the server's. The server checks the values. */
function limits() {
  const fields = { temperature: byId("temperature").value, max_tokens: byId("max-tokens").value };
  const given = Object.entries(fields).filter(([, value]) => value !== "");
  return Object.fromEntries(given.map(([name, value]) => [name, Number(value)]));
}

/** "42 tokens · first after 96 ms · 41 per second · cut by the limit" */
function describe(usage, finish, waited, streamed) {
  const count = usage?.completion_tokens ?? 0;
  const parts = [`${count} ${count === 1 ? "token" : "tokens"}`];
  if (waited > 0) parts.push(`first after ${duration(waited / 1000)}`);
  if (count > 1 && streamed > 0) parts.push(`${figures(((count - 1) * 1000) / streamed)} per second`);
  if (finish === "length") parts.push("cut by the limit");
  return parts.join(" · ");
}

/** A turn at the end of the log: its element, the text node that grows, and the line below. */
function say(role, content) {
  const text = document.createTextNode(content);
  const note = make("p", { class: "note" });
  const speaker = make("h3", {}, role === "user" ? "You" : "Model");
  const turn = make("article", { class: role }, speaker, make("div", { class: "text", dir: "auto" }, text), note);
  following(() => byId("log").append(turn));
  byId("clear").hidden = false;
  return { turn, text, note };
}

/** Changes the log, and stays at its end where the reader was there. */
function following(change) {
  const log = byId("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 24;
  change();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function setBusy(busy) {
  const moved = [byId("send"), byId("stop")].includes(document.activeElement);
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  if (moved) byId(busy ? "stop" : "prompt").focus(); // the button that had the focus is gone
}
