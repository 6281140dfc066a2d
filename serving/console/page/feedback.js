// How good scores were by the labels that came, what live AUC decides, the log of requests, and drift.
import { bytes, count, percent } from "./figures.js";
import { html } from "./html.js";
import { State, Table } from "./parts.js";

// A change that is worth a look, by docs/feedback.md.
const MUCH_DRIFT = 0.25;

export function Feedback({ model }) {
  const { feedback, feature_log: log, live_auc: trial, drift } = model.snapshots;
  if (!feedback && !log && !trial && !drift) return null;
  return html`
    <section aria-labelledby="feedback">
      <h2 id="feedback">Feedback</h2>
      ${trial && html`<p class="reason">${trialText(trial)}</p>`}
      ${feedback && html`<${Quality} feedback=${feedback} />`}
      ${drift && html`<${Drift} drift=${drift} />`}
      ${log && html`<${Log} log=${log} />`}
    </section>
  `;
}

function trialText(trial) {
  return `Trial by live AUC${trial.snapshot ? ` of ${trial.snapshot}` : ""}: ${trial.verdict}: ${trial.reason}`;
}

function Quality({ feedback }) {
  const labels = Object.entries(feedback.labels).filter(([, number]) => number > 0);
  const outcomes = labels.map(([outcome, number]) => `${outcome} ${count(number)}`).join(", ");
  return html`
    <p class="soft">
      Scores of ${count(feedback.requests)} requests wait for labels.${outcomes && ` Labels: ${outcomes}.`}
    </p>
    <${Table}
      caption="Scores beside the labels that came"
      columns=${[
        { name: "Snapshot", cell: (row) => row.snapshot },
        { name: "Arm", cell: (row) => row.arm },
        { name: "Output", cell: (row) => row.output },
        { name: "Labelled rows", number: true, cell: (row) => count(row.rows) },
        { name: "AUC", number: true, cell: (row) => aucOf(row) },
        { name: "Log loss", number: true, cell: (row) => figure(row.log_loss) },
        { name: "Calibration", number: true, cell: (row) => figure(row.calibration) },
      ]}
      rows=${feedback.quality.map((row) => ({ key: `${row.snapshot} ${row.arm} ${row.output}`, ...row })).reverse()}
      empty="No label has come yet."
    />
  `;
}

function aucOf(row) {
  return row.auc_error === null ? figure(row.auc) : `${figure(row.auc)} ± ${figure(row.auc_error)}`;
}

function figure(value) {
  return value === null ? "–" : value.toFixed(4);
}

function Drift({ drift }) {
  const kinds = { input: drift.inputs, score: drift.scores };
  const rows = Object.entries(kinds).flatMap(([kind, columns]) =>
    columns.map((column) => ({
      ...column,
      key: `${kind} ${column.name}`,
      kind,
      more: column.psi === null ? null : column.psi - column.by_chance,
    })),
  );
  rows.sort((one, other) => (other.more ?? -Infinity) - (one.more ?? -Infinity) || 0);
  return html`
    <${Table}
      caption="Drift from training, the largest first"
      columns=${[
        { name: "Name", cell: (row) => row.name },
        { name: "Kind", cell: (row) => row.kind },
        { name: "PSI less chance", number: true, cell: (row) => figure(row.more) },
        { name: "Judgement", cell: driftState },
        { name: "Rows", number: true, cell: (row) => count(row.rows) },
        { name: "Nulls", number: true, cell: (row) => percent(row.nulls) },
        { name: "in training", number: true, cell: (row) => percent(row.nulls_before) },
      ]}
      rows=${rows}
      empty="The version has no golden requests to compare with."
    />
  `;
}

function driftState(row) {
  if (row.more === null) return html`<span class="soft">too few rows</span>`;
  return row.more > MUCH_DRIFT ? html`<${State} text="worth a look" />` : "usual";
}

function Log({ log }) {
  const dropped = Object.values(log.dropped).reduce((sum, number) => sum + number, 0);
  return html`
    <p class="soft">
      ${percent(log.share)} of the requests are logged: ${count(log.written_rows)} rows in ${count(log.files)} files,
      ${" "}${bytes(log.bytes)} on the disk; ${count(dropped)} requests were dropped and ${count(log.lost_rows)} rows
      lost.
    </p>
    ${log.trouble && html`<p class="bad reason">${log.trouble}</p>`}
  `;
}
