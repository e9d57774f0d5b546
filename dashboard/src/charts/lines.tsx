// Lines over time, drawn by uPlot. Next to the canvas are a sentence and a table that say the same.

import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { clock } from "../lib/format";
import { colour, paint } from "../lib/theme";

export interface Line {
  name: string;
  /** A colour of the style sheet. */
  colour: string;
  values: (number | null)[];
  /** A state that holds until the next point. */
  stepped?: boolean;
  filled?: boolean;
  dashed?: boolean;
}

interface Props {
  title: string;
  /** Milliseconds since 1970. */
  times: number[];
  /** Milliseconds that the axis spans. */
  span: number;
  lines: Line[];
  unit: (value: number) => string;
  summary: string;
  height?: number;
  /** The lowest maximum of the axis. */
  least?: number;
  whole?: boolean;
  /** Moments of which the list next to the chart gives the reasons. */
  marks?: { at: number; colour: string }[];
}

export function Lines(props: Props) {
  const host = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | undefined>(undefined);
  const latest = useRef(props);
  latest.current = props;
  const [table, setTable] = useState(false);
  const repaint = paint.value;
  const shape = props.lines.map((line) => `${line.name}${line.colour}`).join();
  const height = props.height ?? 150;

  useLayoutEffect(() => {
    const element = host.current;
    if (!element || table) return;
    const made = new uPlot(options(latest, element.clientWidth, height), data(latest.current), element);
    made.root.setAttribute("aria-hidden", "true");
    chart.current = made;
    const observer = new ResizeObserver(() => {
      if (element.clientWidth > 0) made.setSize({ width: element.clientWidth, height });
    });
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
      chart.current = undefined;
    };
  }, [shape, repaint, height, table]);

  useEffect(() => {
    chart.current?.setData(data(props));
  }, [props.times, props.lines]);

  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{props.title}</span>
        <span class="legend">
          {props.lines.map((line) => (
            <span class="legend-item" key={line.name}>
              <span class={`swatch ${line.dashed ? "swatch-dashed" : ""}`} style={{ color: `var(${line.colour})` }} aria-hidden="true" />
              {line.name}
            </span>
          ))}
        </span>
        <button type="button" class="button button-quiet button-small" aria-pressed={table} onClick={() => setTable(!table)} aria-label={`Show as table: ${props.title}`}>
          Table
        </button>
      </figcaption>
      <p class="chart-summary">{props.summary}</p>
      {table ? <Numbers {...props} /> : <div ref={host} class="chart-host" style={{ height: `${height}px` }} />}
    </figure>
  );
}

function Numbers(props: Props) {
  const rows = props.times.map((at, index) => ({ at, index })).reverse().slice(0, 150);
  return (
    <div class="scroll scroll-short" tabIndex={0} role="region" aria-label={`Table: ${props.title}`}>
      <table class="table table-dense">
        <thead>
          <tr>
            <th scope="col">Time</th>
            {props.lines.map((line) => (
              <th scope="col" class="num" key={line.name}>
                {line.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map(({ at, index }) => (
            <tr key={at}>
              <th scope="row">{clock(at)}</th>
              {props.lines.map((line) => (
                <td class="num" key={line.name}>
                  {line.values[index] == null ? "–" : props.unit(line.values[index]!)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function data(props: Props): uPlot.AlignedData {
  return [props.times.map((at) => at / 1000), ...props.lines.map((line) => line.values)] as uPlot.AlignedData;
}

function options(latest: { current: Props }, width: number, height: number): uPlot.Options {
  const grid = { stroke: colour("--line"), width: 1 };
  const text = colour("--text-quiet");
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const props = latest.current;
  const colours = new Map(["--ok", "--line-strong"].map((name) => [name, colour(name)]));
  return {
    width: Math.max(width, 120),
    height,
    padding: [8, 26, 0, 0],
    legend: { show: false },
    hooks: {
      draw: [
        (u) => {
          for (const mark of latest.current.marks ?? []) {
            const x = Math.round(u.valToPos(mark.at / 1000, "x", true));
            if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
            u.ctx.fillStyle = colours.get(mark.colour) ?? text;
            u.ctx.fillRect(x, u.bbox.top, Math.max(1, devicePixelRatio), u.bbox.height);
            u.ctx.fillRect(x - 3 * devicePixelRatio, u.bbox.top, 7 * devicePixelRatio, 4 * devicePixelRatio);
          }
        },
      ],
    },
    cursor: { drag: { x: false, y: false }, points: { size: 6 }, sync: { key: "function" } },
    scales: {
      x: {
        time: true,
        range: () => {
          const { times, span } = latest.current;
          const end = (times[times.length - 1] ?? Date.now()) / 1000;
          return [end - span / 1000, end];
        },
      },
      y: { range: (_, __, high) => [0, Math.max((high ?? 0) * 1.1, latest.current.least ?? 1)] },
    },
    axes: [
      { stroke: text, grid: { show: false }, ticks: { ...grid, size: 4 }, font, size: 28, values: (_, splits) => splits.map((at) => clock(at * 1000)), space: 90 },
      {
        stroke: text,
        grid,
        ticks: { show: false },
        font,
        size: 58,
        space: 34,
        values: (_, splits) => splits.map((value) => (latest.current.whole && value % 1 !== 0 ? "" : latest.current.unit(value))),
      },
    ],
    series: [
      {},
      ...props.lines.map((line) => ({
        label: line.name,
        stroke: colour(line.colour),
        width: 1.5,
        points: { show: false },
        ...(line.dashed ? { dash: [4, 3] } : {}),
        ...(line.filled ? { fill: faded(colour(line.colour)) } : {}),
        ...(line.stepped ? { paths: uPlot.paths.stepped!({ align: 1 }) } : {}),
      })),
    ],
  };
}

/** The same colour at a tenth of its strength. */
function faded(text: string): string {
  return `color-mix(in srgb, ${text} 12%, transparent)`;
}
