// The shadow of a model: what was compared, and the verdict.
import { bytes, count, milliseconds, percent, score } from "./figures.js";
import { html } from "./html.js";
import { Button, State, Table } from "./parts.js";

export function Shadow({ model, actions }) {
  const shadow = model.snapshots.shadow;
  if (!shadow) return null;
  if (shadow.ended) return html`<section><h2>Shadow</h2><p>It has ended: ${shadow.ended}.</p></section>`;
  const why = actions.why("admin");
  const ask = (text, done, body) => () =>
    actions.ask({
      title: `${text} of ${model.name}`,
      text: done,
      verb: text,
      run: () => actions.control(model.name, "shadow", body, `${text}: done.`),
    });
  return html`
    <section aria-labelledby="shadow">
      <h2 id="shadow">Shadow</h2>
      <p>
        <${State} text=${shadow.verdict} /> ${shadow.name} scores ${percent(shadow.share)} of the requests, of which
        ${" "}${count(shadow.requests)} were compared. <span class="reason">${shadow.reason}</span>
      </p>
      <p class="actions">
        <${Button} text="Promote the shadow" why=${why}
          act=${ask("Promote the shadow", `Answer all requests from ${shadow.name}.`, { promote: true })} />
        <${Button} text="Stop the shadow" why=${why}
          act=${ask("Stop the shadow", `Score no more requests on ${shadow.name}.`, { stop: true })} />
      </p>
      <${Table}
        caption="Outputs of the shadow beside those of the served snapshot"
        columns=${[
          { name: "Output", cell: (row) => row.output },
          { name: "Rows", number: true, cell: (row) => count(row.rows) },
          { name: "Mean shift", number: true, cell: (row) => figure(row.mean_shift) },
          { name: "Absolute shift", number: true, cell: (row) => figure(row.mean_absolute_shift) },
          { name: "Calibration", number: true, cell: (row) => figure(row.calibration) },
          { name: `Overlap of the first ${shadow.top_k}`, number: true, cell: (row) => percent(row.overlap) },
          { name: "Rank correlation", number: true, cell: (row) => figure(row.rank_correlation) },
        ]}
        rows=${shadow.outputs.map((output) => ({ key: output.output, ...output }))}
        empty="Nothing was compared yet."
      />
      <p class="soft">
        Median time ${milliseconds(shadow.shadow_p50_ms)} instead of ${milliseconds(shadow.main_p50_ms)}; it takes
        ${" "}${bytes(shadow.memory_bytes)}; ${count(shadow.failures)} failed.
      </p>
    </section>
  `;
}

function figure(value) {
  return value === null || value === undefined ? "–" : score(value);
}
