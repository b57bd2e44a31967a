// The login dialog of every page.

import * as api from "./api.js";
import { $ } from "./dom.js";

// Returns a function that opens it. `admitted` is called after a login, here or in another tab.
export function asksToken(admitted) {
  const done = () => {
    $("login").close();
    $("token").value = $("login-error").textContent = "";
    admitted();
  };
  $("login-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await api.login($("token").value);
      done();
    } catch (error) {
      $("login-error").textContent = error.message;
    }
  });
  $("login").addEventListener("cancel", (event) => event.preventDefault());
  addEventListener("focus", () => {
    if ($("login").open) api.stats().then(done, () => {});
  });
  return () => {
    if (!$("login").open) $("login").showModal();
  };
}
