// The dialog about a single figure: words that came with the page, and a histogram of its samples.

const SVG = "http://www.w3.org/2000/svg";
let details; // unpacked when first asked for

async function showDetail(number) {
  details ??= unpacked("details").then(JSON.parse);
  const detail = (await details)[number];
  const dialog = document.getElementById("details");
  const close = element("button", { type: "button", className: "close" }, "Close");
  close.addEventListener("click", () => dialog.close());
  const [mark, tone, meaning] = detail.grade;
  dialog.replaceChildren(
    element("header", {}, element("h2", { id: "details-title" }, detail.title), close),
    element("p", { className: "case" }, element("code", {}, detail.case)),
    element("p", { className: "about" }, detail.about),
    element("p", { className: "value" }, element("strong", {}, detail.value), ` ${detail.spread} `,
      element("span", { className: `tone-${tone}` }, mark), element("small", {}, ` ${meaning}`)),
    ...detail.pictures.map(histogram),
    element("dl", {}, ...detail.words.map(([name, words]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, words)))),
  );
  dialog.setAttribute("aria-labelledby", "details-title");
  dialog.showModal();
  dialog.scrollTop = 0;
}

// Columns over 0 to 100 both ways, stretched; dotted lines at the marks, whose words follow below in the same order.
function histogram(picture) {
  const width = 100 / picture.counts.length;
  const most = Math.max(...picture.counts, 1);
  const column = (count, index) =>
    count ? `M${index * width} 100V${100 - Math.max((count / most) * 100, 2)}h${width}V100Z` : "";
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.append(path("columns", picture.counts.map(column).join("")));
  svg.append(path("marked", picture.marks.map(([at]) => `M${at} 0V100`).join("")));
  const words = picture.marks.map(([, text]) => text).join(" · ");
  const plot = element("div", { className: "histogram" }, svg);
  plot.setAttribute("role", "img");
  plot.setAttribute("aria-label", `${picture.title}: ${words}`);
  return element("figure", { className: "picture" }, element("figcaption", {}, picture.title), plot, element("p", {}, words));
}

function path(className, commands) {
  const made = document.createElementNS(SVG, "path");
  made.setAttribute("class", className);
  made.setAttribute("d", commands);
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
