// Requests to the server.

export class Refusal extends Error {
  constructor(status, reason, id) {
    super(reason);
    this.status = status;
    this.id = id;
  }
}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server does not answer.");
  }
  if (response.ok) return response;
  let problem = {};
  try {
    problem = await response.json();
  } catch {
    problem = { error: `The server answered ${response.status}.` };
  }
  throw new Refusal(response.status, problem.error, problem.id);
}

export async function search(terms, picture, signal) {
  const began = performance.now();
  let response;
  if (picture) {
    const form = new FormData();
    for (const [name, value] of terms) form.append(name, value);
    form.append("image", picture);
    response = await ask("api/search", { method: "POST", body: form, signal });
  } else {
    response = await ask(`api/search?${terms}`, { signal });
  }
  const answer = await response.json();
  answer.waited = performance.now() - began;
  return answer;
}

// Pictures without a query: all of them, or those that satisfy the filters, from place `start` of the list.
export async function browse(terms, order, start, signal) {
  const wanted = new URLSearchParams({ k: terms.get("k"), where: terms.get("where") ?? "", album: terms.get("album") ?? "", order, start });
  const answer = await (await ask(`api/browse?${wanted}`, { signal })).json();
  return { ...answer, below: 0 };
}

// Captions, dates and contents of pictures, by id. Without them the page still shows the pictures.
export async function tiles(hits, signal) {
  if (!hits.length) return new Map();
  const found = await (await ask(`api/tiles?${new URLSearchParams(hits.map((hit) => ["id", hit.id]))}`, { signal })).json();
  return new Map(found.tiles.map((tile) => [tile.id, tile]));
}

// Texts that complete what is typed.
export async function complete(typed, signal) {
  return (await (await ask(`api/complete?${new URLSearchParams({ q: typed })}`, { signal })).json()).texts;
}

export async function item(id, signal) {
  return (await ask(`api/item?${new URLSearchParams({ id })}`, { signal })).json();
}

// The noun phrases of a text and their boxes in a picture.
export async function locate(id, text, k, signal) {
  return (await ask(`api/locate?${new URLSearchParams({ id, text, k })}`, { signal })).json();
}

// The importance of each word of a text for the score of a picture.
export async function explain(id, text, signal) {
  return (await ask(`api/explain?${new URLSearchParams({ id, text })}`, { signal })).json();
}

// Images whose captions would help training most; `again` chooses others.
export async function suggestions(again = false) {
  return (await ask("api/suggestions", again ? { method: "POST" } : {})).json();
}

export async function caption(id, text) {
  return (await send("api/captions", { id, text })).json();
}

// Groups of pictures with a name each; `state` is "working" until they are computed.
export async function clusters() {
  return (await ask("api/clusters")).json();
}

export async function cluster(key, number, k) {
  return (await ask(`api/cluster?${new URLSearchParams({ key, number, k })}`)).json();
}

// Groups of copies; `state` is "working" until all pictures are compared.
export async function duplicates(start, k) {
  return (await ask(`api/duplicates?${new URLSearchParams({ start, k })}`)).json();
}

// Number of pictures by day.
export async function timeline() {
  return (await ask("api/timeline")).json();
}

export async function searches() {
  return (await (await ask("api/searches")).json()).searches;
}

export async function saveSearch(search) {
  return (await (await send("api/searches", search)).json()).searches;
}

export async function deleteSearch(name) {
  return (await (await ask(`api/searches?${new URLSearchParams({ name })}`, { method: "DELETE" })).json()).searches;
}

export async function albums() {
  return (await (await ask("api/albums")).json()).albums;
}

// Begins an album, or changes it: `changes` has lists of ids to add, remove and reject.
export async function changeAlbum(name, changes = {}) {
  return (await (await send("api/albums", { name, ...changes })).json()).albums;
}

export async function renameAlbum(name, renamed) {
  return (await (await send("api/album-name", { name, new: renamed })).json()).albums;
}

export async function deleteAlbum(name) {
  return (await (await ask(`api/albums?${new URLSearchParams({ name })}`, { method: "DELETE" })).json()).albums;
}

// Pictures that may belong to an album.
export async function albumSuggestions(name, k, signal) {
  const answer = await (await ask(`api/album-suggestions?${new URLSearchParams({ name, k })}`, { signal })).json();
  return { ...answer, below: 0 };
}

export const albumArchive = (name) => `api/album-export?${new URLSearchParams({ name })}`;

// The address of a zip of these pictures. A link saves it while it arrives; an answer to fetch would have to fit into memory.
export const archive = (hits) => `api/export?${new URLSearchParams([...hits.map((hit) => ["id", hit.id]), ...hits.map((hit) => ["score", hit.score.toFixed(4)])])}`;

export async function stats() {
  return (await ask("api/stats")).json();
}

const send = (path, content) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(content) });

export async function login(token) {
  await send("api/login", { token });
}

export const thumbnail = (id) => `api/thumbnail?${new URLSearchParams({ id })}`;
export const picture = (id) => `api/image?${new URLSearchParams({ id })}`;
export const video = (id, seconds) => `api/video?${new URLSearchParams({ id })}#t=${seconds}`;
export const suggested = (id) => `api/suggested-image?${new URLSearchParams({ id })}`;
export const download = (id) => `api/image?${new URLSearchParams({ id, download: "true" })}`;
