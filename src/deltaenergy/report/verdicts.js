/* The page of verdicts: filter, sort and enlarge. Everything is in the page already; without this it is all shown. */
"use strict";
(function () {
  const PAGE = 200;
  const tools = document.getElementById("tools");
  const groups = document.getElementById("groups");
  const flat = document.getElementById("flat");
  const more = document.getElementById("more");
  const found = document.getElementById("found");
  const cards = Array.from(groups.querySelectorAll("li[data-verdict]"));
  const home = cards.map((card) => card.parentNode);
  const field = (name) => document.getElementById(name);
  const number = (card, name) => Number(card.dataset[name]);
  const orders = {
    borderline: (a, b) => number(a, "margin") - number(b, "margin"),
    high: (a, b) => number(b, "score") - number(a, "score"),
    low: (a, b) => number(a, "score") - number(b, "score"),
    sure: (a, b) => number(b, "confidence") - number(a, "confidence"),
    unsure: (a, b) => number(a, "confidence") - number(b, "confidence"),
    name: (a, b) => a.dataset.name.localeCompare(b.dataset.name, undefined, { numeric: true }),
  };
  let matches = cards;
  let shown = PAGE;

  function putBack() {
    cards.forEach((card, i) => home[i].appendChild(card));
    groups.hidden = false;
    flat.hidden = more.hidden = true;
  }

  function showFlat() {
    groups.hidden = true;
    flat.hidden = false;
    flat.replaceChildren(...matches.slice(0, shown));
    more.hidden = matches.length <= shown;
    more.textContent = "Show " + Math.min(PAGE, matches.length - shown) + " more";
  }

  function apply() {
    const wanted = { class: field("of-class").value, verdict: field("of-verdict").value };
    const order = field("order").value;
    const text = field("of-name").value.trim().toLowerCase();
    const fits = (card) =>
      (!wanted.class || card.dataset.class === wanted.class) &&
      (!wanted.verdict || card.dataset.verdict === wanted.verdict) &&
      (!text || card.dataset.name.toLowerCase().includes(text));
    const all = !wanted.class && !wanted.verdict && !text;
    putBack();
    matches = cards.filter(fits);
    shown = PAGE;
    if (!all || order) {
      matches.sort(orders[order || "borderline"]);
      showFlat();
    }
    found.textContent = all ? cards.length + " images" : matches.length + " of " + cards.length + " images";
  }

  const dialog = document.getElementById("large");
  const large = dialog.querySelector("img");
  const caption = dialog.querySelector(".large-caption");
  let current = null;

  function visible() {
    return Array.from(document.querySelectorAll("#images li[data-verdict]")).filter((li) => li.offsetParent);
  }

  function enlarge(card) {
    current = card;
    const small = card.querySelector("img");
    const link = card.querySelector("a.enlarge");
    // A file that is gone, or that the browser cannot show, is shown as the small copy.
    large.onerror = () => {
      large.onerror = null;
      if (small) large.src = small.src;
    };
    large.src = link ? link.href : small ? small.src : "";
    large.alt = small ? small.alt : card.dataset.name;
    caption.replaceChildren(...Array.from(card.querySelector("figcaption").cloneNode(true).childNodes));
    if (!dialog.open) dialog.showModal();
  }

  function step(by) {
    const list = visible();
    const next = list[list.indexOf(current) + by];
    if (next) enlarge(next);
  }

  document.getElementById("images").addEventListener("click", (event) => {
    const card = event.target.closest("li[data-verdict]");
    if (!card || event.ctrlKey || event.metaKey || event.shiftKey || !event.target.closest(".enlarge")) return;
    event.preventDefault();
    enlarge(card);
  });
  dialog.addEventListener("click", (event) => {
    const by = event.target.dataset.step;
    if (by) step(Number(by));
    else if (event.target === dialog || event.target.closest(".close")) dialog.close();
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") step(1);
    if (event.key === "ArrowLeft") step(-1);
  });
  more.addEventListener("click", () => {
    shown += PAGE;
    showFlat();
  });
  tools.addEventListener("input", apply);
  tools.hidden = false;
  apply();
})();
