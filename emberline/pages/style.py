"""The style sheet of all pages."""

from __future__ import annotations

STYLE = """
:root { --back: #f6f7f9; --panel: #ffffff; --text: #1c2430; --soft: #5d6878; --line: #dde2e9; --rows: #2f6fd6;
  --uses: #e08a1e; --note: #fff6e3; --note-line: #e9c46a;
  --c0: #2f6fd6; --c1: #e08a1e; --c2: #2c9c5f; --c3: #c9413b; --c4: #8257c9; --c5: #8a6a45; --c6: #d05fa6;
  --c7: #1f9aa8; }
@media (prefers-color-scheme: dark) { :root { --back: #12161c; --panel: #1b212a; --text: #e6eaf0; --soft: #9aa6b6;
  --line: #323b48; --rows: #6ea4ff; --uses: #f0a94a; --note: #2a2517; --note-line: #8a6d1f;
  --c0: #6ea4ff; --c1: #f0a94a; --c2: #5cc98d;
  --c3: #f07f78; --c4: #b391f0; --c5: #c4a27a; --c6: #ef92cb; --c7: #58c8d6; } }
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
.wide { grid-column: 1 / -1; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; }
svg .name { font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; margin: 0 0 4px; font-size: 13px; }
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
.curve { fill: none; stroke: var(--rows); stroke-width: 2; }
.curve.run, .curve.other { stroke: var(--soft); stroke-width: 1.2; }
.curve.other { opacity: 0.5; }
.curve.best { stroke: var(--uses); stroke-width: 2.6; }
.curve:hover { stroke-width: 4; opacity: 1 !important; }
.point.run { fill: var(--rows); opacity: 0.8; }
.point.other { fill: var(--soft); opacity: 0.5; }
.point.best { fill: var(--uses); }
.legend .best { background: var(--uses); }
.legend .other { background: var(--soft); }
.curve.c0 { stroke: var(--c0); } .point.c0 { fill: var(--c0); } .legend .c0 { background: var(--c0); }
.curve.c1 { stroke: var(--c1); } .point.c1 { fill: var(--c1); } .legend .c1 { background: var(--c1); }
.curve.c2 { stroke: var(--c2); } .point.c2 { fill: var(--c2); } .legend .c2 { background: var(--c2); }
.curve.c3 { stroke: var(--c3); } .point.c3 { fill: var(--c3); } .legend .c3 { background: var(--c3); }
.curve.c4 { stroke: var(--c4); } .point.c4 { fill: var(--c4); } .legend .c4 { background: var(--c4); }
.curve.c5 { stroke: var(--c5); } .point.c5 { fill: var(--c5); } .legend .c5 { background: var(--c5); }
.curve.c6 { stroke: var(--c6); } .point.c6 { fill: var(--c6); } .legend .c6 { background: var(--c6); }
.curve.c7 { stroke: var(--c7); } .point.c7 { fill: var(--c7); } .legend .c7 { background: var(--c7); }
line.axis { stroke: var(--soft); stroke-width: 1; }
line.switch { stroke: var(--c4); stroke-width: 1.2; stroke-dasharray: 3 3; }
line.bound { stroke: var(--uses); stroke-width: 1.2; stroke-dasharray: 6 4; }
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
