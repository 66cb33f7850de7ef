// The stream of events: followed for ever, over cuts and silence, and applied as it is told.

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
