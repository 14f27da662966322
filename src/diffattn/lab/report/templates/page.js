// The page's script. ``loader.js`` calls it with the data of all charts.
const chartConfig = {
  responsive: true,
  displaylogo: false,
  displayModeBar: "hover",
  // Named one by one: the default bar holds a button that uploads the figure.
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage", {
    name: "Download plot as an SVG",
    icon: Plotly.Icons.disk,
    click: function (place) { Plotly.downloadImage(place, { format: "svg", filename: place.id }); },
  }]],
};

function squareHeight(place) {
  const height = place.clientWidth + 40;
  place.style.height = height + "px";
  return height;
}

// A chart takes the width its column has when it is drawn; those in a fold wait until it opens.
function showCharts(figures) {
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const style = getComputedStyle(document.body);
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;

  function draw(place) {
    const figure = figures[place.id];
    if (!figure || place.dataset.drawn || place.closest("details:not([open])")) return;
    place.dataset.drawn = "yes";
    const layout = figure.layout;
    layout.paper_bgcolor = layout.plot_bgcolor = "transparent";
    layout.font.color = style.color;
    layout.modebar = { bgcolor: "transparent", color: "#999", activecolor: "#555" };
    for (const axis of [layout.xaxis, layout.yaxis]) axis.gridcolor = style.getPropertyValue("--rule");
    // The baseline's dark grey would not show on a dark page.
    if (dark) figure.data = JSON.parse(JSON.stringify(figure.data).replaceAll("#4d4d4d", "#c8c8c8"));
    // A finger that drags over a chart means to scroll the page.
    if (touch) layout.dragmode = false;
    if (place.classList.contains("square")) layout.height = squareHeight(place);
    Plotly.newPlot(place, figure.data, layout, chartConfig);
  }

  for (const place of document.querySelectorAll(".chart")) draw(place);
  document.addEventListener("toggle", function (event) {
    for (const place of event.target.querySelectorAll(".chart")) draw(place);
  }, true);
}

function fit(printing) {
  document.body.classList.toggle("printing", printing);
  for (const place of document.querySelectorAll(".chart[data-drawn]")) {
    const size = { width: place.clientWidth };
    if (place.classList.contains("square")) size.height = squareHeight(place);
    Plotly.relayout(place, size);
  }
}
window.addEventListener("beforeprint", function () { fit(true); });
window.addEventListener("afterprint", function () { fit(false); });
