// The results: pictures as tiles, captions as lines. Arrow keys move through both.

import { thumbnail } from "./api.js";
import { dateText, h, icon } from "./dom.js";

const score = (hit) => hit.score.toFixed(Math.abs(hit.score) < 0.1 ? 3 : 2);

export function missing(event) {
  const image = event.target;
  image.replaceWith(h("span", { class: "broken" }, image.alt || "no preview"));
}

// Without a caption, the file name is all that is known of a picture.
function tile(hit, top, address) {
  const name = hit.name ?? hit.id;
  const described = hit.caption ?? name;
  const image = h("img", { src: thumbnail(hit.id), alt: described, loading: "lazy", decoding: "async", onerror: missing });
  const track = h("span", { class: "track", "aria-hidden": "true" }, h("i"));
  track.style.setProperty("--share", top > 0 ? Math.max(0, Math.min(1, hit.score / top)) : 0);
  return h("a", { class: "tile", href: address({ item: hit.id }), "data-id": hit.id, tabindex: "-1",
    title: hit.taken ? `${name}, ${dateText(hit.taken)}` : name, "aria-label": `${hit.rank}: ${described}, score ${score(hit)}${hit.raised ? ", has the words" : ""}` },
    h("span", { class: "frame" }, image),
    h("span", { class: "under" }, track, hit.raised ? h("span", { class: "raised", title: RAISED }, "words") : null, score(hit)));
}

const RAISED = "It is placed higher than its score because its caption or file name has the words";

// A hit with a lower score than a later one: keyword search has raised it.
export function markRaised(hits) {
  let later = -Infinity;
  for (const hit of [...hits].reverse()) {
    hit.raised = hit.score < later - 0.005;
    later = Math.max(later, hit.score);
  }
}

// The first of files with the same bytes stands for all of them.
export function withoutCopies(hits) {
  const first = new Map();
  for (const hit of hits) {
    const kept = hit.content && first.get(hit.content);
    if (kept) kept.copies += 1;
    else {
      hit.copies = 0;
      first.set(hit.content || hit.id, hit);
    }
  }
  return [...first.values()];
}

// Two buttons under a suggested picture. Its tile has the keys y and n for them.
function answers(hit) {
  const described = hit.caption ?? hit.name ?? hit.id;
  const button = (answer, label, key, name) => h("button", { type: "button", class: `answer ${answer}`, "data-answer": answer, "data-for": hit.id,
    "aria-label": `${label}: ${described}`, title: `${label} (${key})` }, icon(name), label);
  return h("span", { class: "answers" }, button("add", "Belongs", "y", "check"), button("reject", "Does not", "n", "close"));
}

function entry(hit, top, address, choice, asks) {
  if (asks) return [tile(hit, top, address), asks === "answers" ? answers(hit) : null];
  const select = h("button", { type: "button", class: "select", "aria-pressed": String(choice.has(hit.id)), "aria-label": `Select ${hit.caption ?? hit.name ?? hit.id}`, title: "Select (x)",
    tabindex: "-1", "data-select": hit.id }, icon("check"));
  const copies = hit.copies ? h("span", { class: "times", title: "Files with the same bytes" }, `${hit.copies + 1}×`) : null;
  return [tile(hit, top, address), select, copies];
}

function line(hit, address) {
  const href = address({ q: hit.text, plus: [], minus: [], like: [], picture: null, find: "images", all: false });
  return h("a", { class: "word", href, tabindex: "-1", title: "Find pictures for this text" },
    hit.text ?? hit.id, h("small", {}, score(hit)));
}

// `asks`: "answers" for suggestions with buttons, "nothing" for suggestions without; pictures are then not selected.
export function show(list, hits, kind, address, choice = new Map(), asks = "") {
  const words = kind === "captions";
  list.classList.toggle("words", words);
  const top = Math.max(0, ...hits.map((hit) => hit.score));
  const focused = list.contains(document.activeElement) ? [...list.children].findIndex((c) => c.contains(document.activeElement)) : -1;
  const kept = new Map([...list.children].map((entry) => [entry.dataset.key, entry]));
  list.replaceChildren(...hits.map((hit) => {
    const key = `${kind} ${hit.id} ${hit.rank} ${score(hit)} ${hit.copies ?? 0} ${hit.raised ?? ""} ${asks} ${address({ item: hit.id })}`;
    return kept.get(key) ?? h("li", { "data-key": key }, words ? line(hit, address) : entry(hit, top, address, choice, asks));
  }));
  const stop = list.children[Math.max(0, focused)]?.firstElementChild;
  stop?.setAttribute("tabindex", "0");
  if (focused >= 0) stop?.focus();
}

export function ghosts(list, count) {
  list.classList.remove("words");
  list.replaceChildren(...Array.from({ length: count }, () =>
    h("li", { class: "ghost", "aria-hidden": "true" }, h("span", { class: "tile" }, h("span", { class: "frame" }), h("span", { class: "under" }, "\u00a0")))));
}

export function focus(list, id) {
  const entries = [...list.querySelectorAll("a")];
  const wanted = entries.find((entry) => entry.dataset.id === id) ?? entries[0];
  for (const entry of entries) entry.setAttribute("tabindex", entry === wanted ? "0" : "-1");
  wanted?.focus();
}

// The results are one stop of the Tab key. Arrow keys move the focus.
export function walk(list, event) {
  const entries = [...list.querySelectorAll("a")];
  const at = entries.indexOf(document.activeElement);
  if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const top = entries[0].getBoundingClientRect().top;
  const columns = Math.max(1, entries.findIndex((entry) => entry.getBoundingClientRect().top > top + 1));
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -at, End: entries.length - 1 - at };
  const step = steps[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const next = entries[at + step];
  if (next) move(entries, at, next);
  return event.key === "ArrowUp" && at + step < 0 ? "leave" : undefined;
}

function move(entries, at, next) {
  entries[at].setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}
