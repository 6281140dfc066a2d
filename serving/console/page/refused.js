// What was refused and why: versions, deltas, and requests.
import { count, time, total } from "./figures.js";
import { html } from "./html.js";
import { State, Table } from "./parts.js";

export function Refused({ state }) {
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
          { name: "Why", cell: (row) => html`<span class="reason">${row.kind}: ${row.reason}</span>` },
        ]}
        rows=${refused}
        empty="No version and no delta is refused."
      />
      ${
        versions.length > 0 &&
        html`<${Table}
        caption="Versions with a note"
        columns=${[
          { name: "Version", cell: (row) => row.version || "–" },
          { name: "State", cell: (row) => html`<${State} text=${row.state} />` },
          { name: "Note", cell: (row) => html`<span class="reason">${row.reason}</span>` },
        ]}
        rows=${versions}
        empty=""
      />`
      }
      ${
        kinds.length > 0 &&
        html`<p class="soft">Since the start: ${kinds.map(([kind, number]) => `${kind} ${number}`).join(", ")}.</p>`
      }
      <${Table}
        caption="Requests that were not answered, since the start"
        columns=${[
          { name: "Reason", cell: (row) => FAILURES[row.key] ?? row.key },
          { name: "Requests", number: true, cell: (row) => count(row.number) },
        ]}
        rows=${failures.map(([key, number]) => ({ key, number }))}
        empty="None was refused, and none failed."
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
