// One pool in its dialog, and what people do; the page begins at the end of this file.

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
