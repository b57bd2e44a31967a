// The search is the address: it can be kept, sent, and gone back to.

const LISTS = ["plus", "minus", "like"];

export function read(address = location.search) {
  const given = new URLSearchParams(address);
  const state = { q: given.get("q") ?? "", where: given.get("where") ?? "", filters: {} };
  for (const name of LISTS) state[name] = given.getAll(name);
  for (const [name, value] of given) {
    if (name.startsWith("f.")) (state.filters[name.slice(2)] ??= []).push(value);
  }
  state.find = given.get("find") === "captions" ? "captions" : "images";
  state.all = given.get("all") === "1";
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
  if (state.find !== "images") out.set("find", state.find);
  if (state.all) out.set("all", "1");
  if (state.picture) out.set("picture", state.picture);
  if (state.item) out.set("item", state.item);
  return `?${out}`;
}

export function isQuery(state) {
  return Boolean(state.q || state.plus.length || state.like.length || state.picture);
}

// "two dogs - person + snow": what follows a minus is left out, what follows a plus is wanted too.
export function split(typed) {
  const parts = typed.trim().split(/(?:^|\s+)([-+−])\s*(?=\S)/u);
  const found = { q: parts[0].trim(), plus: [], minus: [] };
  for (let at = 1; at < parts.length; at += 2) {
    const term = (parts[at + 1] ?? "").trim();
    if (term) found[parts[at] === "+" ? "plus" : "minus"].push(term);
  }
  return found;
}

// The search in words, for the title of the window.
export function spoken(state) {
  return [state.q, ...state.plus.map((t) => `+ ${t}`), ...state.minus.map((t) => `− ${t}`)].filter(Boolean).join(" ");
}

const quoted = (text) => `'${String(text).replaceAll("'", "''")}'`;
const column = (name) => `\`${name.replaceAll("`", "``")}\``;

// The chosen values and the typed condition as one condition of the library's grammar.
export function condition(state, kinds) {
  const parts = Object.entries(state.filters).map(([name, values]) => {
    const written = values.map((value) => (kinds[name] === "text" ? quoted(value) : value));
    return values.length === 1 ? `${column(name)} = ${written[0]}` : `${column(name)} in (${written.join(", ")})`;
  });
  if (state.where.trim()) parts.push(parts.length ? `(${state.where})` : state.where);
  return parts.join(" and ");
}

// What the server is asked; the picture travels beside it.
export function terms(state, k, kinds) {
  const out = new URLSearchParams();
  if (state.q) out.set("q", state.q);
  for (const name of LISTS) for (const value of state[name]) out.append(name, value);
  const where = condition(state, kinds);
  if (where) out.set("where", where);
  out.set("find", state.find);
  out.set("k", k);
  if (state.all) out.set("all", "true");
  return out;
}
