// Suggestions under the search box while a query is typed: the last word completed, and captions of the library.

import * as api from "./api.js";
import { h } from "./dom.js";

const WAIT_MILLISECONDS = 120; // after the last key

export function suggests(field, list, choose) {
  let waiting = null;
  let timer = 0;
  let at = -1;

  const close = () => {
    clearTimeout(timer);
    waiting?.abort();
    list.hidden = true;
    at = -1;
    field.setAttribute("aria-expanded", "false");
    field.removeAttribute("aria-activedescendant");
  };

  const show = (texts) => {
    list.replaceChildren(...texts.map((text, place) => h("li", { role: "option", id: `suggestion-${place}`, "aria-selected": "false",
      onpointerdown: (event) => event.preventDefault(), onclick: () => take(text) }, text)));
    list.hidden = !texts.length;
    at = -1;
    field.setAttribute("aria-expanded", String(Boolean(texts.length)));
    field.removeAttribute("aria-activedescendant");
  };

  const take = (text) => {
    field.value = text;
    close();
    choose();
  };

  const mark = (place) => {
    at = place;
    [...list.children].forEach((option, number) => option.setAttribute("aria-selected", String(number === at)));
    if (at >= 0) field.setAttribute("aria-activedescendant", `suggestion-${at}`);
    else field.removeAttribute("aria-activedescendant");
  };

  field.addEventListener("input", () => {
    clearTimeout(timer);
    waiting?.abort();
    if (!field.value.trim()) return close();
    timer = setTimeout(async () => {
      const mine = (waiting = new AbortController());
      try {
        const texts = await api.complete(field.value, mine.signal);
        if (!mine.signal.aborted && document.activeElement === field) show(texts);
      } catch {
        // a search works without suggestions
      }
    }, WAIT_MILLISECONDS);
  });
  // Keys of an open list do not reach the page.
  field.addEventListener("keydown", (event) => {
    if (list.hidden) return;
    const count = list.childElementCount;
    if (event.key === "ArrowDown") mark(at + 1 < count ? at + 1 : -1);
    else if (event.key === "ArrowUp") mark(at < 0 ? count - 1 : at - 1);
    else if (event.key === "Enter" && at >= 0) take(list.children[at].textContent);
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  field.addEventListener("blur", close);
  return close;
}
