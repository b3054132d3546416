// The live view: polls the engine's snapshot while it is looked at, and hands it to the table, the map and the charts.

const POLL_MS = 200;
const MAX_POLL_MS = 5000;

class BatchView {
  #isShown = false;
  #timer = 0;
  #delayMs = POLL_MS;
  #isPolling = false;
  #history = new History();

  constructor({ server, load }) {
    this.server = server;
    this.load = load;
    this.sequences = new Sequences();
    this.blocks = new BlockMap();
    this.sequences.onPoint = (requestId) => this.blocks.light(requestId);
    this.blocks.onPoint = (requestIds) => this.sequences.light(requestIds);
    document.addEventListener("visibilitychange", () => this.#restart());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
    window.addEventListener("resize", () => this.#draw());
  }

  show(isShown) {
    this.#isShown = isShown;
    this.#restart();
  }

  stop() {
    this.load.stop();
  }

  focus() {}

  #restart() {
    clearTimeout(this.#timer);
    this.#delayMs = POLL_MS;
    if (this.#isWatched() && !this.#isPolling) this.#poll();
  }

  #isWatched() {
    return this.#isShown && document.visibilityState === "visible";
  }

  async #poll() {
    this.#isPolling = true;
    try {
      this.#take(await this.server.json("playground/batch"));
      showError(find("batch-error"), null);
      this.#delayMs = POLL_MS;
    } catch (error) {
      showError(find("batch-error"), error.status === 401 ? null : error);
      this.#delayMs = Math.min(2 * this.#delayMs, MAX_POLL_MS);
    }
    this.#isPolling = false;
    if (this.#isWatched()) this.#timer = setTimeout(() => this.#poll(), this.#delayMs);
  }

  #take(snapshot) {
    const { stats, sequences } = snapshot;
    const rate = this.#history.note(stats, performance.now());
    this.sequences.show(sequences, stats.replicas.length);
    this.blocks.show(snapshot, (requestId) => this.sequences.hueOf(requestId));
    const total = stats.num_running + stats.num_waiting;
    const texts = {
      "stat-running": String(stats.num_running),
      "stat-waiting": String(stats.num_waiting),
      "stat-rate": rounded(rate),
      "stat-kv": percent(stats.kv_usage),
      "stat-hits": stats.num_prompt_tokens ? percent(stats.num_cached_tokens / stats.num_prompt_tokens) : "–",
      "stat-preemptions": String(stats.num_preemptions),
      "stat-step": stats.num_steps.toLocaleString("en"),
      "stat-schedule": milliseconds(stats.schedule_s),
      "stat-execute": milliseconds(stats.execute_s),
      "stat-sample": milliseconds(stats.sample_s),
      "stat-step-tokens": stats.num_step_tokens.toLocaleString("en"),
      "sequence-count": total > sequences.length ? `${sequences.length} of ${total}` : String(sequences.length),
    };
    for (const [id, text] of Object.entries(texts)) find(id).textContent = text;
    this.#showStepBar(stats);
    this.#draw();
  }

  #showStepBar({ schedule_s, execute_s, sample_s }) {
    const seconds = [schedule_s, execute_s, sample_s];
    const total = seconds.reduce((sum, value) => sum + value, 0) || 1;
    for (const [i, segment] of [...find("step-bar").children].entries()) {
      segment.style.width = `${(100 * seconds[i]) / total}%`;
    }
  }

  #draw() {
    if (!this.#isShown) return;
    const theme = readTheme();
    const { points } = this.#history;
    this.blocks.draw();
    drawChart(find("chart-rate"), {
      points: points.slice(1), // the first has nothing before it to have a rate since
      theme,
      unit: "tokens/s",
      lines: [{ name: "generated", of: ({ rate }) => rate, colour: theme.accent, isFilled: true }],
    });
    drawChart(find("chart-requests"), {
      points,
      theme,
      unit: "requests",
      lines: [
        { name: "running", of: ({ running }) => running, colour: theme.accent },
        { name: "waiting", of: ({ waiting }) => waiting, colour: theme.soft, dash: [4, 3] },
      ],
    });
  }
}

function percent(share) {
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)}%`;
}

function milliseconds(seconds) {
  const value = 1000 * seconds;
  return `${value >= 10 ? value.toFixed(0) : value.toFixed(2)} ms`;
}
