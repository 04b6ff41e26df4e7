"use strict";
/* The demo page's viewer and its history. Gradio puts the HTML of picture and answers where it wants
   to: this shows in the viewer what that HTML names, and keeps what was asked before, in this tab
   alone, until it is closed. */
(() => {
  const MOST_KEPT = 30;
  const find = (selector) => document.querySelector(selector);
  const kept = [];
  let viewer = null, last = null, answered = "";

  const show = ({picture, layers}) => {
    find("#viewer").hidden = false;
    viewer ??= new RadiographViewer(find("#viewer .host"), {});
    viewer.show(picture, layers);
  };

  const listKept = (chosen) => {
    const list = find("#history .kept");
    list.replaceChildren(...kept.map((one) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = one.question;
      button.setAttribute("aria-pressed", one === chosen);
      button.addEventListener("click", () => recall(one));
      const item = document.createElement("li");
      item.append(button, ` ${one.shown.picture.name}`);
      return item;
    }));
    find("#history .inside").hidden = !kept.length;
  };

  // An earlier answer in place of the latest, whose own place is Gradio's.
  const recall = (one) => {
    const past = find("#history .past"), latest = one === kept[0];
    past.innerHTML = latest ? "" : one.answers;
    for (const node of past.querySelectorAll("[id], [aria-labelledby]")) {
      for (const name of ["id", "aria-labelledby"]) {
        if (node.hasAttribute(name)) node.setAttribute(name, `past-${node.getAttribute(name)}`);
      }
    }
    past.hidden = latest;
    find("#answers").classList.toggle("earlier", !latest);
    show(one.shown);
    listKept(one);
  };

  const look = () => {
    if (!find("#viewer .host") || !find("#history .kept")) return;
    const told = find("#picture .to-show"), number = told ? told.dataset.number : null;
    if (number !== last) {
      last = number;
      find("#answers").classList.remove("earlier");
      find("#history .past").hidden = true;
      if (told) show(JSON.parse(told.dataset.shown));
      else find("#viewer").hidden = true;
      listKept(null);
    }
    const answers = find("#answers .answers");
    if (told && answers && answers.dataset.number === number && answered !== number) {
      answered = number;
      const shown = JSON.parse(told.dataset.shown);
      kept.unshift({shown, question: answers.dataset.question, answers: answers.outerHTML});
      kept.length = Math.min(kept.length, MOST_KEPT);
      listKept(kept[0]);
    }
  };

  new MutationObserver(look).observe(document, {childList: true, subtree: true, attributes: true,
    attributeFilter: ["data-number", "data-shown"]});
  document.addEventListener("keydown", (event) => {
    const typed = event.target.closest("input:not([type=range]):not([type=checkbox]), textarea");
    if (!viewer || typed || event.target.type === "range") return;
    if (event.target.closest("#viewer") && viewer.key(event)) event.preventDefault();
  });
})();
