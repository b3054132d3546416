// Lines over the last minute, on canvas, in the colours of the style sheet. Knows numbers over time.

const WINDOW_MS = 60_000;
const RATE_MS = 1000;

/** What was seen at each poll, for as long as the charts show. */
class History {
  points = [];

  /** Note the numbers of `stats`, and return the generated tokens per second of about the last second. */
  note(stats, nowMs) {
    const latest = this.points.at(-1);
    // A counter that fell belongs to a server that was started again.
    if (latest && stats.num_generated_tokens < latest.generated) this.points = [];
    const point = { ms: nowMs, generated: stats.num_generated_tokens, running: stats.num_running, waiting: stats.num_waiting };
    const base = this.points.findLast(({ ms }) => nowMs - ms >= RATE_MS) ?? this.points[0] ?? { ...point, ms: nowMs - RATE_MS };
    point.rate = (1000 * (point.generated - base.generated)) / (nowMs - base.ms);
    this.points.push(point);
    this.points = this.points.filter(({ ms }) => nowMs - ms <= WINDOW_MS);
    return point.rate;
  }
}

/** Draw `lines` of the history's `points`: `{ name, of, colour, isFilled, dash }`. */
function drawChart(canvas, { points, lines, unit, theme }) {
  if (!canvas.clientWidth) return;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  const context = prepared(canvas, height);
  const top = niceTop(Math.max(1, ...points.flatMap((point) => lines.map(({ of }) => of(point)))));
  const plot = { left: 0, right: width, top: 20, bottom: height - 16 };
  const nowMs = points.at(-1)?.ms ?? 0;
  const x = ({ ms }) => plot.right - ((nowMs - ms) / WINDOW_MS) * (plot.right - plot.left);
  const y = (value) => plot.bottom - (value / top) * (plot.bottom - plot.top);

  context.font = `11px ${theme.sans}`;
  context.lineWidth = 1;
  context.strokeStyle = theme.faint;
  for (const value of [top, top / 2, 0]) line(context, plot.left, Math.round(y(value)) + 0.5, plot.right);
  context.fillStyle = theme.soft;
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.fillText(`${top.toLocaleString("en")} ${unit}`, plot.left, plot.top - 6);
  context.fillText("60 s ago", plot.left, height - 3);
  context.textAlign = "right";
  context.fillText("now", plot.right, height - 3);
  drawKeys(context, { lines, right: plot.right, y: plot.top - 6, theme });

  for (const { of, colour, isFilled, dash = [] } of lines) {
    if (points.length < 2) continue;
    context.beginPath();
    for (const point of points) context.lineTo(x(point), y(of(point)));
    context.strokeStyle = colour;
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    context.setLineDash(dash);
    context.stroke();
    context.setLineDash([]);
    if (!isFilled) continue;
    context.lineTo(plot.right, plot.bottom);
    context.lineTo(x(points[0]), plot.bottom);
    context.globalAlpha = 0.12;
    context.fillStyle = colour;
    context.fill();
    context.globalAlpha = 1;
  }
}

function drawKeys(context, { lines, right, y, theme }) {
  let end = right;
  for (const { name, colour, dash = [] } of [...lines].reverse()) {
    context.fillStyle = theme.soft;
    context.fillText(name, end, y);
    end -= context.measureText(name).width + 6;
    context.strokeStyle = colour;
    context.lineWidth = 1.75;
    context.setLineDash(dash);
    line(context, end - 14, y - 3.5, end);
    context.setLineDash([]);
    end -= 28;
  }
}

function line(context, x, y, toX) {
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(toX, y);
  context.stroke();
}

/** The least of 1, 2, 5, 10, 20, ... that is not below `value`, and even so that its half can be named. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return Math.max(2, [1, 2, 5, 10].map((step) => step * power).find((candidate) => candidate >= value));
}

/** A cleared context in CSS pixels, sharp on any screen. */
function prepared(canvas, height) {
  const scale = window.devicePixelRatio || 1;
  const [width, pixels] = [Math.round(canvas.clientWidth * scale), Math.round(height * scale)];
  if (canvas.width !== width || canvas.height !== pixels) {
    canvas.style.height = `${height}px`;
    canvas.width = width;
    canvas.height = pixels;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, pixels);
  return context;
}

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return {
    ink: value("--ink"),
    soft: value("--soft"),
    line: value("--line"),
    faint: value("--faint"),
    card: value("--card"),
    accent: value("--accent"),
    accentSoft: value("--accent-soft"),
    idleEdge: `color-mix(in oklab, ${value("--accent")} 45%, ${value("--card")})`,
    hueLightness: value("--hue-lightness"),
    hueChroma: value("--hue-chroma"),
    sans: value("--sans"),
    mono: value("--mono"),
  };
}
