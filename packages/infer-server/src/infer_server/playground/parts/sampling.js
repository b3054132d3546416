// The sampling controls, kept in localStorage. Knows the names of fields; the server knows what they may be.

const SAMPLING_ITEM = "infer.sampling";
const SAMPLING_OPEN_ITEM = "infer.sampling_open";

class Sampling {
  constructor() {
    this.form = find("sampling-form");
    const panel = find("sampling");
    panel.open = (localStorage.getItem(SAMPLING_OPEN_ITEM) ?? String(window.innerWidth > 900)) === "true";
    panel.addEventListener("toggle", () => localStorage.setItem(SAMPLING_OPEN_ITEM, String(panel.open)));
    const kept = stored(localStorage, SAMPLING_ITEM, {});
    for (const field of this.#fields()) field.value = kept[field.name] ?? "";
    this.form.addEventListener("input", () => this.#keep());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("reset", () => localStorage.removeItem(SAMPLING_ITEM));
  }

  /** The fields of a request body that were filled in, or null after showing which one is wrong. */
  body() {
    if (!this.form.checkValidity()) {
      find("sampling").open = true;
      this.form.reportValidity();
      return null;
    }
    const body = {};
    for (const { name, value, type } of this.#fields()) {
      if (value !== "" && type === "number") body[name] = Number(value);
    }
    const stops = this.form.elements.stop.value.split("\n").filter((line) => line !== "");
    if (stops.length) body.stop = stops.map((line) => line.replaceAll("\\n", "\n").replaceAll("\\t", "\t"));
    return body;
  }

  #fields() {
    return [...this.form.elements].filter((element) => element.name);
  }

  #keep() {
    const kept = Object.fromEntries(this.#fields().map(({ name, value }) => [name, value]));
    localStorage.setItem(SAMPLING_ITEM, JSON.stringify(kept));
  }
}

/** The JSON kept under `item`, or `otherwise`: another version of the page may have kept something else. */
function stored(storage, item, otherwise) {
  try {
    return JSON.parse(storage.getItem(item)) ?? otherwise;
  } catch {
    return otherwise;
  }
}
