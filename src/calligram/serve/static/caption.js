// Pictures whose captions would help training most, each with a field for its caption.

import * as api from "./api.js";
import { $, h, number, several } from "./dom.js";
import { asksToken } from "./login.js";
import { toggleTheme } from "./page.js";

const POLL_MILLISECONDS = 700; // between requests while pictures are chosen
const login = asksToken(() => fields().length || begin()); // text that was typed stays
let asked = 0;
let round = { suggestions: [], captioned: 0, left: 0 };
let saved = 0;

const fields = () => [...$("todo").querySelectorAll("input:not([disabled])")];

async function begin(again = false) {
  const mine = ++asked;
  $("notice").hidden = $("more").hidden = true;
  try {
    round = await api.suggestions(again);
    while (round.state === "working") {
      $("todo").replaceChildren();
      $("status").textContent = `Choosing pictures to caption: ${round.said}`;
      await new Promise((go) => setTimeout(go, POLL_MILLISECONDS));
      if (mine !== asked) return;
      round = await api.suggestions();
    }
  } catch (error) {
    if (mine === asked) refused(error);
    return;
  }
  if (mine === asked) draw();
}

function draw() {
  saved = 0;
  if (round.state === "failed") return say("No pictures can be suggested", round.said);
  $("todo").replaceChildren(...round.suggestions.map(entry));
  tell();
  if (!round.suggestions.length) say("All suggested pictures have captions", "Suggest others to continue.");
  $("more").hidden = false;
  if (matchMedia("(hover: hover)").matches) fields()[0]?.focus();
}

function tell() {
  const rest = fields().length;
  $("status").textContent = `${saved ? "Saved. " : ""}${several(rest, "picture", "pictures")} to caption`;
  $("about").textContent = `${number(round.captioned + saved)} with captions · ${number(round.left - saved)} without`;
}

function entry(suggestion, place) {
  const error = h("p", { class: "error", id: `error-${place}`, role: "alert" });
  const field = h("input", { type: "text", autocomplete: "off", spellcheck: "true", enterkeyhint: "next",
    "aria-label": `Caption of picture ${place + 1}`, "aria-describedby": `why-${place} error-${place}`,
    placeholder: "What does it show?", onkeydown: walk });
  const form = h("form", { onsubmit: (event) => write(event, suggestion.id, field, error) }, field,
    h("button", { type: "submit", class: "plain" }, "Save"));
  const picture = h("img", { src: api.suggested(suggestion.id), alt: `Picture ${place + 1}`, decoding: "async",
    loading: place < 4 ? "eager" : "lazy",
    onerror: (event) => event.target.replaceWith(h("span", { class: "broken" }, "no preview")) });
  return h("li", { "data-id": suggestion.id }, picture,
    h("div", { class: "words" }, h("p", { class: "why", id: `why-${place}` }, suggestion.why), form, error));
}

async function write(event, id, field, error) {
  event.preventDefault();
  const text = field.value;
  field.readOnly = true; // pressing Enter twice sends one caption
  error.textContent = "";
  field.removeAttribute("aria-invalid");
  try {
    await api.caption(id, text);
  } catch (refusal) {
    field.readOnly = false;
    if (refusal.status === 401) return login();
    field.setAttribute("aria-invalid", "true");
    error.textContent = refusal.message;
    field.focus();
    return;
  }
  const here = fields().indexOf(field);
  const next = fields()[here + 1] ?? fields()[here - 1];
  const item = field.closest("li");
  item.classList.add("saved");
  item.querySelector(".words").replaceChildren(h("p", { class: "written" }, text.trim()));
  saved += 1;
  tell();
  if (next) next.focus();
  else $("suggest-again").focus();
}

function walk(event) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by || event.isComposing) return;
  event.preventDefault();
  const all = fields();
  all[all.indexOf(event.target) + by]?.focus();
}

function say(title, text) {
  $("notice").replaceChildren(h("h2", {}, title), h("p", {}, text));
  $("notice").hidden = false;
}

function refused(error) {
  $("status").textContent = "";
  $("todo").replaceChildren();
  if (error.status === 401) return login();
  say("No pictures can be suggested", error.message);
}

$("suggest-again").addEventListener("click", () => begin(true));
toggleTheme($("theme"));
begin();
