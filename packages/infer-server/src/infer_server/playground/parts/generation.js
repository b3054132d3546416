// One answer that streams in: its parts, its times, its numbers. Knows no pane.

const find = (id) => document.getElementById(id);

class Generation {
  #calls = []; // the parts that are calls, by their index
  #partStartMs = null; // when the last part began

  /**
   * `parts` are in the order in which they came: `{ kind: "thinking", text, ms }`, `{ kind: "text", text }`, and
   * `{ kind: "call", id, name, text }`, whose text is the arguments. `ms` is null while the thinking goes on.
   */
  constructor() {
    this.parts = [];
    this.numTokens = 0;
    this.usage = null;
    this.finishReason = null;
    this.startMs = performance.now();
    this.firstMs = null;
    this.lastMs = null;
  }

  get text() {
    return textOf(this.parts, "text");
  }

  /** Take an event, in which the choice has `text`, `reasoning` and pieces of `calls`. */
  note(event, { text = "", reasoning = "", calls = [] }) {
    if (reasoning) this.#lastPart("thinking").text += reasoning;
    if (text) this.#lastPart("text").text += text;
    for (const piece of calls) this.#noteCall(piece);
    this.usage = event.usage ?? this.usage;
    this.finishReason = event.choices?.[0]?.finish_reason ?? this.finishReason;
    // A token may have no text yet; where events carry ids, those are counted.
    const isToken = event.token_id === undefined ? Boolean(text || reasoning || calls.length) : event.token_id !== null;
    if (isToken) {
      this.numTokens += 1;
      this.lastMs = performance.now();
      this.firstMs ??= this.lastMs;
    }
  }

  /** The last part grows no more. */
  endPart() {
    const part = this.parts.at(-1);
    if (part?.kind === "thinking") part.ms ??= performance.now() - this.#partStartMs;
  }

  /** The last part, which is of this kind: begun if it was of another one. */
  #lastPart(kind) {
    const part = this.parts.at(-1);
    if (part?.kind === kind) return part;
    return this.#begin(kind === "thinking" ? { kind, text: "", ms: null } : { kind, text: "" });
  }

  #begin(part) {
    this.endPart();
    this.#partStartMs = performance.now();
    this.parts.push(part);
    return part;
  }

  #noteCall({ index, id, function: { name, arguments: text } }) {
    this.#calls[index] ??= this.#begin({ kind: "call", id, name, text: "" });
    this.#calls[index].text += text ?? "";
  }

  /** What is known so far, in words. */
  facts() {
    const facts = [];
    const numTokens = this.usage?.completion_tokens ?? this.numTokens;
    if (this.firstMs !== null) facts.push(`TTFT ${Math.round(this.firstMs - this.startMs)} ms`);
    const seconds = (this.lastMs - this.firstMs) / 1000;
    if (numTokens > 1 && seconds > 0) facts.push(`${rounded((numTokens - 1) / seconds)} tokens/s`);
    if (this.firstMs !== null) facts.push(numTokens === 1 ? "1 token" : `${numTokens} tokens`);
    const numReasoning = this.usage?.completion_tokens_details?.reasoning_tokens ?? 0;
    if (numReasoning) facts.push(`${numReasoning} of them thinking`);
    if (this.finishReason) facts.push(this.finishReason);
    const numCached = this.usage?.prompt_tokens_details?.cached_tokens ?? 0;
    if (this.usage) facts.push(`prompt ${this.usage.prompt_tokens}${numCached ? `, ${numCached} cached` : ""}`);
    return facts;
  }
}

/**
 * Stream an answer. Returns the generation, also when `signal` stopped it; throws when the server failed.
 * `piecesOf(choice)` returns what is new in an event: `text`, `reasoning`, `calls`.
 * `onProgress(generation)` is called once per frame at most, and once at the end.
 */
async function generate(server, { path, body, piecesOf, signal, onProgress }) {
  const generation = new Generation();
  let frame = 0;
  const show = () => {
    frame = 0;
    onProgress(generation);
  };
  try {
    const streamed = { ...body, stream: true, stream_options: { include_usage: true } };
    for await (const event of server.events(path, { body: streamed, signal })) {
      const choice = event.choices?.[0];
      generation.note(event, choice ? piecesOf(choice) : {});
      frame ||= requestAnimationFrame(show);
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    generation.finishReason = "stopped";
  } finally {
    cancelAnimationFrame(frame);
    generation.endPart();
    onProgress(generation);
  }
  return generation;
}

/** The text of all parts of this kind. */
function textOf(parts, kind) {
  return parts.filter((part) => part.kind === kind).map((part) => part.text).join("");
}

/** One answer at a time, which a button and Escape can stop. */
class Turnstile {
  #controller = null;

  constructor({ stopButton, sendButton }) {
    this.stopButton = stopButton;
    this.sendButton = sendButton;
    stopButton.addEventListener("click", () => this.stop());
  }

  get isBusy() {
    return this.#controller !== null;
  }

  stop() {
    this.#controller?.abort();
  }

  /** Call `work(signal)` with the stop button in the send button's place. */
  async pass(work) {
    this.#controller = new AbortController();
    const hadFocus = document.activeElement === this.sendButton;
    this.#swap(true);
    if (hadFocus) this.stopButton.focus();
    try {
      await work(this.#controller.signal);
    } finally {
      const stopHadFocus = document.activeElement === this.stopButton;
      this.#controller = null;
      this.#swap(false);
      if (stopHadFocus) this.sendButton.focus();
    }
  }

  #swap(isBusy) {
    this.stopButton.hidden = !isBusy;
    this.sendButton.hidden = isBusy;
  }
}

/** Show `error` in the alert `element`, or hide it where there is none. */
function showError(element, error) {
  element.hidden = !error;
  (element.querySelector("p") ?? element).textContent = error ? failureText(error) : "";
}

function showFacts(element, facts) {
  element.replaceChildren(
    ...facts.map((fact) => Object.assign(document.createElement("span"), { textContent: fact })),
  );
}

function rounded(value) {
  return value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(1);
}

/** Call `change`, and stay at the end of the page where the reader was there before. */
function keepAtEnd(change) {
  const page = document.documentElement;
  const wasAtEnd = window.innerHeight + window.scrollY >= page.scrollHeight - 60;
  change();
  if (wasAtEnd) window.scrollTo(0, page.scrollHeight);
}
