// Who may do what: keys of callers, tokens of people, secrets of functions, namespaces, and what was changed.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { ApiError, call, get, mayDeploy, mayOperate, send, session } from "../lib/api";
import { bytes, count, day, plural } from "../lib/format";
import { usePoll } from "../lib/poll";
import { to } from "../lib/route";
import { clean } from "../lib/text";
import type { AuditEntry, CallerKey, Namespace, OperatorToken, Quotas } from "../lib/types";
import { announce, Command, Confirm, Empty, Failure, Field, Icon, Loading, Panel, State, useAction, When } from "../ui/base";
import { Title } from "../ui/title";

const TABS = [
  { tab: "keys", name: "Keys" },
  { tab: "tokens", name: "Tokens" },
  { tab: "secrets", name: "Secrets" },
  { tab: "namespaces", name: "Namespaces" },
  { tab: "audit", name: "Audit" },
];

/** What a token for a namespace may read. */
const WITHIN = ["keys", "secrets", "namespaces"];

export function AccessView({ tab }: { tab: string }) {
  return (
    <>
      <Title text="Access" lead="Keys open functions to callers. Tokens let people and programs manage the node." />
      <nav class="tabs" aria-label="Parts of access">
        <ul>
          {TABS.filter((one) => !session.value?.namespace || WITHIN.includes(one.tab)).map((one) => (
            <li key={one.tab}>
              <a href={to(["access", one.tab])} aria-current={tab === one.tab ? "page" : undefined}>{one.name}</a>
            </li>
          ))}
        </ul>
      </nav>
      <Part key={tab} tab={tab} />
    </>
  );
}

function Part({ tab }: { tab: string }): ComponentChildren {
  switch (tab) {
    case "tokens":
      return <Tokens />;
    case "secrets":
      return <Secrets />;
    case "namespaces":
      return <Namespaces />;
    case "audit":
      return <Audit />;
    default:
      return <Keys />;
  }
}

const DAY_MS = 86_400_000;
const LIVES: { name: string; ms: number | undefined }[] = [
  { name: "1 day", ms: DAY_MS },
  { name: "30 days", ms: 30 * DAY_MS },
  { name: "1 year", ms: 365 * DAY_MS },
  { name: "for ever", ms: undefined },
];

/** A secret that the node shows once. */
function Once({ what, name, secret, close }: { what: string; name: string; secret: string; close: () => void }) {
  return (
    <div class="notice" role="status">
      <p><strong>The {what} of {name}</strong> is shown only now. Copy it before you leave.</p>
      <Command text={secret} label={what} />
      <button type="button" class="button button-small" onClick={close}>I have copied it</button>
    </div>
  );
}

function Life({ value, change }: { value: number; change: (value: number) => void }) {
  return (
    <Field label="Valid for">
      {(id) => (
        <select id={id} value={value} onChange={(event) => change(Number(event.currentTarget.value))}>
          {LIVES.map((one, at) => <option key={one.name} value={at}>{one.name}</option>)}
        </select>
      )}
    </Field>
  );
}

function Expires({ at }: { at: string | undefined }) {
  if (!at) return <>never</>;
  return new Date(at).getTime() < Date.now() ? <State word="expired" tone="fail" /> : <When at={at} />;
}

function Frame(props: { title: string; error: ApiError | undefined; ready: boolean; retry: () => void; count: number; what: string; empty: ComponentChildren; children: ComponentChildren }) {
  return (
    <Panel title={props.title} aside={props.ready ? <span class="quiet">{plural(props.count, props.what, props.what === "entry" ? "entries" : undefined)}</span> : null}>
      {props.error && !props.ready ? <Failure error={props.error} retry={props.retry} /> : !props.ready ? <Loading what="the list" /> : props.count === 0 ? props.empty : props.children}
    </Panel>
  );
}

function Keys() {
  const list = usePoll("keys", 15_000, (abort) => get<{ keys: CallerKey[] }>("/v1/keys", abort));
  const [made, setMade] = useState<{ name: string; key: string } | undefined>();
  const [name, setName] = useState("");
  const [open, setOpen] = useState("");
  const [life, setLife] = useState(3);
  const action = useAction();
  const keys = list.data.value?.keys;
  const create = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      const valid_ms = LIVES[life]!.ms;
      const names = open.split(/[\s,]+/).filter(Boolean);
      setMade(await send<{ name: string; key: string }>("POST", "/v1/keys", { name, functions: names, ...(valid_ms ? { valid_ms } : {}) }));
      announce(`Made a key for ${name}.`);
      setName("");
      setOpen("");
      list.refresh();
    });
  };
  const act = (work: () => Promise<unknown>, said: string) =>
    action.run(async () => {
      await work();
      announce(said);
      list.refresh();
    });
  const rotate = (of: string) =>
    act(async () => setMade(await send<{ name: string; key: string }>("POST", `/v1/keys/${encodeURIComponent(of)}/rotate`, { grace_ms: DAY_MS })), `The key of ${of} was replaced.`);
  return (
    <>
      {action.error ? <Failure error={action.error} /> : null}
      {made ? <Once what="key" name={made.name} secret={made.key} close={() => setMade(undefined)} /> : null}
      <Frame title="Keys of callers" error={list.error.value} ready={keys !== undefined} retry={list.refresh} count={keys?.length ?? 0} what="key" empty={<Empty title="No caller has a key." command={'[access]\nmode = "key"'}>A function asks for a key when its mote.toml says so:</Empty>}>
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Keys of callers">
          <table class="table table-dense">
            <thead><tr><th scope="col">Caller</th><th scope="col">Opens</th><th scope="col">Made</th><th scope="col">Expires</th><th scope="col"><span class="sr-only">Actions</span></th></tr></thead>
            <tbody>
              {keys?.map((one) => (
                <tr key={one.name}>
                  <th scope="row">{one.name}</th>
                  <td class="wrap">{one.functions.length > 0 ? one.functions.join(", ") : "every function"}</td>
                  <td><When at={one.created_at} /></td>
                  <td><Expires at={one.expires_at} />{one.previous_until ? <span class="under">former key until {day(one.previous_until)}</span> : null}</td>
                  <td class="num">
                    {mayOperate() ? (
                      <span class="row row-end">
                        <Confirm plain label="Replace" name={`Replace the key of ${one.name}`} question={`Make a new key for ${one.name}? The former one stays valid for a day.`} yes="Replace" onYes={() => void rotate(one.name)} disabled={action.busy} />
                        <Confirm label="Revoke" name={`Revoke the key of ${one.name}`} question={`Revoke the key of ${one.name}? It becomes invalid at once.`} yes="Revoke" onYes={() => void act(() => send("DELETE", `/v1/keys/${encodeURIComponent(one.name)}`), `The key of ${one.name} was revoked.`)} disabled={action.busy} />
                      </span>
                    ) : null}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Frame>
      {mayOperate() ? (
        <Panel title="Make a key">
          <form onSubmit={create}>
            <div class="fields">
              <Field label="Caller">{(id) => <input id={id} required value={name} autocomplete="off" spellcheck={false} onInput={(event) => setName(event.currentTarget.value)} />}</Field>
              <Field label="Functions" hint="Names, or beginnings with *. Empty opens every function.">
                {(id, described) => <input id={id} value={open} aria-describedby={described} autocomplete="off" spellcheck={false} onInput={(event) => setOpen(event.currentTarget.value)} />}
              </Field>
              <Life value={life} change={setLife} />
            </div>
            <button type="submit" class="button button-filled" disabled={action.busy || name === ""}>Make the key</button>
          </form>
        </Panel>
      ) : null}
    </>
  );
}

const ROLES = [
  { role: "viewer", text: "viewer: reads functions, logs and the state of the node" },
  { role: "deployer", text: "deployer: also deploys, calls and removes functions, and manages secrets and state" },
  { role: "operator", text: "operator: also manages keys, tokens and namespaces" },
];

function Tokens() {
  const list = usePoll("tokens", 15_000, (abort) => get<{ tokens: OperatorToken[] }>("/v1/tokens", abort));
  const [made, setMade] = useState<{ name: string; token: string } | undefined>();
  const [name, setName] = useState("");
  const [role, setRole] = useState("viewer");
  const [namespace, setNamespace] = useState("");
  const [life, setLife] = useState(1);
  const action = useAction();
  const tokens = list.data.value?.tokens;
  const create = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      const valid_ms = LIVES[life]!.ms;
      setMade(await send<{ name: string; token: string }>("POST", "/v1/tokens", { name, role, ...(namespace ? { namespace } : {}), ...(valid_ms ? { valid_ms } : {}) }));
      announce(`Made a token for ${name}.`);
      setName("");
      list.refresh();
    });
  };
  const revoke = (of: string) =>
    action.run(async () => {
      await send("DELETE", `/v1/tokens/${encodeURIComponent(of)}`);
      announce(`The token of ${of} was revoked.`);
      list.refresh();
    });
  return (
    <>
      {action.error ? <Failure error={action.error} /> : null}
      {made ? <Once what="token" name={made.name} secret={made.token} close={() => setMade(undefined)} /> : null}
      <Frame title="Tokens" error={list.error.value} ready={tokens !== undefined} retry={list.refresh} count={tokens?.length ?? 0} what="token" empty={<Empty title="There are no tokens." command="mote token create NAME --role viewer">Only the token in the node’s data folder manages this node over the network.</Empty>}>
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Tokens">
          <table class="table table-dense">
            <thead><tr><th scope="col">Name</th><th scope="col">Role</th><th scope="col">For</th><th scope="col">Made</th><th scope="col">Expires</th><th scope="col"><span class="sr-only">Actions</span></th></tr></thead>
            <tbody>
              {tokens?.map((one) => (
                <tr key={`${one.namespace ?? ""}/${one.name}`}>
                  <th scope="row">{one.name}{one.name === session.value?.name ? <span class="under">this session</span> : null}</th>
                  <td>{one.role}</td>
                  <td>{one.namespace ? `namespace ${one.namespace}` : "the whole node"}</td>
                  <td><When at={one.created_at} /></td>
                  <td><Expires at={one.expires_at} /></td>
                  <td class="num">
                    {mayOperate() ? (
                      <Confirm label="Revoke" name={`Revoke the token of ${one.name}`} question={`Revoke the token of ${one.name}? Its sessions end at once.`} yes="Revoke" onYes={() => void revoke(one.name)} disabled={action.busy} />
                    ) : null}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Frame>
      {mayOperate() ? (
        <Panel title="Make a token">
          <form onSubmit={create}>
            <div class="fields">
              <Field label="Name">{(id) => <input id={id} required value={name} autocomplete="off" spellcheck={false} onInput={(event) => setName(event.currentTarget.value)} />}</Field>
              <Field label="Role" hint={ROLES.find((one) => one.role === role)!.text}>
                {(id, described) => (
                  <select id={id} value={role} aria-describedby={described} onChange={(event) => setRole(event.currentTarget.value)}>
                    {ROLES.map((one) => <option key={one.role} value={one.role}>{one.role}</option>)}
                  </select>
                )}
              </Field>
              <Field label="Namespace" hint="Empty is for the whole node.">
                {(id, described) => <input id={id} value={namespace} aria-describedby={described} autocomplete="off" spellcheck={false} onInput={(event) => setNamespace(event.currentTarget.value.trim())} />}
              </Field>
              <Life value={life} change={setLife} />
            </div>
            <button type="submit" class="button button-filled" disabled={action.busy || name === ""}>Make the token</button>
          </form>
        </Panel>
      ) : null}
    </>
  );
}

function Secrets() {
  const list = usePoll("secrets", 15_000, (abort) => get<{ secrets: { name: string; functions: string[] }[] }>("/v1/secrets", abort));
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const action = useAction();
  const secrets = list.data.value?.secrets;
  const set = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      await call(`/v1/secrets/${encodeURIComponent(name)}`, { method: "PUT", body: value, headers: { "content-type": "text/plain" } });
      announce(`The secret ${name} is set.`);
      setName("");
      setValue("");
      list.refresh();
    });
  };
  const remove = (of: string) =>
    action.run(async () => {
      await send("DELETE", `/v1/secrets/${encodeURIComponent(of)}`);
      announce(`The secret ${of} was removed.`);
      list.refresh();
    });
  return (
    <>
      {action.error ? <Failure error={action.error} /> : null}
      <Frame title="Secrets" error={list.error.value} ready={secrets !== undefined} retry={list.refresh} count={secrets?.length ?? 0} what="secret" empty={<Empty title="There are no secrets." command="mote secret set NAME < FILE">A function reads the secrets that its mote.toml names.</Empty>}>
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Secrets">
          <table class="table table-dense">
            <thead><tr><th scope="col">Name</th><th scope="col">Read by</th><th scope="col"><span class="sr-only">Actions</span></th></tr></thead>
            <tbody>
              {secrets?.map((one) => (
                <tr key={one.name}>
                  <th scope="row">{one.name}</th>
                  <td class="wrap">{one.functions.length > 0 ? one.functions.map((of, at) => <span key={of}>{at > 0 ? ", " : ""}<a href={to(["functions", of])}>{of}</a></span>) : <span class="quiet">no function</span>}</td>
                  <td class="num">
                    {mayDeploy() ? (
                      <Confirm label="Remove" name={`Remove the secret ${one.name}`} question={`Remove the secret ${one.name}?${one.functions.length > 0 ? " The functions that read it start no further instances." : ""}`} yes="Remove" onYes={() => void remove(one.name)} disabled={action.busy} />
                    ) : null}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Frame>
      {mayDeploy() ? (
        <Panel title="Set a secret">
          <form onSubmit={set}>
            <div class="fields">
              <Field label="Name">{(id) => <input id={id} required value={name} autocomplete="off" spellcheck={false} onInput={(event) => setName(event.currentTarget.value)} />}</Field>
              <Field label="Value" hint="It is never shown again. Instances that start from now on see it.">
                {(id, described) => <input id={id} type="password" required value={value} aria-describedby={described} autocomplete="new-password" onInput={(event) => setValue(event.currentTarget.value)} />}
              </Field>
            </div>
            <button type="submit" class="button button-filled" disabled={action.busy || name === "" || value === ""}>Set the secret</button>
          </form>
        </Panel>
      ) : null}
    </>
  );
}

function of(value: number, limit: number | undefined, text: (value: number) => string): string {
  return limit === undefined ? text(value) : `${text(value)} of ${text(limit)}`;
}

function Namespaces() {
  const list = usePoll("namespaces", 15_000, (abort) => get<{ namespaces: Namespace[] }>("/v1/namespaces", abort));
  const [name, setName] = useState("");
  const [limits, setLimits] = useState({ functions: "", instances: "", memory: "" });
  const action = useAction();
  const namespaces = list.data.value?.namespaces;
  const create = (event: Event) => {
    event.preventDefault();
    void action.run(async () => {
      const quotas: Quotas = {};
      if (limits.functions) quotas.functions = Number(limits.functions);
      if (limits.instances) quotas.instances = Number(limits.instances);
      if (limits.memory) quotas.memory_bytes = Math.round(Number(limits.memory) * 1024 * 1024);
      await send("POST", "/v1/namespaces", { name, quotas });
      announce(`Made the namespace ${name}.`);
      setName("");
      list.refresh();
    });
  };
  const remove = (which: string) =>
    action.run(async () => {
      await send("DELETE", `/v1/namespaces/${encodeURIComponent(which)}`);
      announce(`The namespace ${which} was deleted.`);
      list.refresh();
    });
  return (
    <>
      {action.error ? <Failure error={action.error} /> : null}
      <Frame title="Namespaces" error={list.error.value} ready={namespaces !== undefined} retry={list.refresh} count={namespaces?.length ?? 0} what="namespace" empty={<Empty title="There is only the default namespace." command="mote namespace create NAME">Namespaces separate the functions of several owners and limit what each may use.</Empty>}>
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Namespaces">
          <table class="table table-dense">
            <thead><tr><th scope="col">Name</th><th scope="col" class="num">Functions</th><th scope="col" class="num">Instances</th><th scope="col" class="num">Memory</th><th scope="col" class="num">Code</th><th scope="col" class="num">State</th><th scope="col"><span class="sr-only">Actions</span></th></tr></thead>
            <tbody>
              {namespaces?.map((one) => (
                <tr key={one.name}>
                  <th scope="row">{one.name}{one.is_being_deleted ? <span class="under">is being deleted</span> : null}</th>
                  <td class="num">{of(one.functions, one.quotas.functions, count)}</td>
                  <td class="num">{of(one.instances, one.quotas.instances, count)}</td>
                  <td class="num">{of(one.memory_bytes, one.quotas.memory_bytes, bytes)}</td>
                  <td class="num">{of(one.disk_bytes, one.quotas.disk_bytes, bytes)}</td>
                  <td class="num">{of(one.state_bytes, one.quotas.state_bytes, bytes)}</td>
                  <td class="num">
                    {mayOperate() && !one.is_being_deleted ? (
                      <Confirm label="Delete" name={`Delete the namespace ${one.name}`} question={`Delete the namespace ${one.name}? It must be empty. To delete it with all its functions: mote namespace delete ${one.name} --force`} yes="Delete" onYes={() => void remove(one.name)} disabled={action.busy} />
                    ) : null}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Frame>
      {mayOperate() && !session.value?.namespace ? (
        <Panel title="Make a namespace">
          <form onSubmit={create}>
            <div class="fields">
              <Field label="Name">{(id) => <input id={id} required value={name} autocomplete="off" spellcheck={false} onInput={(event) => setName(event.currentTarget.value.trim())} />}</Field>
              {([["functions", "Functions at most"], ["instances", "Instances at most"], ["memory", "Memory at most, in MiB"]] as const).map(([key, label]) => (
                <Field label={label} key={key}>
                  {(id) => <input id={id} type="number" min={1} inputMode="numeric" value={limits[key]} placeholder="no limit" onInput={(event) => setLimits({ ...limits, [key]: event.currentTarget.value })} />}
                </Field>
              ))}
            </div>
            <button type="submit" class="button button-filled" disabled={action.busy || name === ""}>Make the namespace</button>
          </form>
        </Panel>
      ) : null}
    </>
  );
}

function Audit() {
  const list = usePoll("audit", 10_000, (abort) => get<{ entries: AuditEntry[] }>("/v1/audit?limit=500", abort));
  const [search, setSearch] = useState("");
  const entries = list.data.value?.entries;
  const shown = (entries ?? []).filter((one) => `${one.who} ${one.from} ${one.act} ${one.status}`.toLowerCase().includes(search.toLowerCase())).reverse();
  return (
    <Frame title="What was changed" error={list.error.value} ready={entries !== undefined} retry={list.refresh} count={entries?.length ?? 0} what="entry" empty={<Empty title="Nothing was changed yet." command="mote audit" />}>
      <div class="row bar-row">
        <label class="search">
          <span class="sr-only">Search the record</span>
          <Icon name="search" />
          <input type="search" placeholder="Search by name, path or status" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
        </label>
        <p class="quiet">{plural(shown.length, "entry", "entries")}, newest first</p>
      </div>
      <div class="scroll scroll-tall" tabIndex={0} role="region" aria-label="What was changed">
        <table class="table table-dense">
          <thead><tr><th scope="col">When</th><th scope="col">Who</th><th scope="col">From</th><th scope="col">Request</th><th scope="col" class="num">Status</th></tr></thead>
          <tbody>
            {shown.map((one, at) => (
              <tr key={`${one.at} ${at}`}>
                <td class="num-left">{day(one.at)}</td>
                <th scope="row">{clean(one.who)}</th>
                <td>{clean(one.from)}</td>
                <td class="wrap"><code>{clean(one.act)}</code></td>
                <td class="num">{one.status >= 400 ? <State word={String(one.status)} tone="fail" /> : one.status}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Frame>
  );
}
