// The page's script; the data of each chart stands beside it as JSON.
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

// After the whole page is laid out: a chart takes the width its column has at that moment.
document.addEventListener("DOMContentLoaded", function () {
  const touch = window.matchMedia("(pointer: coarse)").matches;
  for (const data of document.querySelectorAll("script[data-chart]")) {
    const place = document.getElementById(data.dataset.chart);
    const figure = JSON.parse(data.textContent);
    // A finger that drags over a chart means to scroll the page.
    if (touch) figure.layout.dragmode = false;
    if (place.classList.contains("square")) figure.layout.height = squareHeight(place);
    Plotly.newPlot(place, figure.data, figure.layout, chartConfig);
  }
});

function fit(printing) {
  document.body.classList.toggle("printing", printing);
  for (const place of document.querySelectorAll(".chart")) {
    const size = { width: place.clientWidth };
    if (place.classList.contains("square")) size.height = squareHeight(place);
    Plotly.relayout(place, size);
  }
}
window.addEventListener("beforeprint", function () { fit(true); });
window.addEventListener("afterprint", function () { fit(false); });
