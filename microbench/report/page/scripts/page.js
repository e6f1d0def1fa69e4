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

// On paper nothing can be unfolded, so findings are printed open.
function setUpPrinting() {
  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll(".finding:not([open])")];
    closed.forEach((one) => { one.open = true; });
  });
  window.addEventListener("afterprint", () => closed.forEach((one) => { one.open = false; }));
}

setUpTheme();
setUpTables();
setUpDetails();
setUpDownloads();
setUpPrinting();
setUpSteps().then(() => performance.mark("usable"));
