// The traffic of a model: requests, latency and the queue over the last minutes, stages and sessions.
import { Chart } from "./charts.js";
import { count, milliseconds, rate } from "./figures.js";
import { html } from "./html.js";
import { Table } from "./parts.js";

export function Traffic({ state }) {
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
