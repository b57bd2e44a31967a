// The state of a search is in the address, so that it can be saved, shared and reached by the back button.

import { condition as rangeCondition } from "./timeline.js";

const LISTS = ["plus", "minus", "like"];
export const ORDERS = ["newest", "oldest"];

export function read(address = location.search) {
  const given = new URLSearchParams(address);
  const state = { q: given.get("q") ?? "", where: given.get("where") ?? "", album: given.get("album") ?? "", filters: {} };
  for (const name of LISTS) state[name] = given.getAll(name);
  for (const [name, value] of given) {
    if (name.startsWith("f.")) (state.filters[name.slice(2)] ??= []).push(value);
  }
  const day = (name) => (/^\d{4}-\d\d-\d\d$/u.test(given.get(name) ?? "") && !Number.isNaN(Date.parse(given.get(name))) ? given.get(name) : "");
  [state.since, state.until] = [day("since"), day("until")];
  state.find = given.get("find") === "captions" && !state.album ? "captions" : "images"; // an album has pictures only
  state.suggest = Boolean(state.album) && given.get("suggest") === "1";
  state.all = given.get("all") === "1";
  state.exact = given.get("exact") === "1";
  state.copies = given.get("copies") === "1";
  state.order = ORDERS.includes(given.get("order")) ? given.get("order") : "";
  state.picture = given.get("picture");
  state.item = given.get("item");
  return state;
}

export function write(state) {
  const out = new URLSearchParams();
  if (state.q) out.set("q", state.q);
  for (const name of LISTS) for (const value of state[name]) out.append(name, value);
  for (const [column, values] of Object.entries(state.filters)) {
    for (const value of values) out.append(`f.${column}`, value);
  }
  if (state.where) out.set("where", state.where);
  if (state.album) out.set("album", state.album);
  if (state.album && state.suggest) out.set("suggest", "1");
  for (const name of ["since", "until"]) if (state[name]) out.set(name, state[name]);
  if (state.find !== "images") out.set("find", state.find);
  if (state.all) out.set("all", "1");
  if (state.exact) out.set("exact", "1");
  if (state.copies) out.set("copies", "1");
  if (state.order) out.set("order", state.order);
  if (state.picture) out.set("picture", state.picture);
  if (state.item) out.set("item", state.item);
  return `?${out}`;
}

export function isQuery(state) {
  return Boolean(state.q || state.plus.length || state.minus.length || state.like.length || state.picture);
}

// "two dogs - person + snow": terms after a minus sign are subtracted, terms after a plus sign are added.
export function split(typed) {
  const parts = typed.trim().split(/(?:^|\s+)([-+−])\s*(?=\S)/u);
  const found = { q: parts[0].trim(), plus: [], minus: [] };
  for (let at = 1; at < parts.length; at += 2) {
    const term = (parts[at + 1] ?? "").trim();
    if (term) found[parts[at] === "+" ? "plus" : "minus"].push(term);
  }
  return found;
}

// The query as text, for the title of the window.
export function queryText(state) {
  return [state.q, ...state.plus.map((t) => `+ ${t}`), ...state.minus.map((t) => `− ${t}`)].filter(Boolean).join(" ");
}

const quoted = (text) => `'${String(text).replaceAll("'", "''")}'`;
const column = (name) => `\`${name.replaceAll("`", "``")}\``;

// The selected values and the typed condition as one condition in the syntax of the library.
export function condition(state, kinds) {
  const parts = Object.entries(state.filters).map(([name, values]) => {
    const written = values.map((value) => (kinds[name] === "text" ? quoted(value) : value));
    return values.length === 1 ? `${column(name)} = ${written[0]}` : `${column(name)} in (${written.join(", ")})`;
  });
  const range = rangeCondition(state);
  if (range) parts.push(range);
  if (state.where.trim()) parts.push(parts.length ? `(${state.where})` : state.where);
  return parts.join(" and ");
}

// The parameters of a request; an uploaded picture is sent separately.
export function terms(state, k, kinds) {
  const out = new URLSearchParams();
  if (state.q) out.set("q", state.q);
  for (const name of LISTS) for (const value of state[name]) out.append(name, value);
  const where = condition(state, kinds);
  if (where) out.set("where", where);
  if (state.album) out.set("album", state.album);
  out.set("find", state.find);
  out.set("k", k);
  if (state.all) out.set("all", "true");
  if (state.exact) out.set("exact", "true");
  return out;
}
