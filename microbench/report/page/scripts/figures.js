// Figures, drawn by Vega-Lite from specs that came with the page. Their colours are the page's CSS variables.

// Without eval (the policy of the page forbids it), without a menu, and without styles of its own.
const OPTIONS = { actions: false, ast: true, renderer: "svg", defaultStyle: false };
const NARROWEST = 300;

async function setUpFigures() {
  const places = [...document.querySelectorAll("[data-figure]")];
  if (places.length === 0) return;
  const [library, told] = await Promise.all([unpacked("vega"), unpacked("figures").then(JSON.parse)]);
  document.head.append(element("script", { textContent: library }));
  for (const place of places) {
    const spec = told.specs[Number(place.dataset.figure)];
    await draw(place, spec, told.config);
    await new Promise((done) => { setTimeout(done); }); // whoever reads already comes first
    redrawWhenResized(place, spec, told.config);
  }
}

async function draw(place, spec, config) {
  const width = Math.max(place.clientWidth, NARROWEST);
  await vegaEmbed(place, asWide(spec, width - spec.usermeta.beside), { ...OPTIONS, config });
  place.dataset.drawn = String(width);
}

function asWide(spec, width) {
  if (spec.vconcat) return { ...spec, vconcat: spec.vconcat.map((view) => ({ ...view, width })) };
  return { ...spec, width };
}

function redrawWhenResized(place, spec, config) {
  let waiting;
  new ResizeObserver(() => {
    clearTimeout(waiting);
    if (String(Math.max(place.clientWidth, NARROWEST)) === place.dataset.drawn) return;
    waiting = setTimeout(() => draw(place, spec, config), 150);
  }).observe(place);
}
