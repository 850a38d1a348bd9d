// The chat page: keeps the conversation in memory, streams /v1/chat/completions, renders text and code without ever setting HTML.
"use strict";
const $ = (id) => document.getElementById(id);
const log = $("log"), prompt = $("prompt"), send = $("send");
let history = []; // [{role, content}]
let running = null; // AbortController of the answer in progress
let model = null;

async function state() {
  const dot = $("state");
  try {
    const ready = await fetch("/readyz", { cache: "no-store" });
    dot.className = ready.ok ? "ready" : "down";
    dot.title = ready.ok ? "ready" : "not ready: " + (await ready.text()).slice(0, 200);
    if (ready.ok && !model) {
      const list = await (await fetch("/v1/models")).json();
      model = list.data[0].id;
      $("model").textContent = model;
    }
  } catch {
    dot.className = "down";
    dot.title = "the server does not answer";
  }
}
state();
setInterval(state, 5000);

function element(tag, cls, text) {
  const e = document.createElement(tag);
  if (cls) e.className = cls;
  if (text !== undefined) e.textContent = text;
  return e;
}

// render shows text with fenced and inline code; everything goes through textContent.
function render(target, text) {
  target.replaceChildren();
  const parts = text.split("```");
  parts.forEach((part, i) => {
    if (i % 2 === 1) {
      const nl = part.indexOf("\n");
      target.append(element("pre", "", nl >= 0 ? part.slice(nl + 1).replace(/\n$/, "") : part));
      return;
    }
    if (!part) return;
    const span = element("span", "text");
    part.split(/(`[^`\n]+`)/).forEach((s) => {
      if (s.length > 2 && s.startsWith("`") && s.endsWith("`")) span.append(element("code", "", s.slice(1, -1)));
      else if (s) span.append(s);
    });
    target.append(span);
  });
}

function nearEnd() { return log.scrollHeight - log.scrollTop - log.clientHeight < 80; }

// events yields the JSON objects of a server-sent event stream.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer += value;
    let cut;
    while ((cut = buffer.indexOf("\n\n")) >= 0) {
      const frame = buffer.slice(0, cut);
      buffer = buffer.slice(cut + 2);
      const data = frame.split("\n").filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}

function number(id) {
  const v = $(id).value.trim();
  return v === "" ? undefined : Number(v);
}

async function ask(text) {
  $("empty")?.remove();
  const turns = history; // New chat replaces the list: what this answer still adds must not reach the next conversation
  turns.push({ role: "user", content: text });
  log.append(element("div", "turn user", text));
  const turn = element("div", "turn assistant"), thought = element("details"), body = element("div", "cursor"), meta = element("div", "meta");
  thought.append(element("summary", "", "Thinking"));
  const thoughtText = element("span");
  thought.append(thoughtText);
  turn.append(body, meta);
  log.append(turn);
  log.scrollTop = log.scrollHeight;

  running = new AbortController();
  send.textContent = "Stop";
  send.classList.add("stop");
  const messages = $("system").value.trim() ? [{ role: "system", content: $("system").value }, ...turns] : turns;
  const started = performance.now();
  let first = 0, content = "", reasoning = "", usage = null, finish = null, failed = null;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      signal: running.signal,
      body: JSON.stringify({
        model, messages, stream: true, stream_options: { include_usage: true },
        temperature: number("temperature"), top_p: number("top_p"), max_tokens: number("max_tokens"), seed: number("seed"),
        thinking: { type: $("thinking").checked ? "enabled" : "disabled" },
      }),
    });
    if (!response.ok) {
      const raw = await response.text();
      let message = raw;
      try { message = JSON.parse(raw).error.message; } catch { /* not our JSON: show it as it is */ }
      throw new Error(message + " (HTTP " + response.status + ")");
    }
    for await (const e of events(response.body)) {
      if (e.error) throw new Error(e.error.message);
      if (e.usage) usage = e.usage;
      const choice = e.choices && e.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason || finish;
      const follow = nearEnd();
      if (choice.delta.reasoning_content) {
        first ||= performance.now();
        reasoning += choice.delta.reasoning_content;
        if (!thought.isConnected) { turn.prepend(thought); thought.open = true; }
        thoughtText.textContent = reasoning;
      }
      if (choice.delta.content) {
        first ||= performance.now();
        if (!content && thought.isConnected) thought.open = false;
        content += choice.delta.content;
        render(body, content);
      }
      if (follow) log.scrollTop = log.scrollHeight;
    }
    if (!finish) throw new Error("the stream ended without a finish reason");
  } catch (err) {
    failed = err.name === "AbortError" ? "stopped" : err.message;
    // What fetch throws when no answer arrives differs by browser ("Failed to fetch", "network error") and says nothing to a reader.
    if (err instanceof TypeError) failed = "The connection to the server was lost. Check that it is running, then send the message again.";
  }
  body.classList.remove("cursor");
  if (failed && failed !== "stopped") turn.append(element("div", "error", failed));
  const n = usage ? usage.completion_tokens : 0, seconds = (performance.now() - (first || started)) / 1000;
  meta.textContent = [
    n ? n + " tokens" : "", n > 1 && seconds > 0 ? ((n - 1) / seconds).toFixed(1) + " tokens/s" : "",
    first ? "first after " + Math.round(first - started) + " ms" : "", failed === "stopped" ? "stopped" : finish === "length" ? "cut at the token limit" : "",
  ].filter(Boolean).join(" · ");
  if (content) turns.push({ role: "assistant", content });
  else {
    turns.pop(); // nothing came: the question may be asked again
    if (failed && failed !== "stopped" && !prompt.value && turns === history) { prompt.value = text; grow(); }
  }
  running = null;
  send.textContent = "Send";
  send.classList.remove("stop");
  prompt.focus();
}

function submit() {
  if (running) { running.abort(); return; }
  const text = prompt.value.trim();
  if (!text) return;
  prompt.value = "";
  grow();
  ask(text);
}
function grow() { prompt.style.height = "auto"; prompt.style.height = prompt.scrollHeight + "px"; }

$("ask").addEventListener("submit", (e) => { e.preventDefault(); submit(); });
prompt.addEventListener("input", grow);
prompt.addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); if (!running) submit(); }
});
document.addEventListener("keydown", (e) => { if (e.key === "Escape" && running) running.abort(); });
$("settings-toggle").addEventListener("click", (e) => {
  const box = $("settings");
  box.hidden = !box.hidden;
  e.target.setAttribute("aria-expanded", String(!box.hidden));
});
$("settings").addEventListener("submit", (e) => e.preventDefault());
$("clear").addEventListener("click", () => {
  if (running) running.abort();
  history = [];
  log.replaceChildren(element("p", "quiet", "Ask something."));
  log.firstChild.id = "empty";
  prompt.focus();
});
