// Why a picture was found: the weight of each word of a text, drawn behind the word, and where the word looks.

import * as api from "./api.js";
import { Attention } from "./attention.js";
import { h, icon } from "./dom.js";

const MOST = 64; // words, as the server takes them
const TELLING = 3;

const signed = (weight) => `${weight < 0 ? "−" : "+"}${Math.abs(weight).toFixed(3)}`;

// Words are weighed by leaving out one at a time, so there must be two.
export function weighable(text) {
  const words = text.split(/\s+/u).filter((word) => /[\p{L}\p{N}]/u.test(word)).length;
  return words >= 2 && words <= MOST;
}

export class Explanation {
  constructor(id, text, stage) {
    this.id = id;
    this.stage = stage;
    this.attention = null; // where the matcher has any, and its regions have a place
    this.said = h("p", { class: "said", role: "status", id: "explanation-status" });
    this.sentence = h("p", { class: "weighed", id: "weighed" });
    this.looks = h("p", { class: "said looks-at", id: "looks-at" }); // not read out: words and regions say it themselves
    this.element = h("section", { id: "explanation", class: "explanation", hidden: true, "aria-label": "Words that count" },
      h("h3", {}, "Words that count"), this.sentence, this.looks, this.said);
    if (weighable(text)) this.ask(text);
  }

  // A caption's button.
  button(text) {
    if (!weighable(text)) return null;
    return h("button", { type: "button", class: "quiet weigh", "aria-label": `Weigh the words: ${text}`, title: "Weigh the words", onclick: () => this.ask(text) }, icon("weigh"));
  }

  leave() {
    this.asking?.abort();
    this.asking = undefined;
    this.attention?.clear();
    this.attention = null;
  }

  // Whether a word or a region stays lit, which Esc lets go.
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
    const characters = Array.from(text); // the server counts code points, strings here count halves of some
    const most = Math.max(...words.map((word) => Math.abs(word.weight))) || 1;
    const telling = new Set([...words].filter((word) => word.weight > 0).sort((a, b) => b.weight - a.weight).slice(0, TELLING));
    const parts = [];
    const elements = words.map((word, number) => this.word(word, most, telling.has(word), looks ? Attention.told(looks, number) : ""));
    let at = 0;
    words.forEach((word, number) => {
      parts.push(characters.slice(at, word.start).join(""), elements[number]);
      at = word.end;
    });
    parts.push(characters.slice(at).join(""));
    this.sentence.replaceChildren(...parts);
    if (looks) {
      const spoken = words.map(({ word }, number) => ({ word, element: elements[number] }));
      this.attention = new Attention(this.stage, looks, spoken, (said) => { this.looks.textContent = said; });
    }
    const more = looks ? " Point at a word to see where it looks, or choose a place in the picture to see its words." : "";
    this.say(`Score ${score.toFixed(3)}. Without a red word it falls, without a blue one it rises.${more}`);
  }

  word({ word, weight }, most, telling, looking) {
    const told = signed(weight);
    const kind = `weighs ${weight < 0 ? "against" : "for"}${telling ? " telling" : ""}`;
    const more = looking ? `, ${looking}` : "";
    const element = h("span", { class: kind, title: told }, word, h("span", { class: "visually-hidden" }, ` (${told}${more})`));
    element.style.setProperty("--weight", (Math.abs(weight) / most).toFixed(3));
    return element;
  }

  say(text, kind = "") {
    this.said.className = `said ${kind}`;
    this.said.textContent = text;
    this.element.hidden = false;
  }
}
