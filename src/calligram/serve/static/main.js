// The search page. Its state is in the address, and everything on the page follows from it.

import * as albums from "./albums.js";
import * as api from "./api.js";
import { $, h, icon, number, several } from "./dom.js";
import { Detail } from "./detail.js";
import * as filters from "./filters.js";
import * as grid from "./grid.js";
import * as saved from "./saved.js";
import { asksToken } from "./login.js";
import { suggests } from "./suggest.js";
import * as timeline from "./timeline.js";
import { isQuery, read, split, queryText, terms, write } from "./state.js";
import { takePictures, toggleTheme } from "./page.js";

const PAGE_HITS = 48;
const SUGGESTED_PICTURES = 24;
const pictures = new Map(); // uploaded pictures, by their number in the address
const chosen = new Map(); // selected hits, by id
let state = read();
let about = { stats: {}, facets: {}, columns: {}, limits: {} };
let found = { hits: [], below: 0 };
let shownFor = null; // the state that the results belong to
let wanted = PAGE_HITS;
let asking = null;
let written = ""; // the last text that the page put into the search box
let message = ""; // remains beside the count of results until another search begins
let begun = false; // searches wait until the page has asked what the library contains; else each would be sent twice

const login = asksToken(begin);
const address = (changes = {}) => write({ ...state, item: null, ...changes });
const detail = new Detail($("detail"), { close: closeItem, step, more: moreLike, address, follow });

const openSave = saved.saver(() => ({ state, about }), (name) => {
  $("status").textContent = message = `Saved as “${name}”. `;
  saved.show($("saved"), follow, about.saving).catch(() => {});
});

const askName = albums.namer();
const askDelete = albums.deleter(async (name) => {
  showAlbums(await api.deleteAlbum(name));
  go({ ...read("?") });
});
const showAlbums = (list) => albums.draw($("albums"), list, follow);

function go(changes, { replace = false, mark = null } = {}) {
  state = { ...state, ...changes };
  if (replace) history.replaceState(history.state, "", write(state));
  else history.pushState(mark, "", write(state));
  render();
}

function follow(event) {
  const link = event.target.closest("a[href]");
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button > 0) return;
  event.preventDefault();
  const next = read(new URL(link.href).search);
  go(next, { mark: next.item ? "opened" : null });
}

function render() {
  const { item, ...rest } = state;
  const key = JSON.stringify(rest);
  drawHead();
  if (!begun) return;
  if (key !== shownFor) {
    wanted = PAGE_HITS;
    message = "";
    undo = null;
    ask(key);
  }
  if (item) openItem(item);
  else if (detail.id) {
    const last = detail.id;
    detail.hide();
    grid.focus($("results"), last);
  }
}

function drawHead() {
  document.body.classList.toggle("home", !isQuery(state) && !narrowed() && !state.album);
  document.body.classList.toggle("unasked", !isQuery(state));
  if (state.q !== written) $("query").value = written = state.q; // text that is being typed stays
  const title = isQuery(state) ? queryText(state) || "Similar pictures" : state.album;
  document.title = title ? `${title} · Calligram` : "Calligram";
  $("query").placeholder = state.picture || state.like.length ? "Add words" : state.album ? "Search this album" : "Describe a picture";
  drawHeld();
  drawChips();
  for (const button of document.querySelectorAll("[data-find]")) {
    button.setAttribute("aria-pressed", String(button.dataset.find === state.find));
  }
  $("kinds").hidden = !about.stats.captions || Boolean(state.album);
  drawOrder();
  $("filter").hidden = suggesting();
  drawAlbum();
  const count = Object.values(state.filters).flat().length + (state.where ? 1 : 0) + (state.since || state.until ? 1 : 0);
  $("filter").replaceChildren(icon("filter"), "Filters", ...(count ? [h("b", {}, String(count))] : []));
  $("save-search").hidden = !saved.canSave(state, about);
  if (!$("filters").hidden) filters.show($("filters"), about, state, go, null);
}

function drawOrder() {
  $("order").value = state.order;
  $("order").options[0].textContent = isQuery(state) ? "Best match first" : state.album ? "Order of the album" : "Mixed";
  $("order").hidden = !timeline.hasDates() || (isQuery(state) && state.find === "captions") || suggesting();
}

// The dates come after the rest of the page. Nothing else is drawn again: a click or an error message would get lost.
function drawDates() {
  drawOrder();
  if (!$("filters").hidden) filters.showTimeline($("filters"), state, go);
}

const suggesting = () => state.suggest && !isQuery(state);

function drawAlbum() {
  $("album-bar").hidden = !state.album;
  if (!state.album) return;
  $("album-heading").textContent = state.album;
  const back = suggesting();
  $("album-suggest").href = address({ suggest: !back, q: "", plus: [], minus: [], like: [], picture: null });
  $("album-suggest").replaceChildren(icon(back ? "album" : "like"), back ? "Show the album" : "Suggest pictures");
  $("album-download").href = api.albumArchive(state.album);
  $("album-download").replaceChildren(icon("download"), "Download album");
  drawAlbumCounts();
  $("album-rename").hidden = $("album-remove").hidden = !about.saving;
}

// The list of albums, with its counts, may come before the pictures or after them. Nothing else is drawn again.
function drawAlbumCounts() {
  const album = albums.find(state.album);
  $("album-download").hidden = !album?.pictures;
  const counts = $("album-counts");
  if (counts && album) counts.textContent = `${several(album.pictures, "picture", "pictures")} in the album, ${number(album.rejected)} rejected`;
}

const narrowed = () => Boolean(state.where || state.since || state.until || Object.keys(state.filters).length);

function drawHeld() {
  const held = state.like.map((id) => token(api.thumbnail(id), "Like this picture", { like: state.like.filter((other) => other !== id) }));
  const picture = pictures.get(state.picture);
  if (picture) held.push(token(picture.preview, "Your picture", { picture: null }));
  $("held").replaceChildren(...held);
}

function token(source, label, without) {
  return h("span", { class: "token" }, h("img", { src: source, alt: label, title: label }),
    h("button", { type: "button", "aria-label": `Remove: ${label}`, onclick: () => go({ ...without, all: false }) }, icon("close")));
}

function drawChips() {
  const chips = [];
  for (const kind of ["plus", "minus"]) {
    for (const term of state[kind]) {
      chips.push(chip(`${kind === "plus" ? "+" : "−"} ${term}`, kind, { [kind]: state[kind].filter((other) => other !== term) }));
    }
  }
  for (const [name, values] of Object.entries(state.filters)) {
    const { [name]: gone, ...others } = state.filters;
    chips.push(chip(`${name}: ${values.join(", ")}`, "filter", { filters: others }));
  }
  if (state.since || state.until) chips.push(chip(timeline.rangeText(state), "filter", { since: "", until: "" }));
  if (state.where) chips.push(chip(state.where, "filter", { where: "" }));
  if (state.album && isQuery(state)) chips.push(chip(`album: ${state.album}`, "filter", { album: "", suggest: false }));
  if (isQuery(state)) {
    chips.push(h("li", {}, h("button", { type: "button", class: "chip add", title: "Or type a minus sign and a word", onclick: leaveOut }, "− leave out…")));
  }
  $("chips").replaceChildren(...chips);
}

function leaveOut() {
  $("query").value = `${$("query").value.trim()} - `;
  $("query").focus();
}

function chip(text, kind, without) {
  return h("li", { class: `chip ${kind}` }, h("span", { title: text }, text),
    h("button", { type: "button", "aria-label": `Remove: ${text}`, onclick: () => go(without) }, icon("close")));
}

async function ask(key) {
  asking?.abort();
  shownFor = key;
  $("notice").hidden = $("more").hidden = $("download").hidden = true;
  if (state.picture && !pictures.has(state.picture)) {
    return say("The picture of this search is not available", "The server does not store it. Drop it here again to repeat the search.");
  }
  const mine = (asking = new AbortController());
  $("results").setAttribute("aria-busy", "true");
  const slow = setTimeout(() => found.hits.length ? $("results").classList.add("waiting") : grid.ghosts($("results"), 18), 120);
  try {
    found = await find(mine.signal);
    drawFound();
  } catch (error) {
    if (mine.signal.aborted) return;
    drawRefusal(error);
  } finally {
    clearTimeout(slow);
    if (asking === mine) {
      $("results").classList.remove("waiting");
      $("results").setAttribute("aria-busy", "false");
    }
  }
}

async function find(signal) {
  if (suggesting()) return describe(await api.albumSuggestions(state.album, SUGGESTED_PICTURES, signal), signal);
  const now = isQuery(state)
    ? await api.search(terms(state, wanted, about.columns), pictures.get(state.picture)?.file, signal)
    : await api.browse(terms(state, PAGE_HITS, about.columns), state.order || "mixed", 0, signal);
  return describe(now, signal);
}

// Adds captions, dates and contents to hits, and leaves out copies.
async function describe(now, signal) {
  const images = !isQuery(state) || state.find === "images";
  if (!images) return now;
  grid.markRaised(isQuery(state) ? now.hits : []);
  const known = await api.tiles(now.hits, signal).catch((error) => {
    if (error.name === "AbortError") throw error;
    return new Map();
  });
  const hits = now.hits.map((hit) => ({ ...hit, ...known.get(hit.id) }));
  const kept = state.copies ? hits : grid.withoutCopies(hits);
  if (isQuery(state) && state.order) kept.sort(byDate(state.order));
  return { ...now, hits: kept, every: hits, returned: hits.length };
}

// Pictures without a date come last.
const byDate = (order) => (one, other) => {
  if (!one.taken || !other.taken) return Number(!one.taken) - Number(!other.taken);
  return (order === "newest" ? -1 : 1) * one.taken.localeCompare(other.taken);
};

async function moreOfTheList(button) {
  button.disabled = true;
  const key = shownFor;
  try {
    const next = await describe(await api.browse(terms(state, PAGE_HITS, about.columns), state.order || "mixed", found.returned));
    if (key !== shownFor) return;
    const every = [...found.every, ...next.every];
    found = { ...next, hits: state.copies ? every : grid.withoutCopies(every), every, returned: every.length };
    drawFound();
  } catch (error) {
    if (key === shownFor) drawRefusal(error);
  }
}

function drawFound() {
  $("album-note").textContent = suggesting() ? albums.learntFrom(found) : "";
  if (suggesting()) return drawSuggestions();
  const { hits, below } = found;
  grid.show($("results"), hits, isQuery(state) ? state.find : "images", address, chosen);
  const [one, many] = state.find === "captions" ? ["caption", "captions"] : ["picture", "pictures"];
  const all = state.find === "captions" ? about.stats.captions : about.stats.items;
  const compared = found.depth ? `, ${number(found.depth)} of ${number(all ?? found.depth)} reranked` : "";
  const first = (found.returned ?? hits.length) >= wanted ? "First " : ""; // there may be more
  $("status").replaceChildren(message, ...(isQuery(state)
    ? [h("b", {}, hits.length ? `${first}${several(hits.length, one, many)}` : `No ${many}`), ` in ${Math.round(found.waited)} ms${compared}`, ...exactness(), ...unknownWords(), ...copies()]
    : [...listed(hits.length), ...copies()]));
  if (!hits.length && below) {
    const unknown = found.unknown?.length ? ` The model does not know: ${found.unknown.join(", ")}.` : "";
    say("No good match", `Nothing in the library matches your description well.${unknown}`,
      h("button", { type: "button", class: "plain", id: "anyway", onclick: () => go({ all: true }) }, "Show all anyway"));
  } else if (!hits.length) sayNothing(many);
  drawChosen();
  drawMore(many);
  const open = state.item;
  if (open) openItem(open);
}

function drawSuggestions() {
  const { hits } = found;
  grid.show($("results"), hits, "images", address, chosen, about.saving ? "answers" : "nothing");
  $("status").replaceChildren(message, ...(undo ? [undo, " "] : []), h("span", { id: "album-counts" }));
  drawAlbumCounts();
  $("notice").hidden = true;
  if (!hits.length && found.learnt_from === "nothing") {
    say("Nothing to learn from yet", "The album is empty, and the model does not know its name. Search for some pictures, select them, and add them to the album.");
  } else if (!hits.length) say("No more suggestions", "Every picture of the library is answered.");
  drawChosen();
  $("more").replaceChildren(h("button", { type: "button", class: "plain", id: "suggest-more", onclick: () => ask(shownFor) }, "New suggestions"));
  $("more").hidden = !hits.length;
  if (state.item) openItem(state.item);
}

let undo = null; // a button that takes the last answer back

// Stores an answer, takes the picture off the page, and moves the focus to the next one.
async function answerSuggestion(id, answer) {
  const [key, name, at] = [shownFor, state.album, found.hits.findIndex((hit) => hit.id === id)];
  const buttons = document.querySelectorAll(`[data-for="${CSS.escape(id)}"]`);
  if (at < 0 || [...buttons].some((button) => button.disabled)) return;
  for (const button of buttons) button.disabled = true;
  try {
    showAlbums(await api.changeAlbum(name, { [answer]: [id] }));
  } catch (error) {
    for (const button of buttons) button.disabled = false;
    $("status").textContent = error.message;
    return;
  }
  if (key !== shownFor) return;
  const hit = found.hits.find((each) => each.id === id);
  found.hits = found.hits.filter((each) => each.id !== id);
  message = answer === "add" ? "Added. " : "Rejected. ";
  undo = h("button", { type: "button", class: "plain", id: "undo", onclick: () => takeBack(name, hit, at) }, "Undo");
  if (!found.hits.length) return ask(shownFor);
  drawFound();
  grid.focus($("results"), found.hits[Math.min(at, found.hits.length - 1)].id);
}

async function takeBack(name, hit, at) {
  const key = shownFor;
  try {
    showAlbums(await api.changeAlbum(name, { remove: [hit.id] }));
  } catch (error) {
    $("status").textContent = error.message;
    return;
  }
  if (key !== shownFor) return;
  undo = null;
  message = "Taken back. ";
  if (!found.hits.some((each) => each.id === hit.id)) found.hits.splice(at, 0, hit);
  drawFound();
  grid.focus($("results"), hit.id);
}

// Pictures of an album that the library no longer has.
const gone = () => (found.missing ? `, ${number(found.missing)} no longer in the library` : "");

function listed(shown) {
  if (typeof found.total !== "number") return [`${several(shown, "picture", "pictures")} that satisfy the filters, and more`];
  const all = several(found.total, "picture", "pictures");
  const some = shown < found.total ? `${number(shown)} of ${all}` : all;
  return [`${narrowed() ? `${some} that satisfy the filters` : some}${gone()}`];
}

function unknownWords() {
  if (!found.unknown?.length || !found.hits.length) return [];
  return [h("span", { class: "unknown", id: "unknown", title: "The search ignores words that the model has not learnt" }, `, unknown: ${found.unknown.join(", ")}`)];
}

function copies() {
  const hidden = found.hits.reduce((sum, hit) => sum + (hit.copies ?? 0), 0);
  if (!hidden && !state.copies) return [];
  const label = state.copies ? "Hide copies" : "Show them";
  return [state.copies ? " " : `, ${several(hidden, "copy", "copies")} hidden `,
    h("button", { type: "button", class: "plain", id: "copies", onclick: () => go({ copies: !state.copies }) }, label)];
}

// Without a selection, all pictures on the page can be downloaded.
function drawChosen() {
  const some = chosen.size > 0;
  const hits = some ? [...chosen.values()] : found.hits;
  $("download").href = api.archive(hits);
  $("download").replaceChildren(icon("download"), some ? `Download ${chosen.size}` : "Download");
  $("download").hidden = !some && (!hits.length || (isQuery(state) && state.find === "captions") || document.body.classList.contains("home") || suggesting() || (state.album && !isQuery(state)));
  $("unselect").hidden = !some;
  $("to-album").hidden = !some || !about.saving;
  $("from-album").hidden = !some || !about.saving || !state.album || suggesting();
  document.body.classList.toggle("choosing", some);
}

function select(id) {
  const hit = found.hits.find((each) => each.id === id);
  if (!chosen.delete(id) && hit && chosen.size < (about.limits.k ?? 500)) chosen.set(id, hit);
  const button = document.querySelector(`[data-select="${CSS.escape(id)}"]`);
  button?.setAttribute("aria-pressed", String(chosen.has(id)));
  drawChosen();
}

// A large library is searched approximately; what that costs was measured when it was indexed.
function exactness() {
  const change = (exact, label) => h("button", { type: "button", class: "plain", id: "exactness", onclick: () => go({ exact }) }, label);
  if (typeof found.recall === "number") {
    return [`, approximate: finds ${(100 * found.recall).toFixed(1)}% of the ten nearest `, change(true, "Compare all")];
  }
  return state.exact ? [", all compared ", change(false, "Search faster")] : [];
}

function sayNothing(many) {
  if (state.album && !isQuery(state) && !narrowed()) {
    return say("This album is empty", "Search for pictures, select them, and choose “Add to album”. Or let the album suggest pictures by its name.",
      h("a", { class: "plain", href: address({ suggest: true }), onclick: follow }, "Suggest pictures"));
  }
  if (!about.stats.items) return say("The library is empty", "Add pictures with “calligram index”.");
  say(`No ${many}`, narrowed() ? "Nothing satisfies the filters." : "Nothing was found.",
    narrowed() ? h("button", { type: "button", class: "plain", onclick: () => go({ filters: {}, where: "", since: "", until: "" }) }, "Remove the filters") : null);
}

function drawMore(many) {
  const { hits, below } = found;
  const most = about.limits.k ?? 500;
  const full = isQuery(state) && (found.returned ?? hits.length) >= wanted && wanted < most;
  const parts = [];
  if (!isQuery(state) && hits.length && (found.total ?? Infinity) > found.returned) {
    parts.push(h("button", { type: "button", class: "plain", id: "show-more", onclick: (event) => moreOfTheList(event.target) }, "More pictures"));
  } else if (full) {
    parts.push(h("button", { type: "button", class: "plain", id: "show-more", onclick: () => {
      wanted = Math.min(most, wanted + PAGE_HITS);
      ask(shownFor);
    } }, `More ${many}`));
  } else if (hits.length && below) {
    parts.push(`All other ${many} are not a good match.`, h("button", { type: "button", class: "plain", onclick: () => go({ all: true }) }, "Show them"));
  } else if (hits.length && state.all) {
    parts.push("This list includes results that are not a good match.", h("button", { type: "button", class: "plain", onclick: () => go({ all: false }) }, "Show only good matches"));
  }
  $("more").replaceChildren(...parts);
  $("more").hidden = !parts.length;
}

function drawRefusal(error) {
  found = { hits: [], below: 0 };
  $("results").replaceChildren();
  $("status").replaceChildren();
  if (error.status === 401) return login();
  const faulty = error.status === 400 && state.where;
  if (faulty) {
    openFilters(true);
    filters.show($("filters"), about, state, go, error.message);
  }
  const again = h("button", { type: "button", class: "plain", onclick: () => (about.limits.k ? ask(shownFor) : begin()) }, "Try again");
  if (error.status >= 500 || error.status === 0) say("The search failed", error.id ? `${error.message} (${error.id})` : error.message, again);
  else if (error.status === 404 && state.album) say("No such album", "It may have been renamed or deleted.");
  else say(faulty ? "The condition is not valid" : "The query is not valid", error.message);
}

function say(title, text, ...buttons) {
  $("results").replaceChildren();
  $("notice").replaceChildren(h("h2", {}, title), h("p", {}, text), ...buttons.filter(Boolean));
  $("notice").hidden = false;
}

function openItem(id) {
  const at = found.hits.findIndex((hit) => hit.id === id);
  detail.show(id, isQuery(state) ? found.hits[at] : null, { before: at > 0, after: at >= 0 && at + 1 < found.hits.length }, about, state.q);
}

function closeItem() {
  if (history.state === "opened") history.back();
  else go({ item: null }, { replace: true });
}

function step(by) {
  const next = found.hits[found.hits.findIndex((hit) => hit.id === state.item) + by];
  if (next && found.hits.some((hit) => hit.id === state.item)) go({ item: next.id }, { replace: true });
}

function moreLike(id) {
  written = null;
  go({ q: "", plus: [], minus: [], like: [id], picture: null, find: "images", all: false, item: null, album: "", suggest: false });
  scrollTo({ top: 0 });
}

function searchByPicture(file) {
  const number = String(Date.now());
  pictures.set(number, { file, preview: URL.createObjectURL(file) });
  written = null;
  go({ picture: number, like: [], q: "", plus: [], minus: [], all: false, item: null, album: "", suggest: false });
}

function openFilters(open) {
  $("filters").hidden = !open;
  $("filter").setAttribute("aria-expanded", String(open));
  if (open) filters.show($("filters"), about, state, go, null);
}

async function begin() {
  try {
    about = await api.stats();
  } catch (error) {
    return drawRefusal(error);
  } finally {
    begun = true;
  }
  const items = about.stats.items ?? 0;
  $("tagline").textContent = items ? `${several(items, "picture", "pictures")}. Describe the one you are looking for.` : "";
  $("about").textContent = [several(items, "picture", "pictures"), about.stats.captions ? several(about.stats.captions, "caption", "captions") : ""].filter(Boolean).join(" · ");
  $("to-captions").hidden = !about.captioning;
  const examples = about.examples ?? [];
  $("examples").replaceChildren(...examples.map((text) => h("a", { href: write({ ...read("?"), q: text }), onclick: follow }, text)));
  $("examples").hidden = !examples.length;
  // Without dates and saved searches, the page still searches.
  timeline.load().then(drawDates, () => {});
  saved.show($("saved"), follow, about.saving).catch(() => {});
  albums.show($("albums"), follow).then(drawAlbumCounts, () => {});
  shownFor = null;
  render();
  if (!state.item && !isQuery(state) && !state.album && matchMedia("(hover: hover)").matches) $("query").focus();
}

// Changes the album of the page, and shows it again with a message.
async function changeSelected(name, changes, text) {
  showAlbums(await api.changeAlbum(name, changes));
  for (const id of [...chosen.keys()]) select(id);
  message = text;
  if (state.album === name && !isQuery(state)) await ask(shownFor);
  else drawFound();
  drawAlbum();
}

function addToAlbum() {
  const ids = [...chosen.keys()];
  const count = several(ids.length, "picture", "pictures");
  askName({ title: `Add ${count} to an album`, choose: true, name: albums.find(state.album)?.name ?? "", confirm: "Add",
    done: (name) => changeSelected(name, { add: ids }, `Added ${count} to “${name}”. `) });
}

async function removeFromAlbum() {
  const ids = [...chosen.keys()];
  try {
    await changeSelected(state.album, { remove: ids }, `Removed ${several(ids.length, "picture", "pictures")}. `);
  } catch (error) {
    $("status").textContent = error.message;
  }
}

function renameAlbum() {
  askName({ title: "Rename the album", name: state.album, confirm: "Rename", done: async (name) => {
    showAlbums(await api.renameAlbum(state.album, name));
    go({ album: name }, { replace: true });
  } });
}

$("search").addEventListener("submit", (event) => {
  event.preventDefault();
  $("query").blur(); // which also closes the suggestions
  const typed = split($("query").value);
  written = null;
  const joined = (kind) => [...new Set([...state[kind], ...typed[kind]])];
  go({ q: typed.q, plus: joined("plus"), minus: joined("minus"), all: false, item: null, suggest: false });
});
$("results").addEventListener("click", (event) => {
  const button = event.target.closest("[data-select]");
  const answered = event.target.closest("[data-answer]");
  if (button) select(button.dataset.select);
  else if (answered) answerSuggestion(answered.dataset.for, answered.dataset.answer);
  else follow(event);
});
$("unselect").addEventListener("click", () => {
  for (const id of [...chosen.keys()]) select(id);
});
$("order").addEventListener("change", () => go({ order: $("order").value }));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  grid.focus($("results"));
});
suggests($("query"), $("suggestions"), () => $("search").requestSubmit());
$("results").addEventListener("keydown", (event) => {
  const id = event.target.closest("a[data-id]")?.dataset.id;
  const plain = id && !event.ctrlKey && !event.metaKey && !event.altKey;
  const answer = { y: "add", n: "reject" }[event.key];
  if (answer && plain && suggesting() && about.saving) return answerSuggestion(id, answer);
  if (event.key === "x" && plain && !suggesting()) return select(id);
  if (grid.walk($("results"), event) === "leave") $("query").focus();
});
$("filter").addEventListener("click", () => openFilters($("filters").hidden));
$("filters").addEventListener("redraw", () => filters.show($("filters"), about, state, go, null));
document.querySelector(".wordmark").addEventListener("click", follow);
for (const button of document.querySelectorAll("[data-find]")) {
  button.addEventListener("click", () => go({ find: button.dataset.find, all: false }));
}
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  const writing = event.target.matches("input, textarea");
  if (event.key === "/" && !writing) {
    event.preventDefault();
    $("query").focus();
    $("query").select();
  } else if (event.target === document.body && /^Arrow(Down|Right)$/u.test(event.key) && $("results").firstElementChild) {
    event.preventDefault();
    grid.focus($("results"));
  } else if (event.key === "ArrowDown" && event.target === $("query")) {
    event.preventDefault();
    grid.focus($("results"));
  } else if (event.key === "Escape") {
    if (!$("filters").hidden) openFilters(false);
    else if (event.target === $("query")) $("query").blur();
    else $("query").focus();
  }
});
addEventListener("popstate", () => {
  state = read();
  render();
});
document.querySelector(".go").append(icon("search"));
$("pick").append(icon("picture"));
$("to-album").append(icon("album"), "Add to album…");
$("to-album").addEventListener("click", addToAlbum);
$("from-album").append(icon("minus"), "Remove from album");
$("from-album").addEventListener("click", removeFromAlbum);
$("album-rename").addEventListener("click", renameAlbum);
$("album-remove").addEventListener("click", () => askDelete(state.album));
$("album-suggest").addEventListener("click", follow);
$("save-search").append(icon("star"), "Save");
$("save-search").addEventListener("click", openSave);
toggleTheme($("theme"));
takePictures({ file: $("file"), pick: $("pick"), take: searchByPicture });
drawHead();
begin();
