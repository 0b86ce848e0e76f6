// Draws the memory map: addresses over time, and the pool at the instant that the slider chooses.
(() => {
  const source = document.getElementById("memory-map-data");
  if (!source) return;
  const LETTERS = "ABCDEFG";
  const COLUMNS = 64;
  const ROWS = 16;
  const SHADES = [0, 0.13, 0.26];  // neighbors of different requests
  const HATCH = "rgba(26, 29, 33, 0.55)";
  const { uses, times, variants } = JSON.parse(source.textContent);
  const figure = document.getElementById("chart-memory-map");
  const slider = document.getElementById("memory-map-instant");
  const pointed = figure.querySelector(".pointed");
  const number = new Intl.NumberFormat("en-US");

  // A run is [first slot, slot behind it, use, request]; a request of -1 is none, or several.
  const decoded = ({ looks, slots }) => looks.map((text) => {
    let end = 0;
    return [...text.matchAll(/([0-9a-z]+)([A-G])([0-9a-z]*)/g)].map(([, length, use, request]) => {
      const start = end;
      end += parseInt(length, 36) * slots;
      return [start, end, LETTERS.indexOf(use), request ? parseInt(request, 36) : -1];
    });
  });
  const runAt = (runs, slot) => {
    let [low, high] = [0, runs.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (runs[middle][1] <= slot) low = middle + 1;
      else high = middle;
    }
    return runs[low];
  };
  const told = ([start, end, use, request]) => {
    const owner = request >= 0 ? `, request ${number.format(request)}` : "";
    return `slots ${number.format(start)} to ${number.format(end - 1)}: ${uses[use][0]}${owner}`;
  };

  const tile = ([, color, pattern], scale) => {
    const size = 8 * scale;
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = size;
    const context = canvas.getContext("2d");
    context.fillStyle = color;
    context.fillRect(0, 0, size, size);
    context.strokeStyle = context.fillStyle = HATCH;
    context.lineWidth = scale;
    const line = (...points) => {
      context.beginPath();
      points.forEach(([x, y], place) => context[place ? "lineTo" : "moveTo"](x * size, y * size));
      context.stroke();
    };
    const rising = () => [-1, 0, 1].forEach((by) => line([by, 1], [by + 1, 0]));
    const falling = () => [-1, 0, 1].forEach((by) => line([by, 0], [by + 1, 1]));
    if (pattern === "/" || pattern === "x") rising();
    if (pattern === "\\" || pattern === "x") falling();
    if (pattern === "-") line([0, 0.5], [1, 0.5]);
    if (pattern === ".") context.fillRect(size / 2 - scale, size / 2 - scale, 2 * scale, 2 * scale);
    return canvas;
  };
  // Returns the context of a canvas that has as many pixels as the screen, and its fill styles.
  const prepared = (canvas) => {
    const scale = Math.max(1, window.devicePixelRatio);
    canvas.width = Math.round(canvas.clientWidth * scale);
    canvas.height = Math.round(canvas.clientHeight * scale);
    const context = canvas.getContext("2d");
    return [context, uses.map((use) => context.createPattern(tile(use, scale), "repeat"))];
  };

  const drawPicture = ({ canvas, looks, capacity }) => {
    const [context, styles] = prepared(canvas);
    const { width, height } = canvas;
    looks.forEach((runs, look) => {
      const left = Math.round(look * width / looks.length);
      const right = Math.round((look + 1) * width / looks.length);
      for (const [start, end, use] of runs) {
        context.fillStyle = styles[use];
        const top = height * (1 - end / capacity);
        context.fillRect(left, top, right - left, height * (end - start) / capacity);
      }
    });
    canvas.dataset.drawn = "true";
  };
  const drawPool = ({ pool, looks, capacity }) => {
    const [context, styles] = prepared(pool);
    const [width, height] = [pool.width / COLUMNS, pool.height / ROWS];
    const runs = looks[slider.valueAsNumber];
    let before = null;
    for (let cell = 0; cell < COLUMNS * ROWS; cell += 1) {
      const run = runAt(runs, (cell + 0.5) / (COLUMNS * ROWS) * capacity);
      const [x, y] = [cell % COLUMNS * width, Math.floor(cell / COLUMNS) * height];
      context.fillStyle = styles[run[2]];
      context.fillRect(x, y + 1, width + 0.5, height - 2);
      if (run[3] >= 0) {
        context.fillStyle = `rgba(0, 0, 0, ${SHADES[run[3] % SHADES.length]})`;
        context.fillRect(x, y + 1, width + 0.5, height - 2);
      }
      if (before && run[3] !== before[3]) {
        context.fillStyle = "rgb(26, 29, 33)";
        context.fillRect(x - 0.75, y + 1, 1.5, height - 2);
      }
      before = run;
    }
    pool.dataset.drawn = "true";
  };

  const show = () => {
    const look = slider.valueAsNumber;
    slider.setAttribute("aria-valuetext", `at ${times[look]}`);
    figure.querySelectorAll(".when").forEach((output) => { output.textContent = times[look]; });
    figure.querySelectorAll(".instant").forEach((line) => {
      line.style.left = `${(look + 0.5) / times.length * 100}%`;
    });
    for (const map of maps) {
      map.words.textContent = map.sentences[look];
      if (map.pool.clientWidth) drawPool(map);
    }
  };
  const along = (event, canvas) => {
    const box = canvas.getBoundingClientRect();
    const inside = (share) => Math.min(Math.max(share, 0), 0.999999);
    return [inside((event.clientX - box.left) / box.width), inside((event.clientY - box.top) / box.height)];
  };

  const maps = variants.map((variant, place) => {
    const canvas = document.getElementById(`memory-map-${place}`);
    const pool = document.getElementById(`memory-map-${place}-pool`);
    const words = document.getElementById(`memory-map-${place}-words`);
    const looks = decoded(variant);
    const map = { canvas, pool, words, looks, capacity: variant.capacity, sentences: variant.words };
    const look = (event) => Math.floor(along(event, canvas)[0] * looks.length);
    canvas.addEventListener("pointermove", (event) => {
      const run = runAt(looks[look(event)], (1 - along(event, canvas)[1]) * variant.capacity);
      pointed.textContent = `At ${times[look(event)]}, ${told(run)}`;
    });
    canvas.addEventListener("click", (event) => {
      slider.value = look(event);
      show();
    });
    pool.addEventListener("pointermove", (event) => {
      const [x, y] = along(event, pool);
      const cell = Math.floor(y * ROWS) * COLUMNS + Math.floor(x * COLUMNS);
      const slot = (cell + 0.5) / (COLUMNS * ROWS) * variant.capacity;
      const chosen = slider.valueAsNumber;
      pointed.textContent = `At ${times[chosen]}, ${told(runAt(looks[chosen], slot))}`;
    });
    return map;
  });

  figure.querySelector(".maps").hidden = false;
  slider.addEventListener("input", show);
  show();
  const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    const map = maps.find(({ canvas }) => canvas === target);
    drawPicture(map);
    drawPool(map);
  }));
  maps.forEach(({ canvas }) => resized.observe(canvas));
})();
