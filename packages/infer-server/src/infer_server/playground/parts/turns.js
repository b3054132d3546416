// The turns of a conversation: what was thought, said and called, in order. Texts go in as text, never as markup.

class Turn {
  #views = []; // of the parts, in their order
  #asked = []; // the cards whose results the reader shall write

  /** The turn of a message whose role is `user` or `assistant`, and which has parts if the page saw it come. */
  constructor({ role, ...message }, { onResults } = {}) {
    this.element = made("article", "turn");
    this.element.dataset.role = role;
    this.parts = made("div", "parts");
    this.send = made("button", "primary", "Send results");
    this.send.type = "button";
    this.send.hidden = true;
    this.send.addEventListener("click", () => onResults());
    this.stats = made("p", "stats");
    const body = made("div", "turn-body");
    body.append(this.parts, this.send, this.stats);
    this.element.append(made("h3", "speaker", role === "user" ? "You" : "Model"), body);
    this.onResults = onResults;
    this.#showParts(message.parts ?? partsOf(message));
  }

  set isBusy(isBusy) {
    this.element.setAttribute("aria-busy", String(isBusy));
  }

  /** Show what the model has made so far. */
  show(generation) {
    this.#showParts(generation.parts);
    showFacts(this.stats, generation.facts());
  }

  /** Ask the reader for the results of `calls`. */
  askForResults(calls) {
    const ids = calls.map(({ id }) => id);
    this.#asked = this.#views.filter((view) => ids.includes(view.id));
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
    this.#views.find((view) => view.id === id)?.settle(content);
  }

  #showParts(parts) {
    const shown = parts.filter(isShown);
    for (const [index, part] of parts.entries()) {
      if (index === this.#views.length) {
        this.#views.push(new VIEWS[part.kind](part));
        this.parts.append(this.#views[index].element);
      }
      this.#views[index].show(part, shown);
    }
  }
}

/** The parts of a message that does not say them. */
function partsOf({ content, reasoning_content: reasoning, tool_calls: calls = [] }) {
  const parts = calls.map(({ id, function: { name, arguments: text } }) => ({ kind: "call", id, name, text }));
  if (content) parts.unshift({ kind: "text", text: content });
  if (reasoning) parts.unshift({ kind: "thinking", text: reasoning });
  return parts;
}

/** Whether there is something to see of a part: white space between two others is nothing. */
function isShown({ kind, text }) {
  return kind === "call" || text.trim() !== "";
}

/** What was said: by the reader, or by the model as its answer or on the way to it. */
class Said {
  constructor() {
    this.element = made("div", "said");
  }

  /** Show the text; a label tells which it is where other parts are shown. */
  show(part, shown) {
    this.element.hidden = !isShown(part);
    const label = part === shown.at(-1) ? "Answer" : "Commentary";
    this.element.dataset.label = shown.length > 1 ? label : "";
    write(this.element, part.text);
  }
}

/** What the model thought at one time, folded. */
class Thinking {
  constructor() {
    this.element = made("details", "thinking");
    this.summary = made("summary");
    this.text = made("div", "thoughts");
    this.element.append(this.summary, this.text);
  }

  /** Show the text, which took `ms` milliseconds: null while it grows, undefined if nobody knows. */
  show(part) {
    const { text, ms } = part;
    this.element.hidden = !isShown(part);
    write(this.text, text);
    if (ms === undefined) this.summary.textContent = "Thoughts";
    else if (ms === null) this.summary.textContent = "Thinking…";
    else this.summary.textContent = `Thought for ${(ms / 1000).toFixed(1)} s`;
  }
}

/** A call: the tool's name, its arguments, and a field for the result. */
class CallCard {
  #result = null;

  constructor({ id, name }) {
    this.id = id;
    this.element = made("section", "call");
    this.element.setAttribute("aria-label", `Call of ${name}`);
    this.arguments = made("pre");
    this.element.append(made("h4", "", name), this.arguments);
  }

  show({ text }) {
    write(this.arguments, indented(text));
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

/** By the kind of a part, what shows it: an `element`, and `show(part, shown)`, all parts that are shown. */
const VIEWS = { thinking: Thinking, text: Said, call: CallCard };

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

/** Show `text` without blank lines around it. What is shown already stays, and with it what the reader has selected. */
function write(element, text) {
  const shown = text.trimEnd().replace(/^\s*\n/, "");
  if (element.textContent !== shown) element.textContent = shown;
}

function made(tag, className = "", text = "") {
  return Object.assign(document.createElement(tag), { className, textContent: text });
}
