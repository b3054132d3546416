// A text that the model continues in place. Knows which part of it is the model's latest.

const TEXT_ITEM = "infer.text";

class Completion {
  #before = null;
  #made = { start: 0, end: 0 };

  constructor({ server, sampling }) {
    this.server = server;
    this.sampling = sampling;
    this.input = find("text");
    this.mirror = find("text-mirror");
    this.stats = find("completion-stats");
    this.error = find("completion-error");
    this.undo = find("completion-undo");
    this.turnstile = new Turnstile({ stopButton: find("completion-stop"), sendButton: find("completion-send") });
    this.input.value = sessionStorage.getItem(TEXT_ITEM) ?? "";
    this.input.addEventListener("input", () => this.#show(this.input.value));
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      this.#continue();
    });
    find("completion-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#continue();
    });
    this.undo.addEventListener("click", () => this.#takeBack());
    this.#show(this.input.value);
  }

  stop() {
    this.turnstile.stop();
  }

  focus() {
    this.input.focus();
  }

  async #continue() {
    const prompt = this.input.value;
    const sampling = this.sampling.body();
    if (this.turnstile.isBusy || !sampling) return;
    showError(this.error, null);
    showFacts(this.stats, []);
    this.#before = prompt;
    this.input.readOnly = true;
    await this.turnstile.pass(async (signal) => {
      try {
        await generate(this.server, {
          path: "v1/completions",
          body: { ...sampling, prompt },
          piecesOf: ({ text }) => ({ text }),
          signal,
          onProgress: (generation) => {
            keepAtEnd(() => this.#show(prompt + generation.text, { start: prompt.length }));
            showFacts(this.stats, generation.facts());
          },
        });
      } catch (error) {
        showError(this.error, error);
      }
    });
    this.input.readOnly = false;
    this.undo.disabled = this.#made.end === this.#made.start;
  }

  #takeBack() {
    this.#show(this.#before);
    showFacts(this.stats, []);
    this.focus();
  }

  /** Show `text`, of which the model made what is after `start`. */
  #show(text, { start = text.length } = {}) {
    this.#made = { start, end: text.length };
    if (this.input.value !== text) this.input.value = text;
    const mark = document.createElement("mark");
    mark.textContent = text.slice(start);
    // A line break at the very end has no height of its own in the mirror, but has in the field.
    this.mirror.replaceChildren(text.slice(0, start), mark, "\u200b");
    this.undo.disabled = true;
    sessionStorage.setItem(TEXT_ITEM, text);
  }
}
