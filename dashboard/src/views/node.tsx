// The start: what runs, who holds the memory, what happens, what is wrong, and who reaches the node.

import { useEffect } from "preact/hooks";
import { call, get, session } from "../lib/api";
import { bytes, count, figure, percent, plural, span } from "../lib/format";
import { usePoll } from "../lib/poll";
import { to } from "../lib/route";
import { clean } from "../lib/text";
import type { Check, FunctionDetail, Namespace, NodeStatus } from "../lib/types";
import { details, doctor, events, functions, refreshDoctor, series, status, total, turn, watchEvents, type NodeEvent } from "../store/node";
import { Command, Empty, Failure, Icon, Loading, Panel, Stat, State, toneOf, When } from "../ui/base";
import { Title } from "../ui/title";

export function NodeView() {
  useEffect(watchEvents, []);
  const node = status.value;
  const namespace = session.value?.namespace;
  if (namespace) {
    return (
      <>
        <Title text={`Namespace ${namespace}`} lead="Your token is for this namespace. The state of the whole node is not shown." />
        <Figures />
        <div class="columns">
          <Quota name={namespace} />
          <Happenings />
        </div>
        <Failing />
      </>
    );
  }
  return (
    <>
      <Title text="Node" lead={node ? lead(node) : "Reading the state of the node…"} />
      <Findings />
      <Figures />
      <div class="columns">
        <Memory />
        <Happenings />
      </div>
      <div class="columns">
        <Failing />
        <Reached />
      </div>
      <Checks />
    </>
  );
}

function lead(node: NodeStatus): string {
  return `Running for ${span(node.uptime_ms)}, process ${node.pid}, data in ${node.data_dir}`;
}

function Figures() {
  const node = status.value;
  const sum = total.value;
  void turn.value;
  let rate = 0;
  let failed = 0;
  for (const ring of series.values()) {
    rate += ring.last()?.rate ?? 0;
    failed += ring.last()?.failed ?? 0;
  }
  const first = functions.value === undefined;
  return (
    <dl class="stats">
      <Stat label="Functions" value={first ? "–" : count(functions.value!.length)} note={first ? "" : `${count(functions.value!.filter((one) => one.instances > 0).length)} with instances`} />
      <Stat label="Instances" value={first ? "–" : count(sum.instances)} note={sum.starting > 0 ? `${count(sum.starting)} starting` : "none starting"} />
      <Stat label="Calls" value={`${figure(rate)} /s`} note={`${count(sum.running)} running, ${count(sum.queued)} waiting`} />
      <Stat label="Failed" value={`${figure(failed)} /s`} note={`${count(sum.failed)} of ${count(sum.calls)} since the start`} {...(failed > 0 ? { tone: "fail" as const } : {})} />
      {session.value?.namespace ? null : <Stat label="Memory of the node" value={node ? bytes(node.memory_bytes) : "–"} note="without instances" />}
    </dl>
  );
}

const isWrong = (check: Check) => check.state === "warn" || check.state === "fail";

function Findings() {
  const wrong = doctor.value?.checks.filter(isWrong) ?? [];
  const notes = Object.entries(status.value?.notes ?? {});
  if (wrong.length === 0 && notes.length === 0) return null;
  return (
    <Panel title="Needs attention" class="panel-attention">
      <ul class="findings">
        {wrong.map((one) => <Finding key={one.name} check={one} />)}
        {notes.map(([name, text]) => (
          <li key={name}>
            <State word={name} tone="warn" /> <span>{text}</span>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function Finding({ check }: { check: Check }) {
  return (
    <li>
      <State word={check.name} tone={toneOf(check.state)} />{" "}
      <span>
        <span class="sr-only">{check.state === "fail" ? "failed: " : check.state === "warn" ? "warning: " : ""}</span>
        {check.detail}
      </span>
      {check.hint ? <p class="hint">{check.hint}</p> : null}
    </li>
  );
}

/** Shares of the budget that a bar shows one by one. */
const HOLDERS = 6;

function Memory() {
  const budget = status.value?.budget;
  if (!budget) return <Panel title="Memory"><Loading what="the budget" /></Panel>;
  const all = [...details.value.values()].map((one) => ({ name: one.name, held: held(one), used: used(one) })).filter((one) => one.held > 0);
  all.sort((a, b) => b.held - a.held || (a.name < b.name ? -1 : 1));
  const shown = all.slice(0, HOLDERS);
  const rest = Math.max(0, budget.taken_bytes - shown.reduce((sum, one) => sum + one.held, 0));
  const free = Math.max(0, budget.memory_bytes - budget.taken_bytes);
  // A share of a large machine would be a line of no width; the bar then shows what is taken.
  const scale = Math.max(budget.taken_bytes, 1);
  // The list of instances may be older than the budget, so one of them may hold more than is taken now.
  const share = (held: number) => `${Math.min(100, (held / scale) * 100)}%`;
  return (
    <Panel title="Memory" aside={<span class="quiet">{bytes(budget.memory_bytes)} for instances</span>}>
      <div class="meter" role="img" aria-label={`${percent(budget.taken_bytes, budget.memory_bytes)} of the memory for instances is taken`}>
        <span class="meter-fill" style={{ width: `${Math.min(100, (budget.taken_bytes / Math.max(budget.memory_bytes, 1)) * 100)}%` }} />
      </div>
      <p class="meter-text">
        <strong>{bytes(budget.taken_bytes)}</strong> taken ({percent(budget.taken_bytes, budget.memory_bytes)}), {bytes(free)} free, {bytes(budget.peak_bytes)} at most since the start
        {budget.leaving_bytes > 0 ? `, ${bytes(budget.leaving_bytes)} being given back` : ""}
        {budget.promised_bytes > 0 ? `, ${bytes(budget.promised_bytes)} promised to starts` : ""}
      </p>
      {shown.length === 0 && rest === 0 ? (
        <Empty title="No instance holds memory.">The next call of a function starts one.</Empty>
      ) : (
        <table class="table table-dense">
          <caption class="sr-only">Who holds the memory</caption>
          <thead>
            <tr>
              <th scope="col">Function</th>
              <th scope="col" class="num">Held</th>
              <th scope="col" class="num">Used</th>
              <th scope="col" class="bar-column"><span class="sr-only">Share</span></th>
            </tr>
          </thead>
          <tbody>
            {shown.map((one) => (
              <tr key={one.name}>
                <th scope="row"><a href={to(["functions", one.name])}>{one.name}</a></th>
                <td class="num">{bytes(one.held)}</td>
                <td class="num">{one.used > 0 ? bytes(one.used) : "–"}</td>
                <td class="bar-column"><span class="bar" style={{ width: share(one.held) }} /></td>
              </tr>
            ))}
            {rest > 0 ? (
              <tr>
                <th scope="row" class="quiet">{all.length > HOLDERS ? plural(all.length - HOLDERS, "more function") : "starting, stopping or prewarmed"}</th>
                <td class="num">{bytes(rest)}</td>
                <td class="num">–</td>
                <td class="bar-column"><span class="bar bar-quiet" style={{ width: share(rest) }} /></td>
              </tr>
            ) : null}
          </tbody>
        </table>
      )}
    </Panel>
  );
}

/** What the namespace uses, and what it may use. */
function Quota({ name }: { name: string }) {
  const list = usePoll(`namespace ${name}`, 5000, (abort) => get<Namespace>(`/v1/namespaces/${encodeURIComponent(name)}`, abort));
  const one = list.data.value;
  if (!one) return <Panel title="Limits">{list.error.value ? <Failure error={list.error.value} /> : <Loading what="the limits" />}</Panel>;
  const { quotas } = one;
  const rows: [string, number, number | undefined, (value: number) => string][] = [
    ["Functions", one.functions, quotas.functions, count],
    ["Instances", one.instances, quotas.instances, count],
    ["Memory of instances", one.memory_bytes, quotas.memory_bytes, bytes],
    ["Code", one.disk_bytes, quotas.disk_bytes, bytes],
    ["State", one.state_bytes, quotas.state_bytes, bytes],
  ];
  return (
    <Panel title="Limits">
      <table class="table table-dense">
        <caption class="sr-only">What the namespace uses and may use</caption>
        <thead>
          <tr>
            <th scope="col">What</th>
            <th scope="col" class="num">Used</th>
            <th scope="col" class="num">At most</th>
            <th scope="col" class="bar-column"><span class="sr-only">Share</span></th>
          </tr>
        </thead>
        <tbody>
          {rows.map(([what, used, most, text]) => (
            <tr key={what}>
              <th scope="row">{what}</th>
              <td class="num">{text(used)}</td>
              <td class="num">{most === undefined ? "no limit" : text(most)}</td>
              <td class="bar-column">{most ? <span class="bar" style={{ width: `${Math.min(100, (used / most) * 100)}%` }} /> : null}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

function held(one: FunctionDetail): number {
  return one.limits.memory_bytes * (one.instances.length + one.starting);
}

function used(one: FunctionDetail): number {
  return one.instances.reduce((sum, instance) => sum + (instance.memory_bytes ?? 0), 0);
}

function Happenings() {
  const list = events.value;
  return (
    <Panel title="Starts, stops and failures" aside={<span class="quiet">newest first</span>}>
      {functions.value === undefined ? (
        <Loading what="the functions" />
      ) : list.length === 0 ? (
        <Empty title="Nothing has happened yet." {...(functions.value[0] ? { command: `mote invoke ${functions.value[0].name}` } : {})}>
          Instances that start or stop appear here with the reason.
        </Empty>
      ) : (
        <div class="scroll scroll-events" tabIndex={0} role="region" aria-label="Starts, stops and failures">
          <ol class="events">
            {list.slice(0, 100).map((one) => <Happening key={one.key} event={one} />)}
          </ol>
        </div>
      )}
    </Panel>
  );
}

function Happening({ event }: { event: NodeEvent }) {
  return (
    <li class={`event event-${event.kind}`}>
      <Icon name={event.kind === "failed" ? "fail" : event.kind} />
      <div>
        <p>
          <a href={to(["functions", event.function])}>{event.function}</a> {event.title}
          {event.invocation ? <> · <a href={to(["call", event.invocation])}>show the call</a></> : null}
        </p>
        {event.reason ? <p class="event-reason">{event.reason}</p> : null}
      </div>
      <When at={event.at} />
    </li>
  );
}

/** The metrics of all functions come with it, so it is not asked for often. */
const REFUSED_EVERY_MS = 30_000;
/** With more functions, the metrics are too much for a page. */
const REFUSED_FUNCTIONS_MAX = 200;

/** Calls that were refused before they reached a function, by code. */
async function readRefused(abort: AbortSignal): Promise<{ code: string; count: number }[]> {
  if ((functions.value?.length ?? 0) > REFUSED_FUNCTIONS_MAX) return [];
  const answer = await call("/metrics", { signal: abort });
  const found = (await answer.text()).matchAll(/^mote_refused_calls_total\{code="(M\d+)"\} (\d+)$/gm);
  return [...found].map((match) => ({ code: match[1]!, count: Number(match[2]) })).filter((one) => one.count > 0);
}

function Failing() {
  void turn.value;
  const list = (functions.value ?? []).filter((one) => one.last_error || one.requests.failed > 0);
  const refused = usePoll("refused", REFUSED_EVERY_MS, session.value?.namespace ? async () => [] : readRefused).data.value ?? [];
  list.sort((a, b) => (b.last_error?.time ?? "").localeCompare(a.last_error?.time ?? ""));
  return (
    <Panel title="Failed and refused calls" aside={<span class="quiet">since the start</span>}>
      {refused.length > 0 ? (
        <table class="table table-dense">
          <caption class="sr-only">Calls refused before they reached a function</caption>
          <tbody>
            {refused.map((one) => (
              <tr key={one.code}>
                <th scope="row">refused with <code>{one.code}</code></th>
                <td class="num">{count(one.count)}</td>
                <td class="quiet"><code>mote explain {one.code}</code></td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
      {list.length === 0 && refused.length > 0 ? null : list.length === 0 ? (
        <Empty title="No call has failed.">Functions whose calls fail or are refused appear here with the last error.</Empty>
      ) : (
        <ul class="failing">
          {list.slice(0, 8).map((one) => (
            <li key={one.name}>
              <p class="row row-spread">
                <a href={to(["functions", one.name])}>{one.name}</a>
                <span class="quiet">{count(one.requests.failed)} of {count(one.requests.total)}</span>
              </p>
              {one.last_error ? (
                <p class="error-line">
                  <code>{one.last_error.code}</code> <span class="clip" title={clean(one.last_error.message)}>{clean(one.last_error.message)}</span> <When at={one.last_error.time} />
                </p>
              ) : null}
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Reached() {
  const report = doctor.value;
  const open = (report?.reach ?? []).length > 0;
  const list = open ? report!.reach! : (report?.functions ?? []);
  return (
    <Panel title="What other machines reach" aside={report ? <State word={open ? "open" : "this machine only"} tone={open ? "warn" : "ok"} /> : null}>
      {!report ? (
        <Loading what="the listeners" />
      ) : (
        <>
          {open ? null : (
            <p class="text">
              Other machines reach nothing on this node. To open it: <code class="whole">mote up --lan</code>
            </p>
          )}
          <div class="scroll scroll-short" tabIndex={0} role="region" aria-label="What other machines reach">
            <dl class="pairs">
              {list.map((one) => (
                <div key={one.what}>
                  <dt>{one.what}{one.address ? <code> {one.address}</code> : null}</dt>
                  <dd>{one.who}</dd>
                </div>
              ))}
            </dl>
          </div>
        </>
      )}
    </Panel>
  );
}

function Checks() {
  const report = doctor.value;
  if (!report) return null;
  const wrong = report.checks.filter(isWrong).length;
  return (
    <Panel
      title="Checks of the machine"
      aside={<button type="button" class="button button-small" onClick={refreshDoctor}>Check again</button>}
    >
      <details>
        <summary>{wrong === 0 ? `All ${report.checks.length} checks are fine` : `${wrong} of ${report.checks.length} checks found something`}</summary>
        <ul class="checks">
          {report.checks.map((one) => <Finding key={one.name} check={one} />)}
        </ul>
        <Command text="mote doctor" />
      </details>
    </Panel>
  );
}
