// Formats figures, and makes rates and percentiles of the server's counts.

const NUMBER = new Intl.NumberFormat("en");
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
// Samples that are kept, one a second, and those that a percentile is made of.
const MOST = 300;
const WINDOW = 10;

export function count(value) {
  return value === null || value === undefined ? "–" : NUMBER.format(Math.round(value));
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 10 || value === 0 ? NUMBER.format(Math.round(value)) : value.toFixed(1);
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 10 ? `${value.toFixed(2)} ms` : `${NUMBER.format(Math.round(value))} ms`;
}

// Returns a sentence where lookups wait long for the disk, and otherwise nothing.
export function slowDisk({ disk_wait_ms: wait, disk_slow_since_unix_ms: since }) {
  if (!since) return "";
  return `The disk is slow since ${time(since)}: lookups that read from it wait ${milliseconds(wait)}. `;
}

// Returns sentences on the GPUs that versions do not use any more.
export function lostGpus({ gpus_given_up: lost }) {
  return (lost ?? [])
    .map(({ gpu, what, version, reason }) => {
      const fate = what === "rows" ? "holds no rows any more" : "is not used any more";
      return `GPU ${gpu} ${fate} for version ${version}: ${reason}. `;
    })
    .join("");
}

export function percent(value) {
  return value === null || value === undefined || Number.isNaN(value) ? "–" : `${(100 * value).toFixed(1)} %`;
}

export function score(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value);
}

export function time(unixMs) {
  return unixMs ? new Date(unixMs).toLocaleString() : "–";
}

// The share `part` of `whole`; null when there is nothing.
export function share(part, whole) {
  return whole > 0 ? part / whole : null;
}

// The latency below which a share of the requests were answered. counts: by bucket; bounds: their upper ends.
export function percentile(counts, bounds, wanted) {
  const total = counts.reduce((sum, each) => sum + each, 0);
  if (!total) return null;
  let seen = 0;
  for (let place = 0; place < counts.length; place += 1) {
    if (seen + counts[place] >= wanted * total && counts[place]) {
      const low = place ? bounds[place - 1] : 0;
      const high = place < bounds.length ? bounds[place] : low;
      return low + ((high - low) * (wanted * total - seen)) / counts[place];
    }
    seen += counts[place];
  }
  return null;
}

// Adds up the arms of all versions of a `load` event.
export function total(load) {
  const sum = { answered: 0, failed: 0, rejected: 0, rows: 0, queued: 0, failures: {}, latencies: [] };
  for (const version of load.versions) {
    sum.queued += version.queued;
    for (const arm of Object.values(version.arms)) {
      for (const key of ["answered", "failed", "rejected", "rows"]) sum[key] += arm[key];
      for (const [why, number] of Object.entries(arm.failures)) sum.failures[why] = (sum.failures[why] ?? 0) + number;
      arm.latencies.forEach((number, place) => {
        sum.latencies[place] = (sum.latencies[place] ?? 0) + number;
      });
    }
  }
  return sum;
}

// What happened to one model in the last minutes, as columns for charts.
export class History {
  constructor(bounds) {
    this.bounds = bounds;
    this.samples = [];
    this.columns = { time: [], answered: [], failed: [], rows: [], queued: [], p50: [], p90: [], p99: [] };
  }

  add(load) {
    const now = { at: load.at_ms, ...total(load) };
    const last = this.samples.at(-1);
    // Another process, or another version: its counts begin anew.
    if (last && (now.at <= last.at || now.answered < last.answered || now.failed < last.failed)) this.cut();
    const before = this.samples.at(-1);
    this.samples.push(now);
    if (this.samples.length > WINDOW) this.samples.shift();
    if (!before) return;
    const seconds = (now.at - before.at) / 1000;
    const first = this.samples[0];
    const latencies = now.latencies.map((number, place) => number - (first.latencies[place] ?? 0));
    this.push({
      time: Date.now() / 1000,
      answered: (now.answered - before.answered) / seconds,
      failed: (now.failed - before.failed) / seconds,
      rows: (now.rows - before.rows) / seconds,
      queued: now.queued,
      p50: percentile(latencies, this.bounds, 0.5),
      p90: percentile(latencies, this.bounds, 0.9),
      p99: percentile(latencies, this.bounds, 0.99),
    });
  }

  // Leaves a gap: nothing is known of the time until the next sample.
  cut() {
    if (this.samples.length) this.push({ time: Date.now() / 1000 });
    this.samples = [];
  }

  push(values) {
    for (const [key, column] of Object.entries(this.columns)) {
      column.push(values[key] ?? null);
      if (column.length > MOST) column.shift();
    }
  }

  last(key) {
    return this.columns[key].at(-1) ?? null;
  }
}

// Requests a second of each model, from two lists of models.
export function ratesOf(before, now) {
  const seconds = before ? (now.at_ms - before.at_ms) / 1000 : 0;
  const old = new Map((before?.models ?? []).map((model) => [model.name, model]));
  return new Map(
    now.models.map((model) => {
      const gone = old.get(model.name);
      const known = gone && seconds > 0 && model.answered >= gone.answered;
      return [model.name, known ? (model.answered - gone.answered) / seconds : null];
    }),
  );
}
