// Puts the page together: tabs, the key, what is served. Knows every pane by its verbs: `show`, `focus`, `stop`.

const server = new Server();
const sampling = new Sampling();
const tools = new ToolSettings();
const load = new Load({ server });
const batch = new BatchView({ server, load });
const panes = {
  chat: new Chat({ server, sampling, tools }),
  completion: new Completion({ server, sampling }),
  batch,
};
const names = Object.keys(panes);
let current = "";

function select(name) {
  current = name;
  for (const each of names) {
    const tab = find(`tab-${each}`);
    tab.setAttribute("aria-selected", String(each === name));
    tab.tabIndex = each === name ? 0 : -1;
    find(`pane-${each}`).hidden = each !== name;
  }
  document.querySelector(".writing").hidden = name === "batch";
  tools.panel.hidden = name !== "chat";
  batch.show(name === "batch");
}

function choose(name) {
  history.replaceState(null, "", `#${name}`);
  select(name);
}

for (const [index, name] of names.entries()) {
  const tab = find(`tab-${name}`);
  tab.addEventListener("click", () => choose(name));
  tab.addEventListener("keydown", ({ key }) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
    if (!step) return;
    const next = names.at((index + step) % names.length);
    choose(next);
    find(`tab-${next}`).focus();
  });
}
document.addEventListener("keydown", ({ key }) => {
  if (key === "Escape") panes[current].stop();
});
window.addEventListener("hashchange", () => select(nameInAddress() ?? "chat"));
find("to-completion").addEventListener("click", () => {
  choose("completion");
  panes.completion.focus();
});

server.onUnauthorized = (error) => {
  const form = find("key-form");
  // Nobody has to be told that no key is not the right one.
  showError(find("key-error"), server.key ? error : null);
  if (!form.hidden) return;
  form.hidden = false;
  find("key").focus();
};
find("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  server.key = find("key").value;
  find("key").value = "";
  find("key-form").hidden = true;
  await introduce();
  if (current === "batch") batch.show(true);
});

/** Show what is served; a model that takes no conversations opens on its completions. */
async function introduce() {
  try {
    const [model] = (await server.json("v1/models")).data;
    find("model-name").textContent = model.id;
    find("model-context").textContent = `${model.max_model_len.toLocaleString("en")} tokens`;
    document.title = `${model.id} – infer`;
    load.context = model.max_model_len;
    showError(find("page-error"), null);
    tools.offer(model.capabilities);
    if (model.capabilities.chat) return;
    panes.chat.refuse();
    tools.panel.remove();
    if (nameInAddress() === null) select("completion");
  } catch (error) {
    find("model-name").textContent = "–";
    showError(find("page-error"), error.status === 401 ? null : error);
  }
}

function nameInAddress() {
  const name = location.hash.slice(1);
  return names.includes(name) ? name : null;
}

select(nameInAddress() ?? "chat");
introduce().then(() => {
  // Nobody's focus is taken away, and no phone is made to open its keyboard.
  if (document.activeElement === document.body && matchMedia("(pointer: fine)").matches) panes[current].focus();
});
