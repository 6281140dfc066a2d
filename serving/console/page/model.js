// One model: what it serves and does, and what can be done with it.
import { Try } from "./try.js";
import { Chart } from "./charts.js";
import { count, milliseconds, rate, time, total } from "./figures.js";
import { html } from "./html.js";
import { Memory } from "./memory.js";
import { modeOf } from "./models.js";
import { Button, State, Table } from "./parts.js";
import { Shadow } from "./shadow.js";

export function Model({ state, actions }) {
  const { model, list } = state;
  const line = list?.models.find((each) => each.name === state.watched);
  return html`
    <p><a href="#/">All models</a></p>
    <h2>${state.watched} ${line && html`<${State} text=${line.state} />`}</h2>
    ${state.isMissing && html`<p class="note">This server has no such model, or this token may not see it.</p>`}
    ${!model && !state.isMissing && html`<p>Waiting for the server.</p>`}
    ${line && model && html`<${Facts} line=${line} state=${state} />`}
    ${model && html`<${Operations} model=${model} line=${line} actions=${actions} />`}
    ${model && html`<${Traffic} state=${state} />`}
    ${model && html`<${Snapshots} model=${model} actions=${actions} />`}
    ${model && html`<${Refused} state=${state} />`}
    ${model && html`<${Shadow} model=${model} actions=${actions} />`}
    ${model && html`<${Memory} state=${state} />`}
    ${state.fleet && html`<${Fleet} fleet=${state.fleet} />`}
    ${model && html`<${Try} name=${state.watched} snapshots=${snapshotsOf(model)} actions=${actions} />`}
  `;
}

function snapshotsOf(model) {
  return model.snapshots.snapshots ?? [];
}

function Facts({ line, state }) {
  const served = line.updates.served;
  const facts = [
    ["Serves", served?.name ?? (line.versions.join(", ") || "nothing")],
    ["Published", time(served?.published_unix_ms)],
    ["Served since", time(served?.since_unix_ms)],
    ["Mode", modeOf(line.updates)],
    ["Requests/s", rate(state.history?.last("answered"))],
    ["Answered", count(line.answered)],
    ["Failed", count(line.failed)],
  ];
  const waiting = line.updates.waiting ?? (line.state === "READY" ? "" : line.reason);
  return html`
    <dl class="facts">
      ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>
    ${waiting && html`<p class="note reason">${waiting}</p>`}
  `;
}

function Operations({ model, line, actions }) {
  const name = model.name;
  const why = actions.why("admin");
  const { canary, error } = model.snapshots;
  const isLoaded = line?.state === "READY";
  const ask = (verb, text, body, done) => () =>
    actions.ask({
      title: `${text} ${name}`,
      text: done,
      verb: text,
      run: () => actions.control(name, verb, body, `${text} of ${name} is done.`),
    });
  const updates = !error && isLoaded;
  return html`
    <section aria-labelledby="operations">
      <h2 id="operations">Operations</h2>
      ${why && html`<p class="soft">${why}</p>`}
      <p class="actions">
        <${Button} text="Load" why=${why} act=${ask("load", "Load", {}, "Look into the model's folder now, and serve what is there.")} />
        <${Button} text="Unload" why=${why || (isLoaded ? "" : "It is not loaded.")}
          act=${ask("unload", "Unload", {}, "Answer no more requests, and give back the memory, until it is loaded again.")} />
        ${updates &&
        html`
          <${Button} text="Pause" why=${why} act=${ask("pause", "Pause", {}, "Take no new version or delta until it is resumed.")} />
          <${Button} text="Resume" why=${why}
            act=${ask("resume", "Resume", {}, "End every hold, pause and pin: the newest good snapshot is served.")} />
          <${Button} text="Roll back" why=${why}
            act=${ask("rollback", "Roll back", { steps: 1 }, "Serve the snapshot before the present one, and hold the present one.")} />
        `}
        ${canary &&
        html`
          <${Button} text="Promote the canary" why=${why}
            act=${ask("canary", "Promote the canary of", { promote: true }, `Answer all requests from ${canary.name}.`)} />
          <${Button} text="Stop the canary" why=${why}
            act=${ask("canary", "Stop the canary of", { stop: true }, `Answer no requests from ${canary.name}, and hold it.`)} />
        `}
      </p>
    </section>
  `;
}

function Traffic({ state }) {
  const { history, load } = state;
  const { columns } = history;
  const sessions = (load?.versions ?? []).flatMap((version) => version.sessions ?? []);
  const line = (label, key, colour, format) => ({ label, colour, now: format(history.last(key)) });
  const stages = load ? stagesOf(load) : [];
  return html`
    <section aria-labelledby="traffic">
      <h2 id="traffic">Traffic</h2>
      <div class="plots">
        <${Chart}
          title="Requests a second"
          label="Requests a second over the last minutes, now"
          columns=${[columns.time, columns.answered, columns.failed]}
          lines=${[line("answered", "answered", "--c0", rate), line("failed", "failed", "--c1", rate)]}
          values=${rate}
          xTime=${true}
        />
        <${Chart}
          title="Latency"
          label="Latency over the last minutes, now"
          columns=${[columns.time, columns.p50, columns.p90, columns.p99]}
          lines=${[
            line("p50", "p50", "--c3", milliseconds),
            line("p90", "p90", "--c2", milliseconds),
            line("p99", "p99", "--c1", milliseconds),
          ]}
          values=${(value) => `${value} ms`}
          xTime=${true}
        />
        <${Chart}
          title="Queue"
          label="Requests that wait for a session, now"
          columns=${[columns.time, columns.queued]}
          lines=${[line("waiting", "queued", "--c0", count)]}
          values=${(value) => (Number.isInteger(value) ? count(value) : "")}
          xTime=${true}
        />
      </div>
      <${Table}
        caption="Mean time of a request by stage, since the start"
        columns=${[
          { name: "Stage", cell: (row) => row.key },
          { name: "Milliseconds", number: true, cell: (row) => row.ms.toFixed(3) },
        ]}
        rows=${stages}
        empty="No request has been answered yet."
      />
      <${Table}
        caption="Sessions"
        columns=${[
          { name: "Session", cell: (row) => row.name },
          { name: "Device", cell: (row) => row.device },
          { name: "Batches", number: true, cell: (row) => count(row.batches) },
          { name: "Rows", number: true, cell: (row) => count(row.rows) },
          { name: "Busy", number: true, cell: (row) => `${row.busy_s.toFixed(1)} s` },
        ]}
        rows=${sessions.map((session) => ({ key: session.name, ...session }))}
        empty="There are no sessions."
      />
    </section>
  `;
}

const STAGES = {
  queue: "waiting in the queue",
  compute_input: "features",
  compute_infer: "lookups and dense graph",
  compute_output: "results",
};

function stagesOf(load) {
  const arms = load.versions.flatMap((version) => Object.values(version.arms));
  const answered = arms.reduce((sum, arm) => sum + arm.answered, 0);
  if (!answered) return [];
  return Object.entries(STAGES).map(([stage, text]) => ({
    key: text,
    ms: arms.reduce((sum, arm) => sum + arm.stages_ms[stage], 0) / answered,
  }));
}

function Snapshots({ model, actions }) {
  if (model.snapshots.error) return html`<p class="soft">${model.snapshots.error}</p>`;
  const name = model.name;
  const why = actions.why("admin");
  const to = (snapshot) => `${snapshot.name} of ${name}`;
  const ask = (verb, snapshot, text, done, body = {}, fields = [], take = () => ({})) => () =>
    actions.ask({
      title: `${text} ${to(snapshot)}`,
      text: done,
      verb: text,
      fields,
      run: (values) =>
        actions.control(name, verb, { to: snapshot.id, ...body, ...take(values) }, `${text} ${to(snapshot)}: done.`),
    });
  const share = { name: "share", label: "Share of the requests, in percent", type: "number", value: 10, min: 1, max: 100, step: 1 };
  const order = model.snapshots.snapshots;
  const servedAt = order.findIndex((snapshot) => snapshot.state === "served");
  const operations = (snapshot, place) => html`
    <span class="actions">
      ${place < servedAt &&
      html`<${Button} text="Roll back" label=${`Roll back to ${to(snapshot)}`} why=${why}
        act=${ask("rollback", snapshot, "Roll back to", "Serve it again, and hold what came after it.")} />`}
      ${["served", "retained", "held", "base"].includes(snapshot.state) &&
      html`<${Button} text="Pin" label=${`Pin ${to(snapshot)}`} why=${why}
        act=${ask("pin", snapshot, "Pin", "Serve it until the model is resumed, whatever is published.")} />`}
      ${["retained", "held"].includes(snapshot.state) &&
      html`
        <${Button} text="Canary" label=${`Canary with ${to(snapshot)}`} why=${why}
          act=${ask("canary", snapshot, "Canary with", "Answer a share of the requests from it.", {}, [share], (values) => ({
            fraction: Number(values.share) / 100,
          }))} />
        <${Button} text="Shadow" label=${`Shadow with ${to(snapshot)}`} why=${why}
          act=${ask("shadow", snapshot, "Shadow with", "Score copies of a share of the requests on it, and compare.", {}, [share], (values) => ({
            share: Number(values.share) / 100,
          }))} />
      `}
    </span>
  `;
  const columns = [
    { name: "Snapshot", cell: (row) => row.name },
    { name: "State", cell: (row) => html`<${State} text=${row.state} />` },
    { name: "Published", cell: (row) => time(row.published_unix_ms) },
    { name: "Rows", number: true, cell: (row) => count(row.rows) },
    { name: "Removed", number: true, cell: (row) => count(row.removed) },
    { name: "Visible after", number: true, cell: (row) => (row.visible_ms ? milliseconds(row.visible_ms) : "–") },
    { name: "Operations", cell: (row) => operations(row, row.place) },
  ];
  return html`
    <section aria-labelledby="snapshots">
      <h2 id="snapshots">Snapshots</h2>
      <${Table}
        caption="Versions and deltas that can be served, the newest first"
        columns=${columns}
        rows=${order.map((snapshot, place) => ({ key: `${snapshot.id} ${place}`, place, ...snapshot })).reverse()}
        empty="Nothing can be served."
      />
    </section>
  `;
}

function Refused({ state }) {
  const { model, load } = state;
  const refused = (model.snapshots.quarantined ?? []).map((each) => ({ key: each.path, ...each })).reverse();
  const versions = model.versions.filter((version) => version.reason).map((each) => ({ key: each.version, ...each }));
  const failures = Object.entries(load ? total(load).failures : {}).filter(([, number]) => number > 0);
  const kinds = Object.entries(model.counters.refused ?? {});
  return html`
    <section aria-labelledby="refused">
      <h2 id="refused">Refused</h2>
      <${Table}
        caption="Versions and deltas that are refused until their files change"
        columns=${[
          { name: "Folder", cell: (row) => html`<span class="id">${row.path}</span>` },
          { name: "When", cell: (row) => time(row.unix_ms) },
          { name: "Why", cell: (row) => html`<span class="reason">${row.reason}</span>` },
        ]}
        rows=${refused}
        empty="No version and no delta is refused."
      />
      ${versions.length > 0 &&
      html`<${Table}
        caption="Versions with a note"
        columns=${[
          { name: "Version", cell: (row) => row.version || "–" },
          { name: "State", cell: (row) => html`<${State} text=${row.state} />` },
          { name: "Note", cell: (row) => html`<span class="reason">${row.reason}</span>` },
        ]}
        rows=${versions}
        empty=""
      />`}
      ${kinds.length > 0 &&
      html`<p class="soft">Since the start: ${kinds.map(([kind, number]) => `${kind} ${number}`).join(", ")}.</p>`}
      <${Table}
        caption="Requests that were not answered, since the start"
        columns=${[
          { name: "Reason", cell: (row) => FAILURES[row.key] ?? row.key },
          { name: "Requests", number: true, cell: (row) => count(row.number) },
        ]}
        rows=${failures.map(([key, number]) => ({ key, number }))}
        empty="Every request was answered."
      />
    </section>
  `;
}

const FAILURES = {
  REJECTED: "the queue was full, or it was too late",
  CANCELED: "the caller went away",
  BACKEND: "a fault in computing",
  OTHER: "a fault of the request",
};

function Fleet({ fleet }) {
  if (fleet.error) return html`<section><h2>Fleet</h2><p class="reason">${fleet.error}</p></section>`;
  const name = (snapshot) => (snapshot ? snapshot.name || snapshot.id.slice(0, 8) : "–");
  return html`
    <section aria-labelledby="fleet">
      <h2 id="fleet">Fleet</h2>
      <p>All replicas serve ${name(fleet.served)} since ${time(fleet.since_unix_ms)}; the newest is ${name(fleet.newest)}.</p>
      <${Table}
        caption="Replicas"
        columns=${[
          { name: "Replica", cell: (row) => row.id },
          { name: "Health", cell: (row) => html`<${State} text=${row.health} />` },
          { name: "Serves", cell: (row) => name(row.serves) },
          { name: "Staged", cell: (row) => name(row.staged) },
          { name: "Trouble", cell: (row) => html`<span class="reason">${row.trouble}</span>` },
        ]}
        rows=${fleet.replicas.map((replica) => ({ key: replica.id, ...replica }))}
        empty="No replica has reported."
      />
      ${fleet.refused.map(
        (each) => html`<p key=${each.id} class="reason">${name(each)} is refused: ${each.reasons.join("; ")}</p>`,
      )}
    </section>
  `;
}
