// Who may do what: keys of callers, tokens of people, secrets of functions, namespaces, and what was changed.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { call, get, mayDeploy, mayOperate, send, session } from "../lib/api";
import { bytes, count, day, plural } from "../lib/format";
import { usePoll } from "../lib/poll";
import { to } from "../lib/route";
import { clean } from "../lib/text";
import type { AuditEntry, CallerKey, Namespace, OperatorToken, Quotas } from "../lib/types";
import { announce, Command, Confirm, Empty, Failure, Field, Icon, Panel, State, useAction, When } from "../ui/base";
import { ListPanel, Rows } from "../ui/rows";
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

/** A list of the node, and changes after which it is read again. */
function useList<T>(path: string, every = 15_000) {
  const list = usePoll(path, every, (abort) => get<T>(path, abort));
  const action = useAction();
  const act = (work: () => Promise<unknown>, said: string) =>
    action.run(async () => {
      await work();
      announce(said);
      list.refresh();
    });
  return {
    data: list.data.value,
    error: list.error.value,
    retry: list.refresh,
    busy: action.busy,
    failure: action.error ? <Failure error={action.error} /> : null,
    act,
  };
}

/** A form below a list, for what the list shows. */
function Make(props: { title: string; button: string; disabled: boolean; make: () => void; children: ComponentChildren }) {
  return (
    <Panel title={props.title}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          props.make();
        }}
      >
        <div class="fields">{props.children}</div>
        <button type="submit" class="button button-filled" disabled={props.disabled}>{props.button}</button>
      </form>
    </Panel>
  );
}

function Text(props: { label: string; hint?: string; value: string; change: (value: string) => void; required?: boolean; type?: "password" }) {
  return (
    <Field label={props.label} {...(props.hint ? { hint: props.hint } : {})}>
      {(id, described) => {
        const all = {
          id,
          required: props.required,
          value: props.value,
          "aria-describedby": described,
          spellcheck: false,
          onInput: (event: { currentTarget: HTMLInputElement }) => props.change(event.currentTarget.value),
        };
        return props.type ? <input {...all} type="password" autocomplete="new-password" /> : <input {...all} autocomplete="off" />;
      }}
    </Field>
  );
}

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

function of(path: string, name: string, rest = ""): string {
  return `/v1/${path}/${encodeURIComponent(name)}${rest}`;
}

function valid(life: number): { valid_ms?: number } {
  const valid_ms = LIVES[life]!.ms;
  return valid_ms ? { valid_ms } : {};
}

function Keys() {
  const { data, error, retry, busy, failure, act } = useList<{ keys: CallerKey[] }>("/v1/keys");
  const [made, setMade] = useState<{ name: string; key: string } | undefined>();
  const [name, setName] = useState("");
  const [open, setOpen] = useState("");
  const [life, setLife] = useState(3);
  const keys = data?.keys;
  const create = () =>
    act(async () => {
      const functions = open.split(/[\s,]+/).filter(Boolean);
      setMade(await send("POST", "/v1/keys", { name, functions, ...valid(life) }));
      setName("");
      setOpen("");
    }, `Made a key for ${name}.`);
  const rotate = (name: string) =>
    act(async () => setMade(await send("POST", of("keys", name, "/rotate"), { grace_ms: DAY_MS })), `The key of ${name} was replaced.`);
  const revoke = (name: string) => act(() => send("DELETE", of("keys", name)), `The key of ${name} was revoked.`);
  return (
    <>
      {failure}
      {made ? <Once what="key" name={made.name} secret={made.key} close={() => setMade(undefined)} /> : null}
      <ListPanel title="Keys of callers" error={error} retry={retry} count={keys?.length} what="key" empty={<Empty title="No caller has a key." command={'[access]\nmode = "key"'}>A function asks for a key when its mote.toml says so:</Empty>}>
        <Rows label="Keys of callers" columns={["Caller", "Opens", "Made", "Expires"]} actions cards>
          {keys?.map((one) => (
            <tr key={one.name}>
              <th scope="row">{one.name}</th>
              <td class="wrap">{one.functions.length > 0 ? clean(one.functions.join(", ")) : "every function"}</td>
              <td><When at={one.created_at} /></td>
              <td><Expires at={one.expires_at} />{one.previous_until ? <span class="under">former key until {day(one.previous_until)}</span> : null}</td>
              <td class="num">
                {mayOperate() ? (
                  <span class="row row-end">
                    <Confirm plain label="Replace" name={`Replace the key of ${one.name}`} question={`Make a new key for ${one.name}? The former one stays valid for a day.`} yes="Replace" onYes={() => void rotate(one.name)} disabled={busy} />
                    <Confirm label="Revoke" name={`Revoke the key of ${one.name}`} question={`Revoke the key of ${one.name}? It becomes invalid at once.`} yes="Revoke" onYes={() => void revoke(one.name)} disabled={busy} />
                  </span>
                ) : null}
              </td>
            </tr>
          ))}
        </Rows>
      </ListPanel>
      {mayOperate() ? (
        <Make title="Make a key" button="Make the key" disabled={busy || name === ""} make={() => void create()}>
          <Text label="Caller" required value={name} change={setName} />
          <Text label="Functions" hint="Names, or beginnings with *. Empty opens every function." value={open} change={setOpen} />
          <Life value={life} change={setLife} />
        </Make>
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
  const { data, error, retry, busy, failure, act } = useList<{ tokens: OperatorToken[] }>("/v1/tokens");
  const [made, setMade] = useState<{ name: string; token: string } | undefined>();
  const [name, setName] = useState("");
  const [role, setRole] = useState("viewer");
  const [namespace, setNamespace] = useState("");
  const [life, setLife] = useState(1);
  const tokens = data?.tokens;
  const create = () =>
    act(async () => {
      setMade(await send("POST", "/v1/tokens", { name, role, ...(namespace ? { namespace } : {}), ...valid(life) }));
      setName("");
    }, `Made a token for ${name}.`);
  const revoke = (name: string) => act(() => send("DELETE", of("tokens", name)), `The token of ${name} was revoked.`);
  return (
    <>
      {failure}
      {made ? <Once what="token" name={made.name} secret={made.token} close={() => setMade(undefined)} /> : null}
      <ListPanel title="Tokens" error={error} retry={retry} count={tokens?.length} what="token" empty={<Empty title="There are no tokens." command="mote token create NAME --role viewer">Only the token in the node’s data folder manages this node over the network.</Empty>}>
        <Rows label="Tokens" columns={["Name", "Role", "For", "Made", "Expires"]} actions cards>
          {tokens?.map((one) => (
            <tr key={`${one.namespace ?? ""}/${one.name}`}>
              <th scope="row">{one.name}{one.name === session.value?.name ? <span class="under">this session</span> : null}</th>
              <td>{one.role}</td>
              <td>{one.namespace ? `namespace ${one.namespace}` : "the whole node"}</td>
              <td><When at={one.created_at} /></td>
              <td><Expires at={one.expires_at} /></td>
              <td class="num">
                {mayOperate() ? (
                  <Confirm label="Revoke" name={`Revoke the token of ${one.name}`} question={`Revoke the token of ${one.name}? Its sessions end at once.`} yes="Revoke" onYes={() => void revoke(one.name)} disabled={busy} />
                ) : null}
              </td>
            </tr>
          ))}
        </Rows>
      </ListPanel>
      {mayOperate() ? (
        <Make title="Make a token" button="Make the token" disabled={busy || name === ""} make={() => void create()}>
          <Text label="Name" required value={name} change={setName} />
          <Field label="Role" hint={ROLES.find((one) => one.role === role)!.text}>
            {(id, described) => (
              <select id={id} value={role} aria-describedby={described} onChange={(event) => setRole(event.currentTarget.value)}>
                {ROLES.map((one) => <option key={one.role} value={one.role}>{one.role}</option>)}
              </select>
            )}
          </Field>
          <Text label="Namespace" hint="Empty is for the whole node." value={namespace} change={(value) => setNamespace(value.trim())} />
          <Life value={life} change={setLife} />
        </Make>
      ) : null}
    </>
  );
}

function Secrets() {
  const { data, error, retry, busy, failure, act } = useList<{ secrets: { name: string; functions: string[] }[] }>("/v1/secrets");
  const [name, setName] = useState("");
  const [value, setValue] = useState("");
  const secrets = data?.secrets;
  const set = () =>
    act(async () => {
      await call(of("secrets", name), { method: "PUT", body: value, headers: { "content-type": "text/plain" } });
      setName("");
      setValue("");
    }, `The secret ${name} is set.`);
  const remove = (name: string) => act(() => send("DELETE", of("secrets", name)), `The secret ${name} was removed.`);
  return (
    <>
      {failure}
      <ListPanel title="Secrets" error={error} retry={retry} count={secrets?.length} what="secret" empty={<Empty title="There are no secrets." command="mote secret set NAME < FILE">A function reads the secrets that its mote.toml names.</Empty>}>
        <Rows label="Secrets" columns={["Name", "Read by"]} actions cards>
          {secrets?.map((one) => (
            <tr key={one.name}>
              <th scope="row">{one.name}</th>
              <td class="wrap">{one.functions.length > 0 ? one.functions.map((of, at) => <span key={of}>{at > 0 ? ", " : ""}<a href={to(["functions", of])}>{of}</a></span>) : <span class="quiet">no function</span>}</td>
              <td class="num">
                {mayDeploy() ? (
                  <Confirm label="Remove" name={`Remove the secret ${one.name}`} question={`Remove the secret ${one.name}?${one.functions.length > 0 ? " The functions that read it start no further instances." : ""}`} yes="Remove" onYes={() => void remove(one.name)} disabled={busy} />
                ) : null}
              </td>
            </tr>
          ))}
        </Rows>
      </ListPanel>
      {mayDeploy() ? (
        <Make title="Set a secret" button="Set the secret" disabled={busy || name === "" || value === ""} make={() => void set()}>
          <Text label="Name" required value={name} change={setName} />
          <Text label="Value" hint="It is never shown again. Instances that start from now on see it." type="password" required value={value} change={setValue} />
        </Make>
      ) : null}
    </>
  );
}

function used(value: number, limit: number | undefined, text: (value: number) => string): string {
  return limit === undefined ? text(value) : `${text(value)} of ${text(limit)}`;
}

function Namespaces() {
  const { data, error, retry, busy, failure, act } = useList<{ namespaces: Namespace[] }>("/v1/namespaces");
  const [name, setName] = useState("");
  const [limits, setLimits] = useState({ functions: "", instances: "", memory: "" });
  const namespaces = data?.namespaces;
  const create = () =>
    act(async () => {
      const quotas: Quotas = {};
      if (limits.functions) quotas.functions = Number(limits.functions);
      if (limits.instances) quotas.instances = Number(limits.instances);
      if (limits.memory) quotas.memory_bytes = Math.round(Number(limits.memory) * 1024 * 1024);
      await send("POST", "/v1/namespaces", { name, quotas });
      setName("");
    }, `Made the namespace ${name}.`);
  const remove = (name: string) => act(() => send("DELETE", of("namespaces", name)), `The namespace ${name} was deleted.`);
  return (
    <>
      {failure}
      <ListPanel title="Namespaces" error={error} retry={retry} count={namespaces?.length} what="namespace" empty={<Empty title="There is only the default namespace." command="mote namespace create NAME">Namespaces separate the functions of several owners and limit what each may use.</Empty>}>
        <Rows label="Namespaces" columns={["Name", ...["Functions", "Instances", "Memory", "Code", "State"].map((name) => ({ name, num: true }))]} actions cards>
          {namespaces?.map((one) => (
            <tr key={one.name}>
              <th scope="row">{one.name}{one.is_being_deleted ? <span class="under">is being deleted</span> : null}</th>
              <td>{used(one.functions, one.quotas.functions, count)}</td>
              <td>{used(one.instances, one.quotas.instances, count)}</td>
              <td>{used(one.memory_bytes, one.quotas.memory_bytes, bytes)}</td>
              <td>{used(one.disk_bytes, one.quotas.disk_bytes, bytes)}</td>
              <td>{used(one.state_bytes, one.quotas.state_bytes, bytes)}</td>
              <td class="num">
                {mayOperate() && !one.is_being_deleted ? (
                  <Confirm label="Delete" name={`Delete the namespace ${one.name}`} question={`Delete the namespace ${one.name}? It must be empty. To delete it with all its functions: mote namespace delete ${one.name} --force`} yes="Delete" onYes={() => void remove(one.name)} disabled={busy} />
                ) : null}
              </td>
            </tr>
          ))}
        </Rows>
      </ListPanel>
      {mayOperate() && !session.value?.namespace ? (
        <Make title="Make a namespace" button="Make the namespace" disabled={busy || name === ""} make={() => void create()}>
          <Text label="Name" required value={name} change={(value) => setName(value.trim())} />
          {([["functions", "Functions at most"], ["instances", "Instances at most"], ["memory", "Memory at most, in MiB"]] as const).map(([key, label]) => (
            <Field label={label} key={key}>
              {(id) => <input id={id} type="number" min={1} inputMode="numeric" value={limits[key]} placeholder="no limit" onInput={(event) => setLimits({ ...limits, [key]: event.currentTarget.value })} />}
            </Field>
          ))}
        </Make>
      ) : null}
    </>
  );
}

function Audit() {
  const { data, error, retry } = useList<{ entries: AuditEntry[] }>("/v1/audit?limit=500", 10_000);
  const [search, setSearch] = useState("");
  const entries = data?.entries;
  const shown = (entries ?? []).filter((one) => `${one.who} ${one.from} ${one.act} ${one.status}`.toLowerCase().includes(search.toLowerCase())).reverse();
  return (
    <ListPanel title="What was changed" error={error} retry={retry} count={entries?.length} what="entry" many="entries" empty={<Empty title="Nothing was changed yet." command="mote audit" />}>
      <div class="row bar-row">
        <label class="search">
          <span class="sr-only">Search the record</span>
          <Icon name="search" />
          <input type="search" placeholder="Search by name, path or status" value={search} onInput={(event) => setSearch(event.currentTarget.value)} />
        </label>
        <p class="quiet">{plural(shown.length, "entry", "entries")}, newest first</p>
      </div>
      <Rows label="What was changed" columns={["When", "Who", "Request", { name: "Status", num: true }]} cards tall="tall">
        {shown.map((one, at) => (
          <tr key={`${one.at} ${at}`}>
            <td class="num-left">{day(one.at)}</td>
            <th scope="row">{clean(one.who)}<span class="under">{clean(one.from)}</span></th>
            <td class="wrap"><code>{clean(one.act)}</code></td>
            <td>{one.status >= 400 ? <State word={String(one.status)} tone="fail" /> : one.status}</td>
          </tr>
        ))}
      </Rows>
    </ListPanel>
  );
}
