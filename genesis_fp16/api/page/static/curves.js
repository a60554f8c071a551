// Loss and loss scale of a run by step: fetched once, then followed through server-sent events.
"use strict";
(() => {
  const section = document.getElementById("curves");
  if (!section || !window.uPlot) return;

  const MOST_POINTS = 3000; // beyond it, neighbours are merged in pairs
  const LOG_RATIO = 30; // of largest to smallest loss, from which the axis is logarithmic
  const HEIGHT = 195; // of each chart, in pixels
  const MOST_PARTS = 8; // of one job
  const PART_COLORS = ["--scale", "--ink", "--loss", "--muted"]; // then the same, dashed
  const points = [];
  let charts = [], logarithmic = false, drawing = false, drawnParts = [];

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shortNumber = (value) => value == null ? "–" : Number(value).toPrecision(4).replace(/\.?0+(e|$)/, "$1");
  const power = (exponent) => Number.isInteger(exponent) ? `2^${exponent}` : `2^${exponent.toFixed(1)}`;

  function add(point) {
    // A later attempt repeats steps after its checkpoint; what it repeats counts no more.
    while (points.length && points.at(-1).step >= point.step) points.pop();
    points.push(point);
    if (points.length > MOST_POINTS) {
      const merged = [];
      for (let i = 0; i < points.length; i += 2) merged.push(merge(points[i], points[i + 1]));
      points.splice(0, points.length, ...merged);
    }
  }

  function merge(first, second) {
    if (!second) return first;
    if (first.precision !== second.precision) return { ...second, overflows: first.overflows + second.overflows };
    const losses = [first, second].filter((point) => point.loss != null);
    const steps = losses.reduce((sum, point) => sum + (point.steps || 1), 0);
    const loss = losses.reduce((sum, point) => sum + point.loss * (point.steps || 1), 0) / steps;
    return {
      ...second, steps: first.steps + second.steps, overflows: first.overflows + second.overflows,
      seconds: first.seconds + second.seconds, loss: losses.length ? loss : null,
    };
  }

  function columns() {
    const steps = points.map((point) => point.step);
    const losses = points.map((point) => point.loss ?? null);
    const exponents = (scaleOf) => points.map(
      (point) => point.precision === "fp16" && scaleOf(point) ? Math.log2(scaleOf(point)) : null);
    const ofPart = (name) => (point) => point.parts?.find((part) => part.name === name)?.loss_scale;
    const scales = drawnParts.length ? drawnParts.map(ofPart) : [(point) => point.loss_scale];
    return { loss: [steps, losses], scale: [steps, ...scales.map(exponents)] };
  }

  function partNames() {
    return (points.at(-1).parts ?? []).slice(0, MOST_PARTS).map((part) => part.name);
  }

  // The legend names the line of each part; a job without parts has one line and needs no name.
  function partLines() {
    const legend = document.querySelector("#charts .legend");
    legend.querySelectorAll(".part").forEach((key) => key.remove());
    return drawnParts.map((name, index) => {
      const stroke = css(PART_COLORS[index % PART_COLORS.length]), dashed = index >= PART_COLORS.length;
      const key = document.createElement("li");
      key.className = dashed ? "key part dashed" : "key part";
      key.style.setProperty("--line", stroke);
      key.textContent = `loss scale of ${name}`;
      legend.append(key);
      return { stroke, dash: dashed ? [6, 4] : [] };
    });
  }

  function wantsLogarithm() {
    const losses = points.map((point) => point.loss).filter((loss) => loss != null);
    const least = Math.min(...losses);
    return losses.length > 1 && least > 0 && Math.max(...losses) / least > LOG_RATIO;
  }

  // Triangles at the foot of the plot for overflows, dashed lines where the precision changed.
  function drawMarks(chart) {
    const { ctx, bbox } = chart, ratio = window.devicePixelRatio || 1;
    ctx.save();
    ctx.fillStyle = css("--overflow");
    const size = 5 * ratio, foot = bbox.top + bbox.height;
    for (const point of points) {
      if (!point.overflows) continue;
      const x = chart.valToPos(point.step, "x", true);
      ctx.beginPath();
      ctx.moveTo(x - size, foot); ctx.lineTo(x + size, foot); ctx.lineTo(x, foot - 1.8 * size);
      ctx.fill();
    }
    ctx.strokeStyle = ctx.fillStyle = css("--ink");
    ctx.lineWidth = ratio;
    ctx.setLineDash([4 * ratio, 4 * ratio]);
    ctx.textAlign = "left";
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    let before = null, free = -Infinity;
    for (const point of points) {
      if (before !== null && before !== point.precision) {
        const x = chart.valToPos(point.step - point.steps, "x", true);
        ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, foot); ctx.stroke();
        const text = point.precision.toUpperCase(), width = ctx.measureText(text).width;
        const left = Math.min(x + 4 * ratio, bbox.left + bbox.width - width);
        if (left > free) { ctx.fillText(text, left, bbox.top + 12 * ratio); free = left + width; }
      }
      before = point.precision;
    }
    ctx.restore();
  }

  function build() {
    charts.forEach((chart) => chart.destroy());
    logarithmic = wantsLogarithm();
    drawnParts = partNames();
    const data = columns(), lines = partLines();
    charts = [
      chart("loss-chart", data.loss, {
        label: logarithmic ? "loss (log)" : "loss", lines: [{ stroke: css("--loss") }],
        axis: { values: (_, splits) => splits.map((tick) => tick == null ? "" : shortNumber(tick)) },
        scale: logarithmic ? { distr: 3 } : {},
      }),
      chart("scale-chart", data.scale, {
        label: "loss scale", lines: lines.length ? lines : [{ stroke: css("--scale") }], paths: uPlot.paths.stepped({ align: -1 }),
        axis: { values: (_, splits) => splits.map((tick) => Number.isInteger(tick) ? power(tick) : "") },
        scale: { range: (_, low, high) => low == null ? [0, 1] : [Math.floor(low) - 1, Math.ceil(high) + 1] },
      }),
    ];
  }

  function chart(id, data, { label, lines, paths, axis, scale }) {
    const place = document.getElementById(id);
    const line = { stroke: css("--muted"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 } };
    return new uPlot({
      width: place.clientWidth, height: HEIGHT, padding: [12, 24, 0, 0], legend: { show: false },
      cursor: { sync: { key: "run" }, y: false, points: { size: 7 } },
      scales: { x: { time: false }, y: scale },
      axes: [
        { ...line, size: 34, ...(id === "scale-chart" && { label: "step", labelSize: 18 }) },
        { ...line, label, labelSize: 20, size: 62, ...axis },
      ],
      series: [{}, ...lines.map((drawn) => ({
        ...drawn, width: 2, paths, spanGaps: false, points: { show: data[0].length < 3, size: 6 },
      }))],
      hooks: { draw: [drawMarks], setCursor: [(self) => describe(self.cursor.idx)] },
    }, data, place);
  }

  function describe(index) {
    const point = points[index ?? points.length - 1];
    if (!point) return;
    const overflows = points.reduce((sum, passed) => sum + passed.overflows, 0);
    const parts = [
      `Step ${point.step.toLocaleString("en")}`, `loss ${shortNumber(point.loss)}`,
      point.precision === "fp16" ? `${drawnParts.length ? "lowest " : ""}loss scale ${power(Math.log2(point.loss_scale))}` : null,
      point.precision.toUpperCase(), `${overflows} overflow${overflows === 1 ? "" : "s"} in all`,
    ];
    document.getElementById("curve-status").textContent = parts.filter(Boolean).join(", ");
    section.dataset.points = points.length;
    section.dataset.step = points.at(-1).step;
    section.dataset.overflows = overflows;
  }

  function draw() {
    drawing = false;
    if (!points.length) return;
    document.getElementById("charts").hidden = false;
    document.getElementById("no-steps")?.remove();
    const sameParts = partNames().join() === drawnParts.join();
    if (!charts.length || wantsLogarithm() !== logarithmic || !sameParts) {
      build();
    } else {
      const data = columns();
      charts[0].setData(data.loss);
      charts[1].setData(data.scale);
    }
    describe(charts[0].cursor.idx);
  }

  function drawSoon() {
    if (!drawing) { drawing = true; requestAnimationFrame(draw); }
  }

  function follow(after) {
    const source = new EventSource(`${section.dataset.events}?after=${encodeURIComponent(after)}`);
    source.addEventListener("step_stats", (event) => {
      const stats = JSON.parse(event.data);
      const steps = stats.applied + stats.overflow + stats.nonfinite_loss + stats.no_gradient;
      add({ ...stats, steps, overflows: stats.overflow });
      drawSoon();
    });
    for (const name of ["state", "precision_changed", "evaluated", "end"]) {
      source.addEventListener(name, () => htmx.trigger(document.body, "changed"));
    }
    source.addEventListener("end", () => source.close());
  }

  async function start() {
    const answer = await fetch(section.dataset.curve);
    if (!answer.ok) return;
    const curve = await answer.json();
    curve.points.forEach(add);
    draw();
    if ("live" in section.dataset) follow(curve.last_event_id);
  }

  new ResizeObserver(() => {
    for (const plot of charts) {
      const width = plot.root.parentElement.clientWidth;
      if (width && width !== plot.width) plot.setSize({ width, height: HEIGHT });
    }
  }).observe(section);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (charts.length) build(); });
  start();
})();
