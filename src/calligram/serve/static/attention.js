// Where words look in a picture, and which words a region of it looks at: light on the picture, and buttons over it.

import { h, svg } from "./dom.js";
import { place } from "./locate.js";

const SPREAD = 3; // a word that looks nowhere in particular shows at one in so many of full light, as on printed sheets
const TOLD = 3; // words of a region that its button names
const NAMED = 6; // and those that are written out
const OUTLINED = 3; // boxes of a word that get an outline, where they overlap

const percent = (share) => `${Math.round(100 * share)}%`;
const area = ([x0, y0, x1, y1]) => (x1 - x0) * (y1 - y0);
const middle = ([x0, y0, x1, y1]) => [(x0 + x1) / 2, (y0 + y1) / 2];

// How bright each region is, 0 to 1.
function light(shares) {
  const largest = Math.max(...shares, SPREAD / shares.length);
  return shares.map((share) => share / largest);
}

// Whether regions lie over each other, as boxes do and cells do not.
function overlap(boxes) {
  const [x0, y0, x1, y1] = [0, 1, 2, 3].map((side) => Math[side < 2 ? "min" : "max"](...boxes.map((box) => box[side])));
  return boxes.reduce((sum, box) => sum + area(box), 0) > 1.01 * area([x0, y0, x1, y1]);
}

// Of what a button in this direction would be, how far it is; nothing for what lies elsewhere.
function distance(from, to, key) {
  const [dx, dy] = [to[0] - from[0], to[1] - from[1]];
  const [along, aside] = { ArrowLeft: [-dx, dy], ArrowRight: [dx, dy], ArrowUp: [-dy, dx], ArrowDown: [dy, dx] }[key];
  return along > 1e-3 ? along + 3 * Math.abs(aside) : Infinity;
}

export class Attention {
  // words: elements of the sentence and what they say; tell: where it is said in words.
  constructor({ element, looks, parts }, attention, words, tell) {
    Object.assign(this, { stage: element, overlay: looks, parts, words, tell });
    Object.assign(this, { boxes: attention.boxes, shares: attention.words, regions: attention.regions, rest: attention.rest });
    this.held = null; // { word } or { region }
    this.order = this.boxes.map((_, number) => number).sort((a, b) => area(this.boxes[b]) - area(this.boxes[a]));
    this.overlap = overlap(this.boxes);
    this.buttons = this.boxes.map((box, number) => this.button(box, number));
    // Small regions lie above large ones, or they could not be pointed at.
    parts.replaceChildren(...this.order.map((number) => this.buttons[number]));
    parts.hidden = false;
    if (this.buttons.length) this.buttons[this.order[0]].tabIndex = 0;
    element.classList.add("attended");
    words.forEach((word, number) => this.follow(word.element, number));
  }

  // In words, for those who cannot see it.
  static told({ boxes, words }, number) {
    const shares = words[number];
    if (!shares) return "not read";
    const best = shares.indexOf(Math.max(...shares));
    return `looks most ${place(boxes[best], 1, 1)}, ${percent(shares[best])}`;
  }

  most(region, count = this.words.length) {
    const shares = this.regions[region];
    const order = shares.map((_, number) => number).sort((a, b) => shares[b] - shares[a]);
    return order.slice(0, count).map((number) => `${this.words[number].word} ${percent(shares[number])}`).join(", ");
  }

  button(box, number) {
    const name = `Region ${place(box, 1, 1)}: ${this.most(number, TOLD)}`;
    const button = h("button", { type: "button", class: "part", tabindex: "-1", "aria-pressed": "false", "aria-label": name,
      onclick: () => this.hold({ region: number }), onkeydown: (event) => this.move(event, number) });
    const [x0, y0, x1, y1] = box;
    for (const [side, value] of [["--x", x0], ["--y", y0], ["--w", x1 - x0], ["--h", y1 - y0]]) button.style.setProperty(side, value);
    return button;
  }

  // One stop for the tabulator; arrows go to the region beside, and the page keys to smaller and larger ones, since
  // regions may have one middle.
  move(event, number) {
    const by = { PageDown: 1, PageUp: -1 }[event.key];
    if ((!by && !event.key.startsWith("Arrow")) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation(); // else they would go to the next picture
    const next = by ? this.order[this.order.indexOf(number) + by] : this.beside(number, event.key);
    if (next === undefined) return;
    this.buttons[number].tabIndex = -1;
    this.buttons[next].tabIndex = 0;
    this.buttons[next].focus();
  }

  beside(number, key) {
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

  // A click keeps it, which is also how a finger does it; another lets it go.
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
      this.tell(`The region ${place(this.boxes[what.region], 1, 1)} looks at ${this.most(what.region, NAMED)}. The ends of the text and punctuation get ${percent(this.rest[what.region])}.`);
    } else {
      this.shine(light(this.shares[what.word]));
      this.tell(`“${this.words[what.word].word}” ${Attention.told({ boxes: this.boxes, words: this.shares }, what.word)}.`);
    }
  }

  // Dark where nothing is looked at, warm where much is. The brightest is drawn last: where regions overlap it counts.
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
    const lines = this.overlap ? order.slice(-OUTLINED).map((number) => drawn(number, "outlined")) : [];
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
