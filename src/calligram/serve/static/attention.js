// Attention between words and regions: light on the picture, and a button on each region.

import { h, svg } from "./dom.js";
import { place } from "./locate.js";

const FULL_LIGHT = 3; // multiple of uniform attention that is drawn at full light, as on printed sheets
const LABEL_WORDS = 3; // words in the label of a region's button
const TEXT_WORDS = 6; // words in the sentence about a region
const OUTLINED_BOXES = 3; // boxes of a word that get an outline, if regions overlap

const percent = (share) => `${Math.round(100 * share)}%`;
const area = ([x0, y0, x1, y1]) => (x1 - x0) * (y1 - y0);
const middle = ([x0, y0, x1, y1]) => [(x0 + x1) / 2, (y0 + y1) / 2];

// The brightness of each region, 0 to 1.
function light(shares) {
  const largest = Math.max(...shares, FULL_LIGHT / shares.length);
  return shares.map((share) => share / largest);
}

// Whether regions overlap: boxes do, and the cells of a grid do not.
function overlap(boxes) {
  const [x0, y0, x1, y1] = [0, 1, 2, 3].map((side) => Math[side < 2 ? "min" : "max"](...boxes.map((box) => box[side])));
  return boxes.reduce((sum, box) => sum + area(box), 0) > 1.01 * area([x0, y0, x1, y1]);
}

// The distance to a region in the direction of an arrow key; infinite for regions in other directions.
function distance(from, to, key) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const [along, aside] = { ArrowLeft: [-dx, dy], ArrowRight: [dx, dy], ArrowUp: [-dy, dx], ArrowDown: [dy, dx] }[key];
  return along > 1e-3 ? along + 3 * Math.abs(aside) : Infinity;
}

export class Attention {
  // words: the words and their elements in the sentence; tell: shows a sentence about the attention.
  constructor({ element, looks, parts }, attention, words, tell) {
    Object.assign(this, { stage: element, overlay: looks, parts, words, tell });
    Object.assign(this, { boxes: attention.boxes, shares: attention.words, regions: attention.regions, rest: attention.rest });
    this.held = null; // { word } or { region }
    this.order = this.boxes.map((_, number) => number).sort((a, b) => area(this.boxes[b]) - area(this.boxes[a]));
    this.overlap = overlap(this.boxes);
    this.buttons = this.boxes.map((box, number) => this.button(box, number));
    // Small regions are drawn above large ones, so that all of them can be pointed at.
    parts.replaceChildren(...this.order.map((number) => this.buttons[number]));
    parts.hidden = false;
    if (this.buttons.length) this.buttons[this.order[0]].tabIndex = 0;
    element.classList.add("attended");
    words.forEach((word, number) => this.follow(word.element, number));
  }

  // The attention of a word as text, for screen readers.
  static describe({ boxes, words }, number) {
    const shares = words[number];
    if (!shares) return "not used by the matcher";
    const best = shares.indexOf(Math.max(...shares));
    return `attends most to a region ${place(boxes[best], 1, 1)}, ${percent(shares[best])}`;
  }

  most(region, count = this.words.length) {
    const shares = this.regions[region];
    const order = shares.map((_, number) => number).sort((a, b) => shares[b] - shares[a]);
    return order.slice(0, count).map((number) => `${this.words[number].word} ${percent(shares[number])}`).join(", ");
  }

  button(box, number) {
    const name = `Region ${place(box, 1, 1)}: ${this.most(number, LABEL_WORDS)}`;
    const button = h("button", { type: "button", class: "part", tabindex: "-1", "aria-pressed": "false", "aria-label": name,
      onclick: () => this.hold({ region: number }), onkeydown: (event) => this.move(event, number) });
    const [x0, y0, x1, y1] = box;
    for (const [side, value] of [["--x", x0], ["--y", y0], ["--w", x1 - x0], ["--h", y1 - y0]]) button.style.setProperty(side, value);
    return button;
  }

  // All regions are one stop of the Tab key. Arrow keys move to the neighbouring region. Page keys move to smaller and
  // larger ones, because regions may have the same centre.
  move(event, number) {
    const by = { PageDown: 1, PageUp: -1 }[event.key];
    if ((!by && !event.key.startsWith("Arrow")) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation(); // otherwise they would open the next picture
    const next = by ? this.order[this.order.indexOf(number) + by] : this.neighbour(number, event.key);
    if (next === undefined) return;
    this.buttons[number].tabIndex = -1;
    this.buttons[next].tabIndex = 0;
    this.buttons[next].focus();
  }

  neighbour(number, key) {
    const far = this.boxes.map((box) => distance(middle(this.boxes[number]), middle(box), key));
    const nearest = Math.min(...far);
    return nearest === Infinity ? undefined : far.indexOf(nearest);
  }

  follow(element, number) {
    if (!this.attends(number)) return;
    element.classList.add("looks");
    for (const [name, value] of [["role", "button"], ["tabindex", "0"], ["aria-pressed", "false"]]) element.setAttribute(name, value);
    for (const name of ["pointerenter", "focus"]) element.addEventListener(name, () => this.show({ word: number }));
    for (const name of ["pointerleave", "blur"]) element.addEventListener(name, () => this.show(this.held));
    element.addEventListener("click", () => this.hold({ word: number }));
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.hold({ word: number });
    });
  }

  attends(number) {
    return Boolean(this.shares[number]);
  }

  // A click or a touch keeps a word or region selected; another one deselects it.
  hold(what) {
    const same = this.held && this.held.word === what.word && this.held.region === what.region;
    this.held = same ? null : what;
    this.words.forEach(({ element }, number) => this.attends(number) && element.setAttribute("aria-pressed", String(this.held?.word === number)));
    this.buttons.forEach((button, number) => button.setAttribute("aria-pressed", String(this.held?.region === number)));
    this.show(this.held);
  }

  show(what) {
    const shares = what?.region === undefined ? [] : this.regions[what.region];
    const largest = Math.max(...shares, 1e-9);
    this.words.forEach(({ element }, number) => {
      element.classList.toggle("lit", what?.word === number);
      element.classList.toggle("asked", shares.length > 0);
      element.style.setProperty("--look", ((shares[number] ?? 0) / largest).toFixed(3));
    });
    if (!what) {
      this.overlay.replaceChildren();
      this.tell("");
    } else if (shares.length) {
      this.shine(this.boxes.map((_, number) => Number(number === what.region)));
      this.tell(`The region ${place(this.boxes[what.region], 1, 1)} attends to ${this.most(what.region, TEXT_WORDS)}. Punctuation and the ends of the text get ${percent(this.rest[what.region])}.`);
    } else {
      this.shine(light(this.shares[what.word]));
      this.tell(`“${this.words[what.word].word}” ${Attention.describe({ boxes: this.boxes, words: this.shares }, what.word)}.`);
    }
  }

  // Dark for low attention, warm light for high. The brightest region is drawn last, so that it is visible where regions overlap.
  shine(bright) {
    const order = bright.map((_, number) => number).sort((a, b) => bright[a] - bright[b]);
    const drawn = (number, kind) => {
      const [x0, y0, x1, y1] = this.boxes[number].map((value) => 100 * value);
      const rect = svg("rect", { x: `${x0}%`, y: `${y0}%`, width: `${x1 - x0}%`, height: `${y1 - y0}%`, class: kind });
      rect.dataset.region = String(number);
      rect.style.setProperty("--light", bright[number].toFixed(3));
      return rect;
    };
    const whole = { width: "100%", height: "100%" };
    const mask = (id) => svg("mask", { id }, svg("rect", whole), ...order.map((number) => drawn(number, "region")));
    const over = (id) => svg("rect", { ...whole, class: id, mask: `url(#${id})` });
    const lines = this.overlap ? order.slice(-OUTLINED_BOXES).map((number) => drawn(number, "outlined")) : [];
    this.overlay.replaceChildren(mask("unlit"), mask("lit"), over("unlit"), over("lit"), ...lines);
  }

  clear() {
    this.overlay.replaceChildren();
    this.parts.replaceChildren();
    this.parts.hidden = true;
    this.stage.classList.remove("attended");
    this.tell("");
  }
}
