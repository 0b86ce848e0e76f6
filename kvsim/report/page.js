// Draws the figures that the page carries as data: those in sight first, the others in idle slices,
// all before printing. Marks in the navigation where the reader is.
(() => {
  const PAPER_WIDTH_PX = 680;
  const NEAR = "400px 0px";
  const page = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const waiting = new Map(figures.map(({ key, data, layout }) => [key, { data, layout }]));
  const inSight = new Set();
  const drawn = new Map();  // plots, and promises that Plotly is done with them
  const config = {
    displaylogo: false,
    responsive: true,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  // A finger that scrolls the page must not zoom the chart beneath it.
  const dragmode = window.matchMedia("(pointer: coarse)").matches ? false : "zoom";

  const draw = (key) => {
    const { data, layout } = waiting.get(key);
    const plot = document.getElementById(key);
    waiting.delete(key);
    drawn.set(plot, Plotly.newPlot(plot, data, { ...layout, dragmode }, config).then(() => {
      plot.dataset.drawn = "true";
    }));
    return drawn.get(plot);
  };
  const next = () => [...inSight].find((key) => waiting.has(key)) ?? waiting.keys().next().value;
  const drawNext = async () => {
    const key = next();
    if (key === undefined) return finish();
    await draw(key);
    setTimeout(drawNext);  // the browser answers the reader between two charts
  };
  const finish = () => {
    page.dataset.drawnMs = Math.round(performance.now());  // since navigation began
    page.dataset.charts = "drawn";
  };
  const watch = (elements, margin, tell) => {
    const observer = new IntersectionObserver((entries) => entries.forEach(tell), { rootMargin: margin });
    elements.forEach((element) => observer.observe(element));
  };
  watch(document.querySelectorAll(".plot"), NEAR, ({ target, isIntersecting }) => {
    if (isIntersecting) inSight.add(target.id);
    else inSight.delete(target.id);
  });
  setTimeout(drawNext);

  const links = new Map(
    [...document.querySelectorAll("nav a")].map((link) => [link.getAttribute("href").slice(1), link]),
  );
  const here = new Set();
  watch([...links.keys()].map((id) => document.getElementById(id)), "-25% 0px -70% 0px", (entry) => {
    if (entry.isIntersecting) here.add(entry.target.id);
    else here.delete(entry.target.id);
    const link = links.get([...links.keys()].find((id) => here.has(id)));
    if (!link) return;
    links.forEach((other) => other.removeAttribute("aria-current"));
    link.setAttribute("aria-current", "true");
    const list = link.closest("ol");
    list.scrollLeft = link.offsetLeft - list.clientWidth / 2;
  });

  let closed = [];
  window.addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach((details) => { details.open = true; });
    [...waiting.keys()].forEach(draw);
    const paper = { width: PAPER_WIDTH_PX, autosize: false };
    drawn.forEach((done, plot) => drawn.set(plot, Promise.all([done, Plotly.relayout(plot, paper)])));
  });
  window.addEventListener("afterprint", () => {
    closed.forEach((details) => { details.open = false; });
    const screen = { width: null, autosize: true };
    drawn.forEach((done, plot) => done.then(() => Plotly.relayout(plot, screen)));
  });
})();
