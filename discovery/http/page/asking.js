// The page for people: follows the list's stream of events and the service's status, and draws what it holds.
//
// Everything that comes from the service is text: it is set with textContent, never as markup, and what does not print
// is escaped. The files of the page are one script, in the order that __init__.py has; in this one: how long and how much,
// what the page knows, and how it asks the service.

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
