// Keeps the page honest: it says when what it shows is old.
"use strict";
(() => {
  const notice = document.getElementById("stale");
  let since = null;

  function lost(why) {
    since ??= new Date().toISOString().slice(11, 19);
    notice.textContent = `${why} What you see is of ${since} UTC and does not change.`;
    notice.hidden = false;
  }

  document.addEventListener("htmx:afterRequest", (event) => {
    const status = event.detail.xhr.status;
    if (event.detail.successful) {
      since = null;
      notice.hidden = true;
    } else if (status === 401) {
      lost("You are signed out: reload to sign in.");
    } else {
      lost(status ? `The daemon answers with an error (${status}).` : "The daemon does not answer.");
    }
  });
})();
