// The conversation. Knows roles and turns; texts go in as text, never as markup.

const CONVERSATION_ITEM = "infer.conversation";
const SYSTEM_ITEM = "infer.system_prompt";

class Chat {
  #messages = stored(sessionStorage, CONVERSATION_ITEM, []);

  constructor({ server, sampling }) {
    this.server = server;
    this.sampling = sampling;
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
    for (const message of this.#messages) this.#addTurn(message);
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
    const message = { role: "user", content };
    this.#messages.push(message);
    this.#addTurn(message);
    this.input.value = "";
    this.#fit();
    this.#answer();
  }

  async #answer() {
    const sampling = this.sampling.body();
    if (this.turnstile.isBusy || !sampling) return;
    const messages = [...this.#messages];
    if (this.system.value.trim()) messages.unshift({ role: "system", content: this.system.value });
    const { max_tokens, ...body } = sampling;
    if (max_tokens) body.max_completion_tokens = max_tokens;
    const turn = this.#addTurn({ role: "assistant", content: "" });
    turn.element.setAttribute("aria-busy", "true");
    showError(this.error, null);
    window.scrollTo(0, document.documentElement.scrollHeight);
    const answered = this.#messages;
    await this.turnstile.pass(async (signal) => {
      try {
        const generation = await generate(this.server, {
          path: "v1/chat/completions",
          body: { ...body, messages },
          textOf: (choice) => choice.delta?.content,
          signal,
          onProgress: (progress) => turn.show(progress),
        });
        if (generation.text) answered.push({ role: "assistant", content: generation.text });
        else if (generation.finishReason === "stopped") turn.element.remove();
      } catch (error) {
        turn.element.remove();
        // Clearing stops the answer: what fails after that is of no interest.
        if (answered === this.#messages) showError(this.error, error);
      }
    });
    turn.element.removeAttribute("aria-busy");
    this.#refresh();
  }

  #clear() {
    this.stop();
    this.#messages = [];
    this.transcript.replaceChildren();
    showError(this.error, null);
    this.#refresh();
    this.focus();
  }

  #addTurn({ role, content }) {
    const element = document.createElement("article");
    const speaker = document.createElement("h3");
    const said = document.createElement("div");
    const stats = document.createElement("p");
    element.className = "turn";
    element.dataset.role = role;
    speaker.className = "speaker";
    speaker.textContent = role === "user" ? "You" : "Model";
    said.className = "said";
    said.textContent = content;
    stats.className = "stats";
    element.append(speaker, said, stats);
    keepAtEnd(() => this.transcript.append(element));
    find("chat-empty").hidden = true;
    const show = (generation) =>
      keepAtEnd(() => {
        said.textContent = generation.text;
        showFacts(stats, generation.facts());
      });
    return { element, show };
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
