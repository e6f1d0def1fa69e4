// A recorded step, drawn to scale: lanes of spans, zoomed by buttons, keys and Ctrl + wheel, moved by dragging.

const LANE_HEIGHT = 22;
const NARROWEST = 24; // px of a span that has room for a word
const LETTER = 6.6; // px
const CLOSEST = 1e-4; // the smallest share of the step that fills the picture
const CODE = /\.py[:( ]/; // of a place in code the end says most
const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];

function asTime(seconds) {
  if (seconds === 0) return "0 s";
  const [scale, unit] = UNITS.find(([scale]) => Math.abs(seconds) >= scale) ?? UNITS.at(-1);
  return `${Number((seconds / scale).toPrecision(4))} ${unit}`;
}

async function setUpStep(figure) {
  const step = JSON.parse(await unpacked(figure.dataset.step));
  const view = { from: 0, to: step.length };
  const flame = figure.classList.contains("flame");
  const whole = flame ? "idle time" : "step";
  const plot = element("div", { className: "lanes", tabIndex: 0 });
  plot.setAttribute("role", "application");
  plot.setAttribute("aria-label", `The ${whole} to scale. Plus and minus zoom, arrows move, 0 shows all of it.`);
  const told = element("p", { className: "told" });
  const axis = element("div", { className: "axis" });
  const tracks = step.lanes.map((lane) => {
    const svg = document.createElementNS(SVG, "svg");
    plot.append(element("div", { className: "lane" }, element("span", { className: "name" }, lane.name), svg));
    return svg;
  });
  plot.append(element("div", { className: "lane" }, element("span", { className: "name" }), axis));

  function draw() {
    const width = axis.clientWidth;
    const scale = width / (view.to - view.from);
    step.lanes.forEach((lane, index) => drawLane(tracks[index], lane, step, view, scale, width));
    axis.replaceChildren(...ticks(view).map((at) => {
      const tick = element("span", {}, asTime(at));
      tick.style.left = `${(at - view.from) * scale}px`;
      return tick;
    }));
    for (const tick of axis.children) { // a word that would be cut is left out
      if (tick.offsetLeft + tick.offsetWidth > width) tick.textContent = "";
    }
  }
  function show(from, length) {
    const kept = Math.min(Math.max(length, step.length * CLOSEST), step.length);
    view.from = Math.min(Math.max(from, 0), step.length - kept);
    view.to = view.from + kept;
    draw();
  }
  function zoom(factor, share = 0.5) {
    const length = view.to - view.from;
    show(view.from + (length - length / factor) * share, length / factor);
  }
  const move = (share) => show(view.from + (view.to - view.from) * share, view.to - view.from);
  const acts = { "+": () => zoom(2), "-": () => zoom(0.5), "0": () => show(0, step.length) };
  const keys = { ...acts, "=": acts["+"], ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) };

  plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  plot.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = axis.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 1.5 : 1 / 1.5, Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1));
  }, { passive: false });
  plot.addEventListener("dblclick", (event) => {
    if (event.target.span) show(event.target.span[0], event.target.span[1]);
  });
  let held = null;
  plot.addEventListener("pointerdown", (event) => { held = { x: event.clientX, from: view.from }; });
  window.addEventListener("pointerup", () => { held = null; });
  plot.addEventListener("pointermove", (event) => {
    if (held) {
      show(held.from - ((event.clientX - held.x) / axis.clientWidth) * (view.to - view.from), view.to - view.from);
    } else if (event.target.span) {
      const [begin, length, name] = event.target.span;
      const more = flame ? `${(length / step.length * 100).toPrecision(3)} %` : `from ${asTime(begin)} on`;
      told.textContent = `${step.names[name]}: ${asTime(length)}, ${more}`;
    }
  });
  const named = [["+", "Zoom in"], ["-", "Zoom out"], ["0", `Whole ${whole}`]];
  const buttons = named.map(([key, words]) => {
    const button = element("button", { type: "button", className: "zoom" }, words);
    button.addEventListener("click", acts[key]);
    return button;
  });
  const hint = element("span", { className: "about" }, "Ctrl + wheel or a double click zooms, dragging moves; or the keys + − 0 ← →");
  figure.querySelector(".still").replaceWith(element("p", { className: "zooms" }, ...buttons, hint), plot, told);
  new ResizeObserver(draw).observe(axis);
  draw();
}

// Only what is in view is drawn, and no span that the one before it covers.
function drawLane(svg, lane, step, view, scale, width) {
  const made = [];
  let drawnTo = -1;
  for (const span of lane.spans) {
    const [begin, length, name, tone, shaded] = span;
    if (begin > view.to) break;
    if (begin + length < view.from) continue;
    const left = Math.max((begin - view.from) * scale, 0);
    const right = Math.min((begin + length - view.from) * scale, width);
    if (right < drawnTo + 0.5) continue;
    drawnTo = Math.max(right, left + 0.5);
    const rect = document.createElementNS(SVG, "rect");
    rect.span = span;
    rect.setAttribute("class", `tone-${step.tones[tone]}${shaded ? " shaded" : ""}`);
    rect.setAttribute("x", left);
    rect.setAttribute("y", 2);
    rect.setAttribute("height", LANE_HEIGHT - 4);
    rect.setAttribute("width", Math.max(right - left - (right - left > 3 ? 0.75 : 0), 0.5));
    made.push(rect);
    if (right - left >= NARROWEST) made.push(label(step.names[name], left, right, shaded));
  }
  svg.replaceChildren(...made);
}

function label(words, left, right, shaded) {
  const letters = Math.floor((right - left - 8) / LETTER);
  const text = document.createElementNS(SVG, "text");
  text.setAttribute("x", left + 4);
  text.setAttribute("y", LANE_HEIGHT / 2 + 4);
  text.setAttribute("class", shaded ? "dark" : "");
  const kept = Math.max(letters - 1, 1);
  const shorter = CODE.test(words) ? `…${words.slice(-kept)}` : `${words.slice(0, kept)}…`;
  text.textContent = words.length > letters ? shorter : words;
  return text;
}

function ticks({ from, to }) {
  const rough = (to - from) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.floor(to / step) - first + 1 }, (_, index) => (first + index) * step);
}

function setUpSteps() {
  return Promise.all([...document.querySelectorAll("figure.step")].map(setUpStep));
}
