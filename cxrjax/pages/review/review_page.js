"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const articles = [...document.querySelectorAll("article")];
const fields = [...document.querySelectorAll("article input, article textarea")];
const ratings = [...document.querySelectorAll("fieldset.rating")];
const reader = document.getElementById("reader");
const save = document.getElementById("save");
const placeOf = new Map(data.rows.map((row, place) => [row.question_id, place]));
let state = {}; // "place/field" -> value
let cursor = 0; // index into ratings

function tell(text) {
  const problem = document.getElementById("problem");
  problem.hidden = !text;
  problem.textContent = text;
}

function missing(place) {
  return data.dimensions.filter(
    (name) => !data.rows[place][name] && !state[`${place}/${name}`]).length;
}

function open() {
  return data.rows.reduce((sum, row, place) => sum + missing(place), 0);
}

function show() {
  articles.forEach((article, place) => article.classList.toggle("done", missing(place) === 0));
  const left = open() ? `${open()} ratings to go` : "all rated";
  document.getElementById("progress").textContent = left + keeper.progress();
}

function fill(enabled) {
  for (const field of fields) {
    field.closest("fieldset").disabled = !enabled;
    if (field.type === "radio") field.checked = state[field.name] === field.value;
    else field.value = state[field.name] || "";
  }
  show();
}

// Without a server: ratings in the browser under the reader's name, a CSV to take away.
const browserKeeper = {
  key: () => `review/${data.key}/${reader.value.trim()}`,
  progress: () => "",
  tryStorage(use) {
    try { return use(localStorage); } catch (error) {
      tell("This browser keeps nothing for this page: save the CSV before you close it.");
      return null;
    }
  },
  begin() {
    reader.value = this.tryStorage((kept) => kept.getItem(`review/${data.key}`)) || "";
    reader.addEventListener("change", () => this.load());
    this.load();
  },
  load() {
    const named = reader.value.trim() !== "";
    state = {};
    if (named) {
      this.tryStorage((kept) => {
        state = JSON.parse(kept.getItem(this.key()) || "{}");
        kept.setItem(`review/${data.key}`, reader.value.trim());
      });
    }
    fill(named);
  },
  keep() {
    this.tryStorage((kept) => kept.setItem(this.key(), JSON.stringify(state)));
  },
  finish() {
    if (!reader.value.trim()) { reader.focus(); return; }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv()], {type: "text/csv;charset=utf-8"}));
    link.download = `${reader.value.trim().replace(/[^\w.-]+/g, "_")}.csv`;
    link.click();
    URL.revokeObjectURL(link.href);
  },
};

// With a server: each rating is sent by itself, in order, and again until it is confirmed.
const serverKeeper = {
  waiting: [],
  sending: false,
  progress() { return this.waiting.length ? `, ${this.waiting.length} not saved yet` : ", saved"; },
  async begin() {
    window.addEventListener("beforeunload", (event) => {
      if (this.waiting.length) event.preventDefault();
    });
    const told = await (await fetch("ratings")).json();
    if (told.handed_in) { location.replace("agreement"); return; }
    reader.textContent = told.reader;
    for (const [question, values] of Object.entries(told.ratings)) {
      for (const [name, value] of Object.entries(values)) {
        state[`${placeOf.get(question)}/${name}`] = value;
      }
    }
    fill(true);
    document.body.dataset.ready = "yes";
  },
  keep(field) {
    const [place, name] = field.name.split("/");
    const one = {question_id: data.rows[place].question_id, field: name, value: field.value};
    const last = this.waiting.length - 1;
    // Letters typed while an earlier state of the comment waits; the first may be on its way.
    if (last > 0 && this.waiting[last].question_id === one.question_id
        && this.waiting[last].field === name) this.waiting[last] = one;
    else this.waiting.push(one);
    this.send();
  },
  async send() {
    if (this.sending) return;
    this.sending = true;
    while (this.waiting.length) {
      const answer = await fetch("ratings", {
        method: "POST", body: JSON.stringify(this.waiting[0]), signal: AbortSignal.timeout(10000),
      }).catch(() => null);
      if (answer && answer.ok) {
        this.waiting.shift();
        tell("");
      } else if (answer && answer.status < 500) {
        tell(`Not saved: ${await answer.text()}. Reload the page to see what is saved.`);
        this.waiting.length = 0;
      } else {
        tell("Not saved yet: the server does not answer. Leave this page open; it goes on trying.");
        await new Promise((resolve) => setTimeout(resolve, 1000));
      }
      show();
    }
    this.sending = false;
  },
  async finish() {
    if (open()) { tell(`${open()} ratings are missing.`); toUnrated(); return; }
    if (this.waiting.length) { tell("Some ratings are not saved yet."); return; }
    if (!confirm("Hand in? Ratings cannot be changed afterwards.")) return;
    const answer = await fetch("hand_in", {method: "POST"}).catch(() => null);
    if (answer && answer.ok) location.replace("agreement");
    else tell(answer ? await answer.text() : "Not handed in: the server does not answer.");
  },
};

function cell(text) {
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv() {
  const lines = [data.columns];
  data.rows.forEach((row, place) => lines.push(
    data.columns.map((name) => row[name] || state[`${place}/${name}`] || "")));
  return lines.map((line) => line.map(cell).join(",")).join("\n") + "\n";
}

const articleOf = (fieldset) => articles.indexOf(fieldset.closest("article"));

function moveTo(index, scroll = true) {
  const before = articleOf(ratings[cursor]);
  cursor = Math.max(0, Math.min(index, ratings.length - 1));
  ratings.forEach((fieldset, at) => fieldset.classList.toggle("cursor", at === cursor));
  if (!scroll) return;
  const place = articleOf(ratings[cursor]);
  if (place !== before) articles[place].scrollIntoView();
  ratings[cursor].scrollIntoView({block: "nearest"});
}

function toQuestion(place) {
  const first = ratings.findIndex((fieldset) => articleOf(fieldset) === place);
  if (first >= 0) moveTo(first);
}

function toUnrated() {
  const first = ratings.findIndex(
    (fieldset) => !state[fieldset.querySelector("input").name]);
  if (first < 0) return;
  moveTo(first);
  articles[articleOf(ratings[first])].scrollIntoView();
}

function rate(number) {
  const choice = ratings[cursor].querySelectorAll("input")[number];
  if (!choice || choice.matches(":disabled")) return;
  choice.checked = true;
  choice.dispatchEvent(new Event("input", {bubbles: true}));
  moveTo(cursor + 1);
}

const show_boxes = document.getElementById("show");
const keys = {
  j: () => moveTo(cursor + 1),
  k: () => moveTo(cursor - 1),
  n: () => toQuestion(articleOf(ratings[cursor]) + 1),
  p: () => toQuestion(articleOf(ratings[cursor]) - 1),
  u: toUnrated,
  b: () => show_boxes.click(),
  c: () => ratings[cursor].closest("article").querySelector("textarea").focus(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("textarea, input:not([type=radio], [type=checkbox])")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const number = "123456789".indexOf(event.key);
  if (event.key.length === 1 && number >= 0) rate(number);
  else if (Object.hasOwn(keys, event.key)) keys[event.key]();
  else return;
  event.preventDefault();
});
document.querySelector("main").addEventListener("input", (event) => {
  state[event.target.name] = event.target.value;
  keeper.keep(event.target);
  show();
});
document.querySelector("main").addEventListener("focusin", (event) => {
  const at = ratings.indexOf(event.target.closest("fieldset"));
  if (at >= 0) moveTo(at, false);
});
show_boxes.addEventListener("change", (event) =>
  document.body.classList.toggle("bare", !event.target.checked));
document.getElementById("next").addEventListener("click", toUnrated);
save.addEventListener("click", () => keeper.finish());

const keeper = data.served ? serverKeeper : browserKeeper;
moveTo(0, false);
keeper.begin();
