import { useEffect, useState } from "preact/hooks";
import { functionPath, get, mayDeploy, send } from "../../lib/api";
import { plural } from "../../lib/format";
import { usePoll } from "../../lib/poll";
import type { RevisionInfo, TrafficResult } from "../../lib/types";
import type { Watch } from "../../store/function";
import { announce, Confirm, Empty, Failure, Field, Loading, Panel, State, toneOf, useAction, When } from "../../ui/base";
import { Rows } from "../../ui/rows";
import { Steps } from "../../ui/steps";

export function Revisions({ watch }: { watch: Watch }) {
  const { name } = watch;
  const list = usePoll(name, 10_000, (abort) => get<{ revisions: RevisionInfo[] }>(functionPath(name, "/revisions"), abort));
  const [done, setDone] = useState<TrafficResult | undefined>();
  const action = useAction();
  const revisions = list.data.value?.revisions;
  const error = list.error.value;
  const change = (work: () => Promise<TrafficResult>) =>
    action.run(async () => {
      setDone(undefined);
      const result = await work();
      setDone(result);
      announce(`Traffic of ${name} has changed.`);
      list.refresh();
      watch.refresh();
    });
  const rollback = (revision: number) =>
    change(() => send<TrafficResult>("POST", functionPath(name, `/rollback?revision=${revision}`)));

  if (!revisions) return error ? <Failure error={error} retry={list.refresh} /> : <Loading what="the revisions" />;
  return (
    <>
      {action.error ? <Failure error={action.error} /> : null}
      {done ? (
        <div class="notice" role="status">
          <p>Traffic now: {done.traffic.map((one) => `@${one.revision} ${one.percent} %${one.tag ? ` (${one.tag})` : ""}`).join(", ")}</p>
          <Steps steps={done.steps} />
        </div>
      ) : null}
      <Panel title="Revisions" aside={<span class="quiet">{plural(revisions.length, "revision")} stored, newest first</span>}>
        {revisions.length === 0 ? (
          <Empty title="No revision is stored." />
        ) : (
          <Rows label={`Revisions of ${name}`} columns={["Revision", "State", { name: "Traffic", num: true }, "Tag", "Deployed", "Code"]} actions cards>
            {revisions.map((one) => (
              <tr key={one.revision}>
                <th scope="row">@{one.revision}</th>
                <td><State word={one.state} tone={toneOf(one.state)} /></td>
                <td>{one.percent} %</td>
                <td>{one.tag ? <code>{one.tag}</code> : <span class="quiet">–</span>}</td>
                <td><When at={one.created_at} /></td>
                <td><code title={one.code}>{one.code.replace("sha256:", "").slice(0, 10)}</code></td>
                <td class="num">
                  {mayDeploy() && one.percent < 100 ? (
                    <Confirm
                      plain
                      label="Send all traffic here"
                      name={`Send all traffic here: revision ${one.revision}`}
                      question={`Send all traffic of ${name} to revision ${one.revision}? An instance of it is started first; if it does not become ready, nothing changes.`}
                      yes="Send all traffic"
                      onYes={() => void rollback(one.revision)}
                      disabled={action.busy}
                    />
                  ) : null}
                </td>
              </tr>
            ))}
          
          </Rows>
        )}
      </Panel>
      {mayDeploy() && revisions.length > 1 ? (
        <div class="columns">
          <Split name={name} revisions={revisions} busy={action.busy} change={change} />
          <Tag name={name} revisions={revisions} busy={action.busy} change={change} />
        </div>
      ) : null}
    </>
  );
}

type Change = (work: () => Promise<TrafficResult>) => Promise<boolean>;

/** Revisions that the sliders offer; older ones are reached by the button in the table. */
const SLIDERS = 5;

function Split({ name, revisions, busy, change }: { name: string; revisions: RevisionInfo[]; busy: boolean; change: Change }) {
  const known = revisions.map((one) => `${one.revision}:${one.percent}`).join();
  const [shares, setShares] = useState<Map<number, number>>(new Map());
  useEffect(() => setShares(new Map(revisions.map((one) => [one.revision, one.percent]))), [known]);
  const shown = revisions.filter((one, at) => at < SLIDERS || one.percent > 0);
  const changed = revisions.some((one) => (shares.get(one.revision) ?? 0) !== one.percent);
  const total = [...shares.values()].reduce((sum, value) => sum + value, 0);
  const submit = (event: Event) => {
    event.preventDefault();
    const wish = [...shares].filter(([, percent]) => percent > 0).map(([revision, percent]) => ({ revision, percent }));
    void change(() => send<TrafficResult>("PUT", functionPath(name, "/traffic"), { shares: wish }));
  };
  return (
    <Panel title="Split the traffic">
      <form onSubmit={submit}>
        {shown.map((one) => (
          <div class="slider" key={one.revision}>
            <label for={`share-${one.revision}`}>@{one.revision}{one.tag ? <span class="quiet"> {one.tag}</span> : null}</label>
            <input
              id={`share-${one.revision}`}
              type="range"
              min={0}
              max={100}
              step={1}
              value={shares.get(one.revision) ?? 0}
              aria-valuetext={`${shares.get(one.revision) ?? 0} percent`}
              onInput={(event) => setShares(moved(shares, one.revision, Number(event.currentTarget.value)))}
            />
            <output class="num" for={`share-${one.revision}`}>{shares.get(one.revision) ?? 0} %</output>
          </div>
        ))}
        <p class="hint">The shares always add up to 100 %. What one revision gains, the others lose.</p>
        <div class="row">
          <button type="submit" class="button button-filled" disabled={busy || !changed || total !== 100}>
            {busy ? "Changing…" : "Apply"}
          </button>
          <button type="button" class="button" disabled={!changed} onClick={() => setShares(new Map(revisions.map((one) => [one.revision, one.percent])))}>
            Undo
          </button>
        </div>
      </form>
    </Panel>
  );
}

/** The shares when one of them is set: the others keep their proportions. */
export function moved(shares: Map<number, number>, revision: number, value: number): Map<number, number> {
  const next = new Map(shares);
  const others = [...shares.keys()].filter((one) => one !== revision);
  const rest = 100 - value;
  const before = others.reduce((sum, one) => sum + shares.get(one)!, 0);
  let left = rest;
  others.forEach((one, at) => {
    const share = before > 0 ? Math.min(left, Math.round((shares.get(one)! / before) * rest)) : at === 0 ? rest : 0;
    next.set(one, share);
    left -= share;
  });
  const largest = others.sort((a, b) => next.get(b)! - next.get(a)!)[0];
  if (largest !== undefined) next.set(largest, next.get(largest)! + left);
  next.set(revision, largest === undefined ? 100 : value);
  return next;
}

function Tag({ name, revisions, busy, change }: { name: string; revisions: RevisionInfo[]; busy: boolean; change: Change }) {
  const [revision, setRevision] = useState(revisions[0]!.revision);
  const [tag, setTag] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    void change(() => send<TrafficResult>("PUT", functionPath(name, "/traffic"), { shares: [{ revision, tag }] }));
  };
  return (
    <Panel title="Tag a revision">
      <form onSubmit={submit}>
        <Field label="Revision">
          {(id) => (
            <select id={id} value={revision} onChange={(event) => setRevision(Number(event.currentTarget.value))}>
              {revisions.map((one) => <option key={one.revision} value={one.revision}>@{one.revision}{one.tag ? ` (${one.tag})` : ""}</option>)}
            </select>
          )}
        </Field>
        <Field label="Tag" hint={`${name}@TAG reaches exactly this revision. An empty tag takes the tag away.`}>
          {(id, described) => <input id={id} value={tag} aria-describedby={described} autocomplete="off" spellcheck={false} onInput={(event) => setTag(event.currentTarget.value)} />}
        </Field>
        <button type="submit" class="button" disabled={busy}>Set the tag</button>
      </form>
    </Panel>
  );
}
