"""The style sheet of the page."""

from __future__ import annotations

STYLE = """
:root { --back: #f6f7f9; --panel: #ffffff; --text: #1c2430; --soft: #5d6878; --line: #dde2e9; --rows: #2f6fd6;
  --uses: #e08a1e; --note: #fff6e3; --note-line: #e9c46a; }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --panel: #1b212a; --text: #e6eaf0; --soft: #9aa6b6;
  --line: #323b48; --rows: #6ea4ff; --uses: #f0a94a; --note: #2a2517; --note-line: #8a6d1f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
header, main, footer { max-width: 1180px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 28px; }
h1 { margin: 0; font-size: 26px; }
header p, footer, figcaption, small, .legend { color: var(--soft); }
header p { margin: 2px 0 0; overflow-wrap: anywhere; }
nav ul { display: flex; flex-wrap: wrap; gap: 8px; padding: 0; list-style: none; }
nav a { display: block; padding: 3px 12px; border: 1px solid var(--line); border-radius: 99px; background: var(--panel);
  color: var(--text); text-decoration: none; }
nav a:hover { border-color: var(--rows); }
section { margin-top: 36px; border-top: 1px solid var(--line); }
h2 { margin: 20px 0 12px; font-size: 21px; }
h3 { margin: 0 0 4px; font-size: 15px; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin: 0; }
.facts div, figure, .grid { padding: 12px 14px; border: 1px solid var(--line); border-radius: 10px;
  background: var(--panel); }
dt { color: var(--soft); font-size: 13px; }
dd { margin: 0; font-size: 19px; font-weight: 600; overflow-wrap: anywhere; }
.notes { margin: 14px 0 0; padding: 10px 14px 10px 32px; border: 1px solid var(--note-line); border-radius: 10px;
  background: var(--note); }
.plots, .tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 14px;
  margin-top: 14px; align-items: start; }
figure { margin: 0; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; }
svg .name { font-size: 13px; }
.legend { display: flex; align-items: center; gap: 6px; margin: 0 0 4px; font-size: 13px; }
.legend span { width: 11px; height: 11px; border-radius: 2px; }
.legend span + span { margin-left: 10px; }
.legend .rows { background: var(--rows); }
.legend .uses { background: var(--uses); margin-left: 10px; }
rect.rows { fill: var(--rows); }
rect.uses { fill: var(--uses); }
rect:hover { opacity: 0.75; }
.area { fill: var(--rows); opacity: 0.16; }
.line { fill: none; stroke: var(--rows); stroke-width: 2; }
.mark { fill: var(--uses); stroke: var(--panel); stroke-width: 1.5; }
line.grid { stroke: var(--line); stroke-width: 1; }
figcaption { font-size: 13px; }
figcaption b { color: var(--text); font-weight: 600; }
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; }
th, td { padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tbody tr:last-child td { border-bottom: 0; }
footer { padding: 28px 20px; font-size: 13px; }
@media print { section { break-before: page; } }
"""
