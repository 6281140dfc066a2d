// One model: what it serves and does, and what can be done with it.
import { count, lostGpus, rate, slowDisk, time } from "./figures.js";
import { Feedback } from "./feedback.js";
import { Fleet } from "./fleet.js";
import { html } from "./html.js";
import { Memory } from "./memory.js";
import { modeOf } from "./models.js";
import { Operations, Snapshots } from "./operations.js";
import { State } from "./parts.js";
import { Refused } from "./refused.js";
import { Shadow } from "./shadow.js";
import { Traffic } from "./traffic.js";
import { Try } from "./try.js";

// The threshold of the alert EmberlineDiskSlow.

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
    ${model && html`<${Feedback} model=${model} />`}
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
  const faults = lostGpus(state.model.snapshots) + slowDisk(state.model.snapshots);
  const staging = line.updates.staging ? `${line.updates.staging} is being read, staged and judged. ` : "";
  const waiting = faults + staging + (line.updates.waiting ?? (line.state === "READY" ? "" : line.reason));
  return html`
    <dl class="facts">
      ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
    </dl>
    ${waiting && html`<p class="note reason">${waiting}</p>`}
  `;
}
