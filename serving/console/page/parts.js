// Small parts of the page: tables, states, buttons, and the dialog that asks before something is changed.
import { Component, createRef, html } from "./html.js";

// columns: [{name, cell(row), number}]; rows: with a `key`; caption: what the table holds.
export function Table({ caption, columns, rows, empty }) {
  if (!rows.length) return html`<p class="soft">${empty}</p>`;
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label=${caption}>
      <table>
        <caption>${caption}</caption>
        <thead>
          <tr>
            ${columns.map((column) => html`<th scope="col" class=${column.number ? "number" : ""}>${column.name}</th>`)}
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            (row) => html`
              <tr key=${row.key}>
                ${columns.map((column, place) =>
                  place === 0
                    ? html`<th scope="row">${column.cell(row)}</th>`
                    : html`<td class=${column.number ? "number" : ""}>${column.cell(row)}</td>`,
                )}
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}

const KINDS = {
  READY: "good",
  served: "good",
  equal: "good",
  ready: "good",
  UNAVAILABLE: "bad",
  fails: "bad",
  shifted: "bad",
  slower: "bad",
  "worth a look": "bad",
  "not ready": "bad",
};

export function State({ text }) {
  return html`<span class=${`state ${KINDS[text] ?? "plain"}`}>${text}</span>`;
}

// A button of an operation. why: why it is not possible, "" where it is.
export function Button({ text, label, why, act, kind = "" }) {
  return html`
    <button
      type="button"
      class=${kind}
      disabled=${why !== ""}
      title=${why || null}
      aria-label=${label ?? text}
      onClick=${act}
    >
      ${text}
    </button>
  `;
}

// Asks before an operation is carried out. ask: {title, text, verb, run(values), fields}; a field is {name, label,
// value, type, min, max, step, why(value)}, where `why` says what is wrong with a value, "" for nothing.
// `value` is what a field begins with: the page is drawn again each second, and what is typed stays.
export class Ask extends Component {
  dialog = createRef();

  componentDidMount() {
    this.dialog.current.showModal();
  }

  submit(event) {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(event.target).entries());
    const wrong = {};
    for (const { name, why } of this.props.ask.fields ?? []) {
      const found = why?.(values[name]);
      if (found) wrong[name] = found;
    }
    this.setState({ wrong });
    const [first] = Object.keys(wrong);
    if (first) {
      event.target.elements[first].focus();
      return;
    }
    this.dialog.current.close(); // gives the focus back to the button
    this.props.ask.run(values);
  }

  render({ ask, close }, { wrong = {} }) {
    const cancel = () => this.dialog.current.close();
    return html`
      <dialog ref=${this.dialog} aria-labelledby="ask-title" onClose=${close}>
        <form method="dialog" onSubmit=${(event) => this.submit(event)}>
          <h2 id="ask-title">${ask.title}</h2>
          <p>${ask.text}</p>
          ${(ask.fields ?? []).map(
            (field) => html`
              <label key=${field.name}>
                ${field.label}
                <input
                  name=${field.name}
                  type=${field.type ?? "text"}
                  defaultValue=${field.value ?? ""}
                  min=${field.min}
                  max=${field.max}
                  step=${field.step}
                  autocomplete="off"
                  spellcheck="false"
                  required=${field.required ?? true}
                  aria-invalid=${wrong[field.name] ? "true" : null}
                  aria-describedby=${wrong[field.name] ? `ask-wrong-${field.name}` : null}
                />
              </label>
              ${
                wrong[field.name] &&
                html`<p id=${`ask-wrong-${field.name}`} class="bad reason" role="alert">${wrong[field.name]}</p>`
              }
            `,
          )}
          <p class="actions">
            <button type="button" onClick=${cancel}>Cancel</button>
            <button type="submit" class="main">${ask.verb}</button>
          </p>
        </form>
      </dialog>
    `;
  }
}
