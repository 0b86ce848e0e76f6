// Draws the figures that the page carries as data, and fits them to the paper while printing.
(async () => {
  const PAPER_WIDTH_PX = 680;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = {
    displaylogo: false,
    responsive: true,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const plots = [];

  for (const { key, data, layout } of figures) {
    const plot = document.getElementById(key);
    // A finger that scrolls the page must not zoom the chart beneath it.
    await Plotly.newPlot(plot, data, { ...layout, dragmode: touch ? false : "zoom" }, config);
    plot.dataset.drawn = "true";
    plots.push(plot);
  }
  document.documentElement.dataset.charts = "drawn";

  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((details) => { details.open = true; });
    plots.forEach((plot) => Plotly.relayout(plot, { width: PAPER_WIDTH_PX, autosize: false }));
  });
  window.addEventListener("afterprint", () => {
    closed.forEach((details) => { details.open = false; });
    plots.forEach((plot) => Plotly.relayout(plot, { width: null, autosize: true }));
  });
})();
