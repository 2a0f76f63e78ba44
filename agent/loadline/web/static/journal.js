// The slider of `loadline view`: asks for the fleet at a time of the journal, one request at a time.
import { clock, day, duration, h } from "./format.js";

export class Journal {
  constructor(root, show, chosen) {
    this.root = root;
    this.show = show;
    this.chosen = chosen;
    this.wanted = null;
    this.busy = false;
  }

  async start() {
    if (this.span) { this.seek(Number(this.slider.value)); return; }
    try { this.span = await (await fetch("/api/journal")).json(); } catch { setTimeout(() => this.start(), 1000); return; }
    const { from_ms: from, to_ms: to } = this.span;
    this.slider = h("input", { type: "range", min: String(from), max: String(to), step: "1000", value: String(to), "aria-label": "Time in the journal" });
    this.text = h("output", {});
    this.note = h("span", { class: "muted", role: "status" });
    const step = (seconds, label, name) => {
      const button = h("button", { class: "button", type: "button", "aria-label": name }, label);
      button.addEventListener("click", () => this.seek(Number(this.slider.value) + seconds * 1000));
      return button;
    };
    this.slider.addEventListener("input", () => this.seek(Number(this.slider.value)));
    this.root.replaceChildren(h("div", { class: "row" }, step(-60, "−1 min", "One minute back"), step(-5, "−5 s", "Five seconds back"),
      this.slider, step(5, "+5 s", "Five seconds on"), step(60, "+1 min", "One minute on"), this.text, this.note));
    this.root.hidden = false;
    this.seek(to);
  }

  seek(at) {
    const { from_ms: from, to_ms: to } = this.span;
    const time = Math.max(from, Math.min(to, at));
    this.slider.value = String(time);
    const text = `${day(time)} ${clock(time)}`;
    this.text.textContent = text;
    this.slider.setAttribute("aria-valuetext", text);
    this.wanted = time;
    if (!this.busy) this.load();
  }

  async load() {
    this.busy = true;
    while (this.wanted !== null) {
      const time = this.wanted;
      this.wanted = null;
      const slow = setTimeout(() => { this.note.textContent = "replaying…"; }, 150);
      try {
        const answer = await fetch(`/api/at?ms=${Math.round(time)}&model=${encodeURIComponent(this.chosen())}`);
        if (!answer.ok) throw new Error((await answer.text()).trim());
        const frame = await answer.json();
        const late = time - frame.fleet.agent.at_ms;
        this.note.textContent = frame.problem || (late > 5000 ? `last turn ${duration(late)} before` : "");
        if (this.wanted === null) this.show(frame);
      } catch (error) { this.note.textContent = error.message; }
      clearTimeout(slow);
    }
    this.busy = false;
  }
}
