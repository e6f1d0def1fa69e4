// The data inside the page: gzip in base64, unpacked on demand.

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(`packed-${id}`).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children); // strings become text, whatever is in them
  return made;
}

function tell(words) {
  document.getElementById("status").textContent = words;
}
