// Pools as rows: what is searched in them, how they are sorted, and what of that the address keeps.

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
