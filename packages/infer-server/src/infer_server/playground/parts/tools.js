// What a conversation says of tools and thinking, kept in localStorage. Knows the names of fields, and no turn.

const TOOLS_ITEM = "infer.tools";

const CHOICES = ["auto", "required", "none"]; // the first that a model is capable of is offered first

const EXAMPLE = [
  {
    name: "get_weather",
    description: "Tell how the weather is in a city.",
    parameters: {
      type: "object",
      properties: { city: { enum: ["Lima", "Oslo", "Rome"] }, unit: { enum: ["celsius", "fahrenheit"] } },
      required: ["city"],
    },
  },
];

class ToolSettings {
  #choices = [];

  constructor() {
    this.panel = find("tools");
    this.form = find("tools-form");
    this.fields = this.form.elements;
    const kept = stored(localStorage, TOOLS_ITEM, {});
    this.fields.functions.value = kept.functions ?? "";
    this.fields.thinking.value = kept.thinking ?? "";
    this.panel.open = this.fields.functions.value !== "" && window.innerWidth > 900;
    this.form.addEventListener("input", () => this.#onInput());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.fields.example.addEventListener("click", () => {
      this.fields.functions.value = JSON.stringify(EXAMPLE, null, 2);
      this.#onInput();
    });
    this.fields.remove.addEventListener("click", () => {
      this.fields.functions.value = "";
      this.#onInput();
    });
    this.offer({ tool_choice: CHOICES, reasoning: false }, kept.choice);
  }

  /** Offer what a model is capable of. */
  offer({ tool_choice: choices, reasoning }, chosen = this.fields.choice.value) {
    this.#choices = CHOICES.filter((choice) => choices.includes(choice));
    this.fields.thinking.closest("label").hidden = !reasoning;
    this.#check(chosen);
  }

  /** The fields of a request, or null after showing what is wrong. `isAfterResults`: no call is forced again. */
  body({ isAfterResults = false } = {}) {
    if (!this.form.checkValidity()) {
      this.panel.open = true;
      this.form.reportValidity();
      return null;
    }
    const body = {};
    if (!this.fields.thinking.closest("label").hidden && this.fields.thinking.value) {
      body.chat_template_kwargs = { enable_thinking: this.fields.thinking.value === "on" };
    }
    const functions = this.#functions();
    if (!functions.length) return body;
    body.tools = functions.map((each) => ({ type: "function", function: each }));
    body.tool_choice = isAfterResults ? this.#unforced() : choiceOf(this.fields.choice.value);
    return body;
  }

  #unforced() {
    const { value } = this.fields.choice;
    if (value === "none" || value === "auto") return value;
    return this.#choices.includes("auto") ? "auto" : "none";
  }

  #onInput() {
    this.#check(this.fields.choice.value);
    const { functions, choice, thinking } = this.fields;
    const kept = { functions: functions.value, choice: choice.value, thinking: thinking.value };
    localStorage.setItem(TOOLS_ITEM, JSON.stringify(kept));
  }

  /** Say what is wrong with the functions; offer to force each of them. */
  #check(chosen) {
    let functions = [];
    let problem = "";
    try {
      functions = this.#functions();
      const isNamed = (each) => typeof each?.name === "string" && each.name !== "";
      if (!functions.every(isNamed)) [functions, problem] = [[], "Each function needs a name."];
    } catch {
      problem = "This is not JSON: write a list of functions.";
    }
    this.fields.functions.setCustomValidity(problem);
    const options = this.#choices.map((choice) => new Option(choice, choice));
    options.push(...functions.map(({ name }) => new Option(`only ${name}`, `${FORCED}${name}`)));
    this.fields.choice.replaceChildren(...options);
    this.fields.choice.value = chosen;
    if (this.fields.choice.selectedIndex < 0) this.fields.choice.selectedIndex = 0;
  }

  /** The functions that were written: bare ones, or as tools of OpenAI's API. */
  #functions() {
    const text = this.fields.functions.value.trim();
    return text ? [JSON.parse(text)].flat().map((each) => each?.function ?? each) : [];
  }
}

const FORCED = "only:";

function choiceOf(value) {
  return value.startsWith(FORCED) ? { type: "function", function: { name: value.slice(FORCED.length) } } : value;
}
