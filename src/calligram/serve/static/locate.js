// Phrase localization: the noun phrases of a text and their boxes, in the same colours.

import * as api from "./api.js";
import { h, icon, svg } from "./dom.js";

const COLOURS = 7; // as in detail.css; they repeat after the last one, and the numbers still differ
const BOXES_PER_PHRASE = 3;
const MIN_TAG_DISTANCE = 0.06; // as a share of the picture

const area = ([x0, y0, x1, y1]) => (x1 - x0) * (y1 - y0);

// The position of a box as text, for screen readers.
export function place([x0, y0, x1, y1], width, height) {
  const [x, y] = [(x0 + x1) / 2 / width, (y0 + y1) / 2 / height];
  const parts = [y < 0.36 ? "upper" : y > 0.64 ? "lower" : "", x < 0.36 ? "left" : x > 0.64 ? "right" : ""].filter(Boolean);
  return parts.length ? `in the ${parts.join(" ")} part` : "in the middle";
}

export class Locate {
  constructor(dialog, { id, text, overlay, tags, measure }) {
    Object.assign(this, { dialog, id, overlay, tags, measure });
    this.shown = []; // for each phrase: its text and its boxes
    this.held = null; // the selected phrase
    this.field = h("input", { id: "locate-text", type: "text", maxlength: 1000, value: text, enterkeyhint: "search",
      "aria-label": "Find in this picture", placeholder: "a phrase or a sentence", autocomplete: "off" });
    this.field.addEventListener("focus", () => this.field.select());
    this.said = h("p", { class: "said", role: "status", id: "locate-status" });
    this.sentence = h("p", { class: "sentence", id: "located", hidden: true });
    this.wipe = h("button", { type: "button", class: "quiet", "aria-label": "Clear the boxes", title: "Clear the boxes (Esc)", hidden: true, onclick: () => this.leave() }, icon("close"));
    const form = h("form", { class: "box", onsubmit: (event) => {
      event.preventDefault();
      this.ask(this.field.value);
    } }, this.field, this.wipe, h("button", { type: "submit", class: "go", "aria-label": "Find", title: "Find" }, icon("target")));
    this.element = h("section", { class: "locate", id: "locate" }, h("h3", {}, "Find in this picture"), form, this.sentence, this.said);
  }

  // The button of a caption.
  button(text) {
    return h("button", { type: "button", class: "quiet where-is", "aria-label": `Show in the picture: ${text}`, title: "Show in the picture", onclick: () => {
      this.field.value = text;
      this.ask(text);
    } }, icon("target"));
  }

  get active() {
    return this.asking !== undefined || this.shown.length > 0 || this.said.textContent !== "";
  }

  clear() {
    this.asking?.abort();
    this.asking = undefined;
    this.shown = [];
    this.held = null;
    this.overlay.replaceChildren();
    this.tags.replaceChildren();
    this.sentence.replaceChildren();
    this.sentence.hidden = this.wipe.hidden = true;
    this.say("");
    this.dialog.classList.remove("located", "looking");
  }

  // Clear, and move the focus if its element was removed, so that Esc still works.
  leave() {
    const inside = this.sentence.contains(document.activeElement) || document.activeElement === this.wipe;
    this.clear();
    if (inside) this.field.focus();
  }

  say(text, kind = "") {
    this.said.className = `said ${kind}`;
    this.said.textContent = text;
  }

  async ask(text) {
    this.asking?.abort();
    if (!text.trim()) return this.clear();
    const mine = (this.asking = new AbortController());
    if (matchMedia("(hover: none)").matches) this.field.blur(); // the on-screen keyboard would hide the picture
    this.dialog.classList.add("looking");
    this.wipe.hidden = false;
    this.say("Searching in the picture…", "waiting");
    try {
      const answer = await api.locate(this.id, text, BOXES_PER_PHRASE, mine.signal);
      if (this.asking !== mine) return;
      this.asking = undefined;
      this.draw(text, answer);
    } catch (error) {
      if (error.name === "AbortError" || this.asking !== mine) return;
      this.clear();
      this.say(error.id ? `${error.message} (${error.id})` : error.message, "error");
    } finally {
      if (!this.asking) this.dialog.classList.remove("looking");
    }
  }

  draw(text, { width, height, phrases, unknown }) {
    this.measure(width, height);
    this.shown = [];
    this.held = null;
    const characters = Array.from(text); // the server counts code points, JavaScript counts UTF-16 units
    const parts = [];
    let at = 0;
    phrases.forEach((phrase, number) => {
      const words = this.phrase(characters.slice(phrase.start, phrase.end).join(""), phrase, number, width, height);
      parts.push(characters.slice(at, phrase.start).join(""), words);
      at = phrase.end;
      this.shown.push({ words, boxes: this.boxes(phrase, number), tag: this.tag(phrase, number, phrases, width, height) });
    });
    parts.push(characters.slice(at).join(""));
    this.sentence.replaceChildren(...parts);
    this.sentence.hidden = false;
    // Small boxes are drawn above large ones, so that all of them can be pointed at.
    const best = (boxes) => Math.max(0, ...boxes.map((box) => Number(box.dataset.area)));
    const groups = [...this.shown].sort((a, b) => best(b.boxes) - best(a.boxes));
    this.overlay.replaceChildren(...groups.flatMap((one) => one.boxes));
    this.tags.replaceChildren(...this.shown.map((one) => one.tag).filter(Boolean));
    this.dialog.classList.add("located");
    this.light(null);
    this.tell(phrases, unknown);
    this.element.scrollIntoView({ block: "nearest" });
  }

  tell(phrases, unknown) {
    const found = phrases.filter((phrase) => phrase.boxes.length).length;
    const lost = unknown.length ? `Unknown words: ${unknown.join(", ")}.` : "";
    if (!found) this.say(`No phrase can be located. ${lost}`, "error");
    else if (lost) this.say(lost);
    else this.say(found === 1 ? "Solid line: the best box. Dashed lines: the next best." : `${found} phrases; point at one to see it alone.`);
  }

  phrase(text, { boxes }, number, width, height) {
    if (!boxes.length) return h("span", { class: "phrase lost", title: "None of these words is known" }, text);
    const words = h("span", { class: `phrase c${number % COLOURS}`, role: "button", tabindex: "0", "aria-pressed": "false",
      "aria-label": `${number + 1}: ${text}, ${place(boxes[0].box, width, height)}` },
    h("span", { class: "number" }, String(number + 1)), text);
    this.follow(words, number);
    words.addEventListener("focus", () => this.light(number));
    words.addEventListener("blur", () => this.light(this.held));
    words.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.hold(number);
    });
    return words;
  }

  boxes({ boxes }, number) {
    return [...boxes].reverse().map(({ box, rank }) => {
      const [x0, y0, x1, y1] = box;
      const at = { x: x0, y: y0, width: Math.max(0, x1 - x0), height: Math.max(0, y1 - y0) };
      const group = svg("g", { class: `found c${number % COLOURS} ${rank === 1 ? "best" : "next"}` },
        svg("rect", { ...at, class: "under" }), svg("rect", { ...at, class: "line" }));
      group.dataset.area = String(rank === 1 ? area(box) : 0);
      group.dataset.phrase = String(number);
      if (rank === 1) this.follow(group, number);
      return group;
    });
  }

  // Numbers have a fixed size. A number that would cover another one is placed next to it.
  tag({ boxes }, number, phrases, width, height) {
    if (!boxes.length) return null;
    const corner = ([x0, y0]) => [x0 / width, y0 / height];
    const [x, y] = corner(boxes[0].box);
    const before = phrases.slice(0, number).filter((other) => other.boxes.length).map((other) => corner(other.boxes[0].box));
    const offset = before.filter(([left, top]) => Math.abs(left - x) < MIN_TAG_DISTANCE && Math.abs(top - y) < MIN_TAG_DISTANCE).length;
    const tag = h("span", { class: `tag c${number % COLOURS}` }, String(number + 1));
    for (const [name, value] of [["--x", x], ["--y", y], ["--offset", offset]]) tag.style.setProperty(name, value);
    return tag;
  }

  follow(element, number) {
    element.addEventListener("pointerenter", () => this.light(number));
    element.addEventListener("pointerleave", () => this.light(this.held));
    element.addEventListener("click", () => this.hold(number));
  }

  // A click or a touch keeps a phrase selected.
  hold(number) {
    this.held = this.held === number ? null : number;
    this.light(this.held ?? null);
  }

  light(number) {
    const alone = this.shown.filter((one) => one.boxes.length).length === 1;
    this.shown.forEach((one, place) => {
      const lit = number === place;
      const dim = number !== null && !lit;
      for (const element of [one.words, one.tag, ...one.boxes]) {
        element?.classList.toggle("lit", lit || (alone && number === null));
        element?.classList.toggle("dim", dim);
      }
      if (one.boxes.length) one.words.setAttribute("aria-pressed", String(this.held === place));
    });
  }
}
