// One call: where its time went, what became of it, and what it said.

import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, get } from "../lib/api";
import { clock, day, micros, plural } from "../lib/format";
import { route, to } from "../lib/route";
import { clean } from "../lib/text";
import type { Invocation, Span, Trace } from "../lib/types";
import { readTraces } from "../store/traces";
import { Command, CopyButton, Empty, Loading, Panel, State, toneOf, When } from "../ui/base";
import { Logs } from "../ui/logs";
import { NoTraces } from "./function/calls";
import { Title } from "../ui/title";

interface Found {
  invocation?: Invocation;
  trace?: Trace;
  /** Why the trace cannot be read. */
  without?: ApiError;
  /** The node records no traces. */
  untraced?: boolean;
  function?: string;
}

export function CallView({ id }: { id: string }) {
  const query = route.value.query;
  const [found, setFound] = useState<Found | undefined>();
  const [turn, setTurn] = useState(0);
  const name = query.get("function") ?? undefined;
  const traceId = query.get("trace") ?? undefined;
  useEffect(() => {
    let current = true;
    void find(id, name, traceId).then((result) => current && setFound(result));
    return () => {
      current = false;
    };
  }, [id, name, traceId, turn]);
  const of = found?.function ?? name;
  const invocation = found?.invocation;
  const span = found?.trace?.spans.find((one) => one.invocation && (one.invocation === id || one.function === of));
  const logged = invocation?.id ?? span?.invocation ?? (found?.trace && !invocation && id === found.trace.trace ? undefined : id);
  return (
    <>
      <Title
        text={`Call ${id.slice(-8)}`}
        lead={
          <>
            {of ? <>of <a href={to(["functions", of])}>{of}</a> · </> : null}
            <code>{id}</code> <CopyButton text={id} what="the id" />
          </>
        }
      >
        <button type="button" class="button" onClick={() => setTurn(turn + 1)}>Read again</button>
      </Title>
      {!found ? (
        <Loading what="the call" />
      ) : (
        <>
          <Panel title="Where the time went">
            {found.trace && found.trace.spans.length > 0 ? (
              <Waterfall spans={found.trace.spans} />
            ) : found.untraced ? (
              <NoTraces />
            ) : found.without && found.without.status !== 404 ? (
              <Empty title="The trace cannot be read.">{found.without.message}</Empty>
            ) : (
              <Empty title="There is no trace of this call.">Only the latest calls are kept. Older ones make room.</Empty>
            )}
          </Panel>
          {invocation ? <Accepted invocation={invocation} /> : null}
          <Panel title="Log lines of this call">
            {of && logged ? (
              <Logs key={`${of} ${logged} ${turn}`} name={of} invocation={logged} follow={false} short />
            ) : (
              <Empty title="The function of this call is not known." {...(logged ? { command: `mote logs NAME --invocation ${logged}` } : {})}>
                Open the call from its function to see its lines.
              </Empty>
            )}
          </Panel>
        </>
      )}
    </>
  );
}

async function find(id: string, name: string | undefined, traceId: string | undefined): Promise<Found> {
  // Most calls were not accepted for later, so the list is asked, which may be empty.
  const accepted = await get<{ invocations: Invocation[] }>(`/v1/invocations?id=${encodeURIComponent(id)}`).catch(() => undefined);
  const invocation = accepted?.invocations[0];
  const found: Found = {};
  if (invocation) found.invocation = invocation;
  const of = name ?? invocation?.function;
  if (of) found.function = of;
  try {
    let trace = traceId;
    if (!trace) {
      const traces = await readTraces({ limit: "1000", ...(of ? { function: of } : {}) });
      if (!traces) return { ...found, untraced: true };
      const match = traces.find((one) => one.invocation === id || one.trace === id);
      trace = match?.trace;
      if (match && !of) found.function = match.function;
    }
    if (trace) {
      found.trace = await get<Trace>(`/v1/traces/${encodeURIComponent(trace)}`);
      const first = found.trace.spans.find((one) => one.function);
      if (!found.function && first?.function) found.function = first.function;
    }
  } catch (error) {
    if (error instanceof ApiError) found.without = error;
  }
  return found;
}

interface Row {
  span: Span;
  depth: number;
}

/** Spans under their parents, by their beginning. A span whose parent is missing is a root. */
function tree(spans: Span[]): Row[] {
  const ids = new Set(spans.map((one) => one.span));
  const children = new Map<string, Span[]>();
  for (const one of [...spans].sort((a, b) => a.start_us - b.start_us)) {
    const parent = one.parent && ids.has(one.parent) && one.parent !== one.span ? one.parent : "";
    children.set(parent, [...(children.get(parent) ?? []), one]);
  }
  const rows: Row[] = [];
  const seen = new Set<string>();
  const visit = (parent: string, depth: number) => {
    for (const one of children.get(parent) ?? []) {
      if (seen.has(one.span)) continue;
      seen.add(one.span);
      rows.push({ span: one, depth: Math.min(depth, 12) });
      visit(one.span, depth + 1);
    }
  };
  visit("", 0);
  for (const one of spans) if (!seen.has(one.span)) rows.push({ span: one, depth: 0 });
  return rows;
}

function Waterfall({ spans }: { spans: Span[] }) {
  const rows = useMemo(() => tree(spans), [spans]);
  const [chosen, setChosen] = useState<string | undefined>();
  const start = Math.min(...spans.map((one) => one.start_us));
  const end = Math.max(...spans.map((one) => one.start_us + one.duration_us));
  const whole = Math.max(1, end - start);
  const failed = spans.filter((one) => one.status === "error").length;
  const longest = rows.filter(({ depth }) => depth > 0).sort((a, b) => b.span.duration_us - a.span.duration_us)[0]?.span;
  const open = rows.find(({ span }) => span.span === chosen)?.span;
  return (
    <>
      <p class="chart-summary">
        {clock(start / 1000, true)}: {micros(whole)} in {plural(spans.length, "step")}, {failed === 0 ? "none failed" : `${failed} failed`}
        {longest ? `; the longest step was ${clean(longest.name)} with ${micros(longest.duration_us)}` : ""}.
      </p>
      <table class="table table-dense waterfall">
        <caption class="sr-only">Steps of the call</caption>
        <thead>
          <tr>
            <th scope="col">Step</th>
            <th scope="col" class="num">Begins</th>
            <th scope="col" class="num">Takes</th>
            <th scope="col" class="water-column">
              <span class="sr-only">Place in time</span>
              <span class="water-axis" aria-hidden="true"><span>0</span><span>{micros(whole / 2)}</span><span>{micros(whole)}</span></span>
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ span, depth }) => (
            <tr key={span.span} class={span.status === "error" ? "water-failed" : ""}>
              <th scope="row" style={{ paddingLeft: `${depth * 14}px` }}>
                <button type="button" class="link" aria-expanded={chosen === span.span} onClick={() => setChosen(chosen === span.span ? undefined : span.span)}>
                  {clean(span.name)}
                </button>
                {span.status === "error" ? <> <State word="failed" tone="fail" /></> : null}
              </th>
              <td class="num">{micros(span.start_us - start)}</td>
              <td class="num">{micros(span.duration_us)}</td>
              <td class="water-column">
                <span class="water" aria-hidden="true">
                  <span
                    class={`water-bar water-${kind(span)}`}
                    style={{ left: `${((span.start_us - start) / whole) * 100}%`, width: `${Math.max(0.4, (span.duration_us / whole) * 100)}%` }}
                  />
                </span>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {open ? <Attributes span={open} /> : null}
    </>
  );
}

function kind(span: Span): string {
  const name = span.name.toLowerCase();
  if (/queue|wait/.test(name)) return "queue";
  if (/start|init|spawn/.test(name)) return "start";
  return "run";
}

function Attributes({ span }: { span: Span }) {
  const rows: [string, string][] = [
    ...(span.function ? [["function", span.function] as [string, string]] : []),
    ...(span.revision !== undefined ? [["revision", `@${span.revision}`] as [string, string]] : []),
    ...(span.instance ? [["instance", span.instance] as [string, string]] : []),
    ...(span.invocation ? [["invocation", span.invocation] as [string, string]] : []),
    ["kind", span.kind],
    ...Object.entries(span.attributes ?? {}).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)] as [string, string]),
  ];
  return (
    <div class="log-whole">
      <h3>{clean(span.name)}</h3>
      <dl class="pairs">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{clean(name)}</dt>
            <dd>{clean(value)}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}

function Accepted({ invocation }: { invocation: Invocation }) {
  const rows: [string, preact.ComponentChildren][] = [
    ["State", <State word={invocation.state === "dead" ? "dead letter" : invocation.state} tone={toneOf(invocation.state)} />],
    ["Trigger", invocation.trigger],
    ["Accepted", day(invocation.accepted_at)],
    ["Attempts", String(invocation.attempts)],
  ];
  if (invocation.due_at) rows.push(["Runs", <When at={invocation.due_at} />]);
  if (invocation.began_at) rows.push(["Last attempt", `${day(invocation.began_at)}${invocation.ended_at ? ` to ${clock(invocation.ended_at, true)}` : ""}`]);
  if (invocation.status !== undefined) rows.push(["Status", String(invocation.status)]);
  if (invocation.fault) rows.push(["Fault", <><code>{invocation.fault}</code> {clean(invocation.detail ?? "")}</>]);
  if (invocation.idempotency_key) rows.push(["Idempotency key", clean(invocation.idempotency_key)]);
  return (
    <Panel title="Accepted call">
      <dl class="pairs">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {invocation.body !== undefined ? (
        <>
          <h3>Answer</h3>
          <pre class="value" tabIndex={0} role="group" aria-label="Body of the answer">{clean(invocation.body)}</pre>
        </>
      ) : invocation.body_base64 !== undefined ? (
        <Command text={`mote invocation result ${invocation.id} > answer`} />
      ) : null}
    </Panel>
  );
}
