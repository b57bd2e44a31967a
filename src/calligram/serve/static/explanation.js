// Why a picture was found: the importance of each word of a text, as a colour behind the word, and its attention.

import * as api from "./api.js";
import { Attention } from "./attention.js";
import { h, icon } from "./dom.js";

const MAX_WORDS = 64; // the limit of the server
const EMPHASIZED_WORDS = 3;

const signed = (weight) => `${weight < 0 ? "−" : "+"}${Math.abs(weight).toFixed(3)}`;

// Words are explained by leaving out one at a time, so there must be two.
export function explainable(text) {
  const words = text.split(/\s+/u).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
  return words >= 2 && words <= MAX_WORDS;
}

export class Explanation {
  constructor(id, text, stage) {
    this.id = id;
    this.stage = stage;
    this.attention = null; // set if the matcher has attention and the boxes of its regions are known
    this.said = h("p", { class: "said", role: "status", id: "explanation-status" });
    this.sentence = h("p", { class: "weighed", id: "weighed" });
    this.looks = h("p", { class: "said looks-at", id: "looks-at" }); // not for screen readers: the labels of words and regions contain it
    this.element = h("section", { id: "explanation", class: "explanation", hidden: true, "aria-label": "Word importance" },
      h("h3", {}, "Word importance"), this.sentence, this.looks, this.said);
    if (explainable(text)) this.ask(text);
  }

  // The button of a caption.
  button(text) {
    if (!explainable(text)) return null;
    return h("button", { type: "button", class: "quiet weigh", "aria-label": `Explain the words: ${text}`, title: "Explain the words", onclick: () => this.ask(text) }, icon("weigh"));
  }

  leave() {
    this.asking?.abort();
    this.asking = undefined;
    this.attention?.clear();
    this.attention = null;
  }

  // Whether a word or a region is selected; Esc deselects it.
  get holds() {
    return Boolean(this.attention?.held);
  }

  release() {
    this.attention.hold(this.attention.held);
  }

  async ask(text) {
    this.leave();
    const mine = (this.asking = new AbortController());
    try {
      const answer = await api.explain(this.id, text, mine.signal);
      if (this.asking === mine) this.draw(text, answer);
    } catch (error) {
      if (error.name === "AbortError" || this.asking !== mine) return;
      this.sentence.replaceChildren();
      this.say(error.id ? `${error.message} (${error.id})` : error.message, "error");
    }
  }

  draw(text, { score, words, attention }) {
    const looks = attention?.boxes ? attention : null;
    const characters = Array.from(text); // the server counts code points, JavaScript counts UTF-16 units
    const most = Math.max(...words.map((word) => Math.abs(word.weight))) || 1;
    const telling = new Set([...words].filter((word) => word.weight > 0).sort((a, b) => b.weight - a.weight).slice(0, EMPHASIZED_WORDS));
    const parts = [];
    const elements = words.map((word, number) => this.word(word, most, telling.has(word), looks ? Attention.describe(looks, number) : ""));
    let at = 0;
    words.forEach((word, number) => {
      parts.push(characters.slice(at, word.start).join(""), elements[number]);
      at = word.end;
    });
    parts.push(characters.slice(at).join(""));
    this.sentence.replaceChildren(...parts);
    if (looks) {
      const spoken = words.map(({ word }, number) => ({ word, element: elements[number] }));
      this.attention = new Attention(this.stage, looks, spoken, (text) => { this.looks.textContent = text; });
    }
    const more = looks ? " Point at a word to see its attention, or select a region of the picture to see its words." : "";
    this.say(`Score ${score.toFixed(3)}. Red words raise it, blue words lower it.${more}`);
  }

  word({ word, weight }, most, telling, looking) {
    const shown = signed(weight);
    const kind = `weighs ${weight < 0 ? "against" : "for"}${telling ? " telling" : ""}`;
    const more = looking ? `, ${looking}` : "";
    const element = h("span", { class: kind, title: shown }, word, h("span", { class: "visually-hidden" }, ` (${shown}${more})`));
    element.style.setProperty("--weight", (Math.abs(weight) / most).toFixed(3));
    return element;
  }

  say(text, kind = "") {
    this.said.className = `said ${kind}`;
    this.said.textContent = text;
    this.element.hidden = false;
  }
}
