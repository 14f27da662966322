// Unpacks what the page carries compressed: the charts' library with the page's script, and data.
function unpack(id) {
  const packed = atob(document.getElementById(id).textContent);
  const bytes = Uint8Array.from(packed, (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

document.addEventListener("DOMContentLoaded", async function () {
  const code = document.createElement("script");
  code.textContent = await unpack("code");
  const figures = JSON.parse(await unpack("figures"));
  document.head.append(code); // the policy names its hash
  showCharts(figures);
});
