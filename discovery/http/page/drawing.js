// Drawing: texts, figures, filters, and the pools of which one side is missing.

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

// Troubles in the words of `discovery doctor`; why the list is not complete stands in the sentence above.
function drawParts(status) {
  if (status === undefined) return;
  const troubles = status ? (status.problems || []).filter((one) => !one.startsWith("the list is not complete")) : ["The status cannot be read."];
  const well = status ? [storeLine(status.store), ...status.watchers.map(watcherLine)].filter(Boolean) : [];
  const parts = [...troubles.map((text) => [text, "bad"]), ...well.map((text) => [text, ""])];
  fill(at("parts"), parts, ([text, className]) => element("li", text, className));
}

function storeLine(store) {
  return !store.failing_because && `Store: ${store.kind}${store.address ? ` at ${store.address}` : ""} answers`;
}

function watcherLine(watcher) {
  return !watcher.incomplete_because && `Watcher ${watcher.name} sees ${counted(watcher.services, "Service")}`;
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
