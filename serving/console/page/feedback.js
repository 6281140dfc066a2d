// How good scores were by the labels that came, what live AUC decides, and the log of requests.
import { bytes, count, percent } from "./figures.js";
import { html } from "./html.js";
import { Table } from "./parts.js";

export function Feedback({ model }) {
  const { feedback, feature_log: log, live_auc: trial } = model.snapshots;
  if (!feedback && !log && !trial) return null;
  return html`
    <section aria-labelledby="feedback">
      <h2 id="feedback">Feedback</h2>
      ${trial && html`<p class="reason">${trialText(trial)}</p>`}
      ${feedback && html`<${Quality} feedback=${feedback} />`}
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
