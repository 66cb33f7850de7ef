// The listed pools: of thousands only the rows in sight are drawn. Row n of the list is always drawn by the same element.

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
