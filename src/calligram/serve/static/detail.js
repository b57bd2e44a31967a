// The view of one picture: large, with its captions and metadata.

import * as api from "./api.js";
import { dateText, fileSize, h, icon, svg } from "./dom.js";
import { Explanation } from "./explanation.js";
import { Locate } from "./locate.js";

const MAX_VALUE_CHARACTERS = 140; // longer values are folded
const FILTERED = new Set(["folder"]);

// Enlarges a picture to its own size, at least twice, around the place of a click. Then it can be scrolled and dragged.
function zoomer(fit, picture) {
  const self = { on: false };
  self.button = h("button", { type: "button", class: "quiet zoom", "aria-pressed": "false", "aria-label": "Zoom", title: "Zoom (z)", onclick: () => self.toggle() }, icon("plus"));
  self.toggle = (event) => {
    const box = picture.getBoundingClientRect();
    const at = event ? [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height] : [0.5, 0.5];
    self.on = !self.on;
    fit.classList.toggle("zoomed", self.on);
    fit.tabIndex = self.on ? 0 : -1;
    self.button.setAttribute("aria-pressed", String(self.on));
    self.button.replaceChildren(icon(self.on ? "minus" : "plus"));
    picture.style.setProperty("width", self.on ? `${Math.max(2 * box.width, Number(picture.style.getPropertyValue("--width")))}px` : "");
    if (!self.on) return;
    fit.scrollTo(at[0] * picture.clientWidth - fit.clientWidth / 2, at[1] * picture.clientHeight - fit.clientHeight / 2);
    fit.focus();
  };
  return self;
}

export class Detail {
  constructor(dialog, { close, step, more, address, follow }) {
    this.dialog = dialog;
    this.actions = { close, step, more, address, follow };
    this.id = null;
    this.locate = null; // set if the library has a localizer
    this.explanation = null;
    this.words = ""; // the text to locate, kept from one picture to the next
    dialog.addEventListener("cancel", (event) => {
      event.preventDefault();
      close();
    });
    dialog.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (this.locate?.active) this.locate.leave(); // the next one closes the view
      else if (this.explanation?.holds) this.explanation.release();
      else if (this.zoomer?.on) this.zoomer.toggle();
      else return;
    } else if (event.target.matches("input")) return;
    else if (event.key === "/" && this.locate) this.locate.field.focus();
    else if (event.key === "z") this.zoomer.toggle();
    else if (this.zoomer.on && event.key.startsWith("Arrow")) return; // they scroll
    else if (event.key === "ArrowLeft") this.actions.step(-1);
    else if (event.key === "ArrowRight") this.actions.step(1);
    else if (event.key === "m") this.actions.more(this.id);
    else return;
    event.preventDefault();
  }

  hide() {
    this.id = null;
    this.forget();
    this.words = "";
    this.waiting?.abort();
    if (this.dialog.open) this.dialog.close();
  }

  // Boxes belong to one picture; the text is kept for the next one.
  forget() {
    if (this.locate?.field.value.trim()) this.words = this.locate.field.value;
    this.locate?.clear();
    this.locate = null;
    this.explanation?.leave();
  }

  async show(id, hit, neighbours, about, words = "") {
    if (this.id === id && this.dialog.open) return;
    this.forget();
    this.id = id;
    this.waiting?.abort();
    this.waiting = new AbortController();
    const side = h("div", { class: "side" }, this.head(hit?.name ?? id, hit));
    const stage = this.stage(id, neighbours);
    const direction = document.activeElement?.closest(".step")?.dataset.direction;
    this.dialog.replaceChildren(stage.element, side);
    if (!this.dialog.open) this.dialog.showModal();
    else (stage.element.querySelector(`.step[data-direction="${direction}"]:enabled`) ?? side.querySelector("button")).focus(); // the focused element is gone
    try {
      const item = await api.item(id, this.waiting.signal);
      stage.fill(item);
      if (about.localizer) this.locate = new Locate(this.dialog, { id, text: this.words || words, ...stage });
      this.explanation = new Explanation(id, words, stage);
      const parts = [this.head(item.name, hit), this.buttons(id), this.locate?.element, this.explanation.element, this.captions(item), this.facts(item, about)];
      const focused = side.contains(document.activeElement);
      side.replaceChildren(...parts.filter(Boolean));
      if (focused) side.querySelector("button").focus(); // otherwise keys would have no target
    } catch (error) {
      if (error.name !== "AbortError") side.append(h("p", { class: "error", role: "alert" }, error.message));
    }
  }

  head(name, hit) {
    const close = h("button", { type: "button", class: "quiet", "aria-label": "Close", title: "Close (Esc)", onclick: this.actions.close }, icon("close"));
    const found = hit ? h("p", { class: "found" }, `rank ${hit.rank}, score ${hit.score.toFixed(3)}`) : null;
    return h("header", {}, h("div", {}, h("h2", { id: "detail-name" }, name), found), close);
  }

  // The units of the overlay are pixels of the picture, so boxes need no conversion.
  stage(id, neighbours) {
    const overlay = svg("svg", { id: "overlay", "aria-hidden": "true" }, svg("g", { id: "boxes" }), svg("g", { id: "attention" }));
    const image = h("img", { alt: "", src: api.thumbnail(id) });
    const tags = h("div", { class: "tags", "aria-hidden": "true" });
    const parts = h("div", { class: "parts", role: "group", "aria-label": "Regions of the picture", hidden: true });
    const picture = h("div", { class: "picture" }, image, overlay, parts, tags);
    const measure = (width, height) => {
      picture.style.setProperty("--ratio", width / height);
      picture.style.setProperty("--width", width);
      overlay.setAttribute("viewBox", `0 0 ${width} ${height}`);
    };
    measure(320, 320);
    const fill = (item) => {
      measure(item.width || 320, item.height || 320);
      image.alt = item.captions[0] ?? item.name;
      if (item.time !== null) {
        // The browser opens the video at the time of the frame. The frame stays below it if it cannot play the video.
        picture.append(h("video", { src: api.video(id, item.time), poster: api.picture(id), controls: true, preload: "metadata", playsinline: true,
          onerror: (event) => event.target.remove() }));
      }
      // The thumbnail stays until the original is loaded, and if the browser cannot show the original.
      const original = new Image();
      original.addEventListener("load", () => { image.src = original.src; });
      original.src = api.picture(id);
    };
    const step = (side, by, there) => h("button", { type: "button", class: `quiet step ${side}`, "data-direction": side, disabled: !there,
      "aria-label": by < 0 ? "Previous" : "Next", onclick: () => this.actions.step(by) }, icon(side));
    const fit = h("div", { class: "fit" }, picture);
    this.zoomer = zoomer(fit, picture);
    image.addEventListener("click", (event) => this.zoomer.toggle(event));
    const element = h("figure", { class: "stage" }, fit, this.zoomer.button,
      step("left", -1, neighbours.before), step("right", 1, neighbours.after));
    return { element, fill, measure, tags, parts, overlay: overlay.firstChild, looks: overlay.lastChild };
  }

  buttons(id) {
    return h("div", { class: "actions" },
      h("button", { type: "button", class: "primary", id: "like", onclick: () => this.actions.more(id) }, icon("like"), "More like this"),
      h("a", { class: "plain", href: api.download(id), download: "" }, icon("download"), "Download"),
      h("a", { class: "plain", href: api.picture(id), target: "_blank", rel: "noopener" }, icon("open"), "Original"));
  }

  captions(item) {
    if (!item.captions.length) return null;
    const links = item.captions.map((text) => h("li", {}, this.link({ q: text }, text, "Find pictures for this text"), this.explanation.button(text), this.locate?.button(text)));
    return h("section", { class: "captions" }, h("h3", {}, item.captions.length === 1 ? "Caption" : "Captions"), h("ul", {}, links));
  }

  facts(item, about) {
    const rows = [["size", `${item.width} × ${item.height}`]];
    const known = new Set(["width", "height", "name", ...(item.path ? ["path", "source"] : [])]);
    const all = { folder: item.folder, ...item.metadata };
    for (const [name, value] of Object.entries(all)) {
      if (known.has(name) || value === null || value === "") continue;
      rows.push([name, this.value(name, value, about)]);
    }
    if (item.path) rows.push(["file", item.path]);
    return h("section", {}, h("h3", {}, "About"), h("dl", { class: "facts" }, rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
  }

  value(name, value, about) {
    if (name === "bytes") return fileSize(value);
    if (name === "taken") return dateText(value);
    const text = String(value);
    if (text.length > MAX_VALUE_CHARACTERS) return h("details", {}, h("summary", {}, `${text.slice(0, 40)}…`), text);
    if (!(name in about.facets) && !FILTERED.has(name)) return text;
    return this.link({ filters: { [name]: [text] }, where: "" }, text, `Only ${name} ${text}`);
  }

  link(changes, text, title) {
    const href = this.actions.address({ plus: [], minus: [], like: [], picture: null, all: false, find: "images", item: null, ...changes });
    return h("a", { href, title, onclick: (event) => this.actions.follow(event) }, text);
  }
}
