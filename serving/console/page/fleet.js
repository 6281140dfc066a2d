// What the replicas of a fleet serve, have staged, and refused.
import { time } from "./figures.js";
import { html } from "./html.js";
import { State, Table } from "./parts.js";

export function Fleet({ fleet }) {
  if (fleet.error) return html`<section><h2>Fleet</h2><p class="reason">${fleet.error}</p></section>`;
  const { store } = fleet;
  const serve = store.error ? "served" : fleet.replicas.some((row) => row.behind) ? "should serve" : "serve";
  const name = (snapshot) => (snapshot ? snapshot.name || snapshot.id.slice(0, 8) : "–");
  const trouble = (row) => row.trouble || (row.behind ? "It serves something else than the others." : "");
  return html`
    <section aria-labelledby="fleet">
      <h2 id="fleet">Fleet</h2>
      ${store.error &&
      html`<p class="reason">
        ${fleet.asked} has not been able to read the object store since ${time(store.answered_unix_ms)}:
        ${" "}${store.error}. Below stands what it knew then. Open the console of another replica to see the state of now.
      </p>`}
      <p>
        All replicas ${serve} ${name(fleet.served)} since ${time(fleet.since_unix_ms)}. The
        newest snapshot is ${name(fleet.newest)}.
      </p>
      <${Table}
        caption="Replicas"
        columns=${[
          { name: "Replica", cell: (row) => row.id },
          { name: "Health", cell: (row) => html`<${State} text=${row.health} />` },
          { name: "Serves", cell: (row) => (store.error && !row.serves ? "not known" : name(row.serves)) },
          { name: "Staged", cell: (row) => name(row.staged) },
          { name: "Trouble", cell: (row) => html`<span class="reason">${trouble(row)}</span>` },
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
