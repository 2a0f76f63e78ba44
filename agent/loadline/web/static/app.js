// Puts the parts together: follows the chosen model, and draws what arrives once per frame of the screen.
import { Charts } from "./charts.js";
import { Decisions } from "./decisions.js";
import { drawMigrations } from "./flows.js";
import { duration, h, number, milliseconds, percent, updateTimes } from "./format.js";
import { Journal } from "./journal.js";
import { askToken, confirmPause } from "./orders.js";
import { LATE_MS, drawAlarms, drawBanners, drawConditions, drawFleet, drawGpus, drawWaits } from "./panels.js";
import { Pools } from "./pools.js";
import { follow, get } from "./stream.js";

const $$ = (id) => document.getElementById(id);
const root = document.documentElement;
const live = { state: "connecting", seenMs: 0 };
const charts = new Charts($$("charts"));
const pools = new Pools($$("pools"));
const decisions = new Decisions($$("decisions"), $$("legend"));
const journal = root.dataset.mode === "journal" ? new Journal($$("journal"), show, chosen) : null;
let fleet = null;
let model = null;
let stop = null;
let following = null;
let revision = -1;
let skewMs = 0;
let drawing = false;
let title = "";

function chosen() {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ""; }
}

const now = () => (journal ? model?.at_ms ?? 0 : Date.now() + skewMs);

function start() {
  if (journal) { journal.start(); return; }
  stop?.();
  following = chosen();
  model = null;
  revision = -1;
  charts.setHistory({ interval_ms: charts.intervalMs, times_ms: [], series: {} });
  stop = follow(following, onEvent, onState);
}

function onEvent(kind, data) {
  live.seenMs = Date.now() + skewMs;
  if (kind === "fleet") {
    fleet = data;
    skewMs = data.agent.at_ms - Date.now();
    live.seenMs = data.agent.at_ms;
    if (following && !data.rows.some((row) => row.model === following)) { location.hash = ""; return; }
  } else {
    const first = model === null;
    model = data;
    if (!first) charts.add(data.at_ms, data.point);
    if (first || data.interval_ms !== charts.intervalMs) loadHistory(data.status.model);
    if (data.decisions_revision !== revision) loadDecisions(data);
  }
  draw();
}

async function loadHistory(name) {
  try {
    const history = await get(`/api/history?model=${encodeURIComponent(name)}`);
    if (model?.status.model !== name) return; // another one was chosen meanwhile
    charts.setHistory(history);
    draw();
  } catch { /* the stream tells what is wrong, and the charts go on with what arrives */ }
}

async function loadDecisions(data) {
  revision = data.decisions_revision;
  try {
    const pages = await get(`/api/decisions?model=${encodeURIComponent(data.status.model)}`);
    if (model?.status.model === data.status.model) decisions.draw(pages, now(), true);
  } catch { revision = -1; }
}

function onState(state) {
  if (state === "denied") { askToken(start); setState("denied", "needs a token"); return; }
  if (live.state === "lost" && state === "live" && model) { revision = -1; loadHistory(model.status.model); }
  setState(state, state === "refused" ? "too many pages" : "connecting…");
  draw();
}

function setState(state, text) {
  live.state = state;
  $$("live").dataset.state = state;
  if (state !== "live") $$("live").lastElementChild.textContent = text;
}

// Everything that a time in the journal shows at once.
function show(frame) {
  fleet = frame.fleet;
  model = frame.model;
  setState("journal", "journal");
  charts.setHistory(frame.history);
  decisions.draw(frame.decisions, now(), true);
  draw();
}

function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; drawNow(); });
}

function drawNow() {
  const agent = fleet?.agent;
  drawBanners($$("banners"), agent, model?.status, live, Date.now() + skewMs);
  if (!fleet) { empty("Connecting to the agent…", "The first figures follow within a second."); return; }
  const share = agent.sharing;
  if (model) $$("empty").hidden = true;
  else if (fleet.rows.length) empty("Loading…", "");
  else if (share) empty("This agent leads no shard now.", "It stands by for the others.");
  else empty("No model is configured.", "");
  const leads = agent.leading ? `leads, epoch ${agent.epoch}` : "standby";
  const role = share ? `leads ${share.led.length} of ${share.shards} shards` : leads;
  const process = journal ? [] : [agent.version, `up ${duration(agent.uptime_ms)}`];
  $$("agent").textContent = [agent.agent, role, ...process].join(" · ");
  const name = `${model?.status.model ?? agent.agent} · loadline`;
  if (name !== title) { document.title = name; title = name; }
  drawAlarms($$("alarms"), agent.alarms);
  $$("fleet").hidden = !fleet.rows.length;
  drawFleet($$("fleet"), fleet.rows, model?.status.model, (name) => { location.hash = encodeURIComponent(name); });
  $$("model").hidden = !model;
  if (model) drawModel(model.status);
  tick();
}

function empty(text, more) {
  $$("empty").hidden = false;
  $$("empty").replaceChildren(h("b", {}, text), more);
}

function drawModel(status) {
  $$("name").textContent = status.model;
  const objectives = Object.entries(status.objectives).map(([key, value]) => {
    if (key === "attainment") return `${percent(value)} of requests`;
    return key.endsWith("_ms") ? `${key.slice(0, -3).toUpperCase()} ${milliseconds(value)}` : `${key} ${number(value)}`;
  });
  const facts = [`${status.planner} planner`, objectives.length ? `objective ${objectives.join(", ")}` : "", status.traffic.requests_per_s === null ? "no frontend reports traffic" : ""];
  $$("facts").textContent = facts.filter(Boolean).join(" · ");
  drawActions(status);
  pools.draw(status.pools, model.workers, status.epoch > 0);
  charts.draw(status.pools.map((pool) => pool.pool), status.objectives, now());
  decisions.draw(decisions.pages, now(), false);
  drawWaits($$("waits"), model.waits, status);
  drawConditions($$("conditions"), status.conditions);
  drawGpus($$("gpus"), fleet.agent);
  drawMigrations($$("migrations"), status.migrations);
}

function drawActions(status) {
  const able = root.dataset.orders === "yes" && !journal && fleet.agent.leading;
  const signature = `${able} ${status.model} ${status.paused}`;
  if ($$("actions").dataset.signature === signature) return;
  $$("actions").dataset.signature = signature;
  if (!able) { $$("actions").replaceChildren(); return; }
  const button = h("button", { class: "button", type: "button" }, status.paused ? "Resume" : "Pause");
  button.addEventListener("click", () => confirmPause(status.model, !status.paused));
  $$("actions").replaceChildren(button);
}

function tick() {
  updateTimes(now());
  if (journal) return;
  const ageMs = Date.now() + skewMs - live.seenMs;
  if (live.state === "live" && live.seenMs) {
    setText(ageMs < 3000 ? "live" : `last status ${duration(ageMs)} ago`);
    $$("live").dataset.state = ageMs < LATE_MS ? "live" : "lost";
  }
  if (live.state === "lost") setText(live.seenMs ? `reconnecting… ${duration(ageMs)} old` : "reconnecting…");
}

function setText(text) {
  const place = $$("live").lastElementChild;
  if (place.textContent !== text) place.textContent = text;
}

$$("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("loadline-theme", root.dataset.theme); } catch { /* for this view only */ }
  draw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
addEventListener("hashchange", start);
setInterval(() => { drawBanners($$("banners"), fleet?.agent, model?.status, live, Date.now() + skewMs); tick(); }, 1000);
draw();
start();
