// The list of all models that the caller may see.
import { count, lostGpus, rate, slowDisk } from "./figures.js";
import { html } from "./html.js";
import { State, Table } from "./parts.js";

export function Models({ state }) {
  if (!state.list)
    return html`<p>${state.link === "refused" ? "Nothing is shown without a token." : "Waiting for the server."}</p>`;
  const rows = state.list.models.map((model) => ({ key: model.name, ...model }));
  const columns = [
    { name: "Model", cell: (row) => html`<a href=${`#/model/${encodeURIComponent(row.name)}`}>${row.name}</a>` },
    { name: "State", cell: (row) => html`<${State} text=${row.state} />` },
    { name: "Serves", cell: (row) => row.updates.served?.name ?? (row.versions.join(", ") || "–") },
    { name: "Mode", cell: (row) => modeOf(row.updates) },
    { name: "Requests/s", number: true, cell: (row) => rate(state.rates.get(row.name)) },
    { name: "Answered", number: true, cell: (row) => count(row.answered) },
    { name: "Failed", number: true, cell: (row) => count(row.failed) },
    { name: "Queue", number: true, cell: (row) => count(row.queued) },
    { name: "Refused updates", number: true, cell: (row) => count(row.updates.refused ?? 0) },
    { name: "Note", cell: (row) => html`<span class="reason">${note(row)}</span>` },
  ];
  return html`
    <h2>Models</h2>
    <${Table} caption="Models of this server" columns=${columns} rows=${rows} empty="There are no models." />
  `;
}

function note(row) {
  return lostGpus(row.updates) + slowDisk(row.updates) + (row.updates.waiting ?? row.reason);
}

export function modeOf(updates) {
  if (updates.error) return "–";
  const canary = updates.canary
    ? `, canary ${updates.canary.name} (${Math.round(100 * updates.canary.fraction)} %)`
    : "";
  return `${updates.mode}${canary}${updates.has_shadow ? ", shadow" : ""}`;
}
