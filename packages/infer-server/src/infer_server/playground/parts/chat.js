// The conversation. Knows messages, roles and their order; how a turn looks is its own affair.

const CONVERSATION_ITEM = "infer.conversation";
const SYSTEM_ITEM = "infer.system_prompt";

class Chat {
  #messages = stored(sessionStorage, CONVERSATION_ITEM, []); // as the server takes them; answers with their parts too
  #waiting = null; // the turn whose calls have no results yet

  constructor({ server, sampling, tools }) {
    this.server = server;
    this.sampling = sampling;
    this.tools = tools;
    this.transcript = find("transcript");
    this.input = find("message");
    this.system = find("system");
    this.error = find("chat-error");
    this.turnstile = new Turnstile({ stopButton: find("chat-stop"), sendButton: find("chat-send") });
    this.system.value = localStorage.getItem(SYSTEM_ITEM) ?? "";
    find("system-details").open = this.system.value !== "";
    this.system.addEventListener("input", () => localStorage.setItem(SYSTEM_ITEM, this.system.value));
    this.input.addEventListener("input", () => this.#fit());
    this.input.addEventListener("keydown", (event) => this.#onKey(event));
    find("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    find("chat-clear").addEventListener("click", () => this.#clear());
    find("chat-retry").addEventListener("click", () => this.#answer());
    this.#showAll();
    this.#refresh();
  }

  stop() {
    this.turnstile.stop();
  }

  focus() {
    this.input.focus();
  }

  /** The model has no template: say so, and take no messages. */
  refuse() {
    find("no-template").hidden = false;
    find("chat-form").hidden = true;
    find("system-details").hidden = true;
    find("chat-empty").hidden = true;
  }

  #onKey(event) {
    // While an input method composes a character, Enter belongs to it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.#send();
  }

  #send() {
    const content = this.input.value;
    if (this.turnstile.isBusy || content.trim() === "") return;
    this.#takeResults();
    const message = { role: "user", content };
    this.#messages.push(message);
    this.#addTurn(message);
    this.input.value = "";
    this.#fit();
    this.#answer();
  }

  #sendResults() {
    if (this.turnstile.isBusy) return;
    this.#takeResults();
    this.#answer();
  }

  /** Calls must be followed by their results, whatever comes after those. */
  #takeResults() {
    this.#messages.push(...(this.#waiting?.takeResults() ?? []));
    this.#waiting = null;
    this.#refresh();
  }

  async #answer() {
    const body = this.#body();
    if (this.turnstile.isBusy || !body) return;
    const turn = this.#addTurn({ role: "assistant", parts: [] });
    turn.isBusy = true;
    showError(this.error, null);
    window.scrollTo(0, document.documentElement.scrollHeight);
    const answered = this.#messages;
    await this.turnstile.pass(async (signal) => {
      try {
        const generation = await generate(this.server, {
          path: "v1/chat/completions",
          body,
          piecesOf: ({ delta }) => ({
            text: delta?.content ?? "",
            reasoning: delta?.reasoning_content ?? "",
            calls: delta?.tool_calls ?? [],
          }),
          signal,
          onProgress: (progress) => keepAtEnd(() => turn.show(progress)),
        });
        const message = messageOf(generation.parts);
        if (message) answered.push({ ...message, parts: generation.parts });
        else if (generation.finishReason === "stopped") turn.element.remove();
        if (message?.tool_calls && answered === this.#messages) this.#waitForResults(turn, message.tool_calls);
      } catch (error) {
        turn.element.remove();
        // Clearing stops the answer: what fails after that is of no interest.
        if (answered === this.#messages) showError(this.error, error);
      }
    });
    turn.isBusy = false;
    this.#refresh();
  }

  /** The body of a request for an answer, or null after showing which setting is wrong. */
  #body() {
    const sampling = this.sampling.body();
    const tools = sampling && this.tools.body({ isAfterResults: this.#messages.at(-1)?.role === "tool" });
    if (!tools) return null;
    const messages = this.#messages.map(({ parts, ...message }) => message);
    if (this.system.value.trim()) messages.unshift({ role: "system", content: this.system.value });
    const { max_tokens, ...body } = sampling;
    if (max_tokens) body.max_completion_tokens = max_tokens;
    return { ...body, ...tools, messages };
  }

  #waitForResults(turn, calls) {
    this.#waiting = turn;
    keepAtEnd(() => turn.askForResults(calls));
    if (matchMedia("(pointer: fine)").matches) turn.focus();
  }

  #clear() {
    this.stop();
    this.#messages = [];
    this.#waiting = null;
    this.transcript.replaceChildren();
    showError(this.error, null);
    this.#refresh();
    this.focus();
  }

  /** Show the messages that were kept. */
  #showAll() {
    let turn = null;
    for (const message of this.#messages) {
      if (message.role === "tool") turn?.settle(message);
      else turn = this.#addTurn(message);
    }
    const calls = this.#messages.at(-1)?.tool_calls;
    if (!calls) return;
    this.#waiting = turn;
    turn.askForResults(calls);
  }

  #addTurn(message) {
    const turn = new Turn(message, { onResults: () => this.#sendResults() });
    keepAtEnd(() => this.transcript.append(turn.element));
    find("chat-empty").hidden = true;
    return turn;
  }

  #refresh() {
    sessionStorage.setItem(CONVERSATION_ITEM, JSON.stringify(this.#messages));
    find("chat-empty").hidden = this.#messages.length > 0;
    find("chat-clear").disabled = this.#messages.length === 0;
  }

  /** Make the field as high as its text; the style sets the limit. */
  #fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${this.input.scrollHeight + 2}px`;
  }
}

/** The message of an answer as the server takes it back, or null if there is nothing to send. Calls cut off are not. */
function messageOf(parts) {
  const [content, reasoning] = [textOf(parts, "text"), textOf(parts, "thinking")];
  const calls = parts.filter(({ kind, text }) => kind === "call" && parsed(text) instanceof Object);
  if (!content && !reasoning && !calls.length) return null;
  const message = { role: "assistant", content };
  if (reasoning) message.reasoning_content = reasoning;
  if (calls.length) message.tool_calls = calls.map(toolCall);
  return message;
}

function toolCall({ id, name, text }) {
  return { id, type: "function", function: { name, arguments: text } };
}
