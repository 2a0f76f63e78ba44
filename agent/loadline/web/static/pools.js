// A card for each pool: counts, and its workers as a grid of cells that are changed in place.
import { NONE, counting, h, milliseconds, number, percent, plural, words } from "./format.js";

const HOT = 80;
const FULL = 95;
const MANY = 240;
const LEGEND = [["hot", `from ${HOT}`], ["full", `from ${FULL}`], ["starting", "starting"], ["draining", "draining"],
  ["silent", "silent for 10 s"], ["unschedulable", "unschedulable"]];
const KEYS = { ArrowRight: 1, ArrowLeft: -1 };

export class Pools {
  constructor(root) {
    this.root = root;
    this.cards = new Map();
  }

  draw(pools, workers, leads) {
    const names = pools.map((pool) => pool.pool);
    if ([...this.cards.keys()].join("\n") !== names.join("\n")) {
      this.cards = new Map(names.map((name) => [name, new Card(name)]));
      this.root.replaceChildren(...[...this.cards.values()].map((card) => card.element));
    }
    for (const pool of pools) this.cards.get(pool.pool).draw(pool, workers[pool.pool] || [], leads);
  }
}

class Card {
  constructor(name) {
    this.head = h("header");
    this.bar = h("div", { class: "bar", "aria-hidden": "true" });
    this.stats = h("div", { class: "stats" });
    this.grid = h("div", { class: "grid", role: "group", "aria-label": `Workers of pool ${name}; arrow keys move` });
    this.about = h("p", { class: "about" });
    this.element = h("section", { class: "panel pool", "aria-label": `Pool ${name}` }, this.head, this.bar, this.stats, this.grid, this.about);
    this.cells = new Map();
    this.chosen = "";
    this.signature = "";
    this.grid.addEventListener("keydown", (event) => this.move(event));
    this.grid.addEventListener("focusin", (event) => this.choose(event.target));
    this.grid.addEventListener("pointerover", (event) => this.choose(event.target, false));
    this.grid.addEventListener("pointerleave", () => this.describe());
  }

  draw(pool, workers, leads) {
    const signature = JSON.stringify({ ...pool, changes: null, leads });
    if (signature !== this.signature) { this.signature = signature; this.drawHead(pool, leads); }
    this.grid.classList.toggle("many", workers.length > MANY);
    const seen = new Set();
    const added = [];
    for (const [name, state, kv, waiting, running] of workers) {
      seen.add(name);
      let cell = this.cells.get(name);
      if (!cell) {
        cell = { element: h("button", { type: "button", class: "w", tabindex: "-1" }), signature: "" };
        cell.element.dataset.worker = name;
        this.cells.set(name, cell);
        added.push(cell.element);
      }
      const changed = `${state} ${kv} ${waiting} ${running}`;
      if (cell.signature === changed) continue;
      cell.signature = changed;
      cell.element.className = `w ${state}${state === "ready" ? heat(kv) : ""}`;
      cell.element.style.setProperty("--kv", kv ?? 0);
      cell.element.textContent = state === "starting" ? "···" : state === "silent" ? "?" : kv ?? NONE;
      cell.text = `${name}: ${words(state)}, KV ${kv === null ? "unknown" : `${kv}%`}, ${waiting} waiting, ${running} running`;
      cell.element.setAttribute("aria-label", cell.text);
    }
    for (const [name, cell] of this.cells) if (!seen.has(name)) { cell.element.remove(); this.cells.delete(name); }
    this.grid.append(...added);
    const first = this.grid.firstElementChild;
    if (first && !this.grid.querySelector('[tabindex="0"]')) first.tabIndex = 0;
    this.workers = workers.length;
    this.states = new Set(workers.map(([, state, kv]) => (state === "ready" ? heat(kv).trim() || state : state)));
    this.total = pool.ready + pool.starting + pool.draining;
    this.describe();
  }

  // A standby does not know what the leader has decided.
  drawHead(pool, leads) {
    const desired = leads ? pool.desired : 0;
    const pending = leads ? pool.pending : 0;
    const settled = leads && pool.ready === desired;
    const silent = pool.ready - pool.fresh;
    const load = (value) => (silent && !pool.fresh ? NONE : value);
    this.head.replaceChildren(
      h("h3", {}, pool.pool), h("span", { class: "muted" }, pool.role === pool.pool ? "" : pool.role),
      pool.accelerator_type ? h("span", { class: "muted" }, pool.accelerator_type) : "",
      pool.schedule_replicas_min ? h("span", { class: "tag on" }, `schedule: at least ${pool.schedule_replicas_min}`) : "",
      leads && pool.recommended !== null && pool.recommended !== desired ? h("span", { class: "tag on" }, `planner wants ${pool.recommended}`) : "",
      h("p", { class: "count" }, h("b", {}, String(pool.ready)), leads ? ` of ${desired} ready` : " ready"));
    const width = Math.max(desired, pool.ready + pool.starting + pending + pool.draining, 1);
    const part = (kind, count) => {
      const element = h("i", { class: kind });
      element.style.width = `${(100 * count) / width}%`;
      return count ? element : null;
    };
    this.bar.replaceChildren(...[part("ready", pool.ready), part("starting", pool.starting + pending), part("draining", pool.draining)].filter(Boolean));
    const stat = (name, value) => h("span", {}, h("b", {}, value), ` ${name}`);
    this.stats.replaceChildren(...[
      !settled && pool.starting ? stat("starting", String(pool.starting)) : null,
      pending ? stat("requested", String(pending)) : null,
      pool.draining ? stat("draining", String(pool.draining)) : null,
      silent > 0 ? stat("silent", String(silent)) : null,
      leads && pool.expected_ready_at_ms ? h("span", {}, "ready: ", h("b", {}, counting(pool.expected_ready_at_ms, "until"))) : null,
      stat("KV in use", pool.kv_reporting ?? pool.fresh ? percent(pool.kv_usage_ratio) : NONE),
      stat("waiting", load(number(pool.waiting_requests))), stat("running", load(number(pool.running_requests))),
      pool.start_up_ms ? stat("to start", milliseconds(pool.start_up_ms)) : null,
      pool.cost_per_hour !== null ? stat("per hour", number(pool.cost_per_hour)) : null].filter(Boolean));
  }

  choose(target, focused = true) {
    const cell = this.cells.get(target.dataset?.worker);
    if (!cell) return;
    if (focused) {
      this.grid.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
      target.tabIndex = 0;
    }
    this.say(cell.text);
  }

  // A text in place of the legend, which is drawn again afterwards.
  say(text) {
    delete this.about.dataset.legend;
    this.about.textContent = text;
  }

  describe() {
    const focused = this.grid.contains(document.activeElement) ? this.cells.get(document.activeElement.dataset.worker) : null;
    if (focused) this.say(focused.text);
    else if (!this.grid.matches(":hover")) this.drawLegend();
  }

  drawLegend() {
    if (!this.workers) {
      this.say(this.total ? `${plural(this.total, "worker")}; too many in the fleet to list` : "No worker is registered.");
      return;
    }
    const keys = LEGEND.filter(([state]) => this.states.has(state));
    const legend = keys.map(([state, text]) => h("span", {}, h("i", { class: `w swatch ${state}`, "aria-hidden": "true" }), text));
    const signature = keys.join();
    if (this.about.dataset.legend === signature) return;
    this.about.dataset.legend = signature;
    this.about.replaceChildren("KV cache in use by worker, %", ...legend);
  }

  move(event) {
    const cells = [...this.grid.children];
    const columns = getComputedStyle(this.grid).gridTemplateColumns.split(" ").length;
    const step = { ...KEYS, ArrowDown: columns, ArrowUp: -columns, Home: -cells.length, End: cells.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const place = cells.indexOf(document.activeElement) + step;
    cells[Math.max(0, Math.min(cells.length - 1, place))]?.focus();
  }
}

function heat(kv) {
  return kv >= FULL ? " full" : kv >= HOT ? " hot" : "";
}
