// Decisions on a line of the last hour, and as a list whose entries open to the explanation.
import { clock, counting, day, exact, h, minute, plural, words } from "./format.js";

const HOUR_MS = 3600000;
const SPAN_MIN_MS = 300000;
const SHOWN = 12;
const ENDS = { applied: "", refused: "bad", expired: "bad" };
const LEGEND = { up: "more workers", down: "fewer", same: "same counts again" };

export class Decisions {
  constructor(root, legend) {
    legend.append(...Object.entries(LEGEND).map(([kind, text]) => h("span", {}, h("i", { class: `mark ${kind}` }), text)));
    this.root = root;
    this.line = h("div", { class: "line", "aria-hidden": "true" });
    this.list = h("ol", { class: "log" });
    this.all = false;
    this.pages = [];
    this.more = h("button", { class: "button", type: "button", hidden: true }, "Show all");
    this.more.addEventListener("click", () => { this.all = true; this.draw(this.pages, this.nowMs, true); });
  }

  draw(pages, nowMs, changed) {
    this.nowMs = nowMs;
    if (changed) {
      this.pages = pages;
      const open = new Set([...this.list.querySelectorAll("details[open]")].map((one) => one.dataset.key));
      const shown = this.all ? pages : pages.slice(0, SHOWN);
      this.list.replaceChildren(...shown.map((page) => entry(page, nowMs, open.has(key(page)), page === pages[0])));
      this.more.hidden = shown.length === pages.length;
      this.more.textContent = `Show all ${pages.length}`;
      if (pages.length) this.root.replaceChildren(this.line, this.list, this.more);
      else this.root.replaceChildren(h("p", { class: "muted" }, "This agent has made no decision yet. When it changes a count, the reasons are here."));
    }
    // The line begins with the first decision while that is less than an hour ago, but is five minutes long at least.
    const first = this.pages.at(-1)?.at_ms ?? nowMs;
    const spanMs = Math.max(SPAN_MIN_MS, Math.min(HOUR_MS, 1.04 * (nowMs - first)));
    const from = nowMs - spanMs;
    const marks = this.pages.filter((page) => page.at_ms >= from).map((page) => this.mark(page, from, spanMs));
    const label = (share) => {
      const element = h("span", { class: share === 1 ? "now" : "" }, share === 1 ? "now" : minute(from + share * spanMs));
      if (share !== 1) element.style.left = `${100 * share}%`;
      return element;
    };
    this.line.replaceChildren(...[0, 0.25, 0.5, 0.75, 1].map(label), ...marks);
  }

  mark(page, from, spanMs) {
    const element = h("button", { class: `mark ${direction(page)}`, type: "button", tabindex: "-1", title: `${clock(page.at_ms)} ${summary(page)}` });
    element.style.left = `${(100 * (page.at_ms - from)) / spanMs}%`;
    element.addEventListener("click", () => this.open(page));
    return element;
  }

  open(page) {
    if (!this.all && this.pages.indexOf(page) >= SHOWN) { this.all = true; this.draw(this.pages, this.nowMs, true); }
    const found = [...this.list.querySelectorAll("details")].find((one) => one.dataset.key === key(page));
    if (!found) return;
    found.open = true;
    found.scrollIntoView({ block: "nearest" });
    found.querySelector("summary").focus();
  }
}

const key = (page) => `${page.at_ms} ${page.decision_id}`;
const changes = (page) => Object.entries(page.targets).filter(([pool, count]) => page.current[pool] !== count);
const summary = (page) => changes(page).map(([pool, count]) => `${pool} ${page.current[pool]} → ${count}`).join(", ") || "same counts again";

function direction(page) {
  const sum = changes(page).reduce((total, [pool, count]) => total + count - page.current[pool], 0);
  return sum > 0 ? "up" : sum < 0 ? "down" : "same";
}

// The page sees the states of the newest decision only: one of which it saw no end was replaced by the next.
function state(page, isNewest) {
  const tag = (kind, text) => h("span", { class: `tag ${kind}` }, text);
  if (page.outcome === "advised") return tag("on", "advice");
  if (page.superseded_by) return tag("", "superseded");
  if (page.state in ENDS) return tag(ENDS[page.state], page.state);
  if (!isNewest || !page.state) return tag("", "replaced");
  return tag("on", page.state === "committed" ? "waits for a scaler" : page.state);
}

function entry(page, nowMs, open, isNewest) {
  const time = day(page.at_ms) === day(nowMs) ? clock(page.at_ms) : `${day(page.at_ms).slice(5)} ${clock(page.at_ms)}`;
  const shown = changes(page).map(([pool, count]) => h("span", { class: "change" }, `${pool} ${page.current[pool]}`, h("span", { class: "arrow" }, "→"), String(count)));
  const reasons = [...page.recommendations.flatMap((one) => one.reasons), ...page.limits];
  const changed = changes(page).map(([pool]) => `${pool}: `);
  const why = reasons.find((reason) => changed.some((pool) => reason.startsWith(pool))) || reasons[0] || "";
  const details = h("details", { open },
    h("summary", {}, h("time", { datetime: new Date(page.at_ms).toISOString() }, time),
      h("span", {}, shown.length ? shown : "same counts again"), h("span", { class: "why" }, why), state(page, isNewest)));
  details.dataset.key = key(page);
  // The body is built when it is opened: most never are.
  const fill = () => { if (details.open && !details.querySelector(".more")) details.append(explanation(page)); };
  details.addEventListener("toggle", fill);
  fill();
  return h("li", {}, details);
}

function explanation(page) {
  const parts = [];
  for (const one of page.recommendations) {
    const targets = Object.entries(one.targets).map(([pool, count]) => `${pool} ${count}`).join(", ") || "no change";
    parts.push(h("div", {}, h("h4", {}, `The ${one.planner} planner recommends ${targets}`), list(one.reasons)));
    const inputs = Object.entries(one.inputs);
    if (inputs.length) parts.push(h("div", {}, h("h4", {}, "Inputs"), h("dl", { class: "inputs" }, inputs.map(([name, value]) => h("div", {}, h("dt", {}, words(name)), h("dd", {}, exact(value)))))));
  }
  parts.push(h("div", {}, h("h4", {}, page.limits.length ? plural(page.limits.length, "limit") : "No limit applied"), list(page.limits)));
  const result = Object.entries(page.targets).map(([pool, count]) => `${pool} ${page.current[pool]} → ${count}`).join(", ");
  parts.push(h("div", {}, h("h4", {}, "Result"), h("p", {}, result, " ", h("span", { class: "muted" }, counting(page.at_ms, "since"))),
    page.detail ? h("p", {}, `Scaler: ${page.detail}`) : "",
    page.superseded_by ? h("p", {}, `No scaler accepted it before decision ${page.superseded_by} took its place.`) : "",
    page.decision_id ? h("code", {}, `loadline explain ${page.decision_id}`) : ""));
  return h("div", { class: "more" }, parts);
}

const list = (sentences) => h("ul", {}, sentences.map((sentence) => h("li", {}, sentence)));
