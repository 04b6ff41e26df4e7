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
let current = 0; // index into articles
let enabled = false; // whether what is clicked is kept

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

function fill(kept) {
  enabled = kept;
  for (const field of fields) {
    field.closest("fieldset").disabled = !enabled;
    if (field.type === "radio") field.checked = state[field.name] === field.value;
    else field.value = state[field.name] || "";
  }
  show();
  openCase(current);
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
  refused: "",
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
        tell(this.refused);
      } else if (answer && answer.status < 500) {
        // That one alone: what waits behind it may be a correction.
        this.waiting.shift();
        this.refused = `Not saved: ${await answer.text()}. Reload the page to see what is saved.`;
        tell(this.refused);
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

function moveTo(index) {
  if (!ratings.length) return;
  cursor = Math.max(0, Math.min(index, ratings.length - 1));
  ratings.forEach((fieldset, at) => fieldset.classList.toggle("cursor", at === cursor));
  const place = articleOf(ratings[cursor]);
  if (place !== current) openCase(place);
  ratings[cursor].scrollIntoView({block: "nearest"});
}

function toQuestion(place) {
  if (place < 0 || place >= articles.length) return;
  const first = ratings.findIndex((fieldset) => articleOf(fieldset) === place);
  if (first >= 0) moveTo(first);
  if (place !== current) openCase(place);
}

function toUnrated() {
  const first = ratings.findIndex(
    (fieldset) => !state[fieldset.querySelector("input").name]);
  if (first >= 0) moveTo(first);
}

function rate(number) {
  if (!ratings.length || articleOf(ratings[cursor]) !== current) return;
  const choice = ratings[cursor].querySelectorAll("input")[number];
  if (!choice || choice.matches(":disabled")) return;
  choice.checked = true;
  choice.dispatchEvent(new Event("input", {bubbles: true}));
  const next = ratings[Math.min(cursor + 1, ratings.length - 1)];
  // Who finds a grave error may want to put it right.
  const stays = number === data.levels - 1 && articleOf(next) !== current && !byId("correct").hidden;
  if (!stays) moveTo(cursor + 1);
}

// Corrections: boxes and words as they should be, kept as one field of the question.
const byId = (id) => document.getElementById(id);
const item = () => data.items[current];
const viewer = new RadiographViewer(byId("viewer"), {
  onEdit: keepCorrection,
  onSelect: () => listBoxes(),
  onDraw: (drawing) => byId("add").setAttribute("aria-pressed", drawing),
});

function correctionOf(place) {
  return state[`${place}/correction`] ? JSON.parse(state[`${place}/correction`]) : null;
}

function originals() {
  return item().boxes.map((box, origin) => (
    {box, label: item().finding, kind: "answer", origin}));
}

// What the viewer is to show: names of missed findings are the reader's, those of others the same.
function boxesNow() {
  const corrected = correctionOf(current);
  return corrected ? corrected.boxes : originals();
}

function openCase(place) {
  current = place;
  articles.forEach((article, at) => { article.hidden = at !== place; });
  byId("where").textContent = `${place + 1} / ${articles.length}`;
  byId("back").disabled = place === 0;
  byId("on").disabled = place === articles.length - 1;
  const picture = data.pictures[item().image];
  byId("viewer").hidden = byId("correct").hidden = !picture.uri;
  byId("missing").hidden = !!picture.uri;
  byId("missing").textContent =
    `No image: ${picture.why}. Look it up in your viewer by the image id.`;
  for (const field of byId("correct").querySelectorAll("button, input, textarea")) {
    field.disabled = !enabled;
  }
  closeMissed();
  byId("words").hidden = !item().editable;
  byId("what").textContent = item().options ? "What follows them" : "The answer";
  listOptions();
  if (picture.uri) {
    viewer.show(
      {url: picture.url || picture.uri, preview: picture.uri, width: item().width,
        height: item().height, name: `Radiograph ${item().image}`},
      [{name: "answer", title: "boxes", colour: data.colour, editable: enabled, boxes: boxesNow()},
        ...(item().own.length ? [{name: "own", title: "the record's own", colour: data.own_colour,
          dash: "6 4", boxes: item().own.map((box) => ({box, label: ""}))}] : [])]);
  }
  listBoxes();
  tellWords();
}

function listBoxes() {
  const boxes = boxesNow();
  byId("boxes").replaceChildren(...boxes.map((one, index) => {
    const row = document.createElement("li");
    const pick = document.createElement("button");
    pick.type = "button";
    pick.className = "pick";
    pick.textContent = `${index + 1} ${one.label.replaceAll("_", " ") || "part of the answer"}`;
    pick.setAttribute("aria-pressed", index === viewer.selected);
    pick.addEventListener("click", () => viewer.select(index));
    const drop = document.createElement("button");
    drop.type = "button";
    drop.textContent = "Delete";
    drop.setAttribute("aria-label", `Delete box ${index + 1}`);
    drop.addEventListener("click", () => viewer.remove(index));
    pick.disabled = drop.disabled = !enabled;
    row.append(pick);
    const was = one.origin == null ? null : item().boxes[one.origin];
    const badge = one.kind === "missed" ? "missed" : !was ? "new"
      : was.some((value, at) => value !== one.box[at]) ? "moved" : "";
    if (badge) {
      const told = document.createElement("span");
      told.className = "badge";
      told.textContent = badge;
      row.append(told);
    }
    row.append(drop);
    return row;
  }));
  const corrected = !!state[`${current}/correction`];
  byId("corrected").textContent = corrected ? "\u2713 corrected" : "";
  byId("restore").disabled = !corrected || !enabled;
  byId("undo").disabled = !viewer.undone.length || !enabled;
}

// Options are chosen by click, by the keys of their inputs, or by their letters.
function listOptions() {
  const {options, several} = item();
  byId("options").hidden = !options;
  const chosen = (correctionOf(current) || {}).choice || item().chosen;
  byId("options").querySelectorAll("label").forEach((one) => one.remove());
  byId("options").append(...(options || []).map(([letter, text]) => {
    const label = document.createElement("label");
    const input = document.createElement("input");
    input.type = several ? "checkbox" : "radio";
    input.name = "option";
    input.value = letter;
    input.checked = chosen.includes(letter);
    input.disabled = !enabled;
    label.append(input, ` ${text}`);
    return label;
  }));
}

function choose() {
  const chosen = [...byId("options").querySelectorAll("input:checked")].map((one) => one.value);
  tell(chosen.length ? "" : "No option is chosen: the options stay as they were until one is.");
  if (chosen.length) keepCorrection(boxesNow(), null, chosen);
}

function spoken(places) {
  return places.map((at) => `[box ${at + 1}]`).join(" and ");
}

// The answer's words for these boxes: a proposal, which the reader may change.
function proposal(boxes) {
  const {text, writes, words, english, polar, counts} = item();
  const places = [...boxes.keys()].filter((at) => boxes[at].kind === "answer");
  const had = item().boxes.length > 0, many = places.length;
  if (counts && words && english && many && many !== item().boxes.length && (writes || !had)) {
    const regions = many === 1 ? "There is 1 region" : `There are ${many} regions`;
    return `${regions} of ${words}, at ${spoken(places)}.`;
  }
  if (had && !places.length && words && english) {
    return polar ? `No, there is no ${words}.` : `There is no ${words}.`;
  }
  if (!had && places.length && words && english && writes) {
    return polar ? `Yes, there is ${words} at ${spoken(places)}.` : `The ${words} is at ${spoken(places)}.`;
  }
  if (!writes) return text;
  const now = new Map(places.filter((at) => boxes[at].origin != null)
    .map((at) => [boxes[at].origin, at + 1]));
  const gone = "\u0001";
  let said = text.replace(/\[box (\d+)\]/g, (all, number) => (
    now.has(number - 1) ? `[box ${now.get(number - 1)}]` : gone));
  said = said.replace(new RegExp(`${gone}(?:,?\\s+and\\s+|,\\s*|\\s+)(?=\\[box|${gone})`, "g"), "")
    .replace(new RegExp(`(?:,?\\s+and\\s+|,\\s*|\\s*)${gone}`, "g"), "");
  const added = places.filter((at) => boxes[at].origin == null);
  if (!added.length) return said;
  const last = said.lastIndexOf("[box ");
  if (last < 0) return `${said.replace(/(\s+at)?\s*\.?$/, "")} at ${spoken(added)}.`;
  const end = said.indexOf("]", last) + 1;
  return `${said.slice(0, end)} and ${spoken(added)}${said.slice(end)}`;
}

function tellWords() {
  const boxes = boxesNow(), corrected = correctionOf(current);
  const answer = corrected ? corrected.answer : item().text;
  if (document.activeElement !== byId("answer")) byId("answer").value = answer;
  const named = [...answer.matchAll(/\[box (\d+)\]/g)].map((found) => +found[1]);
  const there = [...boxes.keys()].filter((at) => boxes[at].kind === "answer").map((at) => at + 1);
  const wrong = named.filter((number) => !there.includes(number));
  const left = item().writes ? there.filter((number) => !named.includes(number)) : [];
  const turned = (item().boxes.length > 0) !== (there.length > 0)
    && (answer === item().text || !item().words || !item().english);
  let told = "";
  if (wrong.length) told = `The words name box ${wrong.join(", ")}, which is not a box of this answer.`;
  else if (left.length) {
    told = `The words do not name box ${left.join(", ")}: write [box ${left[0]}] where it belongs.`;
  } else if (turned) told = "Is it there or not? The boxes say so now: do the words?";
  byId("unnamed").hidden = !told;
  byId("unnamed").textContent = told;
}

// Called with boxes when they have changed, with words when the reader has typed some, and with the
// options when they are others.
function keepCorrection(boxes, words = null, choice = null) {
  const untouched = {boxes: originals(), answer: item().text, choice: item().chosen};
  const before = correctionOf(current) || untouched;
  const typed = before.answer !== proposal(before.boxes) && before.answer !== "";
  const answer = words !== null ? words : typed ? before.answer : proposal(boxes);
  const plain = boxes.map(({box, label, kind, origin}) => (
    {box, label: label || "", kind, origin: origin == null ? null : origin}));
  const now = {boxes: plain, answer, choice: choice || before.choice};
  const same = JSON.stringify(now) === JSON.stringify(untouched);
  const name = `${current}/correction`;
  state[name] = same ? "" : JSON.stringify(now);
  keeper.keep({name, value: state[name]});
  listBoxes();
  tellWords();
  show();
}

function draw() {
  if (!enabled || byId("correct").hidden) return;
  if (viewer.drawing) viewer.setDrawing(null);
  else viewer.setDrawing({label: item().finding, kind: "answer", origin: null});
}

function openMissed() {
  if (!enabled || byId("correct").hidden) return;
  byId("missed").hidden = false;
  byId("miss").setAttribute("aria-expanded", "true");
  byId("class").value = "";
  byId("class").focus();
}

function closeMissed() {
  byId("missed").hidden = true;
  byId("miss").setAttribute("aria-expanded", "false");
}

// A name that begins as one class alone is that class.
function drawMissed() {
  const typed = byId("class").value.trim();
  const lower = typed.toLowerCase();
  const alike = data.classes.filter((name) => name.toLowerCase().startsWith(lower));
  const exact = data.classes.find((name) => name.toLowerCase() === lower);
  const name = exact || (alike.length === 1 ? alike[0] : item().closed ? "" : typed);
  if (!typed || !name) {
    tell(`Which finding? One of ${(typed && alike.length ? alike : data.classes).join(", ")}.`);
    return;
  }
  tell("");
  closeMissed();
  byId("class").blur();
  viewer.setDrawing({label: name, kind: "missed", origin: null});
}

function restore() {
  viewer.replaceBoxes(originals());
  byId("answer").value = item().text;
  keepCorrection(originals(), item().text, item().chosen);
  listOptions();
}

const keys = {
  j: () => moveTo(cursor + 1),
  k: () => moveTo(cursor - 1),
  n: () => toQuestion(current + 1),
  p: () => toQuestion(current - 1),
  u: toUnrated,
  d: draw,
  m: openMissed,
  a: () => {
    if (item().options) byId("options").querySelector("input:checked, input").focus();
  },
  e: () => { if (!byId("words").hidden) byId("answer").focus(); },
  c: () => articles[current].querySelector("textarea").focus(),
  s: () => keeper.finish(),
  "?": () => {
    const help = document.querySelector("details");
    help.open = !help.open;
    help.scrollIntoView({block: "nearest"});
  },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("textarea, input:not([type=radio], [type=checkbox], [type=range])")) {
    if (event.key === "Escape") {
      event.target.blur();
      closeMissed();
    } else if (event.key === "Enter" && event.target.id === "class") {
      event.preventDefault();
      drawMissed();
    }
    return;
  }
  const at = event.target, moves = event.key.startsWith("Arrow");
  if (moves && at.matches("input") && !(at.type === "radio" && viewer.selected >= 0)) return;
  if (event.key === "Enter" && at.matches("button, summary") && !viewer.drawing) return;
  if (moves && at.matches(".reason") && viewer.selected < 0) return;
  if (at.name === "option" && event.key === "Escape") {
    at.blur();
    return;
  }
  if (at.name === "option" && event.key === " ") return;
  const option = at.name === "option"
    && at.closest("fieldset").querySelector(`input[value="${event.key.toUpperCase()}"]`);
  if (option) {
    option.focus();
    option.click();
    event.preventDefault();
    return;
  }
  const number = "123456789".indexOf(event.key);
  if (event.key.length === 1 && number >= 0) rate(number);
  else if (Object.hasOwn(keys, event.key)) keys[event.key]();
  else if (byId("viewer").hidden || !viewer.key(event)) return;
  event.preventDefault();
});
document.querySelector("main").addEventListener("input", (event) => {
  if (!event.target.closest("article")) return;
  state[event.target.name] = event.target.value;
  keeper.keep(event.target);
  show();
});
document.querySelector("main").addEventListener("focusin", (event) => {
  const at = ratings.indexOf(event.target.closest("fieldset"));
  if (at >= 0) moveTo(at);
});
byId("classes").append(...data.classes.map((name) => {
  const option = document.createElement("option");
  option.value = name;
  return option;
}));
byId("answer").addEventListener("input", (event) => {
  const boxes = boxesNow();
  keepCorrection(boxes, event.target.value.trim() ? event.target.value : proposal(boxes));
});
byId("answer").addEventListener("blur", tellWords);
byId("options").addEventListener("input", choose);
byId("add").addEventListener("click", draw);
byId("miss").addEventListener("click", openMissed);
byId("place").addEventListener("click", drawMissed);
byId("undo").addEventListener("click", () => viewer.undo());
byId("restore").addEventListener("click", restore);
byId("back").addEventListener("click", () => toQuestion(current - 1));
byId("on").addEventListener("click", () => toQuestion(current + 1));
byId("next").addEventListener("click", toUnrated);
save.addEventListener("click", () => keeper.finish());

const keeper = data.served ? serverKeeper : browserKeeper;
moveTo(0);
keeper.begin();
