// Talks to the server: the API key, JSON, event streams, errors. Knows no element of the page.
// Paths are relative, so that the page also works behind a proxy that puts it under a prefix.

const KEY_ITEM = "infer.api_key";

class ServerError extends Error {
  constructor(message, { status = 0, code = null } = {}) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

class Server {
  onUnauthorized = () => {};

  get key() {
    return sessionStorage.getItem(KEY_ITEM) ?? "";
  }

  set key(value) {
    sessionStorage.setItem(KEY_ITEM, value);
  }

  /** The JSON of a reply: a GET without `body`, else a POST. */
  async json(path, { body, signal } = {}) {
    const reply = await this.#reply(path, { body, signal });
    return reply.json();
  }

  /** The JSON of each event of a stream, up to `[DONE]`; throws what an error event says. */
  async *events(path, { body, signal }) {
    const reply = await this.#reply(path, { body, signal });
    let isDone = false;
    try {
      for await (const data of eventData(reply.body)) {
        isDone = data === "[DONE]";
        if (isDone) return;
        const event = JSON.parse(data);
        if (event.error) throw new ServerError(event.error.message, { code: event.error.code });
        yield event;
      }
    } catch (error) {
      throw error instanceof TypeError ? new ServerError("The connection was lost.", { code: "connection_lost" }) : error;
    }
    throw new ServerError("The answer broke off.", { code: "connection_lost" });
  }

  async #reply(path, { body, signal }) {
    const headers = {};
    if (this.key) headers.Authorization = `Bearer ${this.key}`;
    const request = { headers, signal, cache: "no-store" };
    if (body !== undefined) {
      headers["Content-Type"] = "application/json";
      Object.assign(request, { method: "POST", body: JSON.stringify(body) });
    }
    let reply;
    try {
      reply = await fetch(path, request);
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError("The server cannot be reached.", { code: "unreachable" });
    }
    if (reply.ok) return reply;
    const error = await errorOf(reply);
    if (reply.status === 401) this.onUnauthorized(error);
    throw error;
  }
}

async function errorOf(reply) {
  let error = {};
  try {
    error = (await reply.json()).error ?? {};
  } catch {
    // A proxy's own page: the status has to do.
  }
  const message = error.message ?? `The server answered ${reply.status} ${reply.statusText}`;
  return new ServerError(message, { status: reply.status, code: error.code ?? null });
}

/** The `data` of each server-sent event of a byte stream. Comments and names are skipped. */
async function* eventData(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (buffer + value).split(/\r\n|\n|\r(?!$)/);
      buffer = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
        if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** What to show of a failure: the server's own words, or ours. */
function failureText(error) {
  return error.code ? `${error.message} (${error.code})` : error.message;
}
