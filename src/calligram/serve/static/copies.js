// Groups of files with the same bytes, and of copies in another size, compression or crop.

import * as api from "./api.js";
import { $, fileSize, h, several } from "./dom.js";
import { missing } from "./grid.js";
import { asksToken } from "./login.js";
import { toggleTheme } from "./page.js";

const POLL_MILLISECONDS = 700; // between requests while pictures are compared
const PAGE_GROUPS = 50;
const login = asksToken(begin);
let asked = 0;

async function begin() {
  const mine = ++asked;
  $("notice").hidden = $("more").hidden = true;
  try {
    let found = await api.duplicates(0, PAGE_GROUPS);
    while (found.state === "working") {
      $("status").textContent = `Looking for copies${found.said ? `: ${found.said}` : ""}`;
      await new Promise((go) => setTimeout(go, POLL_MILLISECONDS));
      if (mine !== asked) return;
      found = await api.duplicates(0, PAGE_GROUPS);
    }
    if (mine !== asked) return;
    if (found.state === "failed") return say("Copies cannot be looked for", found.said);
    $("groups").replaceChildren();
    draw(found);
  } catch (error) {
    if (mine === asked) refused(error);
  }
}

function draw(found) {
  $("groups").append(...found.groups.map(group));
  $("more").hidden = $("groups").childElementCount >= found.total;
  $("status").textContent = found.total ? `${several(found.total, "group", "groups")} of copies, which take ${fileSize(found.copied_bytes)}` : "";
  if (!found.total) say("No copies", "No two pictures of the library are copies of each other.");
}

function group({ pictures, copied_bytes }) {
  const about = `${several(pictures.length, "picture", "pictures")}`;
  return h("li", {}, h("h2", {}, about, h("small", {}, `copies take ${fileSize(copied_bytes)}`)), h("ul", {}, pictures.map(copy)));
}

function copy(picture, place) {
  const kind = place === 0 ? "largest" : picture.same_bytes ? "same bytes" : "copy";
  const name = picture.path ?? picture.name;
  return h("li", {}, h("a", { class: "tile", href: `./?${new URLSearchParams({ item: picture.id })}`, title: name },
    h("span", { class: "frame" }, h("img", { src: api.thumbnail(picture.id), alt: picture.name, loading: "lazy", decoding: "async", onerror: missing })),
    h("span", { class: "under" }, h("b", {}, kind), ` ${picture.width} × ${picture.height}, ${fileSize(picture.bytes)}`, h("br"), picture.name)));
}

async function more() {
  try {
    draw(await api.duplicates($("groups").childElementCount, PAGE_GROUPS));
  } catch (error) {
    refused(error);
  }
}

function say(title, text) {
  $("status").textContent = "";
  $("notice").replaceChildren(h("h2", {}, title), h("p", {}, text));
  $("notice").hidden = false;
}

function refused(error) {
  if (error.status === 401) return login();
  say("Copies cannot be looked for", error.message);
}

$("show-more").addEventListener("click", more);
toggleTheme($("theme"));
begin();
