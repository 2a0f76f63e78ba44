// Server-sent events by fetch, which can send the token in a header, as EventSource cannot.

const SILENCE_MS = 25000;
const RETRY_MS = [500, 1000, 2000, 4000, 8000];

export const token = {
  get: () => { try { return sessionStorage.getItem("loadline-token") || ""; } catch { return ""; } },
  set: (value) => { try { sessionStorage.setItem("loadline-token", value); } catch { /* asked for again */ } },
  clear: () => { try { sessionStorage.removeItem("loadline-token"); } catch { /* nothing is kept */ } },
};

export function headers(more = {}) {
  return token.get() ? { authorization: `Bearer ${token.get()}`, ...more } : more;
}

export async function get(path) {
  const answer = await fetch(path, { headers: headers() });
  if (!answer.ok) throw new Error((await answer.text()).trim() || `HTTP ${answer.status}`);
  return answer.json();
}

// Follows a model until stopped. onState: "connecting", "live", "lost", "refused" (too many pages), "denied" (token).
export function follow(model, onEvent, onState) {
  const stopped = new AbortController();
  run();
  return () => stopped.abort();

  async function run() {
    for (let failures = 0; !stopped.signal.aborted;) {
      let waitMs = RETRY_MS[Math.min(failures, RETRY_MS.length - 1)] * (0.75 + Math.random() / 2);
      try {
        await connect(() => { failures = 0; });
        onState("lost");
      } catch (error) {
        if (stopped.signal.aborted) return;
        if (error.status === 401 || error.status === 403) { onState("denied"); return; }
        onState(error.status === 503 ? "refused" : "lost");
        if (error.status === 503) waitMs = 10000;
      }
      failures += 1;
      await new Promise((resolve) => { setTimeout(resolve, waitMs); });
    }
  }

  async function connect(onLive) {
    const attempt = new AbortController();
    const abort = () => attempt.abort();
    stopped.signal.addEventListener("abort", abort, { once: true });
    let watchdog = setTimeout(abort, SILENCE_MS);
    try {
      const answer = await fetch(`/api/events?model=${encodeURIComponent(model)}`, { headers: headers(), signal: attempt.signal });
      if (!answer.ok) throw Object.assign(new Error(await answer.text()), { status: answer.status });
      onState("live");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(abort, SILENCE_MS);
        text += value;
        if (!text.includes("\n\n")) continue;
        const events = text.split("\n\n");
        text = events.pop();
        onLive();
        events.forEach(dispatch);
      }
    } finally {
      clearTimeout(watchdog);
      stopped.signal.removeEventListener("abort", abort);
    }
  }

  function dispatch(event) {
    const lines = event.split("\n");
    const kind = lines.find((line) => line.startsWith("event: "));
    const data = lines.find((line) => line.startsWith("data: "));
    if (kind && data && !stopped.signal.aborted) onEvent(kind.slice(7), JSON.parse(data.slice(6)));
  }
}
