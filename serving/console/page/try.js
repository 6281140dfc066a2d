// A form that sends a request to the model, from a sample, and shows its answer and the explanation of its score.
import { score } from "./figures.js";
import { Component, html } from "./html.js";
import { instances, parse } from "./json.js";
import { call } from "./net.js";
import { Button, Table } from "./parts.js";

export class Try extends Component {
  constructor(props) {
    super(props);
    this.state = { rows: [], row: 0, text: "", answer: null, explained: null, error: "", isBusy: false };
  }

  componentDidMount() {
    if (!this.props.actions.why("predict", "read")) this.sample();
  }

  get path() {
    return encodeURIComponent(this.props.name);
  }

  async run(work) {
    this.setState({ error: "", isBusy: true });
    try {
      await work();
    } catch (error) {
      this.setState({ error: error.message, answer: null, explained: null });
    }
    this.setState({ isBusy: false });
  }

  // What is typed while the sample is on its way stays.
  sample() {
    const before = this.state.text;
    return this.run(async () => {
      const { text } = await call("GET", `v2/repository/models/${this.path}/sample`);
      const rows = instances(text);
      this.setState((state) => ({
        rows,
        row: 0,
        text: state.text === before ? (rows[0] ?? "{}") : state.text,
        answer: null,
        explained: null,
      }));
    });
  }

  // The text goes to the server as it is: its integers may have 64 bits.
  predict() {
    return this.run(async () => {
      const body = `{"instances": [${this.state.text}]}`;
      const { text, headers } = await call("POST", `v1/models/${this.path}:predict`, body);
      const snapshot = headers.get("emberline-snapshot") ?? "";
      const unresolved = headers.get("emberline-unresolved") ?? "0";
      this.setState({ answer: { prediction: parse(text).predictions[0], snapshot, unresolved }, explained: null });
    });
  }

  explain() {
    return this.run(async () => {
      const body = `{"instances": [${this.state.text}], "row": 0}`;
      const { text } = await call("POST", `v2/repository/models/${this.path}/explain`, body);
      this.setState({ explained: parse(text), answer: null });
    });
  }

  render({ actions, snapshots }, { rows, row, text, answer, explained, error, isBusy }) {
    const whyPredict = actions.why("predict");
    const whyBoth = actions.why("predict", "read");
    const busy = isBusy ? "It waits for the server." : "";
    const choose = (event) => {
      const chosen = Number(event.target.value);
      this.setState({ row: chosen, text: rows[chosen] });
    };
    return html`
      <section aria-labelledby="try">
        <h2 id="try">Try it</h2>
        ${whyBoth && html`<p class="soft">${whyBoth}</p>`}
        <p class="actions">
          <${Button} text="Load a sample" why=${whyBoth || busy} act=${() => this.sample()} />
          ${
            rows.length > 0 &&
            html`<label class="inline">
            Sample row
            <select value=${row} onChange=${choose}>
              ${rows.map((_, place) => html`<option value=${place} key=${place}>${place}</option>`)}
            </select>
          </label>`
          }
        </p>
        <label for="request">The inputs of one row, as JSON</label>
        <textarea
          id="request"
          spellcheck="false"
          autocomplete="off"
          value=${text}
          onInput=${(event) => this.setState({ text: event.target.value })}
        ></textarea>
        <p class="actions">
          <${Button} text="Predict" kind="main" why=${whyPredict || busy} act=${() => this.predict()} />
          <${Button} text="Explain" why=${whyBoth || busy} act=${() => this.explain()} />
        </p>
        <div role="status" aria-live="polite">
          ${error && html`<p class="bad reason">${error}</p>`}
          ${answer && html`<${Answer} answer=${answer} snapshots=${snapshots} />`}
          ${explained && html`<${Explained} explained=${explained} />`}
        </div>
      </section>
    `;
  }
}

function values(value) {
  return Array.isArray(value) ? value.map(values).join(", ") : score(value);
}

function Answer({ answer, snapshots }) {
  const { prediction } = answer;
  const isNamed = prediction !== null && typeof prediction === "object" && !Array.isArray(prediction);
  const outputs = Object.entries(isNamed ? prediction : { output: prediction });
  const name = snapshots.find((snapshot) => snapshot.id === answer.snapshot)?.name ?? answer.snapshot;
  return html`
    <p>Snapshot ${name} answered${answer.unresolved === "0" ? "" : `; ${answer.unresolved} ids were unresolved`}.</p>
    <${Table}
      caption="Answer"
      columns=${[
        { name: "Output", cell: (each) => each.key },
        { name: "Value", cell: (each) => html`<span class="id">${values(each.value)}</span>` },
      ]}
      rows=${outputs.map(([key, value]) => ({ key, value }))}
      empty="There is no output."
    />
  `;
}

function Explained({ explained }) {
  const outputs = Object.entries(explained.outputs);
  const adds = (feature, output) => (feature.adds?.[output] ?? []).map(score).join(", ");
  return html`
    <p>
      Snapshot ${explained.snapshot.name}: ${outputs.map(([name, value]) => `${name} ${values(value)}`).join("; ")}.
    </p>
    <${Table}
      caption="What each feature adds"
      columns=${[
        { name: "Feature", cell: (feature) => feature.name },
        ...outputs.map(([name]) => ({ name: `adds to ${name}`, cell: (feature) => adds(feature, name) })),
        { name: "Ids or values", cell: (feature) => html`<span class="id">${content(feature)}</span>` },
      ]}
      rows=${explained.features.map((feature) => ({ key: feature.name, ...feature }))}
      empty="The model has no features."
    />
  `;
}

function content(feature) {
  if (!feature.ids) return values(feature.values ?? []);
  return feature.ids.map((id) => `${id.id} (${id.tier}${changedIn(id.changed)})`).join(", ");
}

function changedIn(changed) {
  return changed ? `, changed in ${changed.name}${changed.or_before ? " or before" : ""}` : "";
}
