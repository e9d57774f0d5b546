// Is the function well? Latency, rate, errors and instances on one time axis, and why instances
// started or stopped.

import { useMemo, useState } from "preact/hooks";
import { HeatMap } from "../../charts/heatmap";
import { Lines } from "../../charts/lines";
import { bytes, clock, count, figure, micros, plural, span } from "../../lib/format";
import { add, quantile, sum } from "../../lib/histogram";
import { to } from "../../lib/route";
import { clean } from "../../lib/text";
import type { Advice, FunctionDetail } from "../../lib/types";
import { PHASES, type Column, type Watch } from "../../store/function";
import { changesOf } from "../../store/node";
import { Empty, Panel, Stat, State, toneOf, When, Icon } from "../../ui/base";
import { Rows } from "../../ui/rows";

export function Overview({ watch }: { watch: Watch }) {
  const detail = watch.detail.value!;
  const turn = watch.turn.value;
  const [long, setLong] = useState(false);
  const columns = useMemo(() => watch.columns(long), [turn, long, watch]);
  return (
    <>
      <Figures detail={detail} columns={columns} />
      {detail.last_error ? <LastFailure detail={detail} /> : null}
      {detail.advice?.length ? <Advised advice={detail.advice} /> : null}
      <Panel
        title="Measured while this page is open"
        aside={
          <div class="segments" role="group" aria-label="Time shown">
            <button type="button" aria-pressed={!long} onClick={() => setLong(false)}>5 min</button>
            <button type="button" aria-pressed={long} onClick={() => setLong(true)}>1 h</button>
          </div>
        }
      >
        <Charts watch={watch} columns={columns} long={long} detail={detail} />
      </Panel>
      <div class="columns">
        <Phases watch={watch} columns={columns} />
        <Changes detail={detail} />
      </div>
      <Instances detail={detail} />
    </>
  );
}

function Figures({ detail, columns }: { detail: FunctionDetail; columns: Column[] }) {
  const { requests } = detail;
  const last = columns.findLast((one) => one.seconds > 0);
  const limits = detail.limits;
  const most = detail.bounds?.max ?? limits.instances_max;
  return (
    <dl class="stats">
      <Stat label="Calls" value={last ? `${figure(last.total / last.seconds)} /s` : "–"} note={`${count(requests.total)} since the start`} />
      <Stat label="Failed" value={last ? `${figure(last.failed / last.seconds)} /s` : "–"} note={`${count(requests.failed)} since the start`} {...(last && last.failed > 0 ? { tone: "fail" as const } : {})} />
      <Stat label="Median" value={requests.p50_ms === undefined ? "–" : span(requests.p50_ms)} note="of recent calls" />
      <Stat label="99th percentile" value={requests.p99_ms === undefined ? "–" : span(requests.p99_ms)} note="of recent calls" />
      <Stat label="Instances" value={count(detail.instances.length)} note={`${detail.bounds?.min ?? limits.instances_min} to ${most ?? "one per core"}${detail.starting > 0 ? `, ${detail.starting} starting` : ""}`} />
      <Stat label="Now" value={`${count(requests.running)} running`} note={`${count(requests.queued)} of ${count(limits.queue)} may wait`} />
    </dl>
  );
}

function LastFailure({ detail }: { detail: FunctionDetail }) {
  const error = detail.last_error!;
  return (
    <div class="failure" role="group" aria-label="Last failure">
      <p>
        <strong>Last failure</strong> <When at={error.time} />: <code>{error.code}</code> {clean(error.message)}
      </p>
      <p class="hint">
        <code>mote explain {error.code}</code>
        {error.invocation ? <> · <a href={to(["call", error.invocation], { function: detail.name })}>show the call and its log lines</a></> : null}
      </p>
    </div>
  );
}

/** What the owner could change in mote.toml. */
function Advised({ advice }: { advice: Advice[] }) {
  return (
    <Panel title="Advice" aside="from what the node has seen">
      <ul class="findings">
        {advice.map((one) => (
          <li key={one.code}>
            <p>{clean(one.text)}</p>
            <p class="hint">
              In <code>[{one.section}]</code> of mote.toml: <code>{one.change}</code>
            </p>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

/** Nothing for a time that nobody has measured. */
function measured(column: Column, value: number): number | null {
  return column.seconds > 0 ? value : null;
}

function Charts({ watch, columns, long, detail }: { watch: Watch; columns: Column[]; long: boolean; detail: FunctionDetail }) {
  // The axis grows with what is known, so that the first minute is not a line at the edge.
  const slots = long ? Math.max(20, columns.length) : Math.max(45, columns.length);
  const shownMs = slots * (long ? 30_000 : 2000);
  const times = useMemo(() => columns.map((one) => one.at), [columns]);
  const heat = useMemo(() => columns.map((one) => ({ at: one.at, counts: one.request })), [columns]);
  const rates = useMemo(
    () => [
      { name: "calls", colour: "--accent", filled: true, values: columns.map((one) => measured(one, one.total / one.seconds)) },
      { name: "failed", colour: "--fail", dashed: true, values: columns.map((one) => measured(one, one.failed / one.seconds)) },
    ],
    [columns],
  );
  const instances = useMemo(
    () => [
      { name: "instances", colour: "--accent", stepped: true, filled: true, values: columns.map((one) => measured(one, one.instances)) },
      { name: "running calls", colour: "--series-2", values: columns.map((one) => measured(one, one.running)) },
      { name: "waiting calls", colour: "--series-3", dashed: true, values: columns.map((one) => measured(one, one.queued)) },
    ],
    [columns],
  );
  const marks = useMemo(
    () => changesOf(detail).map((one) => ({ at: one.at, colour: one.kind === "start" ? "--ok" : "--line-strong" })),
    [detail],
  );
  if (columns.length === 0) {
    return (
      <Empty title="The first measurement takes two seconds." command={`mote bench ${detail.name}`}>
        The charts fill while this page is open. To see them move, send some calls:
      </Empty>
    );
  }
  const calls = columns.reduce((total, one) => total + one.total, 0);
  const failed = columns.reduce((total, one) => total + one.failed, 0);
  const looked = columns.filter((one) => one.seconds > 0);
  const high = Math.max(0, ...looked.map((one) => one.total / one.seconds));
  const counts = looked.map((one) => one.instances);
  const shown = `Since ${clock(columns[0]!.at)}`;
  return (
    <>
      {watch.measured.value ? (
        <HeatMap columns={heat} bounds={watch.bounds.value} slots={slots} what="calls" />
      ) : (
        <Empty title="This node does not tell how long calls take." command="mote upgrade">
          The latency heat map needs a newer version of mote.
        </Empty>
      )}
      <div class="columns columns-flush">
        <Lines title="Calls per second" times={times} span={shownMs} lines={rates} unit={figure} summary={`${shown}: ${plural(calls, "call")}, ${count(failed)} failed, at most ${figure(high)} per second.`} />
        <Lines title="Instances" times={times} span={shownMs} lines={instances} unit={figure} whole least={2} marks={marks} summary={`${shown}: ${plural(detail.instances.length, "instance")} now, between ${Math.min(detail.instances.length, ...counts)} and ${Math.max(detail.instances.length, ...counts)}. Marks are starts and stops; their reasons are listed below.`} />
      </div>
    </>
  );
}

function Phases({ watch, columns }: { watch: Watch; columns: Column[] }) {
  const bounds = watch.bounds.value;
  const rows = useMemo(
    () =>
      PHASES.map((one) => {
        const all: number[] = new Array<number>(bounds.length + 1).fill(0);
        for (const column of columns) add(all, column[one.phase]);
        return { ...one, total: sum(all), p50: quantile(all, bounds, 0.5), p95: quantile(all, bounds, 0.95), p99: quantile(all, bounds, 0.99) };
      }),
    [columns, bounds],
  );
  if (!watch.measured.value) return null;
  const most = Math.max(1, ...rows.map((row) => row.p99 ?? 0));
  const text = (value: number | undefined) => (value === undefined ? "–" : micros(value));
  return (
    <Panel title="Where the time goes" aside={<span class="quiet">in the time shown</span>}>
      <table class="table table-dense phases">
        <caption class="sr-only">Percentiles by phase</caption>
        <thead>
          <tr>
            <th scope="col">Phase</th>
            <th scope="col" class="num">Count</th>
            <th scope="col" class="num">Median</th>
            <th scope="col" class="num">95th</th>
            <th scope="col" class="num">99th</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.phase}>
              <th scope="row">
                {row.name}
                <span class="under">{row.what}</span>
                <span class="phase-bar" aria-hidden="true">
                  <span style={{ width: `${width(row.p99, most)}%` }} class="phase-high" />
                  <span style={{ width: `${width(row.p50, most)}%` }} class="phase-mid" />
                </span>
              </th>
              <td class="num">{count(row.total)}</td>
              <td class="num">{text(row.p50)}</td>
              <td class="num">{text(row.p95)}</td>
              <td class="num">{text(row.p99)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

/** Logarithmic, because a start takes a thousand times as long as a call. */
function width(value: number | undefined, most: number): number {
  if (!value) return 0;
  return Math.max(2, (Math.log10(1 + value) / Math.log10(1 + most)) * 100);
}

function Changes({ detail }: { detail: FunctionDetail }) {
  const list = useMemo(() => changesOf(detail).sort((a, b) => b.at - a.at), [detail]);
  const { scaling } = detail;
  return (
    <Panel title="Why instances start and stop">
      {scaling ? (
        <p class="text">
          Wanted now: <strong>{plural(scaling.desired, "instance")}</strong>
          {scaling.wished !== scaling.desired ? ` (${scaling.wished} without the limits)` : ""}, because {scaling.reason_text}.
        </p>
      ) : (
        <p class="text quiet">The autoscaler has decided nothing yet.</p>
      )}
      {list.length === 0 ? (
        <Empty title="No start or stop is remembered." />
      ) : (
        <div class="scroll scroll-events" tabIndex={0} role="region" aria-label={`Starts and stops of ${detail.name}`}>
          <ol class="events">
            {list.slice(0, 50).map((one) => (
              <li class={`event event-${one.kind}`} key={one.key}>
                <Icon name={one.kind} />
                <div>
                  <p>{one.title}</p>
                  {one.reason ? <p class="event-reason">{one.reason}</p> : null}
                </div>
                <When at={one.at} />
              </li>
            ))}
          </ol>
        </div>
      )}
    </Panel>
  );
}

function Instances({ detail }: { detail: FunctionDetail }) {
  return (
    <Panel title="Instances">
      {detail.instances.length === 0 ? (
        <Empty title="No instance runs." command={`mote invoke ${detail.name}`}>
          The next call starts one.
        </Empty>
      ) : (
        <Rows label={`Instances of ${detail.name}`} columns={["Id", "State", ...["Revision", "Memory", "Running", "Served"].map((name) => ({ name, num: true })), "Since", "Started because"]} cards>
          {detail.instances.map((one) => (
            <tr key={one.id}>
              <th scope="row">{one.id}</th>
              <td><State word={one.state} tone={toneOf(one.state)} /></td>
              <td>{one.revision === undefined ? "–" : `@${one.revision}`}</td>
              <td>{one.memory_bytes === undefined ? "–" : bytes(one.memory_bytes)}<small class="quiet"> / {bytes(detail.limits.memory_bytes)}</small></td>
              <td>{count(one.in_flight)}</td>
              <td>{count(one.served)}</td>
              <td><When at={one.started_at} /></td>
              <td class="wrap">{one.reason_text || one.reason || "–"}</td>
            </tr>
          ))}
        
        </Rows>
      )}
    </Panel>
  );
}
