// What is told of a single figure when asked: words that came with the page, and how its samples lie.

const SVG = "http://www.w3.org/2000/svg";
let details; // unpacked by the first question

async function showDetail(number) {
  details ??= unpacked("details").then(JSON.parse);
  const told = (await details)[number];
  const dialog = document.getElementById("details");
  const close = element("button", { type: "button", className: "close" }, "Close");
  close.addEventListener("click", () => dialog.close());
  const [mark, tone, meaning] = told.grade;
  dialog.replaceChildren(
    element("header", {}, element("h2", { id: "details-title" }, told.title), close),
    element("p", { className: "case" }, element("code", {}, told.case)),
    element("p", { className: "about" }, told.about),
    element("p", { className: "value" }, element("strong", {}, told.value), ` ${told.spread} `,
      element("span", { className: `tone-${tone}` }, mark), element("small", {}, ` ${meaning}`)),
    ...told.pictures.map(histogram),
    element("dl", {}, ...told.words.map(([name, words]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, words)))),
  );
  dialog.setAttribute("aria-labelledby", "details-title");
  dialog.showModal();
  dialog.scrollTop = 0;
}

function histogram(picture) {
  const width = 100 / picture.counts.length;
  const most = Math.max(...picture.counts, 1);
  const column = (count, index) =>
    count ? `M${index * width} 100V${100 - Math.max((count / most) * 100, 2)}h${width}V100Z` : "";
  const lines = picture.marks.map(([at]) => `M${at} 0V100`).join("");
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.append(path("columns", picture.counts.map(column).join("")), path("marked", lines));
  const labels = element("div", { className: "labels below" }, ...picture.marks.map(label));
  labels.style.setProperty("--lines", 1 + Math.max(0, ...picture.marks.map(([, , line]) => line)));
  const plot = element("div", { className: "plot histogram" }, element("div", { className: "field" }, svg), labels);
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `${picture.title}: ${picture.marks.map(([, words]) => words).join(", ")}`);
  return element("figure", { className: "picture" }, element("figcaption", {}, picture.title), plot);
}

function path(className, commands) {
  const made = document.createElementNS(SVG, "path");
  made.setAttribute("class", className);
  made.setAttribute("d", commands);
  return made;
}

function label([at, words, line, late]) {
  const made = element("span", { className: late ? "label late" : "label" }, words);
  made.style.setProperty("--at", at);
  made.style.setProperty("--line", line);
  return made;
}

function isOutside(event, box) {
  const { left, right, top, bottom } = box.getBoundingClientRect();
  return event.clientX < left || event.clientX > right || event.clientY < top || event.clientY > bottom;
}

function setUpDetails() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-detail]");
    if (button) showDetail(Number(button.dataset.detail));
    if (event.target.id === "details" && isOutside(event, event.target)) event.target.close(); // on the dark around it
  });
}
