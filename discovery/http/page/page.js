// The page for people: follows the list's stream of events and the service's status, and draws what it holds.
//
// Everything that comes from the service is text: it is set with textContent, never as markup.
// In the order of reading: what is asked of the service, the stream, the status, what the address keeps, drawing.

const STATUS_MS = 2000;
const LEASES_MS = 5000;
const HIDDEN_FACTOR = 5; // a tab that nobody looks at asks less often
const SILENCE_MS = 40000; // the service says something every 15 s
const LONGEST_WAIT_MS = 15000;
const LONGEST_QUERY = 6000;
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
  status: null,
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

function askForToken(why) {
  asking ??= new Promise((resolve) => {
    at("ask-why").textContent = why;
    at("token").value = "";
    at("ask").addEventListener("close", () => {
      asking = null;
      resolve();
    }, { once: true });
    at("ask").showModal();
  });
  return asking;
}

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
      why = error.message || "the connection broke off";
      waitMs = error.waitMs || Math.min(LONGEST_WAIT_MS, retryMs * 2 ** Math.min(failures, 5)) * (0.5 + Math.random() / 2);
      if (isAboutToken(error)) {
        showCut(why, 0);
        await askForToken(state.token ? why : "Without one it shows no data.");
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
  try {
    const headers = { Accept: "text/event-stream" };
    if (lastId !== null) headers["Last-Event-ID"] = lastId;
    const response = await ask("pools/events", headers, stop.signal);
    await readEvents(response.body.pipeThrough(new TextDecoderStream()).getReader());
  } catch (error) {
    throw stop.signal.aborted ? stop.signal.reason : error;
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
  const given = new Promise((resolve) => { tryNow = resolve; });
  for (let left = waitMs; left > 0; left = until - Date.now()) {
    showCut(why, Math.ceil(left / 1000));
    const first = await Promise.race([given.then(() => "now"), new Promise((r) => setTimeout(r, Math.min(left, 1000)))]);
    if (first === "now") return;
  }
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

function showCut(why, seconds) {
  state.cutAt ??= new Date();
  at("stream").textContent = "Cut off";
  at("stream").className = "pill lost";
  const shown = state.ready ? ` What is shown is from ${state.cutAt.toLocaleTimeString()}.` : "";
  const next = seconds > 0 ? ` Trying again in ${seconds} s.` : "";
  setText(at("cut"), `No news from the service: ${why.replace(/\.$/, "")}.${shown}${next}`);
  at("cut").hidden = false;
  drawSoon();
}

// ---- the status, and leases of the rows in sight

let askStatusNow = () => {};

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

async function pollLeases() {
  for (;;) {
    const explained = await explain(rowsInSight()).catch(() => []);
    state.leases = new Map(explained.map((one) => [keyOf(one), one.lease_left_secs]));
    if (explained.length) drawRows();
    await pause(LEASES_MS, () => {});
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
  const query = new URLSearchParams(wanted).toString();
  history.replaceState(null, "", base + (query && "?" + query));
  at("scroller").scrollTop = 0;
  drawNow();
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

function setText(element, text) {
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
  const parts = status ? [storeLine(status.store), ...status.watchers.map(watcherLine)] : [["The status cannot be read.", true]];
  fill(at("parts"), parts, ([text, bad]) => {
    const item = document.createElement("li");
    item.textContent = text;
    item.className = bad ? "bad" : "";
    return item;
  });
}

function storeLine(store) {
  const where = store.address ? ` at ${store.address}` : "";
  return store.failing_because
    ? [`Store: ${store.kind}${where} fails: ${store.failing_because}`, true]
    : [`Store: ${store.kind}${where} answers`, false];
}

function watcherLine(watcher) {
  const trouble = watcher.incomplete_because || watcher.warning;
  return trouble ? [`Watcher ${watcher.name}: ${trouble}`, true]
    : [`Watcher ${watcher.name} sees ${counted(watcher.services, "Service")}`, false];
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
  setText(at("count"), `${grouped(view.length)} of ${counted(state.pools.size, "pool")}`);
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
  fill(select, options, ([value, text]) => new Option(text, value));
  select.value = wanted[name] || "";
}

// -- pools of which one side is missing

function drawOneSided() {
  const all = (state.status && state.status.one_sided_pools) || [];
  const chosen = all.filter(matchesOneSided);
  at("one-sided").hidden = all.length === 0;
  setText(at("one-sided-title"), `Not listed: ${counted(chosen.length, "pool")} of which one side is missing`);
  fill(at("one-sided-rows"), chosen.slice(0, MOST_ONE_SIDED).map((one) => [
    `${one.cluster_id}/${one.namespace}/${one.dgd_name}`,
    one.side === "registered" ? "registered, not Ready" : "Ready, not registered",
    span(one.since_secs),
    one.text,
  ]), (texts) => rowWith(texts));
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

function rowWith(texts) {
  const row = document.createElement("tr");
  row.append(...texts.map((text) => {
    const cell = document.createElement("td");
    cell.textContent = text;
    return cell;
  }));
  return row;
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
  const focused = document.activeElement && document.activeElement.closest("#rows tr");
  const focusedKey = focused && focused.key;
  for (const [number, element] of drawn) {
    if (number < first || number >= end) {
      element.remove();
      drawn.delete(number);
    }
  }
  let before = above;
  for (let number = first; number < end; number += 1) {
    let element = drawn.get(number);
    if (!element) drawn.set(number, element = emptyRow());
    drawRow(element, view[number], number);
    if (before.nextSibling !== element) before.after(element);
    before = element;
  }
  above.firstChild.style.height = `${first * rowHeight()}px`;
  below.firstChild.style.height = `${(view.length - end) * rowHeight()}px`;
  at("pools").setAttribute("aria-rowcount", String(view.length + 1));
  drawNothing();
  if (focusedKey && (!document.activeElement || document.activeElement === document.body || focused.key !== focusedKey)) {
    focusKey(focusedKey);
  }
}

function emptyRow() {
  const row = document.createElement("tr");
  const button = document.createElement("button");
  button.type = "button";
  row.insertCell().append(button);
  for (let number = 1; number < 8; number += 1) row.insertCell();
  row.cells[6].className = row.cells[7].className = "number";
  return row;
}

function drawRow(element, row, number) {
  element.key = row.key;
  element.setAttribute("aria-rowindex", String(number + 2));
  const lease = state.leases.get(row.key);
  const texts = [
    row.dgd_name, row.namespace, row.cluster_id, row.model, row.location || "–", row.capacityText || "–",
    row.frontends ? grouped(row.frontends) : "none", typeof lease === "number" ? `${Math.max(0, lease).toFixed(0)} s` : "",
  ];
  const button = element.cells[0].firstChild;
  texts.forEach((text, column) => {
    setText(column ? element.cells[column] : button, text);
    if (column > 0 && column < 6 && element.cells[column].title !== text) element.cells[column].title = text;
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
  for (const element of drawn.values()) {
    if (element.key === key) return element.cells[0].firstChild.focus({ preventScroll: true });
  }
  at("scroller").focus({ preventScroll: true });
}

function drawSorts() {
  const { name, down } = wantedSort();
  for (const head of document.querySelectorAll("[data-sort]")) {
    const order = head.dataset.sort === name ? (down ? "descending" : "ascending") : "none";
    if (head.getAttribute("aria-sort") !== order) head.setAttribute("aria-sort", order);
  }
}

// -- one pool

let opened = null;

async function openDetails(key) {
  opened = key;
  drawDetails(null);
  if (!at("details").open) at("details").showModal();
  while (at("details").open && opened === key) {
    const row = state.pools.get(key);
    const [cluster_id, namespace, dgd_name] = key.split("\0");
    const found = await explain([row || { pool: { cluster_id, namespace, dgd_name } }]).catch(() => []);
    if (opened === key) drawDetails(found[0] || null);
    await pause(STATUS_MS, () => {});
  }
}

function drawDetails(found) {
  const row = state.pools.get(opened);
  setText(at("details-title"), opened.split("\0").join("/"));
  setText(at("details-why"), found ? `${found.text[0].toUpperCase()}${found.text.slice(1)}.` : "Asking the service …");
  fill(at("details-facts"), found ? found.facts : [], (fact) => {
    const item = document.createElement("li");
    item.textContent = fact;
    return item;
  });
  fill(at("details-fields"), row ? fieldsOf(row) : [["Listed", "no longer"]], ([name, text]) => {
    const both = document.createDocumentFragment();
    both.append(document.createElement("dt"), document.createElement("dd"));
    both.firstChild.textContent = name;
    both.lastChild.textContent = text;
    return both;
  });
}

function fieldsOf(row) {
  const { pool } = row;
  const place = pool.location;
  const point = place.latitude === undefined && place.longitude === undefined ? "" : ` (${place.latitude}, ${place.longitude})`;
  return [
    ["Model", pool.model],
    ["Location", (row.location || "–") + point],
    ["Capacity", row.capacityText || "–"],
    ["Capabilities", pool.capabilities.join(", ") || "–"],
    ["Frontends", pool.frontends.join("\n") || "none"],
    ["Relays", pool.relays.join("\n") || "none"],
    ["Instance", pool.instance_id || "–"],
    ...Object.entries(pool.metadata).map(([name, value]) => [`Metadata ${name}`, value]),
  ];
}

// ---- what people do

function moveFocus(event) {
  const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -view.length, End: view.length };
  if (!(event.key in steps) || !view.length || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const element = event.target.closest("#rows tr");
  const from = element ? view.findIndex((row) => row.key === element.key) : -1;
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
  at("rows").addEventListener("click", (event) => {
    if (event.target.closest("button")) openDetails(event.target.closest("tr").key);
  });
  at("details").addEventListener("close", () => {
    const key = opened;
    opened = null;
    focusKey(key);
  });
  at("ask-form").addEventListener("submit", () => keepToken(at("token").value.trim()));
  at("forget").addEventListener("click", () => { keepToken(""); location.reload(); });
  drawNow();
  followForEver();
  pollStatus();
  pollLeases();
}

begin();
