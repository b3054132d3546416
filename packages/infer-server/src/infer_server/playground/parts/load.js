// Sample requests, so that there is something to see. Few connections: a browser opens six to one server, and the
// view needs one of them, so that samples share a few streams.

const SHARED_PREFIX =
  "The tide goes out before dawn, and the harbour is left to the gulls. Every boat lies on its side in the mud, every " +
  "rope hangs slack, and whoever walks along the quay at that hour hears nothing but water that drips from the nets. " +
  "The keeper of the light comes down his stairs, counts the boats, and writes their number into a book. ";
const SAMPLE_TAILS = ["One morning", "At noon", "The captain", "Nobody", "A letter", "In winter", "The old dog", "Then"];

class Load {
  #context = 1024;

  constructor({ server }) {
    this.server = server;
    this.note = find("load-note");
    this.turnstile = new Turnstile({ stopButton: find("load-stop"), sendButton: find("load-start") });
    find("load-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#start(Number(find("load-count").value));
    });
  }

  set context(numTokens) {
    this.#context = numTokens;
  }

  stop() {
    this.turnstile.stop();
  }

  async #start(count) {
    if (this.turnstile.isBusy) return;
    // No tokenizer makes more tokens than a text has bytes, so that this fits whatever the model is.
    const numCharacters = Math.min(2400, Math.floor(this.#context / 2));
    const prefix = SHARED_PREFIX.repeat(Math.ceil(numCharacters / SHARED_PREFIX.length)).slice(0, numCharacters);
    const prompts = Array.from({ length: count }, (_, i) => `${prefix}\n\n${i + 1}. ${SAMPLE_TAILS[i % 8]}`);
    const maxTokens = Math.max(1, Math.min(1024, Math.floor(0.45 * this.#context)));
    this.note.textContent = count === 1 ? "1 sample runs." : `${count} samples run.`;
    await this.turnstile.pass(async (signal) => {
      try {
        await this.#run(prompts, { maxTokens, signal });
        this.note.textContent = "All samples have ended.";
      } catch (error) {
        this.note.textContent = error.name === "AbortError" ? "Stopped." : failureText(error);
      }
    });
  }

  /** The first prompt goes ahead: once it is computed, the others find its blocks. They end at two different times. */
  async #run([first, ...others], { maxTokens, signal }) {
    const leader = this.#stream([first], { maxTokens, signal });
    await leader.next();
    const half = Math.ceil(others.length / 2);
    const groups = [others.slice(0, half), others.slice(half)].filter((prompts) => prompts.length > 0);
    const shares = [0.9, 0.6];
    const followers = groups.map((prompts, i) =>
      this.#stream(prompts, { maxTokens: Math.ceil(shares[i] * maxTokens), signal }),
    );
    await Promise.all([leader, ...followers].map(exhaust));
  }

  #stream(prompts, { maxTokens, signal }) {
    const body = { prompt: prompts, max_tokens: maxTokens, temperature: 0.9, ignore_eos: true, stream: true };
    return this.server.events("v1/completions", { body, signal });
  }
}

async function exhaust(events) {
  for await (const _ of events) {
    // The view shows what becomes of them.
  }
}
