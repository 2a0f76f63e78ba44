// Pause and resume: a dialog confirms, asks once for the token, and keeps it for this tab.
import { h } from "./format.js";
import { headers, token } from "./stream.js";

const dialog = document.getElementById("dialog");

function show(title, text, action, submit, withToken) {
  const error = h("p", { class: "error", role: "alert", hidden: true });
  const field = h("input", { type: "password", name: "token", autocomplete: "off", required: true });
  const confirm = h("button", { class: "button primary", type: "submit" }, action);
  const cancel = h("button", { class: "button", type: "button" }, "Cancel");
  cancel.addEventListener("click", () => dialog.close());
  const form = h("form", {}, h("h2", { id: "dialog-title" }, title), h("p", {}, text),
    withToken ? h("label", {}, "Token of the agent", field) : "", error, h("div", { class: "row" }, cancel, confirm));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (withToken) token.set(field.value.trim());
    confirm.disabled = true;
    try {
      await submit();
      dialog.close();
    } catch (failure) {
      error.textContent = failure.message;
      error.hidden = false;
      confirm.disabled = false;
      if (failure.denied) { token.clear(); show(title, text, action, submit, true); dialog.querySelector(".error").textContent = failure.message; dialog.querySelector(".error").hidden = false; }
    }
  });
  dialog.replaceChildren(form);
  if (!dialog.open) dialog.showModal();
}

async function send(path, options) {
  const answer = await fetch(path, { ...options, headers: headers({ "content-type": "application/json" }) });
  if (answer.ok) return;
  const text = await answer.text();
  let detail = text.trim();
  try { detail = JSON.parse(text).detail; } catch { /* a plain sentence */ }
  throw Object.assign(new Error(detail || `HTTP ${answer.status}`), { denied: answer.status === 401 });
}

export function confirmPause(model, paused) {
  const [verb, text] = paused
    ? ["Pause", "The agent makes no scaling decisions and no migrations for this model until it is resumed. Workers keep serving."]
    : ["Resume", "The agent makes scaling decisions and migrations for this model again."];
  const submit = () => send(`/api/${verb.toLowerCase()}`, { method: "POST", body: JSON.stringify({ model }) });
  show(`${verb} ${model}?`, text, verb, submit, !token.get());
}

export function askToken(onToken) {
  token.clear();
  const submit = async () => { await send("/api/token", {}); onToken(); };
  show("This page needs a token", "It is in the file that token_file in [http] names on the agent's host.", "Show the fleet", submit, true);
}
