// Uploads by button, paste and drop, and the colour theme.

import { icon } from "./dom.js";

export function takePictures({ file, pick, take }) {
  // Systems do not know the type of every picture file. If no file has an image type, the server checks the first one.
  const first = (files) => [...(files ?? [])].find((one) => one.type.startsWith("image/")) ?? files?.[0];
  pick.addEventListener("click", () => file.click());
  file.addEventListener("change", () => {
    const chosen = first(file.files);
    file.value = "";
    if (chosen) take(chosen);
  });
  addEventListener("paste", (event) => {
    const pasted = first(event.clipboardData?.files);
    if (!pasted) return;
    event.preventDefault();
    take(pasted);
  });
  // dragenter and dragleave fire for every element; at depth 0 the pointer has left the page.
  let depth = 0;
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  const mark = (by) => {
    depth = by === 0 ? 0 : Math.max(0, depth + by);
    document.body.classList.toggle("dropping", depth > 0);
  };
  addEventListener("dragenter", (event) => hasFiles(event) && mark(1));
  addEventListener("dragleave", (event) => hasFiles(event) && mark(-1));
  addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    mark(0);
    const dropped = first(event.dataTransfer.files);
    if (dropped) take(dropped);
  });
}

const THEMES = ["auto", "light", "dark"];

export function toggleTheme(button) {
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
    button.replaceChildren(icon(theme));
    button.title = button.ariaLabel = `Colours: ${theme === "auto" ? "system setting" : theme}`;
  };
  const kept = localStorage.getItem("theme");
  apply(THEMES.includes(kept) ? kept : "auto");
  button.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? "auto";
    apply(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
  });
}
