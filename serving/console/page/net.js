// Talks to the server: its stream of events, and calls. The token goes into a header and is kept for this tab alone.
import { parse } from "./json.js";

const BASE = new URL("console/", document.baseURI).pathname;
const KEY = "emberline-token";
// Without an event for so long, the server is taken for lost.
const SILENCE_MS = 10_000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8_000;

let token = read();

function read() {
  try {
    const kept = sessionStorage.getItem(KEY) ?? "";
    if (!whyNoToken(kept)) return kept;
    sessionStorage.removeItem(KEY);
    return "";
  } catch {
    return ""; // storage is blocked: the token is kept for as long as the page is open
  }
}

// Why a text is no token, "" where it may be one. A header cannot hold others, and a call with one would never start.
export function whyNoToken(text) {
  const wrong = text.trim().match(/[^!-~]/u)?.[0];
  if (wrong === undefined) return "";
  const isUnseen = /\p{C}/u.test(wrong);
  const what = /\s/.test(wrong) ? "a blank" : isUnseen ? "a character that is not seen" : `the character ${wrong}`;
  return `A token consists of letters, digits and signs of ASCII. This one holds ${what}.`;
}

export function hasToken() {
  return token !== "";
}

export function setToken(text) {
  token = text.trim();
  try {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  } catch {
    // See above.
  }
}

function headers() {
  return token ? { authorization: `Bearer ${token}` } : {};
}

// Makes a call of the HTTP port, for instance "v2/models/x". body: JSON text. Throws an Error with the server's reason.
export async function call(method, path, body) {
  let response;
  try {
    response = await fetch(BASE + path, { method, body, headers: headers(), credentials: "omit", cache: "no-store" });
  } catch {
    throw new Error("The server did not answer.");
  }
  const text = await response.text();
  if (!response.ok) throw new Error(reason(text, response));
  return { text, headers: response.headers };
}

// Why a call was refused: by the server, or by a proxy before it, whose answers are pages.
function reason(text, response) {
  try {
    const { error } = parse(text);
    if (typeof error === "string" && error) return error;
  } catch {
    // It is not JSON.
  }
  return `The server answered ${`${response.status} ${response.statusText}`.trim()}.`;
}

// Follows the events about the server and a model until `stop` is called, also over losses of the connection.
// on.event(name, data): an event. on.link(state, text): "connecting", "live", "lost", or "refused" with the reason.
export function follow(model, on) {
  let stopped = false;
  let abort = new AbortController();
  let waits = FIRST_WAIT_MS;

  async function once() {
    abort = new AbortController();
    const watchdog = { timer: 0 };
    const alive = () => {
      clearTimeout(watchdog.timer);
      watchdog.timer = setTimeout(() => abort.abort(), SILENCE_MS);
    };
    alive();
    try {
      const query = model ? `?model=${encodeURIComponent(model)}` : "";
      const response = await fetch(`${BASE}events${query}`, {
        headers: headers(),
        credentials: "omit",
        cache: "no-store",
        signal: abort.signal,
      });
      if (response.status === 401 || response.status === 403) {
        on.link("refused", reason(await response.text(), response));
        return false;
      }
      if (!response.ok) {
        on.link("lost", reason(await response.text(), response));
        return true;
      }
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done || stopped) break;
        alive();
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const [event, data] = block.split("\n");
          const name = event.slice("event: ".length);
          const content = parse(data.slice("data: ".length));
          if (name === "refused") {
            on.link("refused", content.error);
            return false;
          }
          waits = FIRST_WAIT_MS;
          on.link("live", "");
          on.event(name, content);
        }
      }
      if (!stopped) on.link("lost", "The connection to the server has ended.");
    } catch {
      if (!stopped) on.link("lost", "The server does not answer.");
    } finally {
      clearTimeout(watchdog.timer);
    }
    return true;
  }

  async function run() {
    on.link("connecting", "");
    while (!stopped && (await once())) {
      if (stopped) return;
      await new Promise((done) => setTimeout(done, waits * (0.75 + Math.random() / 2)));
      waits = Math.min(2 * waits, LONGEST_WAIT_MS);
    }
  }

  run();
  return () => {
    stopped = true;
    abort.abort();
  };
}
