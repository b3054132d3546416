// The table of sequences, and a colour for each. Rows stay while their sequences do, so that 500 can be shown.

class Sequences {
  #rows = new Map();
  #numSeen = 0;
  onPoint = () => {};

  constructor() {
    this.body = find("sequences");
  }

  /** The hue of a sequence, far from those of its neighbours; null when it is not shown. */
  hueOf(requestId) {
    return this.#rows.get(requestId)?.hue ?? null;
  }

  /** Show `sequences`, which are on `numReplicas` replicas. */
  show(sequences, numReplicas) {
    const present = new Set(sequences.map((sequence) => sequence.request_id));
    for (const [id, row] of this.#rows) {
      if (present.has(id)) continue;
      row.element.remove();
      this.#rows.delete(id);
    }
    let next = this.body.firstElementChild;
    for (const sequence of sequences) {
      const row = this.#rows.get(sequence.request_id) ?? this.#add(sequence.request_id);
      row.show(sequence, numReplicas);
      if (row.element === next) next = next.nextElementSibling;
      else this.body.insertBefore(row.element, next);
    }
    find("sequences-empty").hidden = sequences.length > 0;
  }

  /** Light the rows of `requestIds`. */
  light(requestIds) {
    for (const [id, row] of this.#rows) row.element.classList.toggle("lit", requestIds.has(id));
  }

  #add(requestId) {
    const row = sequenceRow(requestId, (this.#numSeen++ * 137.5) % 360);
    row.element.addEventListener("pointerenter", () => this.onPoint(requestId));
    row.element.addEventListener("pointerleave", () => this.onPoint(null));
    this.#rows.set(requestId, row);
    return row;
  }
}

function sequenceRow(requestId, hue) {
  const element = document.createElement("tr");
  const cells = Array.from({ length: 7 }, () => element.insertCell());
  const swatch = document.createElement("i");
  swatch.style.background = `oklch(var(--hue-lightness) var(--hue-chroma) ${hue})`;
  const place = document.createElement("span");
  place.className = "soft";
  cells[0].append(swatch, shortId(requestId), place);
  cells[0].title = requestId;
  const state = document.createElement("div");
  const word = document.createElement("b");
  const bar = document.createElement("div");
  const fill = document.createElement("i");
  state.className = "state";
  bar.className = "bar";
  bar.append(fill);
  state.append(word, bar);
  cells[1].append(state);
  const write = (node, text) => {
    if (node.textContent !== text) node.textContent = text;
  };
  const show = (sequence, numReplicas) => {
    write(place, numReplicas > 1 ? ` on ${sequence.replica}` : "");
    element.dataset.state = sequence.state;
    write(word, sequence.state);
    const share = Math.min(1, sequence.num_computed_tokens / Math.max(1, sequence.num_prompt_tokens));
    fill.style.width = `${100 * share}%`;
    write(cells[2], String(sequence.num_prompt_tokens));
    write(cells[3], String(sequence.num_cached_tokens));
    write(cells[4], String(sequence.num_completion_tokens));
    const drafts = sequence.drafts;
    write(cells[5], drafts?.num_drafted ? `${drafts.num_accepted} of ${drafts.num_drafted}` : "");
    write(cells[6], String(sequence.block_ids.length));
  };
  return { element, hue, show };
}

function shortId(requestId) {
  return requestId.length <= 14 ? requestId : `…${requestId.slice(-12)}`;
}
