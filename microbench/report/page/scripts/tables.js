// Tables: sorted by a click on a heading, filtered by words, long ones folded, their figures reached by arrow keys.

const FOLDED_ROWS = 12;
const FEW_ROWS = 16; // are not worth a fold
const ORDERS = { none: "ascending", ascending: "descending", descending: "none" };
const collator = new Intl.Collator(undefined, { numeric: true });

function makeSortable(table) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headings = [...table.tHead.rows[0].cells].filter((heading) => !heading.classList.contains("bars"));
  for (const heading of headings) {
    const button = element("button", { type: "button", className: "sort" }, heading.textContent);
    const name = heading.textContent.trim() || "name"; // of rows, where their heading is left empty
    button.ariaLabel = heading.textContent.trim() ? null : name;
    heading.replaceChildren(button);
    heading.ariaSort = "none";
    button.addEventListener("click", () => {
      const order = ORDERS[heading.ariaSort];
      headings.forEach((other) => { other.ariaSort = "none"; });
      heading.ariaSort = order;
      body.append(...(order === "none" ? original : sorted(original, heading.cellIndex, order)));
      tell(order === "none" ? "in the order of the report" : `sorted by ${name}, ${order}`);
    });
  }
}

function sorted(rows, column, order) {
  const direction = order === "ascending" ? 1 : -1;
  const keys = new Map(rows.map((row) => [row, sortKey(row.cells[column])]));
  return [...rows].sort((one, other) => compared(keys.get(one), keys.get(other), direction));
}

// Figures come before words, and what is not there comes last, whichever way a table is sorted.
function compared(one, other, direction) {
  if (one.rank !== other.rank) return one.rank - other.rank;
  if (one.rank === 0) return (one.number - other.number) * direction;
  return collator.compare(one.words, other.words) * direction;
}

function sortKey(cell) {
  const words = cell.textContent.trim();
  if (cell.dataset.key !== undefined) return { rank: 0, number: Number(cell.dataset.key) };
  return { rank: words === "" || words === "–" ? 2 : 1, words };
}

function makeFilterable(table) {
  const rows = [...table.tBodies[0].rows];
  const field = element("input", { type: "search", placeholder: "Filter", spellcheck: false });
  field.setAttribute("aria-label", `Filter the rows of ${nameOf(table)}`);
  const none = element("p", { className: "none", hidden: true }, "No row has these words.");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    table.classList.toggle("filtered", words.length > 0);
    none.hidden = shown > 0;
    tell(`${shown} of ${rows.length} rows`);
  });
  table.closest(".table").querySelector("header").after(element("div", { className: "tools" }, field));
  table.parentElement.after(none);
}

function nameOf(table) {
  const title = document.getElementById(table.getAttribute("aria-labelledby")) ?? table.caption;
  return title.firstChild.textContent.trim();
}

function makeFolding(table) {
  const count = table.tBodies[0].rows.length;
  if (count <= FEW_ROWS) return;
  const button = element("button", { type: "button", className: "fold" });
  const fold = (folded) => {
    table.classList.toggle("folded", folded);
    button.ariaExpanded = String(!folded);
    button.textContent = folded ? `Show all ${count} rows` : `Show the first ${FOLDED_ROWS} rows`;
  };
  button.addEventListener("click", () => fold(!table.classList.contains("folded")));
  fold(true);
  table.parentElement.after(button);
}

// One stop of the Tab key a table: arrow keys go on from there. Sorted, filtered or folded away, it is another one.
function makeWalkable(table) {
  const reachable = () => [...table.tBodies[0].querySelectorAll("button[data-detail]")].filter((one) => one.offsetParent);
  const stop = (chosen) => {
    table.tBodies[0].querySelectorAll("button[data-detail]").forEach((one) => { one.tabIndex = one === chosen ? 0 : -1; });
  };
  stop(table.tBodies[0].querySelector("button[data-detail]"));
  new MutationObserver(() => {
    const seen = reachable();
    if (!seen.some((one) => one.tabIndex === 0)) stop(seen[0]);
  }).observe(table, { attributeFilter: ["class", "hidden"], childList: true, subtree: true });
  table.addEventListener("focusin", (event) => {
    if (event.target.matches("button[data-detail]")) stop(event.target);
  });
  table.addEventListener("keydown", (event) => {
    if (!event.target.matches("button[data-detail]")) return;
    const next = neighbour(event.target, event.key, reachable());
    if (next) {
      event.preventDefault();
      next.focus();
    }
  });
}

function neighbour(button, key, all) {
  const at = all.indexOf(button);
  if (key === "ArrowRight") return all[at + 1];
  if (key === "ArrowLeft") return all[at - 1];
  const column = button.closest("td, th").cellIndex;
  const same = all.filter((one) => one.closest("td, th").cellIndex === column);
  if (key === "ArrowDown") return same[same.indexOf(button) + 1];
  if (key === "ArrowUp") return same[same.indexOf(button) - 1];
  return undefined;
}

// A table that is wider than a phone is stacked there: each row a paragraph in which every cell names its column. On a
// wider screen it can be scrolled by keys, and says what it is.
const phone = window.matchMedia("(max-width: 560px)");

function makeFitting(holder) {
  const table = holder.firstElementChild;
  holder.setAttribute("role", "group");
  holder.setAttribute("aria-label", nameOf(table));
  const named = () => {
    const names = [...table.tHead.rows[0].cells].map((heading) => heading.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      [...row.cells].forEach((cell, place) => { if (names[place]) cell.dataset.of = names[place]; });
    }
  };
  let width = 0;
  const watch = () => {
    if (holder.clientWidth === width) return; // it became only higher or lower
    width = holder.clientWidth;
    table.classList.remove("stacked");
    const wider = table.offsetWidth > width + 1; // the arrow of the last heading may stand out
    holder.tabIndex = wider && !phone.matches ? 0 : -1;
    if (wider && phone.matches) {
      named();
      table.classList.add("stacked");
    }
  };
  new ResizeObserver(watch).observe(holder);
}

function setUpTables() {
  for (const table of document.querySelectorAll("table.figures")) {
    makeSortable(table);
    makeFilterable(table);
    makeFolding(table);
    makeWalkable(table);
  }
  document.querySelectorAll(".table > .scroller").forEach(makeFitting);
}
