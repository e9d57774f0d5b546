// Calls of the function: traces of all kinds, and those that were accepted for later with their
// dead letters.

import { useState } from "preact/hooks";
import { get, mayDeploy, send } from "../../lib/api";
import { count, micros } from "../../lib/format";
import { usePoll } from "../../lib/poll";
import { to } from "../../lib/route";
import { clean } from "../../lib/text";
import type { Invocation } from "../../lib/types";
import { readTraces } from "../../store/traces";
import { announce, Confirm, Empty, Failure, Panel, State, toneOf, useAction, When } from "../../ui/base";
import { ListPanel, Rows } from "../../ui/rows";

export function Calls({ name }: { name: string }) {
  return (
    <>
      <Traces name={name} />
      <Accepted name={name} />
    </>
  );
}

const OUTCOMES: Record<string, string> = {
  caller: "caller’s fault",
  function: "function failed",
  timeout: "timed out",
  capacity: "no room",
  platform: "mote failed",
};

const SLOW = "1s";
const SHOWN: { name: string; query: Record<string, string> }[] = [
  { name: "all", query: {} },
  { name: "failed", query: { outcome: "failed" } },
  { name: "slow (1 s or more)", query: { slower_than: SLOW } },
];

function Traces({ name }: { name: string }) {
  const [shown, setShown] = useState(0);
  const traces = usePoll(`${name} ${shown}`, 5000, (abort) => readTraces({ function: name, limit: "100", ...SHOWN[shown]!.query }, abort));
  const list = traces.data.value;
  const choice = (
    <label class="inline">
      Show
      <select value={shown} onChange={(event) => setShown(Number(event.currentTarget.value))}>
        {SHOWN.map((one, at) => <option key={one.name} value={at}>{one.name}</option>)}
      </select>
    </label>
  );
  if (list === null) return <Panel title="Recent calls"><NoTraces /></Panel>;
  return (
    <ListPanel
      title="Recent calls"
      aside={choice}
      error={traces.error.value}
      retry={traces.refresh}
      count={list?.length}
      what="call"
      empty={shown > 0 ? <Empty title={`No ${shown === 1 ? "failed" : "slow"} call is kept.`} /> : <Empty title="No call was recorded yet." command={`mote invoke ${name}`} />}
    >
      <Rows label={`Recent calls of ${name}`} columns={["Call", "When", { name: "Trigger", rest: true }, "Result", { name: "Took", num: true }, { name: "Start", rest: true }]} tall="calls">
        {list?.map((one) => (
          <tr key={`${one.trace} ${one.span}`}>
            <th scope="row">
              <a href={to(["call", one.invocation ?? one.trace], { function: name, trace: one.trace })}>
                <code>{(one.invocation ?? one.trace).slice(-8)}</code>
              </a>
              <span class="under">{clean(one.name)}</span>
            </th>
            <td><When at={one.started_at} /></td>
            <td>{one.trigger ?? "–"}</td>
            <td><State word={`${OUTCOMES[one.outcome] ?? one.outcome}${one.status ? ` (${one.status})` : ""}`} tone={one.outcome === "ok" ? "ok" : "fail"} /></td>
            <td>{micros(one.duration_us)}</td>
            <td>{one.cold ? "cold" : "warm"}</td>
          </tr>
        ))}
      </Rows>
    </ListPanel>
  );
}

/** What is shown while the setting `trace` is off. */
export function NoTraces() {
  return (
    <Empty title="The node records no traces." command="mote up --trace 1%">
      With traces, calls appear here with the time that they spent in each phase. The setting trace turns them on:
    </Empty>
  );
}

const STATES = ["", "waiting", "running", "succeeded", "dead", "cancelled"];

function Accepted({ name }: { name: string }) {
  const [state, setState] = useState("");
  const query = new URLSearchParams({ function: name, limit: "200", ...(state ? { state } : {}) });
  const calls = usePoll(`${name} ${state}`, 5000, (abort) => get<{ invocations: Invocation[]; more?: boolean }>(`/v1/invocations?${query}`, abort));
  const action = useAction();
  const act = (work: () => Promise<unknown>, said: string) =>
    action.run(async () => {
      await work();
      announce(said);
      calls.refresh();
    });
  const list = calls.data.value?.invocations;
  const dead = list?.filter((one) => one.state === "dead").length ?? 0;
  const choice = (
    <label class="inline">
      State
      <select value={state} onChange={(event) => setState(event.currentTarget.value)}>
        {STATES.map((one) => <option key={one} value={one}>{one === "" ? "all" : one === "dead" ? "dead letters" : one}</option>)}
      </select>
    </label>
  );
  const letters =
    dead > 0 && mayDeploy() ? (
      <div class="warning row row-spread">
        <span>{count(dead)} failed for good and are kept as dead letters.</span>
        <Confirm
          label="Delete all dead letters"
          question={`Delete all dead letters of ${name}?`}
          yes="Delete"
          disabled={action.busy}
          onYes={() => void act(() => send("DELETE", `/v1/dead-letters?function=${encodeURIComponent(name)}`), "Dead letters deleted.")}
        />
      </div>
    ) : null;
  const button = (label: string, id: string, work: () => Promise<unknown>, said: string) => (
    <button type="button" class="button button-small" disabled={action.busy} aria-label={`${label} ${id}`} onClick={() => void act(work, said)}>
      {label}
    </button>
  );
  const path = (id: string) => `/v1/invocations/${encodeURIComponent(id)}`;
  return (
    <ListPanel
      title="Calls accepted for later"
      aside={choice}
      error={calls.error.value}
      retry={calls.refresh}
      count={list?.length}
      what="call"
      before={<>{action.error ? <Failure error={action.error} /> : null}{letters}</>}
      empty={
        <Empty title={state ? "No call is in this state." : "No call was accepted for later."} command={`mote invoke ${name} --async`}>
          Calls with “Prefer: respond-async”, runs of schedules and stored messages are kept here. The command makes one:
        </Empty>
      }
    >
      <Rows label={`Accepted calls of ${name}`} columns={["Call", "State", "Accepted", "Trigger", { name: "Attempts", num: true }, "Result"]} actions cards tall="calls">
        {list?.map((one) => (
          <tr key={one.id}>
            <th scope="row"><a href={to(["call", one.id], { function: name })}><code>{one.id.slice(-8)}</code></a></th>
            <td><State word={one.state === "dead" ? "dead letter" : one.state} tone={toneOf(one.state)} /></td>
            <td><When at={one.accepted_at} /></td>
            <td>{one.trigger}</td>
            <td>{count(one.attempts)}</td>
            <td class="wrap">{one.fault ? <><code>{one.fault}</code> {clean(one.detail ?? "")}</> : (one.status ?? "–")}</td>
            <td class="num">
              {one.state === "dead" && mayDeploy() ? button("Run again", one.id, () => send("POST", `${path(one.id)}/retry`), "It waits to run again.") : null}
              {(one.state === "waiting" || one.state === "running") && mayDeploy() ? button("Cancel", one.id, () => send("DELETE", path(one.id)), "Cancelled.") : null}
            </td>
          </tr>
        ))}
      </Rows>
      {calls.data.value?.more ? <p class="quiet small">Older calls: <code>mote invocation list --function {name}</code></p> : null}
    </ListPanel>
  );
}
