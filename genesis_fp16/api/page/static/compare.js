// Loss of two runs by step, on one scale.
"use strict";
(async () => {
  const section = document.getElementById("compare");
  if (!section || !window.uPlot) return;
  const LOG_RATIO = 30, HEIGHT = 240; // as in curves.js; pixels
  const place = document.getElementById("compare-chart");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shown = (value) => value == null ? "–" : Number(value).toPrecision(4);
  const [first, second] = await Promise.all([section.dataset.first, section.dataset.second].map(
    async (url) => { const answer = await fetch(url); return answer.ok ? (await answer.json()).points : []; }));
  if (!first.length && !second.length) return;
  const losses = (points) => [points.map((point) => point.step), points.map((point) => point.loss ?? null)];
  const data = uPlot.join([losses(first), losses(second)]);
  const known = [...data[1], ...data[2]].filter((loss) => loss != null);
  const least = Math.min(...known), logarithmic = least > 0 && Math.max(...known) / least > LOG_RATIO;
  let plot = null;
  const last = (values, index) => {
    while (index >= 0 && values[index] == null) index -= 1;
    return index >= 0 ? values[index] : null;
  };
  function describe(index) {
    const at = index ?? data[0].length - 1;
    document.getElementById("compare-status").textContent =
      `Step ${data[0][at].toLocaleString("en")}: loss ${shown(last(data[1], at))} and ${shown(last(data[2], at))}`;
    section.dataset.points = data[0].length;
  }
  function build() {
    plot?.destroy();
    const line = { stroke: css("--muted"), grid: { stroke: css("--grid"), width: 1 }, ticks: { stroke: css("--grid"), width: 1 } };
    plot = new uPlot({
      width: place.clientWidth, height: HEIGHT, padding: [12, 24, 0, 0], legend: { show: false },
      cursor: { y: false }, scales: { x: { time: false }, y: logarithmic ? { distr: 3 } : {} },
      axes: [
        { ...line, size: 34, label: "step", labelSize: 18 },
        { ...line, label: logarithmic ? "loss (log)" : "loss", labelSize: 20, size: 62,
          values: (_, splits) => splits.map((tick) => tick == null ? "" : shown(tick)) },
      ],
      series: [{}, { stroke: css("--loss"), width: 2, spanGaps: true, points: { show: false } },
        { stroke: css("--overflow"), width: 2, dash: [6, 4], spanGaps: true, points: { show: false } }],
      hooks: { setCursor: [(self) => describe(self.cursor.idx)] },
    }, data, place);
    describe(null);
  }
  build();
  new ResizeObserver(() => {
    if (place.clientWidth && place.clientWidth !== plot.width) plot.setSize({ width: place.clientWidth, height: HEIGHT });
  }).observe(section);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", build);
})();
