// The keyboard of `rawlog browse`. Every page works without it: links and forms are all there is.
"use strict";
(() => {
  const all = (what) => [...document.querySelectorAll(what)];
  const rows = all("tr[data-row]");
  let at = -1;

  const moveTo = (number) => {
    if (!rows.length) return;
    if (at >= 0) rows[at].classList.remove("here");
    at = Math.max(0, Math.min(rows.length - 1, number));
    const row = rows[at], link = row.querySelector("a[href]");
    row.classList.add("here");
    if (link) link.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  };

  const typing = (element) => element && ["INPUT", "TEXTAREA", "SELECT"].includes(element.tagName);
  const isExplained = () => document.activeElement && document.activeElement.closest(".explained");

  document.addEventListener("keydown", (event) => {
    const on = document.activeElement;
    if (event.key === "Escape" && typing(on)) { on.blur(); return; }
    if (event.key === "Enter" && event.ctrlKey && on && on.tagName === "TEXTAREA") { on.form.requestSubmit(); return; }
    if (typing(on) || event.ctrlKey || event.altKey || event.metaKey) return;
    if (!isExplained()) {
      const step = { j: 1, ArrowDown: 1, K: -1, ArrowUp: -1 }[event.key];
      if (step && rows.length) { event.preventDefault(); moveTo(at + step); return; }
      if (event.key === "Home" && rows.length) { event.preventDefault(); moveTo(0); return; }
      if (event.key === "End" && rows.length) { event.preventDefault(); moveTo(rows.length - 1); return; }
    }
    const target = all("[data-key]").find((one) => one.dataset.key.split(" ").includes(event.key));
    if (target) {
      event.preventDefault();
      if (typing(target)) { target.focus(); if (target.select) target.select(); } else target.click();
    } else if (event.key === "p") history.back();
  });

  // Fields that are empty do not make the address long.
  all("form").forEach((form) => form.addEventListener("submit", () => {
    all("input, textarea, select").filter((one) => one.form === form && one.name && !one.value).forEach((one) => { one.disabled = true; });
    setTimeout(() => all("[disabled]").forEach((one) => { one.disabled = false; }), 0);
  }));

  // A page about work under way is asked for again until it is done.
  if (document.querySelector("[data-reload]")) setTimeout(() => location.replace(location.href.replace(/&start=1/, "")), 700);
})();
