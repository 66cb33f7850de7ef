// What the service says of itself, and what is left of the leases of the rows in sight.

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
