// How long calls took over time: a column for each interval, a row for each bucket, darker for more
// calls. The lines are the median and the 99th percentile.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock, count, micros } from "../lib/format";
import { quantile, sum } from "../lib/histogram";
import { colour, paint } from "../lib/theme";

export interface HeatColumn {
  at: number;
  counts: number[];
}

interface Props {
  columns: HeatColumn[];
  bounds: number[];
  /** Columns that the width is divided into. */
  slots: number;
  what: string;
}

const HEIGHT = 220;
const LEFT = 58;
const BOTTOM = 24;

export function HeatMap({ columns, bounds, slots, what }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [chosen, setChosen] = useState<number | undefined>();
  const [table, setTable] = useState(false);
  const repaint = paint.value;
  const points = useMemo(
    () => columns.map(({ counts }) => ({ total: sum(counts), p50: quantile(counts, bounds, 0.5), p99: quantile(counts, bounds, 0.99) })),
    [columns, bounds],
  );
  const rows = useMemo(() => used(columns, bounds), [columns, bounds]);

  useLayoutEffect(() => {
    const element = canvas.current;
    if (!element) return;
    setWidth(element.clientWidth);
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, [table]);

  const palette = useMemo(() => steps(), [repaint]);
  useEffect(() => {
    const element = canvas.current;
    if (element && width > 0) draw(element, width, columns, points, bounds, rows, slots, palette, chosen);
  }, [width, columns, points, bounds, rows, slots, palette, chosen, table]);

  const shift = slots - columns.length;
  const hover = (event: PointerEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const slot = Math.floor(((event.clientX - box.left - LEFT) / (width - LEFT)) * slots);
    const index = slot - shift;
    setChosen(index >= 0 && index < columns.length ? index : undefined);
  };
  const key = (event: KeyboardEvent) => {
    const last = columns.length - 1;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move !== undefined) setChosen(Math.max(0, Math.min(last, (chosen ?? last + 1) + move)));
    else if (event.key === "Home") setChosen(0);
    else if (event.key === "End") setChosen(last);
    else if (event.key === "Escape") setChosen(undefined);
    else return;
    event.preventDefault();
  };

  const index = chosen !== undefined && chosen < columns.length ? chosen : undefined;
  const summary = overall(columns, bounds, what);
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">Latency of {what}</span>
        <span class="legend">
          <span class="legend-item">
            <span class="ramp" aria-hidden="true">
              <i /><i /><i /><i />
            </span>
            few to many calls
          </span>
          <span class="legend-item">
            <span class="swatch" style={{ color: "var(--heat-line)" }} aria-hidden="true" />
            median
          </span>
          <span class="legend-item">
            <span class="swatch swatch-dashed" style={{ color: "var(--heat-line)" }} aria-hidden="true" />
            99th percentile
          </span>
        </span>
        <button type="button" class="button button-quiet button-small" aria-pressed={table} onClick={() => setTable(!table)} aria-label={`Show as table: latency of ${what}`}>
          Table
        </button>
      </figcaption>
      <p class="chart-summary">{summary}</p>
      {table ? (
        <div class="scroll scroll-short" tabIndex={0} role="region" aria-label={`Table: latency of ${what}`}>
          <table class="table table-dense">
            <thead>
              <tr>
                <th scope="col">Time</th>
                <th scope="col" class="num">Calls</th>
                <th scope="col" class="num">Median</th>
                <th scope="col" class="num">99th percentile</th>
              </tr>
            </thead>
            <tbody>
              {columns.map((one, at) => ({ one, point: points[at]! })).reverse().map(({ one, point }) => (
                <tr key={one.at}>
                  <th scope="row">{clock(one.at)}</th>
                  <td class="num">{count(point.total)}</td>
                  <td class="num">{point.p50 === undefined ? "–" : micros(point.p50)}</td>
                  <td class="num">{point.p99 === undefined ? "–" : micros(point.p99)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <>
          <canvas
            ref={canvas}
            class="heat"
            style={{ height: `${HEIGHT}px` }}
            role="img"
            tabIndex={0}
            aria-label={`Heat map. ${summary} Use the arrow keys to read single intervals.`}
            onPointerMove={hover}
            onPointerLeave={() => setChosen(undefined)}
            onKeyDown={key}
            onBlur={() => setChosen(undefined)}
          />
          <p class="readout" aria-live={index === undefined ? "off" : "polite"}>
            {index === undefined ? "\u00a0" : readout(columns[index]!, points[index]!)}
          </p>
        </>
      )}
    </figure>
  );
}

type Point = { total: number; p50: number | undefined; p99: number | undefined };

function readout(column: HeatColumn, point: Point): string {
  if (column.counts.length === 0) return `${clock(column.at)}: not measured`;
  if (point.total === 0) return `${clock(column.at)}: no calls`;
  return `${clock(column.at)}: ${count(point.total)} calls, median ${micros(point.p50!)}, 99th percentile ${micros(point.p99!)}`;
}

function overall(columns: HeatColumn[], bounds: number[], what: string): string {
  const all = new Array<number>(bounds.length + 1).fill(0);
  for (const { counts } of columns) for (let at = 0; at < counts.length; at += 1) all[at]! += counts[at]!;
  const total = sum(all);
  if (total === 0) return `No ${what} in this time.`;
  return `${count(total)} ${what}: median ${micros(quantile(all, bounds, 0.5)!)}, 99th percentile ${micros(quantile(all, bounds, 0.99)!)}.`;
}

/** The buckets to show: those with counts, and a few around them so that the picture does not jump. */
function used(columns: HeatColumn[], bounds: number[]): { first: number; end: number } {
  let first = bounds.length;
  let end = 0;
  for (const { counts } of columns) {
    for (let at = 0; at < counts.length; at += 1) {
      if (counts[at]! > 0) {
        first = Math.min(first, at);
        end = Math.max(end, at + 1);
      }
    }
  }
  if (end === 0) return { first: 0, end: bounds.length + 1 };
  first = Math.max(0, first - 2);
  end = Math.min(bounds.length + 1, Math.max(end + 2, first + 10));
  return { first, end };
}

interface Palette {
  cells: string[];
  line: string;
  text: string;
  grid: string;
  font: string;
}

function steps(): Palette {
  return {
    cells: [1, 2, 3, 4, 5, 6].map((step) => colour(`--heat-${step}`)),
    line: colour("--heat-line"),
    text: colour("--text-quiet"),
    grid: colour("--line"),
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
  };
}

function draw(
  element: HTMLCanvasElement,
  width: number,
  columns: HeatColumn[],
  points: Point[],
  bounds: number[],
  rows: { first: number; end: number },
  slots: number,
  palette: Palette,
  chosen: number | undefined,
): void {
  const scale = devicePixelRatio || 1;
  const pixels = { width: Math.round(width * scale), height: Math.round(HEIGHT * scale) };
  if (element.width !== pixels.width) element.width = pixels.width;
  if (element.height !== pixels.height) element.height = pixels.height;
  const c = element.getContext("2d")!;
  c.setTransform(scale, 0, 0, scale, 0, 0);
  c.clearRect(0, 0, width, HEIGHT);
  c.font = palette.font;
  const room = { width: width - LEFT, height: HEIGHT - BOTTOM };
  const cell = room.width / slots;
  const row = room.height / (rows.end - rows.first);
  const shift = slots - columns.length;
  const x = (index: number) => LEFT + (index + shift) * cell;
  const bottomOf = (bucket: number) => room.height - (bucket - rows.first) * row;

  c.fillStyle = palette.text;
  c.textAlign = "right";
  c.textBaseline = "middle";
  c.strokeStyle = palette.grid;
  c.lineWidth = 1;
  const every = Math.max(1, Math.ceil((rows.end - rows.first) / 7));
  for (let bucket = rows.first; bucket < Math.min(rows.end, bounds.length); bucket += every) {
    const y = bottomOf(bucket + 1);
    if (y < 6) continue;
    c.fillText(micros(bounds[bucket]!), LEFT - 8, y);
    c.beginPath();
    c.moveTo(LEFT, Math.round(y) + 0.5);
    c.lineTo(width, Math.round(y) + 0.5);
    c.stroke();
  }

  let most = 1;
  for (const { counts } of columns) for (const value of counts) most = Math.max(most, value);
  const span = Math.log1p(most);
  for (let index = 0; index < columns.length; index += 1) {
    const { counts } = columns[index]!;
    for (let bucket = rows.first; bucket < rows.end; bucket += 1) {
      const value = counts[bucket] ?? 0;
      if (value === 0) continue;
      const step = Math.min(5, Math.floor((Math.log1p(value) / span) * 5.999));
      c.fillStyle = palette.cells[step]!;
      c.fillRect(x(index), bottomOf(bucket + 1), Math.max(cell - 0.5, 1), Math.max(row - 0.5, 1));
    }
  }

  const place = (value: number): number => {
    let bucket = bounds.findIndex((bound) => value <= bound);
    if (bucket < 0) bucket = bounds.length - 1;
    const high = bounds[bucket]!;
    const low = bucket === 0 ? high / 2 : bounds[bucket - 1]!;
    const within = Math.log(value / low) / Math.log(high / low);
    return bottomOf(bucket) - within * row;
  };
  const trace = (of: "p50" | "p99", dash: number[]) => {
    c.strokeStyle = palette.line;
    c.lineWidth = 1.5;
    c.setLineDash(dash);
    c.beginPath();
    let open = false;
    points.forEach((point, index) => {
      const value = point[of];
      if (value === undefined) {
        open = false;
        return;
      }
      const at = x(index) + cell / 2;
      if (open) c.lineTo(at, place(value));
      else c.moveTo(at, place(value));
      open = true;
    });
    c.stroke();
    c.setLineDash([]);
  };
  trace("p50", []);
  trace("p99", [4, 3]);

  c.fillStyle = palette.text;
  c.textBaseline = "alphabetic";
  const labels = Math.max(2, Math.floor(room.width / 130));
  for (let label = 0; label <= labels; label += 1) {
    const index = Math.round((label / labels) * (slots - 1)) - shift;
    const column = columns[index];
    if (!column) continue;
    c.textAlign = label === labels ? "right" : label === 0 ? "left" : "center";
    c.fillText(clock(column.at), label === labels ? width : x(index) + cell / 2, HEIGHT - 6);
  }
  if (chosen !== undefined) {
    c.strokeStyle = palette.text;
    c.strokeRect(x(chosen) + 0.5, 0.5, Math.max(cell - 1, 1), room.height - 1);
  }
}
