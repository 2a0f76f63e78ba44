// Migrations as flows from worker to worker: those in flight, and those of the last five minutes.
import { h, plural, svg, words } from "./format.js";
import { once } from "./panels.js";

const SIDE_MAX = 8;
const ROW = 24;
const THICK = 20;

export function drawMigrations(root, migrations) {
  root.parentElement.hidden = !migrations;
  if (!migrations) return;
  const { in_flight_commands: running, in_flight, recent, requests, silent } = migrations;
  once(root, [running.map((one) => [one.command_id, one.phase, one.moved]), recent, requests, in_flight, silent], () => {
    const found = flows(running, recent);
    const policies = [...new Set([...Object.keys(requests), ...found.map((one) => one.policy)])].sort();
    return [
      found.length ? diagram(found, policies) : h("p", { class: "muted" }, "No request has moved in the last 5 minutes."),
      h("p", { class: "legend" }, policies.map((policy, index) => {
        const swatch = h("i", { class: "block" });
        swatch.style.setProperty("--c", `var(--s${index % 6})`);
        return h("span", { class: "key" }, swatch, `${words(policy)} `, h("b", {}, String(requests[policy] ?? 0)));
      }), h("span", { class: "key" }, "in flight ", h("b", {}, String(in_flight)))),
      silent ? h("p", { class: "warm" }, `${plural(silent, "worker")} ${silent === 1 ? "does" : "do"} not answer migration commands`) : "",
    ];
  });
}

// One flow for each pair of workers and policy, the largest first.
function flows(running, recent) {
  const found = new Map();
  const add = (one, requests, isRunning) => {
    const key = JSON.stringify([one.source, one.destination, one.policy]);
    const flow = found.get(key) ?? { source: one.source, destination: one.destination, policy: one.policy, requests: 0, isRunning: false };
    flow.requests += requests;
    flow.isRunning ||= isRunning;
    found.set(key, flow);
  };
  for (const one of recent) add(one, one.requests, false);
  for (const one of running) add(one, Math.max(1, one.requests), true);
  return [...found.values()].sort((a, b) => b.requests - a.requests);
}

function diagram(found, policies) {
  const sides = ["source", "destination"].map((end) => side(found, end));
  const rows = Math.max(...sides.map((names) => names.length));
  const scale = THICK / Math.max(...sides.flat().map(([, count]) => count));
  // The flows of a worker leave and arrive next to each other, in the order of the workers at their other ends.
  const [from, to] = sides.map((names, index) => {
    const ends = ["source", "destination"];
    const [end, other] = index ? ends.reverse() : ends;
    const next = names.map(([, count], row) => (row + (rows - names.length) / 2 + 0.5) * ROW - (count * scale) / 2);
    const places = new Map();
    const otherRow = (one) => at(sides[1 - index], one[other]);
    for (const one of found.toSorted((a, b) => otherRow(a) - otherRow(b))) {
      const row = at(names, one[end]);
      places.set(one, next[row] + (one.requests * scale) / 2);
      next[row] += one.requests * scale;
    }
    return places;
  });
  const lines = found.map((one) => {
    const path = svg("path", { d: `M0 ${from.get(one)}C50 ${from.get(one)} 50 ${to.get(one)} 100 ${to.get(one)}`,
      class: one.isRunning ? "running" : "", "stroke-width": Math.max(1, one.requests * scale) });
    path.style.setProperty("--c", `var(--s${policies.indexOf(one.policy) % 6})`);
    return path;
  });
  const picture = svg("svg", { viewBox: `0 0 100 ${rows * ROW}`, preserveAspectRatio: "none", "aria-hidden": "true" }, ...lines);
  picture.style.height = `${(rows * ROW) / 10}rem`;
  const list = (names, end) => h("ul", {}, names.map(([name, count]) => {
    const number = h("b", {}, String(count));
    return h("li", { title: name }, ...(end === "source" ? [name, " ", number] : [number, " ", name]));
  }));
  const said = found.slice(0, SIDE_MAX).map((one) => `${one.source} to ${one.destination} ${one.requests}`).join(", ");
  return h("div", { class: "flows", role: "img", "aria-label": `Requests that migrated in the last 5 minutes: ${said}` },
    list(sides[0], "source"), picture, list(sides[1], "destination"));
}

// Workers of one side and their requests, most first; the last place stands for all others if there are too many.
function side(found, end) {
  const counts = new Map();
  for (const one of found) counts.set(one[end], (counts.get(one[end]) ?? 0) + one.requests);
  const all = [...counts].sort((a, b) => b[1] - a[1]);
  if (all.length <= SIDE_MAX) return all;
  const others = all.slice(SIDE_MAX - 1);
  return [...all.slice(0, SIDE_MAX - 1), [`${others.length} others`, others.reduce((sum, [, count]) => sum + count, 0)]];
}

function at(names, name) {
  const found = names.findIndex(([one]) => one === name);
  return found < 0 ? names.length - 1 : found;
}
