// Searches that are saved with the library: a list on the start page, and a dialog that saves the present one.

import * as api from "./api.js";
import { $, h, icon } from "./dom.js";
import { condition, isQuery, queryText, read, write } from "./state.js";

let names = new Set();

// Values of filters become part of the condition, so that the command line understands the search too.
const content = (state, kinds) => ({ q: state.q, plus: state.plus, minus: state.minus, like: state.like, where: condition(state, kinds), all: state.all });
const address = (search) => write({ ...read("?"), ...search });

export const canSave = (state, about) => Boolean(about.saving && !state.picture && !state.album && (isQuery(state) || condition(state, about.columns)));

export async function show(list, follow, saving) {
  draw(list, await api.searches(), follow, saving);
}

function draw(list, searches, follow, saving) {
  names = new Set(searches.map((search) => search.name));
  list.replaceChildren(...searches.map((search) => {
    const remove = h("button", { type: "button", "aria-label": `Delete the saved search ${search.name}`, title: "Delete", onclick: async (event) => {
      event.target.closest("button").disabled = true;
      draw(list, await api.deleteSearch(search.name), follow, saving);
    } }, icon("close"));
    return h("li", { class: "chip" }, h("a", { href: address(search), title: queryText(search) || search.where, onclick: follow }, search.name), saving ? remove : null);
  }));
  list.hidden = !searches.length;
}

// Opens the dialog. `now` gives the state of the page, `done` is called with the list after saving.
export function saver(now, done) {
  $("save-cancel").addEventListener("click", () => $("save").close());
  $("save-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const { state, about } = now();
    try {
      await api.saveSearch({ ...content(state, about.columns), name: $("save-name").value.trim() });
      $("save").close();
      done($("save-name").value.trim());
    } catch (error) {
      $("save-error").textContent = error.message;
    }
  });
  $("save-name").addEventListener("input", () => {
    $("save-error").textContent = names.has($("save-name").value.trim()) ? "This name is taken; saving replaces that search." : "";
  });
  return () => {
    const { state, about } = now();
    $("save-name").value = (queryText(state) || condition(state, about.columns) || "Similar pictures").slice(0, 100);
    $("save-error").textContent = "";
    $("save").showModal();
    $("save-name").select();
  };
}
