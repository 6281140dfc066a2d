// What can be done with a model, and with each of its snapshots.
import { count, milliseconds, time } from "./figures.js";
import { html } from "./html.js";
import { Button, State, Table } from "./parts.js";

// Each with what it is called, its call, and what it does.
const ALWAYS = [{ text: "Load", verb: "load", does: "Look into the model's folder now, and serve what is there." }];
const LOADED = [
  {
    text: "Unload",
    verb: "unload",
    does: "Answer no more requests, and give back the memory, until it is loaded again.",
  },
];
const UPDATED = [
  { text: "Pause", verb: "pause", does: "Take no new version or delta until it is resumed." },
  { text: "Resume", verb: "resume", does: "End every hold, pause and pin: the newest good snapshot is served." },
  {
    text: "Roll back",
    verb: "rollback",
    body: { steps: 1 },
    does: "Serve the snapshot before the present one, and hold the present one.",
  },
];
const OF_CANARY = [
  { text: "Promote the canary", verb: "canary", body: { promote: true }, does: "Answer all requests from it." },
  { text: "Stop the canary", verb: "canary", body: { stop: true }, does: "Answer no requests from it, and hold it." },
];

export function Operations({ model, line, actions }) {
  const name = model.name;
  const why = actions.why("admin");
  const { canary, error } = model.snapshots;
  const isLoaded = line?.state === "READY";
  const button = (operation, whyNot) => html`
    <${Button}
      key=${operation.text}
      text=${operation.text}
      why=${whyNot}
      act=${() =>
        actions.ask({
          title: `${operation.text} of ${name}`,
          text: operation.does,
          verb: operation.text,
          run: () => actions.control(name, operation.verb, operation.body ?? {}, `${operation.text} of ${name}: done.`),
        })}
    />
  `;
  return html`
    <section aria-labelledby="operations">
      <h2 id="operations">Operations</h2>
      ${why && html`<p class="soft">${why}</p>`}
      <p class="actions">
        ${ALWAYS.map((operation) => button(operation, why))}
        ${LOADED.map((operation) => button(operation, why || (isLoaded ? "" : "It is not loaded.")))}
        ${!error && isLoaded && UPDATED.map((operation) => button(operation, why))}
        ${canary && OF_CANARY.map((operation) => button(operation, why))}
      </p>
    </section>
  `;
}

const SHARE = {
  name: "share",
  label: "Share of the requests, in percent",
  type: "number",
  value: 10,
  min: 1,
  max: 100,
  step: 1,
};
// isFor(snapshot, isOlder): whether a snapshot can be asked for it. share: the key of the call for the share that is
// asked for.
const OF_SNAPSHOT = [
  {
    text: "Roll back",
    full: "Roll back to",
    verb: "rollback",
    does: "Serve it again, and hold what came after it.",
    isFor: (snapshot, isOlder) => isOlder,
  },
  {
    text: "Pin",
    full: "Pin",
    verb: "pin",
    does: "Serve it until the model is resumed, whatever is published.",
    isFor: (snapshot) => ["served", "retained", "held", "base"].includes(snapshot.state),
  },
  {
    text: "Canary",
    full: "Canary with",
    verb: "canary",
    does: "Answer a share of the requests from it.",
    share: "fraction",
    isFor: (snapshot) => ["retained", "held"].includes(snapshot.state),
  },
  {
    text: "Shadow",
    full: "Shadow with",
    verb: "shadow",
    does: "Score copies of a share of the requests on it, and compare.",
    share: "share",
    isFor: (snapshot) => ["retained", "held"].includes(snapshot.state),
  },
];

export function Snapshots({ model, actions }) {
  if (model.snapshots.error) return html`<p class="soft">${model.snapshots.error}</p>`;
  const why = actions.why("admin");
  const order = model.snapshots.snapshots;
  const servedAt = order.findIndex((snapshot) => snapshot.state === "served");
  const button = (operation, snapshot) => {
    const what = `${operation.full} ${snapshot.name} of ${model.name}`;
    const run = ({ share }) => {
      const given = operation.share ? { [operation.share]: Number(share) / 100 } : {};
      return actions.control(model.name, operation.verb, { to: snapshot.id, ...given }, `${what}: done.`);
    };
    const fields = operation.share ? [SHARE] : [];
    const act = () => actions.ask({ title: what, text: operation.does, verb: operation.full, fields, run });
    return html`<${Button} key=${operation.text} text=${operation.text} label=${what} why=${why} act=${act} />`;
  };
  const buttons = (snapshot) => html`
    <span class="actions">
      ${OF_SNAPSHOT.filter((operation) => operation.isFor(snapshot, snapshot.place < servedAt)).map((operation) =>
        button(operation, snapshot),
      )}
    </span>
  `;
  const columns = [
    { name: "Snapshot", cell: (row) => row.name },
    { name: "State", cell: (row) => html`<${State} text=${row.state} />` },
    { name: "Published", cell: (row) => time(row.published_unix_ms) },
    { name: "Rows", number: true, cell: (row) => count(row.rows) },
    { name: "Removed", number: true, cell: (row) => count(row.removed) },
    { name: "Visible after", number: true, cell: (row) => (row.visible_ms ? milliseconds(row.visible_ms) : "–") },
    { name: "Operations", cell: buttons },
  ];
  return html`
    <section aria-labelledby="snapshots">
      <h2 id="snapshots">Snapshots</h2>
      <${Table}
        caption="Versions and deltas that can be served, the newest first"
        columns=${columns}
        rows=${order.map((snapshot, place) => ({ ...snapshot, key: `${snapshot.id} ${place}`, place })).reverse()}
        empty="Nothing can be served."
      />
    </section>
  `;
}
