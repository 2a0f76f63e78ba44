// The charts of one model: the last hour, appended to as points arrive.
import { clock, h, milliseconds, minute, number, percent } from "./format.js";

const HOUR_S = 3600;
const TONES = 6;
const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
const STEPS_S = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600];

// Each chart: its title, its lines, the format of its values, and a fixed range if it has one.
function definitions(pools, objectives) {
  const byPool = (kind, more = {}) => pools.map((pool, index) => ({ key: `${kind}:${pool}`, name: pool, tone: index, ...more }));
  const objective = (value) => (value ? [{ constant: value, name: "objective", tone: "limit", dash: true }] : []);
  return [
    { title: "Load, requests/s", format: number, lines: [
      { key: "high", name: "", tone: "band" }, { key: "low", name: "", tone: "band" },
      { key: "served", name: "capacity", tone: "limit" },
      { key: "expected", name: "forecast", tone: 0, dash: true }, { key: "rate", name: "observed", tone: 0, fill: true }],
      bands: [{ series: [1, 2] }] },
    { title: "Workers", format: number, whole: true, lines: [{ constant: null, name: "desired", tone: "limit", dash: true }, ...pools.flatMap((pool, index) => [
      { key: `desired:${pool}`, name: "", tone: index, dash: true, stepped: true },
      { key: `ready:${pool}`, name: pool, of: `desired:${pool}`, tone: index, stepped: true }])] },
    { title: "KV cache in use", format: percent, range: [0, 1], lines: byPool("kv") },
    { title: "TTFT", format: milliseconds, lines: [...objective(objectives.ttft_ms), { key: "ttft", name: "mean", tone: 0, fill: true }] },
    { title: "ITL", format: milliseconds, lines: [...objective(objectives.itl_ms), { key: "itl", name: "mean", tone: 0, fill: true }] },
    { title: "Requests within objectives", format: percent, top: 1, lines: [
      { key: "ttft_met", name: "TTFT", tone: 0 }, { key: "itl_met", name: "ITL", tone: 1 }] },
  ];
}

export class Charts {
  constructor(root) {
    this.root = root;
    this.points = [];
    this.intervalMs = 5000;
    this.charts = [];
    this.signature = "";
    this.said = h("p", { class: "sr", role: "status" });
    new ResizeObserver(() => this.resize()).observe(root);
  }

  setHistory(history) {
    this.intervalMs = history.interval_ms;
    const names = Object.keys(history.series);
    this.points = history.times_ms.map((at, index) => {
      const point = { at };
      for (const name of names) point[name] = history.series[name][index];
      return point;
    });
  }

  // A point replaces the last one of the same interval, as in the agent's history.
  add(at, values) {
    const last = this.points.at(-1);
    if (last && at < last.at) return;
    if (last && Math.floor(at / this.intervalMs) === Math.floor(last.at / this.intervalMs)) this.points.pop();
    this.points.push({ at, ...values });
    const oldest = at - HOUR_S * 1000;
    if (this.points[0].at < oldest - 60000) this.points = this.points.filter((point) => point.at >= oldest);
  }

  draw(pools, objectives, nowMs) {
    const signature = JSON.stringify([pools, objectives, document.documentElement.dataset.theme || "", matchMedia("(prefers-color-scheme: dark)").matches, rem()]);
    const found = definitions(pools, objectives);
    if (signature !== this.signature) { this.signature = signature; this.build(found); }
    const columns = this.columns(nowMs);
    for (const chart of this.charts) this.fill(chart, columns, nowMs);
  }

  // All times: those of the points, those until which the forecast reaches, and a gap where the agent did not run.
  columns(nowMs) {
    const rows = [];
    for (const point of this.points) {
      const last = rows.at(-1);
      if (last && point.at - last.at > 4 * this.intervalMs) rows.push({ at: last.at + this.intervalMs });
      rows.push({ ...point });
    }
    const forecasts = newestForecasts(this.points);
    let place = 0;
    for (const row of rows) {
      while (place + 1 < forecasts.length && forecasts[place + 1].at <= row.at) place += 1;
      const ageMs = forecasts.length ? row.at - forecasts[place].at : -1;
      if (ageMs >= 0 && ageMs <= 4 * this.intervalMs) setForecast(row, forecasts[place]);
    }
    for (const forecast of forecasts.filter((one) => one.at > nowMs)) rows.push(setForecast({ at: forecast.at }, forecast));
    return rows;
  }

  build(found) {
    for (const chart of this.charts) chart.plot?.destroy();
    this.charts = found.map((definition) => {
      const lines = definition.lines.map((line) => ({ ...line, colour: tone(line.tone) }));
      const place = h("div", { class: "plot" });
      const values = new Map();
      const keys = lines.filter((line) => line.name).map((line) => {
        const value = h("b");
        if (line.constant !== null) values.set(line, value); // null: a key without a line
        const swatch = h("i", { class: line.dash ? "dash" : "" });
        swatch.style.setProperty("--c", line.colour);
        return h("span", { class: "key" }, swatch, `${line.name} `, value);
      });
      const figure = h("figure", { class: "chart" }, h("figcaption", {}, h("b", {}, definition.title), ...keys), place);
      const chart = { definition, lines, place, values, figure, plot: null, grid: colour("--line"), text: colour("--faint"), unit: rem() };
      place.addEventListener("keydown", (event) => this.move(chart, event));
      place.addEventListener("blur", () => this.point(chart, null));
      return chart;
    });
    this.root.replaceChildren(...this.charts.map((chart) => chart.figure), this.said);
  }

  fill(chart, rows, nowMs) {
    const known = chart.lines.some((line) => line.key && rows.some((row) => row[line.key] !== null && row[line.key] !== undefined));
    if (!known || rows.length < 2) {
      chart.plot?.destroy();
      chart.plot = null;
      chart.place.removeAttribute("tabindex");
      const text = this.points.length < 2 ? "collecting the first points…" : "not reported";
      if (chart.place.textContent !== text) chart.place.replaceChildren(h("p", { class: "none" }, text));
      return;
    }
    const data = [rows.map((row) => row.at / 1000)];
    for (const line of chart.lines) data.push(rows.map((row) => (line.constant !== undefined ? line.constant : row[line.key] ?? null)));
    chart.nowMs = nowMs;
    if (chart.plot === null) {
      chart.place.replaceChildren();
      chart.place.tabIndex = 0;
      chart.plot = this.plot(chart, data);
    } else chart.plot.setData(data);
    if (document.activeElement !== chart.place) this.caption(chart, null);
  }

  caption(chart, index) {
    const data = chart.plot?.data;
    if (!data) return;
    const said = [];
    const newest = data[0].findLastIndex((at) => at * 1000 <= chart.nowMs);
    for (const [line, element] of chart.values) {
      const column = data[chart.lines.indexOf(line) + 1];
      const value = index !== null ? column[index] : line.key === "expected" ? column.findLast((one) => one !== null) : column[newest];
      const of = line.of ? data[chart.lines.findIndex((other) => other.key === line.of) + 1] : null;
      const text = [value, ...(of ? [of[index ?? newest]] : [])].map(chart.definition.format).join(" / ");
      element.parentElement.hidden = !column.some((one) => one !== null);
      if (element.textContent !== text) element.textContent = text;
      said.push(`${line.name} ${text}`);
    }
    if (index !== null) return said;
    chart.place.setAttribute("role", "img");
    chart.place.setAttribute("aria-label", `${chart.definition.title}: ${said.join(", ")}`);
  }

  // The arrow keys move the cursor of a chart from point to point, and say the values.
  move(chart, event) {
    const last = chart.plot ? chart.plot.data[0].length - 1 : -1;
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -last, End: last }[event.key];
    if (step === undefined || last < 0) return;
    event.preventDefault();
    const at = Math.max(0, Math.min(last, (chart.plot.cursor.idx ?? last) + step));
    this.point(chart, at);
    this.said.textContent = `${clock(chart.plot.data[0][at] * 1000)}: ${this.caption(chart, at).join(", ")}`;
  }

  point(chart, index) {
    if (!chart.plot) return;
    const left = index === null ? -10 : chart.plot.valToPos(chart.plot.data[0][index], "x");
    chart.plot.setCursor({ left, top: index === null ? -10 : 0 });
  }

  plot(chart, data) {
    const { definition, lines, unit } = chart;
    const axis = { stroke: chart.text, font: `${1.1 * unit}px system-ui`, grid: { stroke: chart.grid, width: 1 }, ticks: { show: false } };
    return new uPlot({
      width: chart.place.clientWidth || 320,
      height: chart.place.clientHeight || 150,
      padding: [6, 8, 0, 0],
      legend: { show: false },
      cursor: { sync: { key: "loadline" }, points: { size: 5 }, drag: { x: false, y: false }, y: false },
      scales: {
        x: { time: true, range: (_plot, low, high) => [Math.min(low, high - 120), high] },
        y: { range: (_plot, low, high) => span(definition, low, high) },
      },
      axes: [
        { ...axis, size: 2.8 * unit, gap: 0.7 * unit, grid: { show: false }, space: 7.6 * unit, incrs: STEPS_S, values: times },
        { ...axis, size: 5 * unit, gap: 0.4 * unit, space: 3.4 * unit, incrs: definition.whole ? WHOLE_STEPS : undefined,
          values: (_plot, ticks) => ticks.map((tick) => definition.format(tick)) },
      ],
      series: [{}, ...lines.map((line) => ({
        stroke: line.tone === "band" ? "transparent" : line.colour,
        width: line.tone === "limit" ? 1 : 1.5,
        dash: line.dash ? [4, 4] : undefined,
        fill: line.fill ? faded(line.colour, 0.08) : undefined,
        paths: line.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
        points: { show: false },
        spanGaps: false,
      }))],
      bands: (definition.bands || []).map((band) => ({ ...band, fill: faded(tone(0), 0.17) })),
      hooks: { setCursor: [(plot) => this.caption(chart, plot.cursor.idx ?? null)] },
    }, data, chart.place);
  }

  resize() {
    for (const chart of this.charts) chart.plot?.setSize({ width: chart.place.clientWidth, height: chart.place.clientHeight });
  }
}

// The forecasts by the time that they are for. A later one replaces those for later times, as when the lead shrinks.
function newestForecasts(points) {
  const found = [];
  for (const point of points) {
    if (point.forecast === null || point.forecast === undefined) continue;
    const at = point.at + point.forecast_lead_ms;
    while (found.length && found.at(-1).at >= at) found.pop();
    found.push({ at, value: point.forecast, error: point.forecast_error });
  }
  return found;
}

function setForecast(row, forecast) {
  const error = forecast.error ?? 0;
  return Object.assign(row, { expected: forecast.value, low: forecast.value * (1 - error), high: forecast.value * (1 + error) });
}

function span(definition, low, high) {
  if (definition.range) return definition.range;
  if (definition.top !== undefined) return [Math.max(0, Math.min(0.9, (low ?? 0.9) - 0.02)), 1.005];
  const most = Math.max(high ?? 1, 1e-3);
  return [0, definition.whole ? Math.ceil(most * 1.15) : most * 1.15];
}

// Labels of the time axis; one that would be cut off at the right edge is left out.
function times(plot, ticks) {
  const format = plot.scales.x.max - plot.scales.x.min < 600 ? clock : minute;
  const last = plot.over.clientWidth - 2.4 * rem();
  return ticks.map((tick) => (plot.over.clientWidth && plot.valToPos(tick, "x") > last ? "" : format(tick * 1000)));
}

function tone(kind) {
  if (kind === "limit") return colour("--faint");
  return kind === "band" ? "transparent" : colour(`--s${kind % TONES}`);
}

const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

// A colour of the style sheet as the present theme has it: canvas knows neither var() nor light-dark().
function colour(name) {
  const probe = document.body.appendChild(h("i", { hidden: true }));
  probe.style.color = `var(${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const faded = (rgb, alpha) => rgb.replace("rgb(", "rgba(").replace(")", `, ${alpha})`);
