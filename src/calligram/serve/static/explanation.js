// Why a picture was found: the weight of each word of a text, drawn behind the word.

import * as api from "./api.js";
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
  constructor(id, text) {
    this.id = id;
    this.said = h("p", { class: "said", role: "status", id: "explanation-status" });
    this.sentence = h("p", { class: "weighed", id: "weighed" });
    this.element = h("section", { id: "explanation", class: "explanation", hidden: true, "aria-label": "Words that count" },
      h("h3", {}, "Words that count"), this.sentence, this.said);
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

  draw(text, { score, words }) {
    const characters = Array.from(text); // the server counts code points, strings here count halves of some
    const most = Math.max(...words.map((word) => Math.abs(word.weight))) || 1;
    const telling = new Set([...words].filter((word) => word.weight > 0).sort((a, b) => b.weight - a.weight).slice(0, TELLING));
    const parts = [];
    let at = 0;
    for (const word of words) {
      parts.push(characters.slice(at, word.start).join(""), this.word(word, most, telling.has(word)));
      at = word.end;
    }
    parts.push(characters.slice(at).join(""));
    this.sentence.replaceChildren(...parts);
    this.say(`Score ${score.toFixed(3)}. Without a red word it falls, without a blue one it rises.`);
  }

  word({ word, weight }, most, telling) {
    const told = signed(weight);
    const kind = `weighs ${weight < 0 ? "against" : "for"}${telling ? " telling" : ""}`;
    const element = h("span", { class: kind, title: told }, word, h("span", { class: "visually-hidden" }, ` (${told})`));
    element.style.setProperty("--weight", (Math.abs(weight) / most).toFixed(3));
    return element;
  }

  say(text, kind = "") {
    this.said.className = `said ${kind}`;
    this.said.textContent = text;
    this.element.hidden = false;
  }
}
