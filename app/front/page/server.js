// What is asked of the server, with the API key where one was given. Addresses are relative: the page also works
// behind a proxy that serves it under a prefix.
"use strict";

const PATIENCE_MS = 5000; // for what is answered at once; a stream has no limit
const KEY = "pilotlight-api-key";

/** A refusal: its HTTP status, and the server's one line as the message. */
class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** fetch with the key. Throws Refused for an error's status, and what fetch throws where nobody answers. */
async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY);
  // A header holds bytes; the key's are its UTF-8.
  if (key) headers.Authorization = `Bearer ${String.fromCharCode(...new TextEncoder().encode(key))}`;
  const response = await fetch(path, { cache: "no-store", ...options, headers });
  if (!response.ok) throw new Refused(response.status, messageOf(await response.text(), response.status));
  return response;
}

const briefly = (path) => ask(path, { signal: AbortSignal.timeout(PATIENCE_MS) });

/** The line of an error's body. A proxy in front may answer with something else than JSON. */
function messageOf(body, status) {
  try {
    return JSON.parse(body).error.message;
  } catch {
    return `HTTP ${status} without an explanation`;
  }
}

/** Samples of a Prometheus text: "num_requests_running", and "kv_cache_pages.used" where a label follows the model's. */
function parseMetrics(text) {
  const samples = {};
  for (const line of text.split("\n")) {
    // The model's name is in quotes and may hold anything, braces and blanks too; what follows it may not.
    const found = /^pilotlight:(\w+)\{model_name="(?:[^"\\]|\\.)*"(?:,\w+="(\w+)")?\} (\S+)$/.exec(line);
    if (found) samples[found[2] ? `${found[1]}.${found[2]}` : found[1]] = Number(found[3]);
  }
  return samples;
}

/** The events of a chat's stream, parsed, until [DONE]. An error event is thrown as Refused. */
async function* streamChat(body, signal) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  let rest = "";
  for await (const text of texts(response.body)) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue; // an empty line, or a comment that keeps the connection alive
      const data = line.slice(6);
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refused(response.status, event.error.message);
      yield event;
    }
  }
  throw new TypeError("the connection ended in the middle of the answer");
}

/** A body's text as it comes. (Not every browser can iterate over a stream.) */
async function* texts(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield decoder.decode(value, { stream: true });
  }
}
