// The smaller parts of the page: list of models, notices, holds, conditions, GPUs and migrations.
import { NONE, counting, duration, h, milliseconds, number, percent, plural, words } from "./format.js";

const STATES = { steady: ["steady", ""], attention: ["attention", "warn"], paused: ["paused", "warn"], advisory: ["advice only", "on"] };
const TARGET = 0.95;
const FLOWS = 8;

const drawn = new WeakMap();
// Draw only what changed, so that focus, selection and the reading position stay.
function once(root, data, build) {
  const signature = JSON.stringify(data);
  if (drawn.get(root) === signature) return;
  drawn.set(root, signature);
  root.replaceChildren(...[build()].flat().filter(Boolean));
}

export function drawFleet(root, rows, chosen, choose) {
  once(root, [rows, chosen], () => {
    const heads = ["Model", "State", "Workers", "Load", "KV", "Waiting", "TTFT", "ITL", "Within TTFT", "Within ITL", "Last decision"];
    const body = rows.map((row) => {
      const link = h("a", { href: `#${encodeURIComponent(row.model)}`, "aria-current": row.model === chosen ? "true" : null }, row.model);
      const [text, kind] = STATES[row.state];
      const moving = row.starting ? `+${row.starting}` : row.draining ? `−${row.draining}` : "";
      const line = h("tr", { "data-on": row.model === chosen },
        h("th", { scope: "row" }, link), h("td", {}, h("span", { class: `tag ${kind}` }, text)),
        h("td", { class: "num" }, `${row.ready} / ${row.desired} `, h("span", { class: "muted" }, moving)),
        h("td", { class: "num" }, row.requests_per_s === null ? NONE : `${number(row.requests_per_s)}/s`),
        h("td", { class: `num ${row.kv_usage_ratio >= 0.95 ? "miss" : row.kv_usage_ratio >= 0.8 ? "warm" : ""}` }, percent(row.kv_usage_ratio)),
        h("td", { class: "num" }, number(row.waiting_requests)),
        h("td", { class: "num" }, milliseconds(row.ttft_ms)), h("td", { class: "num" }, milliseconds(row.itl_ms)),
        met(row.ttft_attainment), met(row.itl_attainment),
        h("td", { class: "muted" }, row.decided_at_ms === null ? "none yet" : counting(row.decided_at_ms, "since")));
      line.addEventListener("click", (event) => { if (event.target.tagName !== "A") choose(row.model); });
      return line;
    });
    const numeric = new Set([2, 3, 4, 5, 6, 7, 8, 9]);
    return h("table", {}, h("thead", {}, h("tr", {}, heads.map((name, index) => h("th", { scope: "col", class: numeric.has(index) ? "num" : "" }, name)))), h("tbody", {}, body));
  });
}

const met = (ratio) => h("td", { class: `num ${ratio !== null && ratio < TARGET ? "miss" : ""}` }, percent(ratio));

export function drawBanners(root, agent, model, live, nowMs) {
  const found = [];
  const add = (kind, title, text) => found.push([kind, title, text]);
  if (live.state === "lost" && live.seenMs) add("warn", "Reconnecting…", `These figures are ${duration(nowMs - live.seenMs)} old.`);
  if (live.state === "refused") add("warn", "Too many pages are open.", "This one is tried again every 10 s.");
  if (agent && !agent.bus_connected) add("bad", "NATS is not connected.", "No load arrives, so nothing is decided.");
  if (agent && !agent.store_connected) add("bad", "etcd is not connected.", "Nothing can be decided until it answers.");
  if (agent && !agent.leading && agent.bus_connected) add("info", "This agent is a standby.", agent.leader ? `${agent.leader} leads and decides.` : "No agent leads yet.");
  if (agent?.config_problem) add("bad", "The changed configuration is not active.", agent.config_problem);
  if (agent?.restart_for.length) add("warn", "Restart the agent", `to apply ${agent.restart_for.join(", ")}.`);
  if (model?.paused) add("warn", `${model.model} is paused.`, "No scaling decisions and no migrations until it is resumed.");
  if (model?.no_operation) add("info", "Advice only.", "no_operation is set: decisions are explained here and not executed.");
  once(root, found, () => found.map(([kind, title, text]) => h("div", { class: `banner ${kind}` }, h("b", {}, title), h("span", {}, text))));
}

export function drawWaits(root, waits, model) {
  once(root, [waits, model.missing], () => {
    const missing = model.missing.map((text) => h("li", {}, text, h("span", { class: "tag warn" }, "missing")));
    const lines = waits.map((wait) => h("li", {}, wait.sentence, wait.until_ms ? h("span", { class: "tag on" }, counting(wait.until_ms, "until")) : ""));
    return missing.length + lines.length ? h("ul", { class: "facts" }, missing, lines) : h("p", { class: "muted" }, "Nothing holds: the next change of the load may cause a decision.");
  });
}

export function drawConditions(root, conditions) {
  once(root, conditions, () => (conditions.length ? h("ul", { class: "facts" }, conditions.map((one) => h("li", {},
    h("span", {}, spaced(one.name)), h("span", { class: `tag ${one.status ? "" : "warn"}` }, one.status ? "yes" : spaced(one.reason).toLowerCase()),
    one.status ? "" : h("span", { class: "sub" }, one.message), h("span", { class: "sub" }, "since ", counting(one.since_ms, "since"))))) : h("p", { class: "muted" }, "Known after the first round of planning.")));
}

const spaced = (name) => name.replace(/([a-z])([A-Z])/g, (_all, end, start) => `${end} ${start.toLowerCase()}`);

export function drawGpus(root, agent) {
  const { gpus, supplies } = agent;
  root.parentElement.hidden = !gpus && !supplies.length;
  once(root, [gpus, supplies], () => h("ul", { class: "facts gpu" },
    gpus ? supply("All models", gpus.occupied, gpus.gpu_budget_max, gpus.waiting, `${gpus.decided} decided${gpus.gpu_budget_min ? `, at least ${gpus.gpu_budget_min}` : ""}`) : null,
    supplies.map((one) => supply(one.supply, one.occupied, one.limit, one.waiting, ""))));
}

function supply(name, occupied, limit, waiting, more) {
  const bar = h("div", { class: "bar sub", "aria-hidden": "true" });
  const fill = h("i", { class: limit !== null && occupied > limit ? "over" : "" });
  fill.style.width = `${limit ? Math.min(100, (100 * occupied) / limit) : 0}%`;
  bar.append(fill);
  const wanting = Object.entries(waiting).map(([model, count]) => `${model} waits for ${count}`);
  const facts = [more, ...wanting].filter(Boolean).join(" · ");
  return h("li", {}, h("span", {}, name), h("span", {}, `${occupied} of ${limit ?? "unlimited"}`), bar, facts ? h("span", { class: "sub" }, facts) : "");
}

export function drawMigrations(root, migrations) {
  root.parentElement.hidden = !migrations;
  if (!migrations) return;
  once(root, migrations, () => {
    const flows = migrations.in_flight_commands.slice(0, FLOWS).map((one) => {
      const pipe = h("span", { class: "pipe", role: "img", "aria-label": `${one.moved} of ${one.requests} requests moved` }, h("i"));
      pipe.firstChild.style.width = `${one.requests ? (100 * one.moved) / one.requests : 0}%`;
      return h("li", {}, h("span", { class: "flow sub" }, h("span", { title: one.source }, one.source), pipe, h("span", { class: "to", title: one.destination }, one.destination)),
        h("span", { class: "sub" }, `${words(one.policy)} · ${one.phase} · ${one.moved} of ${plural(one.requests, "request")} · ${milliseconds(one.age_ms)}`));
    });
    const more = migrations.in_flight - flows.length;
    const totals = Object.entries(migrations.requests).map(([policy, count]) => h("li", {}, h("span", {}, words(policy)), h("span", {}, plural(count, "request"))));
    return h("ul", { class: "facts" }, flows, more > 0 ? h("li", {}, `and ${more} more in flight`) : "",
      migrations.in_flight ? "" : h("li", { class: "muted" }, "None in flight."), totals,
      migrations.silent ? h("li", {}, `${plural(migrations.silent, "worker")} do not answer migration commands`) : "");
  });
}
