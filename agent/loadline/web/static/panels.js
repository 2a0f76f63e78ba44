// The smaller parts of the page: list of models, notices, alarms, holds, conditions and GPUs.
import { NONE, counting, duration, h, milliseconds, number, percent, plural, words } from "./format.js";

const STATES = {
  attention: ["attention", "warn"], standby: ["standby", ""], paused: ["paused", "warn"], advisory: ["advice only", "on"], scaling: ["scaling", "on"], steady: ["steady", ""],
};
const MANY = 12;
export const LATE_MS = 5000; // an agent sends a status each second
// Columns of the list of models; c1 is left out on phones, c1 and c2 are the first to go on narrower windows.
const HEADS = [["Model", ""], ["State", ""], ["Workers", "num"], ["Load", "num c1"], ["KV", "num c1"], ["Waiting", "num c1 c2"],
  ["TTFT", "num c1"], ["ITL", "num c1"], ["Within TTFT", "num"], ["Within ITL", "num"], ["Last decision", "c1 c2"]];

const drawn = new WeakMap();
// Draw only what changed, so that focus, selection and the reading position stay.
export function once(root, data, build) {
  const signature = JSON.stringify(data);
  if (drawn.get(root) === signature) return;
  drawn.set(root, signature);
  root.replaceChildren(...[build()].flat().filter(Boolean));
}

export function drawFleet(root, rows, chosen, choose) {
  const [scrolled, focused] = [root.querySelector(".many")?.scrollTop, root.contains(document.activeElement) && document.activeElement];
  once(root, [rows, chosen], () => {
    const body = rows.map((row) => {
      const link = h("a", { href: `#${encodeURIComponent(row.model)}`, "aria-current": row.model === chosen ? "true" : null }, row.model);
      const [text, kind] = STATES[row.state];
      const moving = row.starting ? ` +${row.starting}` : row.draining ? ` −${row.draining}` : "";
      const warm = row.kv_usage_ratio >= 0.95 ? "miss" : row.kv_usage_ratio >= 0.8 ? "warm" : "";
      const [late, slow] = [row.ttft_missed ? "miss" : "", row.itl_missed ? "miss" : ""];
      const cells = [
        ["", h("span", { class: `tag ${kind}` }, text)], ["", row.desired === null ? String(row.ready) : `${row.ready} / ${row.desired}`, h("span", { class: "muted" }, moving)],
        ["", row.requests_per_s === null ? NONE : `${number(row.requests_per_s)}/s`], [warm, percent(row.kv_usage_ratio)],
        ["", number(row.waiting_requests)], [late, milliseconds(row.ttft_ms)], [slow, milliseconds(row.itl_ms)],
        [late, percent(row.ttft_attainment)], [slow, percent(row.itl_attainment)],
        ["muted", row.state === "standby" ? NONE : row.decided_at_ms === null ? "none yet" : counting(row.decided_at_ms, "since")]];
      const line = h("tr", { "data-on": row.model === chosen }, h("th", { scope: "row" }, link),
        cells.map(([kind, ...content], index) => h("td", { class: `${HEADS[index + 1][1]} ${kind}`.trim() }, content)));
      line.addEventListener("click", (event) => { if (event.target.tagName !== "A") choose(row.model); });
      return line;
    });
    const table = h("table", {}, h("thead", {}, h("tr", {}, HEADS.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))), h("tbody", {}, body));
    if (rows.length <= MANY) return table;
    return [h("p", { class: "sum" }, ...sums(rows)), h("div", { class: "many", tabindex: "0", role: "group", "aria-label": "List of models" }, table)];
  });
  // Rates change with each status: a reader must not lose the place in a long list.
  const list = root.querySelector(".many");
  const same = focused && !focused.isConnected && (focused.href ? root.querySelector(`a[href="${CSS.escape(focused.getAttribute("href"))}"]`) : list);
  if (same) same.focus({ preventScroll: true });
  if (list && scrolled) list.scrollTop = scrolled;
}

// What a long list has in it, before anybody scrolls.
function sums(rows) {
  const states = Object.entries(STATES).map(([state, [text]]) => [text, rows.filter((row) => row.state === state).length]);
  const workers = rows.reduce((total, row) => total + row.ready, 0);
  const facts = [[plural(rows.length, "model")], [plural(workers, "ready worker")], ...states.filter(([, count]) => count).map(([text, count]) => [text, count])];
  return facts.flatMap(([text, count], index) => [index ? " · " : "", count === undefined ? h("b", {}, text) : `${count} ${text}`]);
}

// Alarms of the last hour: the newest at once, all when opened.
export function drawAlarms(root, alarms) {
  root.hidden = !alarms.length;
  const open = root.querySelector("details")?.open ?? false;
  once(root, alarms, () => alarms.length && h("details", { class: "banner warn alarms", open },
    h("summary", {}, h("b", {}, `${plural(alarms.length, "alarm")} in the last hour`), h("span", {}, `${title(alarms[0])}: ${alarms[0].text}`)),
    h("ul", {}, alarms.map((one) => h("li", {}, h("b", {}, title(one)),
      h("span", {}, one.text, one.count > 1 ? h("span", { class: "muted" }, ` · ${one.count} times`) : "",
        one.action ? h("span", { class: "action" }, one.action) : ""), counting(one.at_ms, "since"))))));
}

const title = (alarm) => (alarm.model ? `${words(alarm.kind)}, ${alarm.model}` : words(alarm.kind));

export function drawBanners(root, agent, model, live, nowMs) {
  const found = [];
  const add = (kind, title, text) => found.push([kind, title, text]);
  if (live.state === "lost" && live.seenMs) add("warn", "Reconnecting…", `These figures are ${duration(nowMs - live.seenMs)} old.`);
  if (live.state === "live" && live.seenMs && nowMs - live.seenMs >= LATE_MS) add("warn", "The agent is silent.", `These figures are ${duration(nowMs - live.seenMs)} old. If this lasts, check that it is not stopped and has processor time.`);
  if (live.state === "refused") add("warn", "Too many pages are open.", "This one is tried again every 10 s.");
  if (agent && !agent.bus_connected) add("bad", "NATS is not connected.", "No load arrives, so nothing is decided.");
  if (agent && !agent.store_connected) add("bad", "etcd is not connected.", "Nothing can be decided until it answers.");
  const others = agent?.sharing?.agents.filter((name) => name !== agent.agent) ?? [];
  if (others.length) add("info", "This page has the models that this agent leads.", `The others are on the pages of ${others.join(", ")}.`);
  else if (agent && !agent.leading && agent.bus_connected) add("info", "This agent is a standby.", agent.leader ? `${agent.leader} leads and decides.` : "No agent leads yet.");
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
    h("span", {}, spaced(one.name)),
    h("span", {}, h("span", { class: "since" }, counting(one.since_ms, "for")), h("span", { class: `tag ${one.status ? "" : "warn"}` }, one.status ? "yes" : spaced(one.reason).toLowerCase())),
    one.status ? "" : h("span", { class: "sub" }, one.message)))) : h("p", { class: "muted" }, "Known after the first round of planning.")));
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
