// The page for people: follows the list's stream of events and the service's status, and draws what it holds.
//
// Everything that comes from the service is text: it is set with textContent, never as markup, and what does not print
// is escaped. In the order of reading: what is asked of the service, the stream, the status, what the address keeps,
// drawing.

const STATUS_MS = 2000;
const LEASES_MS = 5000;
const HIDDEN_FACTOR = 5; // a tab that nobody looks at asks less often
const SILENCE_MS = 40000; // the service says something every 15 s
const LONGEST_WAIT_MS = 15000;
const LONGEST_QUERY = 6000;
const SETTLED_MS = 300; // so long after the last key or the last scrolling, what follows from it is done
const DRAW_MS = 250;
const MOST_OPTIONS = 500;
const MOST_ONE_SIDED = 100;
const SPARE_ROWS = 10;
const MOST_ROWS = 300;
const TOKEN = "discovery-token";
const FILTERS = ["model", "cluster_id", "namespace", "region", "capability"];
const SORTS = ["dgd_name", "namespace", "cluster_id", "model", "location", "capacity", "frontends"];

const base = location.pathname.endsWith("/") ? location.pathname : location.pathname + "/";
const at = (id) => document.getElementById(id);

const state = {
  pools: new Map(), // key → row
  complete: false,
  ready: false,
  status: undefined, // null when it cannot be read
  leases: new Map(),
  token: readToken(),
  cutAt: null,
};

// ---- asking

class Refused extends Error {
  constructor(status, text, waitMs) {
    super(text);
    this.status = status;
    this.waitMs = waitMs;
  }
}

function readToken() {
  try {
    return sessionStorage.getItem(TOKEN) || "";
  } catch {
    return ""; // storage is switched off: the token is kept in this page alone
  }
}

function keepToken(token) {
  state.token = token;
  at("forget").hidden = !token;
  try {
    if (token) sessionStorage.setItem(TOKEN, token);
    else sessionStorage.removeItem(TOKEN);
  } catch {
    // as above
  }
}

async function ask(path, headers = {}, signal = AbortSignal.timeout(LONGEST_WAIT_MS)) {
  if (state.token) headers = { ...headers, Authorization: `Bearer ${state.token}` };
  const response = await fetch(base + path, { headers, signal, cache: "no-store" });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  const waitMs = 1000 * Number(response.headers.get("Retry-After")) || 0;
  throw new Refused(response.status, problem.detail || `the service answered ${response.status}`, waitMs);
}

let asking = null;

// Whoever closes the dialog without a token may go on looking at what is there.
async function askForToken(why) {
  for (;;) {
    setText(at("ask-why"), why);
    at("token").value = "";
    at("ask").returnValue = "";
    at("ask").showModal();
    await happening(at("ask"), "close");
    if (at("ask").returnValue === "given") return;
    at("give").hidden = false;
    await happening(at("give"), "click");
    at("give").hidden = true;
  }
}

const happening = (element, what) => new Promise((resolve) => element.addEventListener(what, resolve, { once: true }));

const isAboutToken = (error) => error instanceof Refused && (error.status === 401 || error.status === 403);

// ---- the stream of events

let lastId = null;
let retryMs = 1000;
let heard = () => {};
let tryNow = () => {};

async function followForEver() {
  for (let failures = 0; ; failures += 1) {
    const before = lastId;
    let why = "the service ended the stream";
    let waitMs = retryMs;
    try {
      await follow();
    } catch (error) {
      why = error.message;
      waitMs = error.waitMs || Math.min(LONGEST_WAIT_MS, retryMs * 2 ** Math.min(failures, 5)) * (0.5 + Math.random() / 2);
      if (isAboutToken(error)) {
        showCut(state.token ? why : "it wants a token", "Needs a token");
        asking = askForToken(state.token ? why : "Without one it shows no data.");
        await asking;
        asking = null;
        waitMs = 0;
      }
    }
    if (lastId !== before) failures = 0;
    await waitAfterCut(why, waitMs);
  }
}

async function follow() {
  const stop = new AbortController();
  let timer = 0;
  heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(new Error("the service fell silent")), SILENCE_MS);
  };
  heard();
  let answered = false;
  try {
    const headers = { Accept: "text/event-stream" };
    if (lastId !== null) headers["Last-Event-ID"] = lastId;
    const response = await ask("pools/events", headers, stop.signal);
    answered = true;
    await readEvents(response.body.pipeThrough(new TextDecoderStream()).getReader());
  } catch (error) {
    if (stop.signal.aborted) throw stop.signal.reason;
    if (error instanceof Refused) throw error;
    throw new Error(answered ? "the connection broke off" : "it cannot be reached", { cause: error });
  } finally {
    clearTimeout(timer);
    stop.abort();
  }
}

async function readEvents(reader) {
  const take = eventTaker();
  let begun = []; // pieces of a line: a snapshot is one line of megabytes, which must not be searched again and again
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    heard();
    showLive();
    const lines = value.split("\n");
    begun.push(lines[0]);
    if (lines.length === 1) continue;
    take(begun.join(""));
    for (const line of lines.slice(1, -1)) take(line);
    begun = [lines[lines.length - 1]];
  }
}

// Only the last event of one published list has an id. What comes before it is kept until then, so that a stream that
// is cut in between leaves nothing half done.
function eventTaker() {
  let waiting = [];
  let event = { type: "message", data: [], id: null };
  return (line) => {
    if (line !== "") {
      const colon = line.indexOf(":");
      const name = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? "" : line.slice(colon + (line[colon + 1] === " " ? 2 : 1));
      if (name === "event") event.type = value;
      else if (name === "data") event.data.push(value);
      else if (name === "id") event.id = value;
      else if (name === "retry" && /^\d+$/.test(value)) retryMs = Number(value);
      return;
    }
    if (event.data.length) waiting.push({ type: event.type, data: JSON.parse(event.data.join("\n")) });
    if (event.id !== null) {
      waiting.forEach(apply);
      waiting = [];
      lastId = event.id;
      drawSoon();
    }
    event = { type: "message", data: [], id: null };
  };
}

function apply({ type, data }) {
  if (type === "snapshot") {
    state.pools = new Map(data.pools.map((pool) => [keyOf(pool), rowOf(pool)]));
    state.complete = data.complete;
    state.ready = true;
    askStatusNow();
  } else if (type === "put") {
    state.pools.set(keyOf(data), rowOf(data));
  } else if (type === "delete") {
    state.pools.delete(keyOf(data));
  } else if (type === "complete") {
    state.complete = data.complete;
    askStatusNow();
  }
}

async function waitAfterCut(why, waitMs) {
  const until = Date.now() + waitMs;
  const given = new Promise((resolve) => { tryNow = () => resolve(true); });
  showCut(why);
  at("again").hidden = waitMs <= 0;
  for (let left = waitMs; left > 0; left = until - Date.now()) {
    setText(at("cut-next"), `Trying again in ${Math.ceil(left / 1000)} s.`);
    if (await Promise.race([given, new Promise((resolve) => setTimeout(resolve, Math.min(left, 1000)))])) break;
  }
  setText(at("cut-next"), "Trying again …");
}

function showLive() {
  if (state.cutAt === null && at("stream").textContent === "Live") return;
  state.cutAt = null;
  at("stream").textContent = "Live";
  at("stream").className = "pill live";
  at("cut").hidden = true;
  askStatusNow();
  drawSoon();
}

// The countdown stands apart: a screen reader says what is wrong once, and not each second.
function showCut(why, pill = "Cut off") {
  state.cutAt ??= new Date();
  setText(at("stream"), pill);
  at("stream").className = "pill lost";
  at("cut").hidden = false;
  const shown = state.ready ? ` What is shown is from ${state.cutAt.toLocaleTimeString()}.` : "";
  setText(at("cut-why"), `No news from the service: ${why.replace(/\.$/, "")}.${shown}`);
  setText(at("cut-next"), "");
  at("again").hidden = true;
  drawSoon();
}

// ---- the status, and leases of the rows in sight

let askStatusNow = () => {};
let askLeasesNow = () => {};

async function pollStatus() {
  for (;;) {
    try {
      state.status = await (await ask("status")).json();
    } catch (error) {
      if (isAboutToken(error)) await asking;
      state.status = null;
    }
    drawSoon();
    await pause(STATUS_MS, (wake) => { askStatusNow = wake; });
  }
}

let leasesWanted = 0;

// For rows that have come into sight since, by scrolling, searching or registering.
function askLeasesSoon() {
  leasesWanted ||= setTimeout(() => {
    leasesWanted = 0;
    askLeasesNow();
  }, SETTLED_MS);
}

async function pollLeases() {
  for (;;) {
    const rows = rowsInSight();
    const explained = await explain(rows).catch(() => []);
    state.leases = new Map(rows.map((row) => [row.key, null]));
    explained.forEach((one) => state.leases.set(keyOf(one), one.lease_left_secs));
    drawRows();
    await pause(LEASES_MS, (wake) => { askLeasesNow = wake; });
  }
}

function pause(ms, hand) {
  const longer = document.hidden ? HIDDEN_FACTOR * ms : ms;
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, longer);
    hand(() => { clearTimeout(timer); setTimeout(resolve, 50); });
  });
}

// The words of `discovery doctor`: the service explains, both only show it.
async function explain(rows) {
  const asked = [];
  let length = 0;
  for (const { pool } of rows) {
    const path = [pool.cluster_id, pool.namespace, pool.dgd_name].map(encodeURIComponent).join("/");
    const one = "pool=" + encodeURIComponent(path);
    length += one.length + 1;
    if (length > LONGEST_QUERY) break;
    asked.push(one);
  }
  if (!asked.length) return [];
  return (await (await ask("status?" + asked.join("&"))).json()).explained;
}

// ---- rows

const keyOf = (pool) => `${pool.cluster_id}\0${pool.namespace}\0${pool.dgd_name}`;

function rowOf(pool) {
  const capacity = pool.capacity.map((one) => `${one.quantity} ${one.unit ? one.unit + " " : ""}${one.resource}`).join(", ");
  const location = [pool.location.region, pool.location.zone].filter(Boolean).join(" ");
  return {
    pool,
    key: keyOf(pool),
    dgd_name: pool.dgd_name,
    namespace: pool.namespace,
    cluster_id: pool.cluster_id,
    model: pool.model,
    location,
    capacityText: capacity,
    capacity: pool.capacity.reduce((sum, one) => sum + one.quantity, 0),
    frontends: pool.frontends.length,
    text: null,
  };
}

function textOf(row) {
  const { pool } = row;
  row.text ??= [
    `${row.cluster_id}/${row.namespace}/${row.dgd_name}`, row.model, row.location, row.capacityText,
    pool.instance_id || "", ...pool.capabilities, ...pool.relays, ...pool.frontends, ...Object.values(pool.metadata),
  ].join("\n").toLowerCase();
  return row.text;
}

// ---- what the address keeps: search, filters, sort

const wanted = Object.fromEntries(new URLSearchParams(location.search));

function wantedSort() {
  const given = wanted.sort || "dgd_name";
  const name = given.replace(/^-/, "");
  return SORTS.includes(name) ? { name, down: given.startsWith("-") } : { name: "dgd_name", down: false };
}

function want(name, value) {
  if (value) wanted[name] = value;
  else delete wanted[name];
  at("scroller").scrollTop = 0;
  drawNow();
  clearTimeout(settling);
  settling = setTimeout(settled, SETTLED_MS);
}

let settling = 0;

// Browsers refuse pages that write the address too often, and a count that changes with each key is noise when heard.
function settled() {
  const query = new URLSearchParams(wanted).toString();
  history.replaceState(null, "", base + (query && "?" + query));
  setText(at("found"), `${counted(view.length, "pool")} found`);
}

function matches(row) {
  const { pool } = row;
  return (!wanted.model || row.model === wanted.model)
    && (!wanted.cluster_id || row.cluster_id === wanted.cluster_id)
    && (!wanted.namespace || row.namespace === wanted.namespace)
    && (!wanted.region || pool.location.region === wanted.region)
    && (!wanted.capability || pool.capabilities.includes(wanted.capability))
    && (!wanted.bare || row.frontends === 0)
    && (!wanted.q || wanted.q.toLowerCase().split(/\s+/).every((word) => textOf(row).includes(word)));
}

function sorted(rows) {
  const { name, down } = wantedSort();
  const sign = down ? -1 : 1;
  const compare = (a, b) => {
    if (a[name] < b[name]) return -sign;
    if (a[name] > b[name]) return sign;
    return a.key < b.key ? -1 : a.key > b.key ? 1 : 0;
  };
  return rows.sort(compare);
}

// ---- drawing

let view = [];
let drawTimer = 0;
let drawCost = 0;

// Changes come many times a second; drawing takes at most an eighth of the time.
function drawSoon() {
  drawTimer ||= setTimeout(drawNow, Math.max(DRAW_MS, 8 * drawCost));
}

function drawNow() {
  clearTimeout(drawTimer);
  drawTimer = 0;
  const started = performance.now();
  view = sorted([...state.pools.values()].filter(matches));
  drawSentence();
  drawFacts();
  drawFilters();
  drawOneSided();
  drawSorts();
  drawRows();
  drawCost = performance.now() - started;
}

// As `discovery doctor` prints it: no character of a name turns the text around it, hides in it or breaks the line.
const NOT_PRINTED = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/gu;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

function plain(text) {
  return text.replace(NOT_PRINTED, (character) => {
    const code = character.codePointAt(0);
    const hex = code.toString(16);
    if (SHORT[character]) return SHORT[character];
    return code < 0x100 ? `\\x${hex.padStart(2, "0")}` : code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
  });
}

function setText(element, text) {
  text = plain(text);
  if (element.textContent !== text) element.textContent = text;
}

const grouped = (number) => Number(number).toLocaleString("en");
const counted = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;

function drawSentence() {
  const whole = at("whole");
  if (!state.ready) {
    setText(whole, `No list has been read yet${state.status ? `: ${state.status.detail}` : ""}.`);
    return;
  }
  const because = state.status && state.status.incomplete_because;
  const known = state.cutAt === null;
  const good = known && state.complete;
  setText(whole, good
    ? "The list is complete: it is the whole truth, and a pool that is not in it is gone."
    : `${known ? "The list is not complete" : "Whether the list is complete is not known"}: pools may be missing${known && because ? `, because ${because}` : ""}.`);
  whole.className = `sentence ${good ? "good" : "bad"}`;
}

function drawFacts() {
  let frontends = 0;
  const models = new Set();
  for (const row of state.pools.values()) {
    frontends += row.frontends;
    models.add(row.model);
  }
  if (state.ready) {
    setText(at("listed"), grouped(state.pools.size));
    setText(at("models"), grouped(models.size));
    setText(at("frontends"), grouped(frontends));
  }
  const status = state.status;
  setText(at("registrations"), status ? grouped(status.registrations) : "–");
  setText(at("streams"), status ? grouped(status.streams) : "–");
  setText(at("replica"), status ? `version ${status.version}, replica ${status.replica_id}, up for ${span(status.uptime_secs)}` : "");
  drawParts(status);
}

function drawParts(status) {
  if (status === undefined) return;
  const parts = status ? [storeLine(status.store), ...status.watchers.map(watcherLine)] : [["The status cannot be read.", true]];
  fill(at("parts"), parts, ([text, bad]) => element("li", text, bad ? "bad" : ""));
}

function storeLine(store) {
  const where = store.address ? ` at ${store.address}` : "";
  return store.failing_because
    ? [`Store: ${store.kind}${where} fails: ${store.failing_because}`, true]
    : [`Store: ${store.kind}${where} answers`, false];
}

function watcherLine(watcher) {
  const trouble = watcher.incomplete_because || watcher.warning;
  const begin = `${watcher.name}: `; // troubles begin with it, warnings need not
  return trouble ? [`Watcher ${trouble.startsWith(begin) ? "" : begin}${trouble}`, true]
    : [`Watcher ${watcher.name} sees ${counted(watcher.services, "Service")}`, false];
}

function element(name, text, className = "") {
  const made = document.createElement(name);
  setText(made, text);
  made.className = className;
  return made;
}

function fill(parent, values, make) {
  const shown = JSON.stringify(values);
  if (parent.shown === shown) return; // unchanged: nothing is touched, so that a screen reader is not told again
  parent.shown = shown;
  parent.replaceChildren(...values.map(make));
}

function span(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

// -- filters

function drawFilters() {
  const found = Object.fromEntries(FILTERS.map((name) => [name, new Map()]));
  const count = (name, value) => value && found[name].set(value, (found[name].get(value) || 0) + 1);
  for (const { pool } of state.pools.values()) {
    count("model", pool.model);
    count("cluster_id", pool.cluster_id);
    count("namespace", pool.namespace);
    count("region", pool.location.region);
    pool.capabilities.forEach((capability) => count("capability", capability));
  }
  FILTERS.forEach((name) => drawOptions(name, found[name]));
  setText(at("count"), state.ready ? `${grouped(view.length)} of ${counted(state.pools.size, "pool")}` : "–");
}

function drawOptions(name, counts) {
  const select = at("filters").elements[name];
  if (document.activeElement === select) return; // it may be open
  if (wanted[name] && !counts.has(wanted[name])) counts.set(wanted[name], 0);
  let values = [...counts.keys()].sort();
  const left = values.length - MOST_OPTIONS;
  if (left > 0) values = values.filter((value, number) => number < MOST_OPTIONS || value === wanted[name]);
  const options = [["", "any"], ...values.map((value) => [value, value])];
  if (left > 0) options.push(["", `… ${grouped(left)} more: search for them`]);
  fill(select, options, ([value, text]) => new Option(plain(text), value));
  select.value = wanted[name] || "";
}

// -- pools of which one side is missing

function drawOneSided() {
  const all = (state.status && state.status.one_sided_pools) || [];
  const chosen = all.filter(matchesOneSided);
  at("one-sided").hidden = all.length === 0;
  setText(at("one-sided-title"), `Not listed: ${counted(chosen.length, "pool")} of which one side is missing`);
  drawOneSidedRows(chosen.slice(0, MOST_ONE_SIDED));
  const left = chosen.length - MOST_ONE_SIDED;
  at("one-sided-more").hidden = left <= 0;
  setText(at("one-sided-more"), `And ${grouped(left)} more: search to see them.`);
}

function matchesOneSided(one) {
  const text = `${one.cluster_id}/${one.namespace}/${one.dgd_name}\n${one.text}`.toLowerCase();
  return (!wanted.cluster_id || one.cluster_id === wanted.cluster_id)
    && (!wanted.namespace || one.namespace === wanted.namespace)
    && (!wanted.q || wanted.q.toLowerCase().split(/\s+/).every((word) => text.includes(word)));
}

function drawOneSidedRows(chosen) {
  const body = at("one-sided-rows");
  const focusedKey = keyInFocus("#one-sided-rows tr");
  while (body.rows.length > chosen.length) body.lastChild.remove();
  while (body.rows.length < chosen.length) body.append(emptyRow(4));
  chosen.forEach((one, number) => {
    const row = body.rows[number];
    row.key = keyOf(one);
    setText(row.cells[0].firstChild, `${one.cluster_id}/${one.namespace}/${one.dgd_name}`);
    setText(row.cells[1], one.side === "registered" ? "registered, not Ready" : "Ready, not registered");
    setText(row.cells[2], span(one.since_secs));
    setText(row.cells[3], one.text);
  });
  if (focusedKey && keyInFocus("#one-sided-rows tr") !== focusedKey) focusKey(focusedKey);
}

function keyInFocus(rows) {
  const row = document.activeElement && document.activeElement.closest(rows);
  return row ? row.key : null;
}

// -- listed pools: only the rows in sight are drawn; row n of the list is always drawn by the same element

const drawn = new Map(); // number in the list → element
const above = spacer();
const below = spacer();

function spacer() {
  const row = document.createElement("tr");
  row.className = "space";
  row.setAttribute("aria-hidden", "true");
  const cell = row.insertCell();
  cell.colSpan = 8;
  return row;
}

function rowHeight() {
  return parseFloat(getComputedStyle(document.documentElement).fontSize) * 2.25;
}

function rangeInSight() {
  const height = rowHeight();
  const first = Math.max(0, Math.floor(at("scroller").scrollTop / height) - SPARE_ROWS);
  const many = Math.min(MOST_ROWS, Math.ceil(at("scroller").clientHeight / height) + 2 * SPARE_ROWS);
  return [Math.min(first, Math.max(0, view.length - 1)), Math.min(view.length, first + many)];
}

function rowsInSight() {
  const [first, end] = rangeInSight();
  return view.slice(first, end);
}

function drawRows() {
  const [first, end] = rangeInSight();
  const focusedKey = keyInFocus("#rows tr");
  // Where the row in focus goes, the browser looks at once how far down it can scroll: never less far than before.
  below.firstChild.style.height = `${view.length * rowHeight()}px`;
  for (const [number, row] of drawn) {
    if (number < first || number >= end) {
      row.remove();
      drawn.delete(number);
    }
  }
  let before = above;
  for (let number = first; number < end; number += 1) {
    let row = drawn.get(number);
    if (!row) drawn.set(number, row = emptyRow(8));
    drawRow(row, view[number], number);
    if (!state.leases.has(view[number].key)) askLeasesSoon();
    if (before.nextSibling !== row) before.after(row);
    before = row;
  }
  above.firstChild.style.height = `${first * rowHeight()}px`;
  below.firstChild.style.height = `${(view.length - end) * rowHeight()}px`;
  at("pools").setAttribute("aria-rowcount", String(view.length + 1));
  drawNothing();
  if (focusedKey && keyInFocus("#rows tr") !== focusedKey) focusKey(focusedKey);
}

// Rows are reached with the arrow keys: as stops of the Tab key they would stand between the list and what follows.
function emptyRow(columns) {
  const row = document.createElement("tr");
  const button = document.createElement("button");
  button.type = "button";
  if (columns === 8) button.tabIndex = -1;
  row.insertCell().append(button);
  for (let number = 1; number < columns; number += 1) row.insertCell();
  if (columns === 8) row.cells[6].className = row.cells[7].className = "number";
  return row;
}

function drawRow(element, row, number) {
  element.key = row.key;
  element.setAttribute("aria-rowindex", String(number + 2));
  const lease = state.leases.get(row.key);
  const texts = [
    row.dgd_name, row.namespace, row.cluster_id, row.model, row.location || "–", row.capacityText || "–",
    row.frontends ? grouped(row.frontends) : "none", typeof lease === "number" ? `${lease.toFixed(0)} s` : "",
  ];
  texts.forEach((text, column) => {
    const cell = element.cells[column];
    setText(column ? cell : cell.firstChild, text);
    if (column < 6 && cell.shown !== text) cell.title = plain(cell.shown = text);
  });
  element.cells[6].classList.toggle("bare", row.frontends === 0);
}

function drawNothing() {
  const nothing = at("nothing");
  nothing.hidden = view.length > 0;
  if (!state.ready) setText(nothing, "Nothing has been read yet.");
  else if (state.pools.size) setText(nothing, "No listed pool matches the search and the filters.");
  else setText(nothing, "No pool is listed.");
}

function focusKey(key) {
  const row = [...drawn.values(), ...at("one-sided-rows").rows].find((one) => one.key === key);
  (row ? row.cells[0].firstChild : at("scroller")).focus({ preventScroll: true });
}

function drawSorts() {
  const { name, down } = wantedSort();
  for (const head of document.querySelectorAll("[data-sort]")) {
    const order = head.dataset.sort === name ? (down ? "descending" : "ascending") : "none";
    if (head.getAttribute("aria-sort") !== order) head.setAttribute("aria-sort", order);
  }
}

// -- one pool

let opened = null; // the key of the pool, in an object of its own for each time

async function openDetails(key) {
  const mine = opened = { key };
  drawDetails(null, "Asking the service …");
  at("details").showModal();
  while (opened === mine) {
    const [cluster_id, namespace, dgd_name] = key.split("\0");
    let found = null;
    let trouble = "The service does not answer.";
    try {
      [found] = await explain([{ pool: { cluster_id, namespace, dgd_name } }]);
    } catch (error) {
      if (error instanceof Refused) trouble = error.message;
    }
    if (opened === mine) drawDetails(found, trouble);
    await pause(STATUS_MS, () => {});
  }
}

function drawDetails(found, otherwise) {
  const row = state.pools.get(opened.key);
  setText(at("details-title"), opened.key.split("\0").join("/"));
  setText(at("details-why"), found ? `${found.text[0].toUpperCase()}${found.text.slice(1)}.` : otherwise);
  at("details-why").className = `sentence ${found ? (found.cause === "listed" ? "good" : "bad") : ""}`;
  const lease = found && found.lease_left_secs;
  const facts = found ? [...found.facts, ...(typeof lease === "number" ? [`lease: ${lease.toFixed(1)} s left, as last confirmed`] : [])] : [];
  fill(at("details-facts"), facts, (fact) => element("li", fact));
  fill(at("details-fields"), row ? fieldsOf(row) : [["Listed", "no"]], ([name, text]) => {
    const both = document.createDocumentFragment();
    both.append(element("dt", name), element("dd", ""));
    both.lastChild.append(...[].concat(text).map((line) => element("div", line)));
    return both;
  });
}

function fieldsOf(row) {
  const { pool } = row;
  const place = pool.location;
  const isPoint = typeof place.latitude === "number" || typeof place.longitude === "number";
  const point = isPoint ? ` (${place.latitude ?? "?"}, ${place.longitude ?? "?"})` : "";
  return [
    ["Model", pool.model],
    ["Location", (row.location || "–") + point],
    ["Capacity", row.capacityText || "–"],
    ["Capabilities", pool.capabilities.join(", ") || "–"],
    ["Frontends", pool.frontends.length ? pool.frontends : "none"],
    ["Relays", pool.relays.length ? pool.relays : "none"],
    ["Instance", pool.instance_id || "–"],
    ...Object.entries(pool.metadata).map(([name, value]) => [`Metadata ${name}`, value]),
  ];
}

// ---- what people do

function moveFocus(event) {
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -view.length, End: view.length };
  if (!(event.key in steps) || !view.length || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const key = keyInFocus("#rows tr");
  const from = key === null ? -1 : view.findIndex((row) => row.key === key);
  const to = Math.min(view.length - 1, Math.max(0, (from < 0 ? -1 : from) + steps[event.key]));
  const scroller = at("scroller");
  const head = document.querySelector("#pools thead").offsetHeight;
  const top = to * rowHeight();
  if (top < scroller.scrollTop) scroller.scrollTop = top;
  const room = scroller.clientHeight - head - rowHeight();
  if (top > scroller.scrollTop + room) scroller.scrollTop = top - room;
  drawRows();
  focusKey(view[to].key);
}

function begin() {
  at("rows").append(above, below);
  at("forget").hidden = !state.token;
  const form = at("filters");
  form.elements.q.value = wanted.q || "";
  form.elements.bare.checked = Boolean(wanted.bare);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.elements.q.addEventListener("input", () => want("q", form.elements.q.value.trim()));
  form.elements.bare.addEventListener("change", () => want("bare", form.elements.bare.checked ? "1" : ""));
  FILTERS.forEach((name) => form.elements[name].addEventListener("change", (event) => want(name, event.target.value)));
  at("clear").addEventListener("click", () => {
    [...FILTERS, "q", "bare"].forEach((name) => delete wanted[name]);
    form.elements.q.value = "";
    form.elements.bare.checked = false;
    want("q", "");
  });
  for (const head of document.querySelectorAll("[data-sort]")) {
    head.firstChild.addEventListener("click", () => {
      const { name, down } = wantedSort();
      want("sort", name === head.dataset.sort && !down ? `-${name}` : head.dataset.sort);
    });
  }
  at("scroller").addEventListener("scroll", () => requestAnimationFrame(drawRows));
  at("scroller").addEventListener("keydown", moveFocus);
  window.addEventListener("resize", () => requestAnimationFrame(drawRows));
  window.addEventListener("online", () => tryNow());
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { tryNow(); askStatusNow(); } });
  for (const rows of [at("rows"), at("one-sided-rows")]) {
    rows.addEventListener("click", (event) => {
      if (event.target.closest("button")) openDetails(event.target.closest("tr").key);
    });
  }
  at("details").addEventListener("close", () => {
    const { key } = opened;
    opened = null;
    focusKey(key);
  });
  at("again").addEventListener("click", () => tryNow());
  at("ask-form").addEventListener("submit", () => keepToken(at("token").value.trim()));
  at("forget").addEventListener("click", () => { keepToken(""); location.reload(); });
  drawNow();
  followForEver();
  pollStatus();
  pollLeases();
}

begin();
