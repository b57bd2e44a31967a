// Filters: values to select, and a condition to type.

import { h, number } from "./dom.js";
import * as timeline from "./timeline.js";

const FIRST_VALUES = 10; // values that are shown before "more"
const opened = new Set();

export function show(panel, about, state, go, refusal) {
  const typing = document.activeElement?.id === "where" ? document.activeElement.value : null;
  const facets = Object.entries(about.facets).filter(([, values]) => values.length);
  const groups = facets.map(([name, values]) => facet(name, values, state, go));
  const time = timeline.show(state, go);
  panel.replaceChildren(...(time ? [time] : []), h("div", { class: "facets" }, groups), where(about, state, go, refusal));
  if (typing !== null) {
    const field = panel.querySelector("#where");
    field.value = typing;
    field.focus();
  }
}

export function showTimeline(panel, state, go) {
  panel.querySelector(".timeline")?.remove();
  const time = timeline.show(state, go);
  if (time) panel.prepend(time);
}

function facet(name, values, state, go) {
  const chosen = state.filters[name] ?? [];
  const known = new Set(values.map((entry) => String(entry.value)));
  // A value from the address may not be in the list of frequent values.
  const all = [...values, ...chosen.filter((value) => !known.has(value)).map((value) => ({ value, count: null }))];
  const shown = opened.has(name) ? all : all.filter((entry, at) => at < FIRST_VALUES || chosen.includes(String(entry.value)));
  const buttons = shown.map((entry) => h("li", {}, value(name, entry, chosen, state, go)));
  const list = h("ul", {}, buttons);
  if (shown.length < all.length) {
    const rest = h("button", { type: "button", class: "rest", onclick: () => {
      opened.add(name);
      list.closest("section").dispatchEvent(new CustomEvent("redraw"));
    } }, `${number(all.length - shown.length)} more`);
    list.append(h("li", {}, rest));
  }
  return h("div", { class: "facet", role: "group", "aria-label": name }, h("h3", {}, name), list);
}

function value(name, entry, chosen, state, go) {
  const text = String(entry.value);
  const pressed = chosen.includes(text);
  const next = pressed ? chosen.filter((other) => other !== text) : [...chosen, text];
  const filters = { ...state.filters, [name]: next };
  if (!next.length) delete filters[name];
  return h("button", { type: "button", "aria-pressed": String(pressed), title: text, onclick: () => go({ filters }) },
    text, entry.count === null ? null : h("small", {}, number(entry.count)));
}

function where(about, state, go, refusal) {
  const columns = Object.keys(about.columns);
  const field = h("input", { id: "where", type: "text", value: state.where, maxlength: "3000", spellcheck: "false", autocapitalize: "off",
    placeholder: example(about), "aria-invalid": refusal ? "true" : "false", "aria-describedby": "where-says",
    onchange: (event) => go({ where: event.target.value.trim() }) });
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") go({ where: event.target.value.trim() });
  });
  const says = refusal
    ? h("p", { id: "where-says", class: "error", role: "alert" }, refusal)
    : h("p", { id: "where-says" }, columns.length ? "Columns: " : "There are no columns to filter by.",
      columns.flatMap((name, at) => [at ? ", " : "", h("code", {}, name)]));
  return h("div", { class: "where" }, h("label", { for: "where" }, "Condition"), field, says);
}

function example(about) {
  if (about.facets.year?.length) return "year >= 2020 and not folder ~ 'screenshots'";
  const [name, kind] = Object.entries(about.columns).find(([column]) => about.facets[column]?.length) ?? [];
  if (!name) return "";
  const first = about.facets[name][0].value;
  return kind === "text" ? `${name} = '${first}'` : `${name} >= ${first}`;
}
