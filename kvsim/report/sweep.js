// Leaves those lines of the parallel coordinates that pass all filters.
(() => {
  const form = document.getElementById("filters");
  if (!form) return;
  const plot = document.getElementById(form.dataset.chart);
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const traces = figures.find((figure) => figure.key === form.dataset.chart).data;

  const number = (name) => {
    const text = form.elements[name]?.value ?? "";
    return text === "" ? null : Number(text);
  };
  const passes = (value, place) => {
    const [is, from, to] = ["is", "from", "to"].map((word) => number(`${word}-${place}`));
    if (is === null && from === null && to === null) return true;
    if (value === null) return false;
    return (is === null || value === is) && (from === null || value >= from) && (to === null || value <= to);
  };

  const filter = () => {
    if (!plot.dataset.drawn) return;
    const x = [], y = [];
    let left = 0, all = 0;
    traces.forEach((trace, place) => {
      const kept = trace.meta.map((values) => values.every(passes));
      const length = (trace.meta[0] ?? []).length + 1;
      x.push(trace.x.filter((_, at) => kept[Math.floor(at / length)]));
      y.push(trace.y.filter((_, at) => kept[Math.floor(at / length)]));
      if (place === traces.length - 1) return;  // the choice is drawn a second time
      left += kept.filter(Boolean).length;
      all += kept.length;
    });
    Plotly.restyle(plot, { x, y });
    form.querySelector("output").textContent = `${left} of ${all} lines`;
  };
  form.addEventListener("input", filter);
  form.addEventListener("reset", () => setTimeout(filter));
  form.addEventListener("submit", (event) => event.preventDefault());
})();
