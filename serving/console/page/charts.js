// A chart of lines over time, or over another axis, drawn by uPlot; its figures also stand beside it as text.
import { Component, createRef, html } from "./html.js";

const DARK = matchMedia("(prefers-color-scheme: dark)");
const HEIGHT = 180;

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

// The axis of time is a minute long at least.
function lastMinute(plot, first, last) {
  return [Math.min(first, last - 60), last];
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// title; columns: [x, y, ...]; lines: [{label, colour, now}], of the columns after the first; values, xValues: format a
// figure of an axis; xTime: x is a time in seconds; label: what the chart shows, for those who do not see it.
export class Chart extends Component {
  place = createRef();

  componentDidMount() {
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(this.place.current);
    this.redraw = () => this.draw();
    DARK.addEventListener("change", this.redraw);
    this.draw();
  }

  componentDidUpdate() {
    if (this.plot) this.plot.setData(this.props.columns);
    else this.draw();
  }

  componentWillUnmount() {
    this.watch.disconnect();
    DARK.removeEventListener("change", this.redraw);
    this.plot?.destroy();
  }

  draw() {
    // The library is loaded after the page; until then there are the figures.
    if (!globalThis.uPlot) {
      addEventListener("load", this.redraw, { once: true });
      return;
    }
    const place = this.place.current;
    this.plot?.destroy();
    const { columns, lines, values, xTime = false, xValues } = this.props;
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    this.plot = new globalThis.uPlot(
      {
        width: Math.max(place.clientWidth, 100),
        height: HEIGHT,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false } },
        scales: {
          x: { time: xTime, range: xTime ? lastMinute : undefined },
          y: { range: (plot, low, high) => [0, high > 0 ? high * 1.08 : 1] },
        },
        axes: [
          { ...axis, space: 80, values: (plot, ticks) => ticks.map(xTime ? clock : xValues) },
          { ...axis, size: 64, values: (plot, ticks) => ticks.map(values) },
        ],
        series: [
          {},
          ...lines.map((line) => ({
            label: line.label,
            stroke: colour(line.colour),
            width: 2,
            points: { show: false },
          })),
        ],
      },
      columns,
      place,
    );
  }

  resize() {
    const place = this.place.current;
    if (this.plot && place.clientWidth > 0) this.plot.setSize({ width: place.clientWidth, height: HEIGHT });
  }

  render({ title, lines, label }) {
    const figures = lines.map((line) => `${line.label} ${line.now}`).join(", ");
    return html`
      <figure>
        <figcaption>
          <h3>${title}</h3>
          <ul class="legend">
            ${lines.map(
              (line) => html`
                <li key=${line.label}>
                  <span class="swatch" data-colour=${line.colour.slice(2)}></span>${line.label} <b>${line.now}</b>
                </li>
              `,
            )}
          </ul>
        </figcaption>
        <div class="plot" ref=${this.place} role="img" aria-label=${`${label}: ${figures}`}></div>
      </figure>
    `;
  }
}
