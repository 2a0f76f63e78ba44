// Numbers and times as the page shows them, and a helper that builds elements without HTML strings.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name in element && name !== "list" && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function svg(tag, properties = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

export const NONE = "–";

export function number(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  if (Number.isInteger(value) || size >= 100) return String(Math.round(value));
  return size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

export function exact(value) {
  return String(Number(value.toPrecision(6)));
}

export function percent(ratio) {
  if (ratio === null || ratio === undefined) return NONE;
  const value = 100 * ratio;
  return value > 99 && value < 100 ? `${(Math.floor(value * 100) / 100).toFixed(2)}%` : `${value.toFixed(value > 0 && value < 10 ? 1 : 0)}%`;
}

export function milliseconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value === 0) return "0 ms";
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${Math.round(value)} ms`;
  return value < 1e5 ? `${(value / 1000).toFixed(value < 1e4 ? 2 : 1)} s` : duration(value);
}

export function duration(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${(s / 3600).toFixed(1)} h` : `${Math.round(s / 86400)} d`;
}

const clockFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minuteFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const dayFormat = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" });
export const day = (ms) => dayFormat.format(ms);
export const clock = (ms) => clockFormat.format(ms);
export const minute = (ms) => minuteFormat.format(ms);

// Times that count: "12 s ago" or "in 40 s", by the agent's clock.
export function counting(atMs, kind) {
  return h("time", { datetime: new Date(atMs).toISOString(), "data-at": String(atMs), "data-kind": kind });
}

export function updateTimes(nowMs, root = document) {
  for (const element of root.querySelectorAll("time[data-at]")) {
    const at = Number(element.dataset.at);
    const text = element.dataset.kind === "until"
      ? (at > nowMs ? `${duration(at - nowMs)} left` : "due")
      : `${element.dataset.kind === "for" ? "for " : ""}${duration(nowMs - at)}${element.dataset.kind === "for" ? "" : " ago"}`;
    if (element.textContent !== text) element.textContent = text;
  }
}

export const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
export const words = (code) => code.replaceAll("_", " ");
