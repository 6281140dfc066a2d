// Handles JSON whose integers have 64 bits, which JavaScript's numbers cannot hold: they stay text.

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]/g;
const LARGE = /^-?\d{16,}$/;

// Parses JSON; integers of 16 digits and more become strings. Throws a SyntaxError for text that is none.
export function parse(text) {
  if (/\S/.test(text.replace(TOKEN, ""))) throw new SyntaxError("The answer is not JSON.");
  const tokens = text.match(TOKEN) ?? [];
  return JSON.parse(tokens.map((token) => (LARGE.test(token) ? `"${token}"` : token)).join(""));
}

// Returns the elements of `instances`, each as indented text with its numbers as they were written.
export function instances(text) {
  const tokens = text.match(TOKEN) ?? [];
  const start = tokens.indexOf('"instances"');
  const rows = [];
  let depth = 0;
  let row = [];
  for (const token of start < 0 ? [] : tokens.slice(start + 2)) {
    if (token === "]" && depth === 1) break;
    if (token === "{" || token === "[") depth += 1;
    if (depth > 1) row.push(token);
    if (token === "}" || token === "]") depth -= 1;
    if (depth === 1 && row.length) {
      rows.push(indented(row));
      row = [];
    }
  }
  return rows;
}

// Each key of an object in a line of its own; lists in one line.
function indented(tokens) {
  let text = "";
  let lists = 0;
  for (const token of tokens) {
    if (token === "{" && !lists) text += "{\n  ";
    else if (token === "}" && !lists) text += "\n}";
    else if (token === "," && !lists) text += ",\n  ";
    else if (token === ",") text += ", ";
    else if (token === ":") text += ": ";
    else text += token;
    lists += (token === "[") - (token === "]");
  }
  return text;
}
