// The page as a whole: light or dark, downloads, paper.

const dark = window.matchMedia("(prefers-color-scheme: dark)");

function setUpTheme() {
  const button = document.getElementById("theme");
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const name = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  dark.addEventListener("change", name);
  name();
  button.hidden = false;
}

function setUpDownloads() {
  for (const button of document.querySelectorAll("button.download")) {
    button.addEventListener("click", async () => {
      const text = await unpacked(`run-${button.dataset.run}`);
      const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
      element("a", { href: address, download: button.dataset.name }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
    });
    button.disabled = false;
  }
}

// The text and the pictures are unfolded at once, the tables suite by suite; a link to a part opens what holds it.
function setUpFolds() {
  const folding = (button, name, folds) => {
    button.textContent = `Unfold ${name}`;
    button.addEventListener("click", () => {
      const open = folds.some((one) => !one.open);
      folds.forEach((one) => { one.open = open; });
      button.textContent = `${open ? "Fold" : "Unfold"} ${name}`;
    });
    button.hidden = folds.length === 0;
  };
  folding(document.getElementById("unfold"), "all", [...document.querySelectorAll("details.data:not(.fold-in, .tabled)")]);
  for (const suite of document.querySelectorAll(".part .suite")) {
    const button = element("button", { type: "button", className: "unfold" });
    folding(button, "these parts", [...suite.querySelectorAll(".fold-in")]);
    suite.prepend(button);
  }
  const follow = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = target && (target.closest("details.data") ?? target.querySelector(":scope > details.data"));
    if (fold) fold.open = true;
  };
  window.addEventListener("hashchange", follow);
  follow();
}

// On paper nothing can be unfolded, so findings are printed open, and what a reader has unfolded.
function setUpPrinting() {
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll(".finding:not([open]), #findings > details:not([open])")];
    closed.forEach((one) => { one.open = true; });
  });
  window.addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));
}

setUpTheme();
setUpTables();
setUpDetails();
setUpDownloads();
setUpFolds();
setUpPrinting();
setUpSteps().then(() => performance.mark("usable"));
