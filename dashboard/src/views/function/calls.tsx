// Calls of the function: traces of all kinds, and those that were accepted for later with their
// dead letters.

import { useState } from "preact/hooks";
import { get, mayDeploy, send } from "../../lib/api";
import { count, micros } from "../../lib/format";
import { usePoll } from "../../lib/poll";
import { to } from "../../lib/route";
import { clean } from "../../lib/text";
import type { Invocation, TraceSummary } from "../../lib/types";
import { announce, Confirm, Empty, Failure, Loading, Panel, State, toneOf, useAction, When } from "../../ui/base";

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

function Traces({ name }: { name: string }) {
  const traces = usePoll(name, 5000, (abort) => get<{ traces: TraceSummary[] }>(`/v1/traces?function=${encodeURIComponent(name)}&limit=100`, abort));
  const error = traces.error.value;
  const list = traces.data.value?.traces;
  return (
    <Panel title="Recent calls" aside={list ? <span class="quiet">newest first</span> : null}>
      {error?.status === 404 ? (
        <NoTraces />
      ) : error && !list ? (
        <Failure error={error} retry={traces.refresh} />
      ) : !list ? (
        <Loading what="the traces" />
      ) : list.length === 0 ? (
        <Empty title="No call was recorded yet." command={`mote invoke ${name}`} />
      ) : (
        <div class="scroll scroll-events" tabIndex={0} role="region" aria-label={`Recent calls of ${name}`}>
          <table class="table table-dense">
            <thead>
              <tr>
                <th scope="col">Call</th>
                <th scope="col">When</th>
                <th scope="col">Trigger</th>
                <th scope="col">Result</th>
                <th scope="col" class="num">Took</th>
                <th scope="col">Start</th>
              </tr>
            </thead>
            <tbody>
              {list.map((one) => (
                <tr key={`${one.trace} ${one.span}`}>
                  <th scope="row">
                    <a href={to(["call", one.invocation ?? one.trace], { function: name, trace: one.trace })}>
                      <code>{(one.invocation ?? one.trace).slice(-8)}</code>
                    </a>
                    {one.name ? <span class="under">{clean(one.name)}</span> : null}
                  </th>
                  <td><When at={one.started_at} /></td>
                  <td>{one.trigger ?? "–"}</td>
                  <td><State word={`${OUTCOMES[one.outcome] ?? one.outcome}${one.status ? ` (${one.status})` : ""}`} tone={one.outcome === "ok" ? "ok" : "fail"} /></td>
                  <td class="num">{micros(one.duration_us)}</td>
                  <td>{one.cold ? "cold" : "warm"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Panel>
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
  return (
    <Panel
      title="Calls accepted for later"
      aside={
        <label class="inline">
          State
          <select value={state} onChange={(event) => setState(event.currentTarget.value)}>
            {STATES.map((one) => <option key={one} value={one}>{one === "" ? "all" : one === "dead" ? "dead letters" : one}</option>)}
          </select>
        </label>
      }
    >
      {action.error ? <Failure error={action.error} /> : null}
      {dead > 0 && mayDeploy() ? (
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
      ) : null}
      {calls.error.value && !list ? <Failure error={calls.error.value} retry={calls.refresh} /> : null}
      {!list ? (
        calls.error.value ? null : <Loading what="the calls" />
      ) : list.length === 0 ? (
        <Empty title={state ? "No call is in this state." : "No call was accepted for later."} command={`mote invoke ${name} --async`}>
          Calls with “Prefer: respond-async”, runs of schedules and stored messages are kept here. The command makes one:
        </Empty>
      ) : (
        <div class="scroll scroll-events" tabIndex={0} role="region" aria-label={`Accepted calls of ${name}`}>
          <table class="table table-dense">
            <thead>
              <tr>
                <th scope="col">Call</th>
                <th scope="col">State</th>
                <th scope="col">Accepted</th>
                <th scope="col">Trigger</th>
                <th scope="col" class="num">Attempts</th>
                <th scope="col">Result</th>
                <th scope="col"><span class="sr-only">Actions</span></th>
              </tr>
            </thead>
            <tbody>
              {list.map((one) => (
                <tr key={one.id}>
                  <th scope="row"><a href={to(["call", one.id], { function: name })}><code>{one.id.slice(-8)}</code></a></th>
                  <td><State word={one.state === "dead" ? "dead letter" : one.state} tone={toneOf(one.state)} /></td>
                  <td><When at={one.accepted_at} /></td>
                  <td>{one.trigger}</td>
                  <td class="num">{count(one.attempts)}</td>
                  <td class="wrap">{one.fault ? <><code>{one.fault}</code> {one.detail ?? ""}</> : (one.status ?? "–")}</td>
                  <td class="num">
                    {one.state === "dead" && mayDeploy() ? (
                      <button type="button" class="button button-small" disabled={action.busy} aria-label={`Run again ${one.id}`} onClick={() => void act(() => send("POST", `/v1/invocations/${encodeURIComponent(one.id)}/retry`), "It waits to run again.")}>
                        Run again
                      </button>
                    ) : null}
                    {(one.state === "waiting" || one.state === "running") && mayDeploy() ? (
                      <button type="button" class="button button-small" disabled={action.busy} aria-label={`Cancel ${one.id}`} onClick={() => void act(() => send("DELETE", `/v1/invocations/${encodeURIComponent(one.id)}`), "Cancelled.")}>
                        Cancel
                      </button>
                    ) : null}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
          {calls.data.value?.more ? <p class="quiet small">Older calls: <code>mote invocation list --function {name}</code></p> : null}
        </div>
      )}
    </Panel>
  );
}
