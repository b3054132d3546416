// The turns of a conversation on the page: what was thought, said and called. Texts go in as text, never as markup.

class Turn {
  #cards = [];
  #asked = []; // the cards whose results the reader shall write

  /** The turn of a message as the server takes it, whose role is `user` or `assistant`. */
  constructor({ role, content, reasoning_content: reasoning = "", tool_calls: calls = [] }, { onResults } = {}) {
    this.element = made("article", "turn");
    this.element.dataset.role = role;
    this.thinking = new Thinking();
    this.said = made("div", "said", content ?? "");
    this.calls = made("div", "calls");
    this.send = made("button", "primary", "Send results");
    this.send.type = "button";
    this.send.hidden = true;
    this.send.addEventListener("click", () => onResults());
    this.stats = made("p", "stats");
    const body = made("div", "turn-body");
    body.append(this.thinking.element, this.said, this.calls, this.send, this.stats);
    this.element.append(made("h3", "speaker", role === "user" ? "You" : "Model"), body);
    this.onResults = onResults;
    this.thinking.show(reasoning);
    this.#showCalls(calls);
  }

  set isBusy(isBusy) {
    this.element.setAttribute("aria-busy", String(isBusy));
  }

  /** Show what the model has made so far. */
  show(generation) {
    this.thinking.show(generation.reasoning, generation.thoughtMs);
    this.said.textContent = generation.text;
    this.#showCalls(generation.calls.map(({ id, ...call }) => ({ id, function: call })));
    showFacts(this.stats, generation.facts());
  }

  /** Ask the reader for the results of `calls`. */
  askForResults(calls) {
    const ids = calls.map(({ id }) => id);
    this.#asked = this.#cards.filter((card) => ids.includes(card.id));
    for (const card of this.#asked) card.ask(() => this.onResults());
    this.send.hidden = false;
  }

  focus() {
    this.#asked[0].focus();
  }

  /** The results that the reader has written, as messages. They can be written no more. */
  takeResults() {
    this.send.hidden = true;
    return this.#asked.map((card) => card.take());
  }

  /** Show the results that were sent earlier. */
  settle({ tool_call_id: id, content }) {
    this.#cards.find((card) => card.id === id)?.settle(content);
  }

  #showCalls(calls) {
    for (const [index, call] of calls.entries()) {
      if (index === this.#cards.length) {
        this.#cards.push(new CallCard(call));
        this.calls.append(this.#cards[index].element);
      }
      this.#cards[index].show(call.function.arguments);
    }
  }
}

/** What the model thought, folded. */
class Thinking {
  constructor() {
    this.element = made("details", "thinking");
    this.summary = made("summary");
    this.text = made("div", "thoughts");
    this.element.append(this.summary, this.text);
  }

  /** Show `text`, which took `milliseconds`; null while it grows. */
  show(text, milliseconds) {
    this.element.hidden = text === "";
    this.text.textContent = text;
    if (milliseconds === undefined) this.summary.textContent = "Thoughts";
    else if (milliseconds === null) this.summary.textContent = "Thinking…";
    else this.summary.textContent = `Thought for ${(milliseconds / 1000).toFixed(1)} s`;
  }
}

/** A call: the tool's name, its arguments, and a field for the result. */
class CallCard {
  #result = null;

  constructor({ id, function: { name } }) {
    this.id = id;
    this.element = made("section", "call");
    this.element.setAttribute("aria-label", `Call of ${name}`);
    this.arguments = made("pre");
    this.element.append(made("h4", "", name), this.arguments);
  }

  show(text) {
    this.arguments.textContent = indented(text);
  }

  /** Show a field for the result; Ctrl+Enter in it calls `onSend`. */
  ask(onSend) {
    const label = made("label", "", "Result");
    const field = made("textarea");
    field.rows = 2;
    field.spellcheck = false;
    field.placeholder = "What the tool would answer. Ctrl+Enter sends.";
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      onSend();
    });
    label.append(field);
    this.element.append(label);
    this.#result = { label, field };
  }

  focus() {
    this.#result.field.focus();
  }

  take() {
    const content = this.#result.field.value;
    this.#result.label.remove();
    this.settle(content);
    return { role: "tool", tool_call_id: this.id, content };
  }

  settle(content) {
    this.element.append(made("pre", "result", content));
  }
}

/** JSON text with its structure shown, or the text itself while it is no JSON yet. */
function indented(text) {
  const value = parsed(text);
  return value === undefined ? text : JSON.stringify(value, null, 2);
}

/** The value of JSON text; undefined if it is none. */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function made(tag, className = "", text = "") {
  return Object.assign(document.createElement(tag), { className, textContent: text });
}
