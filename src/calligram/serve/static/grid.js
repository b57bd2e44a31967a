// The results: pictures as tiles, captions as lines. Arrow keys move through both.

import { thumbnail } from "./api.js";
import { h } from "./dom.js";

const score = (hit) => hit.score.toFixed(Math.abs(hit.score) < 0.1 ? 3 : 2);

export function missing(event) {
  const image = event.target;
  image.replaceWith(h("span", { class: "broken" }, image.alt || "no preview"));
}

function tile(hit, top, address) {
  const name = hit.path?.split(/[\\/]/u).pop() ?? hit.id;
  const image = h("img", { src: thumbnail(hit.id), alt: name, loading: "lazy", decoding: "async", onerror: missing });
  const track = h("span", { class: "track", "aria-hidden": "true" }, h("i"));
  track.style.setProperty("--share", top > 0 ? Math.max(0, Math.min(1, hit.score / top)) : 0);
  return h("a", { class: "tile", href: address({ item: hit.id }), "data-id": hit.id, tabindex: "-1",
    title: name, "aria-label": `${hit.rank}: ${name}, score ${score(hit)}` },
    h("span", { class: "frame" }, image), h("span", { class: "under" }, track, score(hit)));
}

function line(hit, address) {
  const href = address({ q: hit.text, plus: [], minus: [], like: [], picture: null, find: "images", all: false });
  return h("a", { class: "word", href, tabindex: "-1", title: "Find pictures for this text" },
    hit.text ?? hit.id, h("small", {}, score(hit)));
}

export function show(list, hits, kind, address) {
  const words = kind === "captions";
  list.classList.toggle("words", words);
  const top = Math.max(0, ...hits.map((hit) => hit.score));
  const focused = list.contains(document.activeElement) ? [...list.children].findIndex((c) => c.contains(document.activeElement)) : -1;
  const kept = new Map([...list.children].map((entry) => [entry.dataset.key, entry]));
  list.replaceChildren(...hits.map((hit) => {
    const key = `${kind} ${hit.id} ${hit.rank} ${score(hit)} ${address({ item: hit.id })}`;
    return kept.get(key) ?? h("li", { "data-key": key }, words ? line(hit, address) : tile(hit, top, address));
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
