// Starts the page: keeps the state that the server's events bring, and draws it again when something has changed.
import { html, render } from "./html.js";
import { History, ratesOf } from "./figures.js";
import { Model } from "./model.js";
import { Models } from "./models.js";
import { call, follow, hasToken, setToken, whyNoToken } from "./net.js";
import { Ask } from "./parts.js";

const root = document.getElementById("console");

const state = {
  link: "connecting",
  problem: "",
  lostAt: 0,
  hello: null,
  // The page was made by another version of the server.
  isOld: false,
  list: null,
  stuck: [],
  rates: new Map(),
  watched: "",
  model: null,
  load: null,
  memory: null,
  fleet: null,
  isMissing: false,
  history: null,
  notice: null,
  ask: null,
};

let stop = () => {};
let isDue = false;
let asked = 0;

function change(values) {
  Object.assign(state, values);
  if (isDue) return;
  isDue = true;
  setTimeout(() => {
    isDue = false;
    render(html`<${Console} />`, root);
  }, 0);
}

function event(name, data) {
  if (name === "hello") {
    const isOld = state.hello !== null && state.hello.version !== data.version;
    if (state.hello?.run !== data.run) state.history?.cut();
    change({ hello: data, isOld: state.isOld || isOld });
    state.history ??= new History(data.latency_bounds_ms);
  } else if (name === "server") {
    change({ stuck: data.stuck });
  } else if (name === "models") {
    change({ list: data, rates: ratesOf(state.list, data) });
  } else if (name === "stopping") {
    change({ link: "lost", problem: "The server is stopping.", lostAt: Date.now() });
  } else if (name === "missing") {
    change({ isMissing: true });
  } else if (data.name === state.watched) {
    if (name === "load") state.history?.add(data);
    if (name === "model") state.isMissing = false;
    change({ [name]: data });
  }
}

function link(now, problem) {
  if (now === state.link && problem === state.problem) return;
  const isLost = now === "lost";
  if (isLost && state.link !== "lost") state.history?.cut();
  if (isLost && state.problem && state.link === "lost") problem = state.problem;
  change({ link: now, problem, lostAt: isLost ? state.lostAt || Date.now() : 0 });
}

function connect() {
  stop();
  stop = follow(state.watched, { event, link });
}

// The address says which model is shown: #/model/NAME. One that is no such address is that of the list.
function modelOf(hash) {
  const [, kind, name] = hash.split("/");
  try {
    return kind === "model" && name ? decodeURIComponent(name) : "";
  } catch {
    return "";
  }
}

function route() {
  const watched = modelOf(location.hash);
  if (watched !== state.watched || !state.hello) {
    const history = state.hello ? new History(state.hello.latency_bounds_ms) : null;
    change({ watched, model: null, load: null, memory: null, fleet: null, isMissing: false, history, notice: null });
    document.title = watched ? `${watched} – Emberline console` : "Emberline console";
    connect();
  }
}

// Carries out a control call, and says what came of it.
async function control(model, verb, body, done) {
  change({ notice: { kind: "soft", text: `${verb} of ${model}: waiting for the server.` } });
  try {
    await call("POST", `v2/repository/models/${encodeURIComponent(model)}/${verb}`, JSON.stringify(body));
    change({ notice: { kind: "good", text: done } });
  } catch (error) {
    change({ notice: { kind: "bad", text: `${verb} of ${model} was refused: ${error.message}` } });
  }
}

// Opens a dialog. A browser reports one that was closed a little later, when the next one may be open already.
function ask(what) {
  asked += 1;
  change({ ask: { ...what, key: asked } });
}

function close(key) {
  if (state.ask?.key === key) change({ ask: null });
}

function signIn() {
  ask({
    title: "Sign in with a token",
    text:
      "The token of an access file, or the server's own one, which is in ~/.cache/emberline/tokens on its machine. " +
      "It is kept until this tab is closed.",
    verb: "Sign in",
    fields: [{ name: "token", label: "Token", type: "password", why: whyNoToken }],
    run: ({ token }) => {
      setToken(token);
      change({ link: "connecting", problem: "" });
      connect();
    },
  });
}

function signOut() {
  setToken("");
  change({ hello: null, list: null, stuck: [], model: null, load: null, memory: null, fleet: null, link: "connecting" });
  connect();
}

function Who() {
  const you = state.hello?.you;
  const roles = you?.roles.length ? you.roles.join(", ") : "no role";
  return html`
    <p class="who">
      ${you && html`<span>${you.is_known ? you.name : "not signed in"} (${roles})</span>`}
      ${
        hasToken()
          ? html`<button type="button" onClick=${signOut}>Sign out</button>`
          : html`<button type="button" onClick=${signIn}>Sign in</button>`
      }
    </p>
  `;
}

function Link() {
  if (state.link === "live") return html`<p class="link good" role="status">Live</p>`;
  if (state.link === "connecting") return html`<p class="link" role="status">Connecting</p>`;
  if (state.link === "refused") {
    return html`<p class="link bad" role="status">Refused: ${state.problem} Sign in with another token.</p>`;
  }
  const since = state.lostAt ? ` What is shown is from ${new Date(state.lostAt).toLocaleTimeString()}.` : "";
  return html`<p class="link bad" role="status">Connection lost, trying again. ${state.problem}${since}</p>`;
}

function Notice() {
  const notice = state.notice;
  return html`
    <div class="notice" role="status" aria-live="polite">
      ${
        notice &&
        html`<p class=${notice.kind}>
        ${notice.text}
        <button type="button" aria-label="Close the message" onClick=${() => change({ notice: null })}>×</button>
      </p>`
      }
    </div>
  `;
}

function Console() {
  const roles = state.hello?.you.roles ?? [];
  const actions = {
    control,
    ask,
    // Why a role does not allow something; "" where it does.
    why: (...wanted) => {
      const missing = wanted.filter((role) => !roles.includes(role));
      if (state.link !== "live") return "There is no connection to the server.";
      return missing.length ? `This needs the role ${missing.join(" and ")}.` : "";
    },
  };
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header>
      <h1><a href="#/">Emberline console</a></h1>
      <${Link} /><${Who} />
    </header>
    <main id="main" tabindex="-1">
      ${state.isOld && html`<p class="note">The server was updated. Load this page again.</p>`}
      <${Notice} />
      ${state.stuck.map(
        (each) => html`<p key=${`${each.transport} ${each.client}`} class="note">
          ${each.client} does not send its requests or read its answers: ${each.connections}
          ${" "}${each.connections === 1 ? "connection" : "connections"} of ${each.transport}.
        </p>`,
      )}
      ${
        state.watched
          ? html`<${Model} key=${state.watched} state=${state} actions=${actions} />`
          : html`<${Models} state=${state} />`
      }
    </main>
    <footer>${state.hello && `Emberline ${state.hello.version}`}</footer>
    ${state.ask && html`<${Ask} key=${state.ask.key} ask=${state.ask} close=${close.bind(null, state.ask.key)} />`}
  `;
}

function skip(click) {
  click.preventDefault();
  document.getElementById("main").focus();
}

root.textContent = "";
addEventListener("hashchange", route);
route();
