// The map of KV blocks: one cell each, in the order of their numbers. Knows who holds what; knows no text.

// In CSS pixels, the gap between two cells included.
const MIN_CELL = 6;
const MAX_CELL = 24;
const MAX_MAP_HEIGHT = 300;

class BlockMap {
  #snapshot = null;
  #holders = new Map();
  #hueOf = () => null;
  #lit = null;
  #pointed = null;
  onPoint = () => {};

  constructor() {
    this.canvas = find("blocks");
    this.note = find("block-note");
    this.emptyNote = this.note.textContent;
    this.canvas.addEventListener("pointermove", (event) => this.#point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.#point(event));
    this.canvas.addEventListener("pointerleave", () => this.#setPointed(null));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  /** Take what to draw; `draw` draws it. */
  show(snapshot, hueOf) {
    this.#snapshot = snapshot;
    this.#hueOf = hueOf;
    this.#holders = holdersByBlock(snapshot.sequences);
    const count = (matches) => snapshot.holders.filter(matches).length;
    const counts = {
      held: count((holders) => holders === 1),
      shared: count((holders) => holders > 1),
      idle: count((holders) => holders < 0),
      free: count((holders) => holders === 0),
    };
    for (const [kind, number] of Object.entries(counts)) find(`count-${kind}`).textContent = String(number);
    const { held, shared, idle, free } = counts;
    this.canvas.setAttribute("aria-label", `KV blocks: ${held} held by one sequence, ${shared} shared, ${idle} kept, ${free} free`);
    this.#describe();
  }

  /** Outline the blocks of one sequence, or of none. */
  light(requestId) {
    this.#lit = requestId;
    this.draw();
  }

  draw() {
    if (!this.#snapshot || !this.canvas.clientWidth) return;
    const { holders, sequences } = this.#snapshot;
    const { cell, columns } = this.#grid();
    const height = Math.max(1, Math.ceil(holders.length / columns)) * cell;
    const context = prepared(this.canvas, height);
    const theme = readTheme();
    const gap = cell >= 10 ? 2 : 1;
    const litBlocks = new Set(sequences.find(({ request_id }) => request_id === this.#lit)?.block_ids);
    for (const [block, count] of holders.entries()) {
      const x = (block % columns) * cell;
      const y = Math.floor(block / columns) * cell;
      drawBlock(context, { x, y, size: cell - gap, count, fill: this.#fillOf(block, count, theme), theme });
      if (litBlocks.has(block) || block === this.#pointed) {
        context.strokeStyle = theme.ink;
        context.lineWidth = 2;
        context.strokeRect(x, y, cell - gap, cell - gap);
      }
    }
  }

  #fillOf(block, count, theme) {
    if (count > 1) return theme.ink;
    if (count < 0) return theme.accentSoft;
    if (count === 0) return null;
    const hue = this.#hueOf((this.#holders.get(block) ?? [])[0]);
    return hue === null ? theme.soft : `oklch(${theme.hueLightness} ${theme.hueChroma} ${hue})`;
  }

  /** Cells as large as they can be without the map growing too high, within bounds. */
  #grid() {
    const width = this.canvas.clientWidth;
    const count = this.#snapshot.holders.length;
    let cell = MAX_CELL;
    while (cell > MIN_CELL && Math.ceil(count / Math.floor(width / cell)) * cell > MAX_MAP_HEIGHT) cell -= 1;
    return { cell, columns: Math.max(1, Math.floor(width / cell)) };
  }

  #point(event) {
    if (!this.#snapshot) return;
    const { cell, columns } = this.#grid();
    const column = Math.floor(event.offsetX / cell);
    const block = Math.floor(event.offsetY / cell) * columns + column;
    this.#setPointed(column < columns && block < this.#snapshot.holders.length ? block : null);
  }

  #setPointed(block) {
    this.#pointed = block;
    this.#describe();
    this.onPoint(new Set(this.#holders.get(block)));
    this.draw();
  }

  #describe() {
    const { holders, num_blocks: numBlocks, block_size: blockSize } = this.#snapshot;
    const block = this.#pointed;
    if (block === null || block >= holders.length) {
      const isCut = numBlocks > holders.length;
      this.note.textContent = isCut ? `The first ${holders.length} of ${numBlocks} blocks are shown.` : this.emptyNote;
      return;
    }
    const ids = (this.#holders.get(block) ?? []).map(shortId);
    const named = ids.length > 6 ? [...ids.slice(0, 6), `${ids.length - 6} more`] : ids;
    const count = holders[block];
    const words =
      count > 1 ? `shared by ${count}: ` : count === 1 ? "held by " : count < 0 ? "free, kept for the prefix in it" : "free";
    this.note.textContent = `Block ${block}, ${blockSize} tokens, ${words}${count > 0 ? named.join(", ") : ""}`;
  }
}

function holdersByBlock(sequences) {
  const holders = new Map();
  for (const { request_id: id, block_ids: blocks } of sequences) {
    for (const block of blocks) {
      const ids = holders.get(block);
      if (ids) ids.push(id);
      else holders.set(block, [id]);
    }
  }
  return holders;
}

function drawBlock(context, { x, y, size, count, fill, theme }) {
  if (fill) {
    context.fillStyle = fill;
    context.fillRect(x, y, size, size);
  }
  if (count === 0 || count < 0) {
    context.strokeStyle = count === 0 ? theme.line : theme.idleEdge;
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
  }
  if (count > 1 && size >= 12) {
    context.fillStyle = theme.card;
    context.font = `600 ${Math.min(11, size - 4)}px ${theme.mono}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(count > 99 ? "+" : String(count), x + size / 2, y + size / 2 + 0.5);
  }
}
