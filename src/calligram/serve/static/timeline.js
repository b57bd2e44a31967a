// Pictures per year, month or day as bars. A click on a bar, or a drag over several, narrows the search to that time.

import * as api from "./api.js";
import { dateText, h, number, several } from "./dom.js";

const UNITS = { year: 4, month: 7, day: 10 }; // characters of a date that name it
const MAX_BARS = 62;
const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];
let days = null; // number of pictures by day, for the present version of the library

export const hasDates = () => Boolean(days && Object.keys(days.days).length);

export async function load() {
  days = await api.timeline();
}

const dayAfter = (day) => {
  const date = new Date(`${day}T00:00:00Z`);
  date.setUTCDate(date.getUTCDate() + 1);
  return date.toISOString().slice(0, 10);
};

// The condition of a range of days; the last day belongs to it.
export function condition({ since, until }) {
  const parts = [since ? `taken >= ${since}` : "", until ? `taken < ${dayAfter(until)}` : ""];
  return parts.filter(Boolean).join(" and ");
}

export function rangeText({ since, until }) {
  if (since && until) return since === until ? dateText(since) : `${dateText(since)} to ${dateText(until)}`;
  return since ? `since ${dateText(since)}` : `until ${dateText(until)}`;
}

const first = (key) => `${key}-01-01`.slice(0, 10);
function last(key) {
  if (key.length === 10) return key;
  if (key.length === 4) return `${key}-12-31`;
  const [year, month] = key.split("-").map(Number);
  return new Date(Date.UTC(year, month, 0)).toISOString().slice(0, 10);
}

function label(key) {
  const [year, month, day] = key.split("-");
  return [day ? String(Number(day)) : "", month ? MONTHS[month - 1] : "", year].filter(Boolean).join(" ");
}

// The finest unit with few enough bars.
function bars(state) {
  const inside = Object.entries(days.days).filter(([day]) => (!state.since || day >= state.since) && (!state.until || day <= state.until));
  for (const unit of ["day", "month", "year"]) {
    const counts = new Map();
    for (const [day, count] of inside) {
      const key = day.slice(0, UNITS[unit]);
      counts.set(key, (counts.get(key) ?? 0) + count);
    }
    const all = filled(counts, unit);
    if (all.size <= MAX_BARS || unit === "year") return { unit, counts: all };
  }
}

// Times without pictures have a bar without height, so that distances in time are right.
function filled(counts, unit) {
  const keys = [...counts.keys()].sort();
  const out = new Map();
  for (let key = keys[0]; key && key <= keys.at(-1); key = next(key, unit)) {
    out.set(key, counts.get(key) ?? 0);
    if (out.size > MAX_BARS && unit !== "year") break; // there are too many
  }
  return out;
}

const next = (key, unit) => dayAfter(last(key)).slice(0, UNITS[unit]);

export function show(state, go) {
  if (!days || !Object.keys(days.days).length) return null;
  const { unit, counts } = bars(state);
  const most = Math.max(1, ...counts.values());
  let from = null; // the bar where a drag began
  const choose = (one, other) => {
    const [a, b] = [one, other].sort();
    go({ since: first(a), until: last(b) });
  };
  const list = h("ul", { class: "bars", onpointerleave: () => { from = null; } }, [...counts].map(([key, count]) => {
    const bar = h("button", { type: "button", title: `${label(key)}: ${several(count, "picture", "pictures")}`, "aria-label": `${label(key)}: ${several(count, "picture", "pictures")}`,
      onpointerdown: () => { from = key; }, onpointerup: () => choose(from ?? key, key),
      onkeydown: (event) => event.key === "Enter" && choose(key, key) }, h("i"));
    bar.firstChild.style.setProperty("--share", count / most);
    return h("li", {}, bar);
  }));
  const edge = (name, text, value) => h("label", {}, text, h("input", { type: "date", id: name, value, onchange: (event) => go({ [name]: event.target.value }) }));
  const keys = [...counts.keys()];
  return h("div", { class: "timeline", role: "group", "aria-label": `Pictures by ${unit}` },
    h("h3", {}, `Pictures by ${unit}`), list,
    h("p", { class: "ends" }, h("span", {}, keys.length ? label(keys[0]) : ""), h("span", {}, keys.length > 1 ? label(keys.at(-1)) : "")),
    h("p", { class: "range" }, edge("since", "from ", state.since), edge("until", "to ", state.until),
      state.since || state.until ? h("button", { type: "button", class: "plain", id: "any-time", onclick: () => go({ since: "", until: "" }) }, "Any time") : null,
      days.undated ? h("small", {}, `${number(days.undated)} without a date`) : null));
}
