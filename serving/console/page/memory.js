// The memory of a model: hits and bytes by tier and table, what other budgets would give, and the hottest ids.
import { Chart } from "./charts.js";
import { bytes, count, percent, score, share } from "./figures.js";
import { html } from "./html.js";
import { Table } from "./parts.js";

const SOURCES = { traffic: "recent lookups", published: "published counts" };
const TIERS = ["hbm", "overlay", "dram", "ssd"];

export function Memory({ state }) {
  const stores = (state.load?.versions ?? []).filter((version) => version.store);
  return html`
    <section aria-labelledby="memory">
      <h2 id="memory">Memory</h2>
      ${stores.length === 0 && html`<p class="soft">There is no store.</p>`}
      ${stores.map(({ version, store }) => html`<${Tiers} key=${version} version=${version} store=${store} />`)}
      ${state.memory && html`<${Curves} memory=${state.memory} />`}
      ${state.memory && html`<${Hottest} memory=${state.memory} />`}
    </section>
  `;
}

function asked(stats) {
  return TIERS.reduce((sum, tier) => sum + (stats.hits[tier] ?? 0), 0) + stats.absent + stats.unresolved;
}

function Tiers({ version, store }) {
  const all = asked(store);
  const rows = TIERS.filter((tier) => store.rows[tier] || store.hits[tier]).map((tier) => ({ key: tier }));
  const tables = Object.entries(store.tables).map(([name, stats]) => ({ key: name, ...stats, asked: asked(stats) }));
  return html`
    <${Table}
      caption=${`Tiers of version ${version}`}
      columns=${[
        { name: "Tier", cell: (row) => row.key.toUpperCase() },
        { name: "Hits", number: true, cell: (row) => count(store.hits[row.key]) },
        {
          name: "Share of the ids",
          cell: (row) => html`<${Meter} label=${row.key} value=${share(store.hits[row.key], all)} />`,
        },
        { name: "Rows", number: true, cell: (row) => count(store.rows[row.key]) },
        { name: "Bytes", number: true, cell: (row) => bytes(store.bytes[row.key]) },
      ]}
      rows=${rows}
      empty="No id was looked up yet."
    />
    <p class="soft">
      ${count(store.absent)} ids were absent, ${count(store.unresolved)} unresolved;
      ${" "}${count(store.promotions)} rows came into DRAM, ${count(store.evictions)} were evicted.
    </p>
    <${Table}
      caption=${`Tables of version ${version}`}
      columns=${ofTables(tables)}
      rows=${tables}
      empty="There are no tables."
    />
  `;
}

// The columns of tables. Those of tiers that hold nothing are left out.
function ofTables(tables) {
  const ids = (name, of) => ({ name, number: true, cell: (row) => percent(share(of(row), row.asked)) });
  const held = (name, tier) => [
    { name: `in ${name}`, number: true, cell: (row) => count(row.rows[tier]) },
    { name: `Bytes in ${name}`, number: true, cell: (row) => bytes(row.bytes[tier]) },
  ];
  const hasHbm = tables.some((row) => row.rows.hbm || row.hits.hbm);
  const hasOverlay = tables.some((row) => row.rows.overlay);
  const hasUnresolved = tables.some((row) => row.unresolved);
  return [
    { name: "Table", cell: (row) => row.key },
    { name: "Ids", number: true, cell: (row) => count(row.asked) },
    ...(hasHbm ? [ids("HBM", (row) => row.hits.hbm)] : []),
    ids("DRAM", (row) => row.hits.dram),
    ids("Overlay", (row) => row.hits.overlay),
    ids("SSD", (row) => row.hits.ssd),
    ids("Absent", (row) => row.absent),
    ...(hasUnresolved ? [ids("Unresolved", (row) => row.unresolved)] : []),
    { name: "Rows", number: true, cell: (row) => count(row.rows.ssd) },
    ...(hasHbm ? held("HBM", "hbm") : []),
    ...held("DRAM", "dram"),
    ...(hasOverlay ? held("overlay", "overlay") : []),
  ];
}

function Meter({ label, value }) {
  if (value === null) return "–";
  const name = `Share of the ids that ${label} answered`;
  return html`<meter min="0" max="1" value=${value} aria-label=${name}></meter> ${percent(value)}`;
}

// The share of lookups that DRAM would miss, by its size. The curves of row sizes are shown one by one.
function Curves({ memory }) {
  const stores = memory.budget?.stores ?? [];
  const slabs = stores.flatMap((store) =>
    store.slabs.map((slab) => ({ version: store.version, source: store.source, ...slab })),
  );
  const shown = slabs.filter((slab) => slab.curve.rows.length > 1);
  const budget = memory.budget?.dram_bytes;
  return html`
    <h3>Miss ratio by DRAM</h3>
    ${memory.error && html`<p class="reason">${memory.error}</p>`}
    ${
      memory.budget === null &&
      memory.most_rows &&
      html`<p class="soft">
      Without a DRAM budget the curve is made of all rows; there are more than ${count(memory.most_rows)}, so ask
      <code>emberline plan NAME --url URL</code>.
    </p>`
    }
    ${
      memory.budget &&
      html`<p>
      DRAM budget: ${budget === null ? "none, all rows are in DRAM" : bytes(budget)}; in use:
      ${" "}${bytes(memory.budget.used_bytes)}.
    </p>`
    }
    ${
      memory.budget &&
      shown.length === 0 &&
      html`<p class="soft">Too few ids were looked up to say what other budgets would give.</p>`
    }
    <div class="plots">
      ${shown.map((slab) => {
        const x = slab.curve.rows.map((rows) => rows * slab.row_cost);
        const y = slab.curve.hit_rate.map((hits) => 100 * (1 - hits));
        const now = at(x, y, slab.dram_bytes);
        return html`
          <${Chart}
            key=${`${slab.version} ${slab.row_bytes}`}
            title=${`Rows of ${slab.row_bytes} bytes: ${slab.tables.join(", ")}`}
            label=${`Share of the lookups that DRAM misses by its size, by ${SOURCES[slab.source]}`}
            columns=${[x, y]}
            lines=${[{ label: `missed with ${bytes(slab.dram_bytes)}`, colour: "--c0", now: `${now.toFixed(1)} %` }]}
            values=${(value) => `${value} %`}
            xValues=${bytes}
          />
        `;
      })}
    </div>
  `;
}

function at(x, y, wanted) {
  const place = x.findIndex((each) => each >= wanted);
  if (place === -1) return y.at(-1);
  if (place === 0) return y[0];
  const part = (wanted - x[place - 1]) / (x[place] - x[place - 1]);
  return y[place - 1] + part * (y[place] - y[place - 1]);
}

function Hottest({ memory }) {
  if (!memory.hottest) return null;
  const rows = Object.entries(memory.hottest).flatMap(([table, ids]) =>
    ids.map(([id, uses], place) => ({ key: `${table} ${id}`, table, place: place + 1, id, uses })),
  );
  const source =
    memory.source === "traffic" ? "recent lookups" : "the counts that were published, as there is no DRAM budget";
  return html`
    <${Table}
      caption=${`Hottest ids, by ${source}`}
      columns=${[
        { name: "Table", cell: (row) => row.table },
        { name: "Place", number: true, cell: (row) => row.place },
        { name: "Id", number: true, cell: (row) => row.id },
        { name: "Uses, about", number: true, cell: (row) => score(row.uses) },
      ]}
      rows=${rows}
      empty="No id was looked up yet."
    />
  `;
}
