// Albums: the list on the start page, the dialogs that add to, rename and delete an album, and answers to suggestions.

import * as api from "./api.js";
import { $, h, icon, number, several } from "./dom.js";
import { read, write } from "./state.js";

let known = []; // the albums as the server last gave them
let lists = 0; // how often it gave them
let drawChoices = () => {}; // draws the albums in the dialog for a name

const address = (name) => write({ ...read("?"), album: name });
export const find = (name) => known.find((album) => album.name === name);

export async function show(list, follow) {
  const before = lists;
  const albums = await api.albums();
  if (lists === before) draw(list, albums, follow); // otherwise a change was answered meanwhile, with a newer list
}

export function draw(list, albums, follow) {
  known = albums;
  lists += 1;
  drawChoices(); // the dialog may have been opened before the list arrived
  list.replaceChildren(...albums.map((album) => h("li", { class: "chip" }, icon("album"),
    h("a", { href: address(album.name), title: `Album, ${several(album.pictures, "picture", "pictures")}`, onclick: follow }, album.name,
      h("small", {}, number(album.pictures))))));
  list.hidden = !albums.length;
}

// Opens the dialog for a name. `save` gets the name; what it throws is shown, and the dialog stays open.
export function namer() {
  let save = null;
  let choosing = false;
  const submit = async (name) => {
    $("album-error").textContent = "";
    try {
      await save(name);
      $("album-dialog").close();
    } catch (error) {
      $("album-error").textContent = error.message;
    }
  };
  $("album-cancel").addEventListener("click", () => $("album-dialog").close());
  $("album-form").addEventListener("submit", (event) => {
    event.preventDefault();
    submit($("album-name").value.trim());
  });
  drawChoices = () => {
    $("album-choices").replaceChildren(...(choosing ? known : []).map((album) =>
      h("li", {}, h("button", { type: "button", class: "plain", onclick: () => submit(album.name) }, icon("album"), album.name))));
    $("album-choices").hidden = !choosing || !known.length;
  };
  return ({ title, name = "", choose = false, confirm, done }) => {
    [save, choosing] = [done, choose];
    $("album-title").textContent = title;
    $("album-name").value = name;
    $("album-error").textContent = "";
    $("album-save").textContent = confirm;
    drawChoices();
    $("album-dialog").showModal();
    $("album-name").select();
  };
}

// Asks before an album is deleted.
export function deleter(remove) {
  let name = "";
  $("album-keep").addEventListener("click", () => $("album-delete").close());
  $("album-delete-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await remove(name);
      $("album-delete").close();
    } catch (error) {
      $("album-delete-error").textContent = error.message;
    }
  });
  return (chosen) => {
    name = chosen;
    $("album-delete-text").textContent = `Its ${several(find(name)?.pictures ?? 0, "picture stays", "pictures stay")} in the library.`;
    $("album-delete-title").textContent = `Delete the album “${name}”?`;
    $("album-delete-error").textContent = "";
    $("album-delete").showModal();
  };
}

// What suggestions were learnt from, in words.
export function learntFrom({ learnt_from: kind, examples, rejected }) {
  const answers = `${several(examples, "picture", "pictures")} of the album${rejected ? ` and ${number(rejected)} that do not belong` : ""}`;
  if (kind === "name") return "Found by the name of the album. Each answer improves the next suggestions.";
  if (kind === "nothing") return "";
  return kind === "both" ? `Learnt from ${answers}, and from its name.` : `Learnt from ${answers}.`;
}
