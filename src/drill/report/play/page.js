// The page of `drill play`. Text of users and models enters the page as text only, never as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const EOS = "<eos>";
const START = "▁"; // in front of a subword that begins a word
let setup = { runs: [], task: null, unit: "word" };

const make = drill_plots.html; // (tag, attributes and listeners, ...children)
const fixed = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const shown = (word) => (word === EOS ? "⏎" : word);

// -- requests ------------------------------------------------------------------------------------

function show_error(message) {
  $("error").textContent = message;
  $("error").hidden = !message;
}

async function checked(response) {
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({ error: response.statusText }));
  throw new Error(answer.error);
}

async function ask(path, body, signal) {
  const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(`/api/${path}`, { ...options, signal }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("no answer from the server; is drill play still running?");
  });
  return checked(answer);
}

// Answers that come after a newer question of the same kind are dropped.
const asked = {};
const SLOW = 300; // milliseconds until the page says that it waits
const slow = new Set();
function set_slow(path, on) {
  if (on) slow.add(path);
  else slow.delete(path);
  $("working").hidden = !slow.size;
}
async function latest(path, body) {
  asked[path]?.abort();
  const controller = (asked[path] = new AbortController());
  const timer = setTimeout(() => path !== "curves" && set_slow(path, true), SLOW);
  try {
    const answer = await (await ask(path, body, controller.signal)).json();
    show_error("");
    return answer;
  } catch (error) {
    if (error.name !== "AbortError") show_error(error.message);
    return null;
  } finally {
    clearTimeout(timer);
    if (asked[path] === controller) set_slow(path, false);
  }
}

// -- runs and tabs -------------------------------------------------------------------------------

function chosen() {
  const a = Number($("run-a").value);
  const b = $("run-b").value;
  return b === "" || Number(b) === a ? [a] : [a, Number(b)];
}
const name_of = (position) => setup.runs[position].name;
const heading = (position, order) => make("h3", { class: `name run${order}` }, name_of(position));

const tabs = [...document.querySelectorAll("[role=tab]")];
function open_tab(tab, focus) {
  for (const other of tabs) {
    const selected = other === tab;
    other.setAttribute("aria-selected", selected);
    other.tabIndex = selected ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !selected;
  }
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  show_error("");
  if (focus) tab.focus();
  const training = tab.id === "tab-training";
  $("choice").hidden = training || !setup.runs.length; // curves are of all runs
  if (training) refresh_curves();
}
for (const tab of tabs) {
  tab.addEventListener("click", () => open_tab(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const visible = tabs.filter((other) => !other.hidden);
    open_tab(visible.at((visible.indexOf(tab) + step) % visible.length), true);
  });
}

// -- write ---------------------------------------------------------------------------------------

const HINT = $("prefix-note").textContent;

async function predict() {
  const runs = chosen();
  const answer = await latest("next", { runs, text: $("prefix").value });
  if (!answer) return;
  fill_words("next-words", answer.words, true);
  fill_words("different-words", answer.different, false);
  $("different").hidden = runs.length < 2;
  const unknown = answer.unknown.map((words, i) => words.length && `${name_of(runs[i])} reads as <unk>: ${words.join(" ")}`);
  const read = answer.read?.length && `Read as: ${answer.read.map(shown).join(" ")}`;
  $("prefix-note").textContent = unknown.filter(Boolean).join(". ") || read || HINT;
}

function fill_words(id, rows, numbered) {
  const list = $(id);
  const focused = [...list.querySelectorAll("button")].indexOf(document.activeElement);
  const largest = Math.max(...rows.flatMap((row) => row.p), 1e-9);
  list.replaceChildren(
    ...rows.map((row, i) => {
      const button = make("button", { type: "button", click: () => go_on(row.text) }, shown(row.word));
      button.disabled = row.text === null;
      if (button.disabled) button.title = "a space, or part of a character";
      if (row.word === EOS) button.title = "end of the line";
      if (numbered && i < 9) button.append(make("kbd", { "aria-hidden": "true" }, String(i + 1)));
      const bars = row.p.map((p, order) => {
        const bar = make("i");
        bar.style.width = `${(100 * (p ?? 0)) / largest}%`;
        return make("div", { class: `bar run${order}` }, make("div", {}, bar), make("span", {}, p === null ? "no label" : `${(100 * p).toFixed(2)}%`));
      });
      return make("li", {}, button, make("div", {}, ...bars));
    }),
  );
  if (focused >= 0) list.querySelectorAll("button")[Math.min(focused, rows.length - 1)]?.focus();
}

function go_on(added) {
  const text = $("prefix").value.replace(/[ ]+$/, "");
  const space = text === "" || text.endsWith("\n") ? "" : " ";
  if (added === EOS) $("prefix").value = `${text}\n`;
  else $("prefix").value = setup.unit === "subword" ? text + added : `${text}${space}${added} `;
  predict();
}

let typing;
$("prefix").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(predict, 120);
});
document.addEventListener("keydown", (event) => {
  const digit = event.code.match(/^Digit([1-9])$/);
  if (!event.altKey || !digit || $("write").hidden) return;
  event.preventDefault();
  $("next-words").querySelectorAll("button")[digit[1] - 1]?.click();
});
document.addEventListener("keydown", (event) => {
  const list = event.target.closest(".words");
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!list || !step) return;
  event.preventDefault();
  const buttons = [...list.querySelectorAll("button")];
  buttons[buttons.indexOf(document.activeElement) + step]?.focus();
});

let sampling = null;
$("stop").addEventListener("click", () => sampling?.abort());
$("sample-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  sampling?.abort();
  const controller = (sampling = new AbortController());
  const options = {};
  for (const [key, value] of new FormData(event.target)) options[key] = value === "" ? null : Number(value);
  const text = $("prefix").value.replace(/ +$/, ""); // a line break at its end counts
  $("stop").disabled = false;
  show_error("");
  $("samples").replaceChildren();
  const work = chosen().map((run, order) => {
    const output = make("div", { class: "sample" }, make("b", {}, text));
    $("samples").append(make("div", { class: `run${order}` }, heading(run, order), output));
    return stream({ run, text, ...options }, output, controller.signal);
  });
  try {
    await Promise.all(work);
  } catch (error) {
    if (error.name !== "AbortError") show_error(error.message);
  }
  if (sampling === controller) $("stop").disabled = true;
});

async function stream(body, output, signal) {
  const response = await ask("sample", body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      const piece = JSON.parse(line);
      if (piece.error) throw new Error(piece.error);
      output.append(piece);
    }
  }
}

// -- score ---------------------------------------------------------------------------------------

const LOSSES = [1, 2, 4, 6, 9]; // nats at which a colour begins
const CHANGES = [0.1, 0.5, 1.5];
const DETAIL = $("score-detail").textContent;
let scored = null;

function submit_on_ctrl_enter(id, form) {
  $(id).addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $(form).requestSubmit();
  });
}
submit_on_ctrl_enter("score-text", "score-form");
submit_on_ctrl_enter("translate-text", "translate-form");

$("score-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const runs = chosen();
  const answer = await latest("score", { runs, text: $("score-text").value });
  if (!answer) return;
  scored = { ...answer, positions: runs };
  const heads = ["", ...runs.map(name_of), ...(runs.length > 1 ? ["B − A"] : [])];
  const numbers = (key, digits) => answer.runs.map((run) => [run[key], digits]);
  fill_table("score-summary", heads, [
    row_of("perplexity", numbers("perplexity", 1), false),
    row_of("loss", numbers("loss", 3), true),
    ...(setup.unit === "subword" ? [row_of("bits per byte", numbers("bits_per_byte", 3), true)] : []),
    [`tokens`, ...answer.runs.map((run) => run.tokens.toLocaleString("en"))],
  ]);
  const bands = answer.runs[0].bands.map((band, i) => [band, answer.runs.map((run) => run.bands.find((other) => other.high === band.high) ?? { tokens: 0, loss: null }), i]);
  const heads_of_bands = ["training count", "tokens", ...heads.slice(1)];
  fill_table(
    "score-bands",
    heads_of_bands,
    bands
      .filter(([, by_run]) => by_run.some((run_band) => run_band.tokens))
      .map(([band, by_run, i]) => {
        const button = make("button", { type: "button", "aria-pressed": "false", click: () => show_band(i, button) }, band.label);
        const row = row_of(button, by_run.map((run_band) => [run_band.loss, 3]), true);
        row.splice(1, 0, band.tokens.toLocaleString("en"));
        return row;
      }),
  );
  const views = runs.length > 1 ? ["A", "B", "B − A"] : ["A"];
  $("score-view").replaceChildren(
    make("legend", {}, "Colour"),
    ...views.map((view, i) => {
      const radio = make("input", { type: "radio", name: "view", change: () => colour(i) });
      radio.checked = i === views.length - 1;
      return make("label", {}, radio, i < 2 ? `${view} ${name_of(runs[i])}` : view);
    }),
  );
  $("score-view").hidden = views.length < 2;
  $("score-detail").textContent = DETAIL;
  $("score-result").hidden = false;
  let position = 0;
  const token = (text, line, i) => {
    const span = make("span", {}, shown(setup.unit === "subword" ? text.replace(/^▁(?=[^▁])/, "") : text));
    span.position = [line, i];
    span.order = position++;
    if (text !== EOS && answer.runs.some((run) => run.counts[line][i] === null)) span.classList.add("unknown");
    return span;
  };
  $("scored").replaceChildren(
    ...answer.lines.map((tokens, line) =>
      make("p", {}, ...words_of(tokens).flatMap((word) => {
        const spaced = setup.unit === "word" || tokens[word[0]].startsWith(START);
        return [spaced ? " " : "", make("bdi", {}, ...word.map((i) => token(tokens[i], line, i)))];
      })),
    ),
  );
  colour(views.length - 1);
});

// The positions of the tokens of every word: subwords up to the next space or punctuation mark.
const INSIDE = /^([\p{L}\p{M}\p{N}]|<0x)/u;
function words_of(tokens) {
  const words = [];
  tokens.forEach((token, i) => {
    if (i && setup.unit === "subword" && INSIDE.test(token)) words.at(-1).push(i);
    else words.push([i]);
  });
  return words;
}

function row_of(label, values, difference) {
  const cells = values.map(([value, digits]) => fixed(value, digits));
  if (values.length < 2) return [label, ...cells];
  const [a, b] = values.map(([value]) => value);
  if (a === null || b === null) return [label, ...cells, "–"];
  const change = difference ? b - a : (100 * (b - a)) / a;
  const text = difference ? `${change > 0 ? "+" : ""}${change.toFixed(3)}` : `${change > 0 ? "+" : ""}${change.toFixed(1)}%`;
  return [label, ...cells, make("span", { class: change < 0 ? "better" : "worse" }, text)];
}

const table_parts = (heads, rows) => [
  make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
  make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map((cell) => make("td", {}, cell))))),
];
const fill_table = (id, heads, rows) => $(id).replaceChildren(...table_parts(heads, rows));

const level = (value, edges) => edges.filter((edge) => value >= edge).length;
const loss_class = (loss) => `l${level(loss ?? 99, LOSSES)}`;
const change_class = (change) => `${change < 0 ? "b" : "a"}${level(Math.abs(change), CHANGES)}`;

function colour(view) {
  for (const span of $("scored").querySelectorAll("span")) {
    const [line, i] = span.position;
    const losses = scored.runs.map((run) => run.lines[line][i]);
    span.classList.remove(...[...span.classList].filter((name) => /^[lab]\d$/.test(name)));
    span.classList.add(view < 2 ? loss_class(losses[view]) : change_class(losses[1] - losses[0]));
  }
  const key = (name, text) => make("span", { class: `key ${name}` }, text);
  const keys =
    view < 2
      ? ["0", ...LOSSES].map((edge, i) => key(`l${i}`, `${edge}+`))
      : [...CHANGES.map((edge, i) => key(`b${i + 1}`, `−${edge}`)).reverse(), ...CHANGES.map((edge, i) => key(`a${i + 1}`, `+${edge}`))];
  $("score-legend").replaceChildren(view < 2 ? "Loss in nats: " : "Loss of B − A in nats, in the colour of the better run: ", ...keys);
}

// Dims all words but those of a band of training counts; a second click shows all.
function show_band(band, button) {
  const all = button.getAttribute("aria-pressed") === "true";
  for (const other of $("score-bands").querySelectorAll("button")) other.setAttribute("aria-pressed", other === button && !all);
  const { bands, counts } = scored.runs[0];
  const lows = bands.map(({ low }) => low);
  for (const span of $("scored").querySelectorAll("span")) {
    const [line, i] = span.position;
    const count = scored.lines[line][i] === EOS ? null : counts[line][i];
    span.classList.toggle("dim", !all && (count === null || level(count, lows) - 1 !== band));
  }
}

function select_word(span) {
  if (!span) return;
  $("scored").querySelector(".current")?.classList.remove("current");
  span.classList.add("current");
  span.scrollIntoView({ block: "nearest" });
  const [line, i] = span.position;
  const parts = scored.runs.map((run, order) => {
    const count = run.counts[line][i];
    const seen = count === null ? "unknown, read as <unk>" : `training count ${count.toLocaleString("en")}`;
    return `${name_of(scored.positions[order])}: ${fixed(run.lines[line][i])} nats, ${seen}`;
  });
  const word = words_of(scored.lines[line]).find((positions) => positions.includes(i));
  if (word.length > 1) {
    const sums = scored.runs.map((run) => word.reduce((sum, position) => sum + run.lines[line][position], 0).toFixed(3));
    parts.push(`the whole word ${word.map((position) => scored.lines[line][position]).join("")}: ${sums.join(" and ")} nats`);
  }
  $("score-detail").textContent = `${scored.lines[line][i]} — ${parts.join("; ")}`;
}
$("scored").addEventListener("click", (event) => event.target.position && select_word(event.target));
$("scored").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const words = $("scored").querySelectorAll("span");
  const current = $("scored").querySelector(".current");
  select_word(current ? words[current.order + step] : words[0]);
});

// -- translate -----------------------------------------------------------------------------------

$("translate-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const runs = chosen();
  const form = new FormData(event.target);
  const body = { runs, text: $("translate-text").value, beam: Number(form.get("beam")), n_best: Number(form.get("n_best")) };
  const answer = await latest("translate", body);
  if (!answer) return;
  $("translations").replaceChildren(
    ...answer.lines.map((line, i) =>
      make("div", { class: "source" }, make("p", {}, line),
        make("div", { class: "columns" }, ...answer.runs.map((lines, order) => translation(lines[i], runs[order], order)))),
    ),
  );
});

function translation(line, run, order) {
  let best = line.marked ?? line.translations[0].text.split(" ").map((word) => [word, false]);
  if (!line.translations[0].text) best = [["(empty)", false]];
  const rows = line.translations.map((each) => [each.text, fixed(each.score), fixed(each.log_prob, 2)]);
  const table = make("table", {}, ...table_parts(["translation", "score", "log p"], rows));
  const block = make("div", { class: `run${order}` }, heading(run, order),
    make("p", { class: "best" }, ...best.flatMap(([word, differs]) => [differs ? make("mark", {}, word) : word, " "])),
    make("div", { class: "scroll" }, table));
  if (line.attention)
    block.append(make("details", {}, make("summary", {}, "Attention to the source"), ...heat_map(line.attention)));
  return block;
}

function heat_map({ source, target, weights }) {
  const largest = Math.max(...weights.flat());
  const value = make("p", { class: "note" }, "Click a cell for its weight.");
  const cell = (weight, i, j) => {
    const text = `${target[i]} ← ${source[j]}: ${weight}`;
    const td = make("td", { title: text, click: () => (value.textContent = text) });
    td.style.opacity = weight / largest;
    return td;
  };
  const table = make("table", { class: "attention" },
    make("thead", {}, make("tr", {}, make("th"), ...source.map((piece) => make("th", { scope: "col" }, piece)))),
    make("tbody", {}, ...weights.map((row, i) =>
      make("tr", {}, make("th", { scope: "row" }, target[i]), ...row.map((weight, j) => cell(weight, i, j))))));
  return [value, make("div", { class: "scroll" }, table)];
}

// -- look up -------------------------------------------------------------------------------------

$("word-form").addEventListener("submit", (event) => {
  event.preventDefault();
  look_up(new FormData(event.target).get("word").trim(), false);
});

// exact: the label of this name, else the word as it is read inside of a sentence.
async function look_up(word, exact) {
  const runs = chosen();
  const answer = await latest("word", { runs, word, exact });
  if (!answer) return;
  $("word-form").elements.word.value = word;
  const result = $("word-result");
  const focused = result.contains(document.activeElement);
  result.replaceChildren(...answer.map((entry, order) => neighbours(entry, runs[order], order)));
  if (focused) (result.querySelector(".words button") ?? $("word-form").elements.word).focus();
}

$("add-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const runs = chosen();
  const form = Object.fromEntries(new FormData(event.target));
  const answer = await latest("add", { runs, ...form, word: form.word.trim() });
  if (!answer) return;
  predict();
  $("word-result").replaceChildren(...answer.map((entry, order) => neighbours(entry, runs[order], order)));
});
const offer_adding = () => ($("add-form").hidden = !chosen().some((run) => setup.runs[run]?.adds_words));

function neighbours(entry, run, order) {
  const block = make("div", { class: `run${order}` }, heading(run, order));
  const link = (word) => make("button", { type: "button", click: () => look_up(word, true) }, shown(word));
  if (entry.subwords?.length > 1) block.append(make("p", { class: "note pieces" }, "Subwords: ", ...entry.subwords.map(link), ` shown for ${entry.label}`));
  if (!entry.embedding) {
    block.append(make("p", {}, `“${entry.label}” is not in the vocabulary.`));
    return block;
  }
  const text = setup.task === "translator" ? " in the target text" : "";
  const seen = entry.count === null ? "training count unknown" : `training count ${entry.count.toLocaleString("en")}${text}, rank ${entry.rank.toLocaleString("en")} of ${entry.labels.toLocaleString("en")}`;
  block.append(make("p", {}, `${entry.label}: ${seen}`));
  const list = ([word, cosine]) => make("li", {}, link(word), make("span", { class: "note" }, cosine.toFixed(3)));
  block.append(make("div", { class: "columns narrow" },
    make("div", {}, make("h3", {}, "E"), make("ol", { class: "words" }, ...entry.embedding.map(list))),
    make("div", {}, make("h3", {}, "g_out(E)"), make("ol", { class: "words" }, ...entry.output.map(list)))));
  return block;
}

// -- training curves -----------------------------------------------------------------------------

const REFRESH = 2000; // milliseconds

let refreshing = false;
const plots = {};

async function refresh_curves() {
  if (refreshing) return; // many long runs take longer than REFRESH to read
  refreshing = true;
  const answer = await latest("curves");
  refreshing = false;
  if (!answer) return;
  fill_table("plot-legend", ["run", "layer", "step", "valid", "best", "state"], answer.runs.map((run) => {
    const valid = run.points.at(-1)?.[1];
    const step = Math.max(run.train.at(-1)?.[0] ?? 0, run.points.at(-1)?.[0] ?? 0);
    return [
      make("span", {}, make("span", { class: `swatch ${run.look}` }), run.name),
      run.layer ?? "–", step ? step.toLocaleString("en") : "–", fixed(valid, 2), fixed(run.best, 2),
      run.finished ? "finished" : "not finished",
    ];
  }));
  draw_curves("plot", "Validation perplexity by step", "validation perplexity", answer.runs, "points");
  draw_curves("plot-train", "Training perplexity by step", "training perplexity", answer.runs, "train");
}

function draw_curves(id, title, y, runs, series) {
  const lines = runs.filter((run) => run[series].length).map((run) => ({ ...run, points: run[series].map(([x, y]) => [x, y ?? NaN]) }));
  const shown = { title, x: "step", y, whole: true, lines };
  if (plots[id]) plots[id].update(shown);
  else if (lines.length) plots[id] = new drill_plots.LinePlot($(id), shown);
}
setInterval(() => !$("training").hidden && !document.hidden && refresh_curves(), REFRESH);

// ------------------------------------------------------------------------------------------------

function change_runs() { // what is shown is of the runs before
  sampling?.abort();
  for (const controller of Object.values(asked)) controller.abort();
  $("score-result").hidden = true;
  for (const id of ["samples", "translations", "word-result"]) $(id).replaceChildren();
  offer_adding();
  if (setup.task === "language model") predict();
}

async function start() {
  setup = await (await ask("runs")).json();
  $("next-heading").textContent = `Next ${setup.unit}`;
  $("spaces").hidden = setup.unit !== "word";
  const options = () => setup.runs.map((run, i) => make("option", { value: i }, `${run.name} (${run.layer})`));
  $("run-a").append(...options());
  $("run-b").append(make("option", { value: "" }, "none"), ...options());
  if (setup.runs.length > 1) $("run-b").value = "1";
  for (const id of ["run-a", "run-b"]) $(id).addEventListener("change", change_runs);
  offer_adding();
  for (const tab of tabs) tab.hidden = "task" in tab.dataset && !(tab.dataset.task === "any" ? setup.task : tab.dataset.task === setup.task);
  const visible = tabs.filter((tab) => !tab.hidden);
  open_tab(visible.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash) ?? visible[0]);
  if (setup.task === "language model") predict();
}
start().catch((error) => show_error(error.message));
