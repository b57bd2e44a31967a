// A map of the library: a circle for each cluster. Zoom in to see pictures, choose a circle to list them.

import * as api from "./api.js";
import { $, h, icon, number, several, svg } from "./dom.js";
import * as grid from "./grid.js";
import { asksToken } from "./login.js";
import { toggleTheme } from "./page.js";

const POLL_MILLISECONDS = 700; // between requests while the clusters are computed
const PAGE_PICTURES = 48;
const PICTURES_FROM = 80; // radius of a circle on the screen, in pixels, from which its pictures are drawn
const MAX_ZOOM = 60;
const NAME_PIXELS = 15;
const login = asksToken(begin);
let found = { clusters: [] };
let limits = { k: 500 };
let view = { x: 0, y: 0, zoom: 1 }; // the corner of the map at the corner of the drawing, in units of the map
let wanted = PAGE_PICTURES;
let asked = 0;
const groups = new Map(); // the group of each cluster, by its number

// Pixels of the screen in one unit of the map, whose width is 1.
const scale = () => view.zoom * Math.min($("drawing").clientWidth, $("drawing").clientHeight / found.height) * 0.96;
const chosen = () => Number(new URLSearchParams(location.search).get("cluster")) || null;

async function begin() {
  const mine = ++asked;
  $("notice").hidden = true;
  try {
    [found, { limits }] = await Promise.all([api.clusters(), api.stats()]);
    while (found.state === "working") {
      $("status").textContent = `Grouping the pictures${found.said ? `: ${found.said}` : ""}`;
      await new Promise((go) => setTimeout(go, POLL_MILLISECONDS));
      if (mine !== asked) return;
      found = await api.clusters();
    }
  } catch (error) {
    if (mine === asked) refused(error);
    return;
  }
  if (mine !== asked) return;
  if (found.state === "failed") return say("The map cannot be drawn", found.said);
  if (!found.clusters.length) return say("The library is empty", "Add pictures with “calligram index”.");
  draw();
}

function draw() {
  const part = found.sampled < found.items ? `, by a sample of ${number(found.sampled)}` : "";
  $("status").textContent = `${several(found.items, "picture", "pictures")} in ${several(found.clusters.length, "cluster", "clusters")}${part}`;
  $("map").hidden = false;
  groups.clear();
  $("clusters").replaceChildren(...found.clusters.map(circle));
  showAll();
  choose();
}

function circle(cluster) {
  const group = svg("g", { class: "cluster", tabindex: 0, role: "button", "data-number": cluster.number,
    "aria-label": `${cluster.name} ${several(cluster.size, "picture", "pictures")}` },
    svg("circle", { cx: cluster.x, cy: cluster.y, r: cluster.radius }), svg("g", { class: "pictures" }), svg("text", { class: "name" }), " ", svg("text", { class: "count" })); // the space keeps both apart in the name that is read aloud
  group.querySelector(".name").textContent = cluster.name;
  group.querySelector(".count").textContent = number(cluster.size);
  groups.set(cluster.number, group);
  return group;
}

// Everything that depends on the zoom: sizes of texts, and pictures of the circles that are large enough.
function redraw() {
  const unit = scale();
  $("clusters").setAttribute("transform", `scale(${unit}) translate(${-view.x} ${-view.y})`);
  const [width, height] = [$("drawing").clientWidth / unit, $("drawing").clientHeight / unit];
  for (const cluster of found.clusters) {
    const group = groups.get(cluster.number);
    const radius = cluster.radius * unit;
    const near = Math.abs(cluster.x - view.x - width / 2) < width / 2 + cluster.radius && Math.abs(cluster.y - view.y - height / 2) < height / 2 + cluster.radius;
    const detailed = near && radius >= PICTURES_FROM;
    fill(group.querySelector(".pictures"), cluster, detailed);
    const size = Math.min(NAME_PIXELS, (3.4 * radius) / Math.max(8, cluster.name.length)) / unit;
    const [name, count] = group.querySelectorAll("text");
    const lower = detailed ? cluster.radius + 1.3 * size : 0;
    for (const [text, y, share] of [[name, lower, 1], [count, lower + 1.2 * size, 0.8]]) {
      text.setAttribute("x", cluster.x);
      text.setAttribute("y", cluster.y + y);
      text.setAttribute("font-size", share * size);
      text.setAttribute("stroke-width", 0.22 * size);
      text.style.display = size * unit < 5 ? "none" : "";
    }
  }
}

function fill(group, cluster, detailed) {
  const shown = detailed ? "pictures" : "cover";
  if (group.dataset.shown === shown) return;
  group.dataset.shown = shown;
  if (!detailed) {
    return group.replaceChildren(svg("image", { class: "cover", href: api.thumbnail(cluster.examples[0]), x: cluster.x - cluster.radius,
      y: cluster.y - cluster.radius, width: 2 * cluster.radius, height: 2 * cluster.radius, preserveAspectRatio: "xMidYMid slice" }));
  }
  const side = (1.28 * cluster.radius) / Math.sqrt(Math.max(cluster.pictures.length, 2));
  group.replaceChildren(...cluster.pictures.map((picture) => svg("image", { href: api.thumbnail(picture.id), x: picture.x - side / 2, y: picture.y - side / 2,
    width: side, height: side, preserveAspectRatio: "xMidYMid slice" })));
}

function zoomTo(x, y, zoom) {
  view.zoom = Math.max(0.5, Math.min(MAX_ZOOM, zoom));
  const unit = scale();
  view.x = x - $("drawing").clientWidth / unit / 2;
  view.y = y - $("drawing").clientHeight / unit / 2;
  redraw();
}

const showAll = () => zoomTo(0.5, found.height / 2, 1);

// Zoom by a factor; the point of the map under these pixels stays there.
function zoomAt(factor, px = $("drawing").clientWidth / 2, py = $("drawing").clientHeight / 2) {
  const before = scale();
  view.zoom = Math.max(0.5, Math.min(MAX_ZOOM, view.zoom * factor));
  const after = scale();
  view.x += px / before - px / after;
  view.y += py / before - py / after;
  redraw();
}

// The chosen cluster is in the address, so that the back button and bookmarks work.
function open(clusterNumber) {
  history.pushState(null, "", `?cluster=${clusterNumber}`);
  choose();
}

function choose() {
  const cluster = found.clusters[chosen() - 1];
  for (const [key, group] of groups) group.setAttribute("aria-current", String(key === cluster?.number));
  $("cluster").hidden = !cluster;
  if (!cluster) return;
  document.title = `${cluster.name} · Calligram`;
  const whole = Math.min($("drawing").clientWidth, $("drawing").clientHeight) / (2.7 * cluster.radius);
  zoomTo(cluster.x, cluster.y, (whole * view.zoom) / scale());
  $("cluster-name").textContent = cluster.name;
  $("cluster-about").textContent = `${several(cluster.size, "picture", "pictures")}${cluster.named_by === "matcher" ? ", named by the matcher" : ""}`;
  $("cluster-like").href = `./?${new URLSearchParams(cluster.examples.slice(0, 3).map((id) => ["like", id]))}`;
  $("cluster-like").replaceChildren(icon("like"), "More like these");
  wanted = PAGE_PICTURES;
  list(cluster);
}

async function list(cluster) {
  try {
    const { hits } = await api.cluster(found.key, cluster.number, wanted);
    if (chosen() !== cluster.number) return;
    grid.show($("results"), hits, "images", ({ item }) => `./?${new URLSearchParams({ item })}`);
    $("more").hidden = hits.length < wanted || wanted >= limits.k;
    $("more").replaceChildren(h("button", { type: "button", class: "plain", id: "show-more", onclick: () => {
      wanted = Math.min(limits.k, wanted + PAGE_PICTURES);
      list(cluster);
    } }, "More pictures"));
  } catch (error) {
    if (error.status === 409) return begin();
    refused(error);
  }
}

function say(title, text) {
  $("status").textContent = "";
  $("map").hidden = $("cluster").hidden = true;
  $("notice").replaceChildren(h("h2", {}, title), h("p", {}, text));
  $("notice").hidden = false;
}

function refused(error) {
  if (error.status === 401) return login();
  say("The map cannot be drawn", error.message);
}

// One finger or the mouse moves the map, two fingers zoom. A movement is not a click.
const pointers = new Map();
let moved = 0;
const drawing = $("drawing");
drawing.addEventListener("pointerdown", (event) => {
  if (!pointers.size) moved = 0;
  pointers.set(event.pointerId, event);
});
addEventListener("pointermove", (event) => {
  const last = pointers.get(event.pointerId);
  if (!last) return;
  const others = [...pointers.values()].filter((one) => one.pointerId !== event.pointerId);
  const [dx, dy] = [event.clientX - last.clientX, event.clientY - last.clientY];
  pointers.set(event.pointerId, event);
  moved += Math.abs(dx) + Math.abs(dy);
  if (moved > 4) drawing.classList.add("moving");
  if (others.length) {
    const [other] = others;
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    const box = drawing.getBoundingClientRect();
    zoomAt(apart(event) / Math.max(1, apart(last)), (event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top);
  } else if (moved > 4) {
    view.x -= dx / scale();
    view.y -= dy / scale();
    redraw();
  }
});
for (const name of ["pointerup", "pointercancel"]) {
  addEventListener(name, (event) => {
    pointers.delete(event.pointerId);
    drawing.classList.remove("moving");
  });
}
drawing.addEventListener("click", (event) => {
  const group = event.target.closest(".cluster");
  if (group && moved <= 4) open(Number(group.dataset.number));
});
drawing.addEventListener("wheel", (event) => {
  event.preventDefault();
  const box = drawing.getBoundingClientRect();
  zoomAt(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.clientX - box.left, event.clientY - box.top);
}, { passive: false });
document.addEventListener("keydown", (event) => {
  if ($("login").open || $("map").hidden || event.ctrlKey || event.metaKey || event.altKey) return;
  const group = event.target.closest?.(".cluster");
  if (group && (event.key === "Enter" || event.key === " ")) {
    event.preventDefault();
    open(Number(group.dataset.number));
  } else if (event.key === "+" || event.key === "=") zoomAt(1.5);
  else if (event.key === "-" || event.key === "−") zoomAt(1 / 1.5);
  else if (event.key === "0") showAll();
});
$("results").addEventListener("keydown", (event) => grid.walk($("results"), event));
$("zoom-in").addEventListener("click", () => zoomAt(1.5));
$("zoom-out").addEventListener("click", () => zoomAt(1 / 1.5));
$("zoom-all").addEventListener("click", showAll);
for (const [id, name] of [["zoom-in", "plus"], ["zoom-out", "minus"], ["zoom-all", "target"]]) $(id).append(icon(name));
addEventListener("popstate", choose);
addEventListener("resize", () => $("map").hidden || redraw());
toggleTheme($("theme"));
begin();
