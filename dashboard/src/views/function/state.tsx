// What the function keeps: keys, and the value of the chosen one.

import { useEffect, useState } from "preact/hooks";
import { ApiError, call, get, mayDeploy } from "../../lib/api";
import { bytes, count, plural } from "../../lib/format";
import { asHex, asText, clean } from "../../lib/text";
import type { KvKey } from "../../lib/types";
import { announce, Confirm, CopyButton, Empty, Failure, Field, Icon, Loading, Panel, useAction, When } from "../../ui/base";

const PAGE = 200;
/** Larger values are not shown for editing. */
const EDIT_MAX = 64 * 1024;

interface Entry {
  key: string;
  version: number;
  expires?: number;
  size: number;
  /** Absent if it is not text. */
  text?: string;
  hex?: string;
}

export function StateBrowser({ name }: { name: string }) {
  const [namespace, setNamespace] = useState(name);
  const [spaces, setSpaces] = useState<{ namespace: string; keys: number; bytes: number }[]>([]);
  const [prefix, setPrefix] = useState("");
  const [keys, setKeys] = useState<KvKey[] | undefined>();
  const [after, setAfter] = useState<string | undefined>();
  const [entry, setEntry] = useState<Entry | undefined>();
  const [adding, setAdding] = useState(false);
  const list = useAction();
  const change = useAction();
  const base = `/v1/kv/${encodeURIComponent(namespace)}`;

  const read = (from?: string) =>
    list.run(async () => {
      const query = new URLSearchParams({ prefix, limit: String(PAGE) });
      if (from) query.set("after", from);
      const answer = await get<{ entries: KvKey[]; after?: string }>(`${base}?${query}`);
      setKeys(from ? [...(keys ?? []), ...answer.entries] : answer.entries);
      setAfter(answer.after);
    });
  useEffect(() => {
    const timer = setTimeout(() => void read(), prefix ? 250 : 0);
    return () => clearTimeout(timer);
  }, [namespace, prefix]);
  useEffect(() => {
    get<{ namespaces: { namespace: string; keys: number; bytes: number }[] }>("/v1/kv").then((answer) => setSpaces(answer.namespaces)).catch(() => undefined);
  }, []);

  const open = (key: string) =>
    change.run(async () => {
      setAdding(false);
      const answer = await call(`${base}/entry?key=${encodeURIComponent(key)}`);
      const value = new Uint8Array(await answer.arrayBuffer());
      const expires = answer.headers.get("mote-expires-unix-ms");
      const text = asText(value);
      setEntry({
        key,
        version: Number(answer.headers.get("mote-version")),
        size: value.length,
        ...(expires ? { expires: Number(expires) } : {}),
        ...(text === undefined ? { hex: asHex(value) } : { text }),
      });
    });
  const remove = (key: string) =>
    change.run(async () => {
      await call(`${base}/entry?key=${encodeURIComponent(key)}`, { method: "DELETE" });
      announce(`Removed the key ${key}.`);
      setEntry(undefined);
      await read();
    });
  const write = (key: string, text: string, version: number) =>
    change.run(async () => {
      const query = new URLSearchParams({ key, version: String(version) });
      await call(`${base}/entry?${query}`, { method: "PUT", body: text, headers: { "content-type": "application/octet-stream" } });
      announce(`Saved the key ${key}.`);
      setAdding(false);
      await read();
      await open(key);
    });

  const own = spaces.find((one) => one.namespace === namespace);
  const shared = spaces.filter((one) => one.namespace.startsWith("shared:"));
  return (
    <div class="columns">
      <Panel title="Keys" aside={own ? <span class="quiet">{plural(own.keys, "key")}, {bytes(own.bytes)}</span> : null}>
        <div class="row bar-row">
          <label class="search">
            <span class="sr-only">Keys that begin with</span>
            <Icon name="search" />
            <input type="search" placeholder="Keys that begin with…" value={prefix} onInput={(event) => setPrefix(event.currentTarget.value)} />
          </label>
          {shared.length > 0 ? (
            <label class="inline">
              Of
              <select value={namespace} onChange={(event) => { setNamespace(event.currentTarget.value); setEntry(undefined); }}>
                <option value={name}>{name}</option>
                {shared.map((one) => <option key={one.namespace} value={one.namespace}>{one.namespace}</option>)}
              </select>
            </label>
          ) : null}
          {mayDeploy() ? <button type="button" class="button button-small" onClick={() => { setAdding(true); setEntry(undefined); }}>Add a key</button> : null}
        </div>
        {list.error ? <Failure error={list.error} retry={() => void read()} /> : null}
        {!keys ? (
          list.error ? null : <Loading what="the keys" />
        ) : keys.length === 0 ? (
          <Empty title={prefix ? "No key begins like that." : "It keeps no state."} command={`mote kv put ${name} KEY VALUE`}>
            Functions keep state with the node’s services; the command line can write it, too.
          </Empty>
        ) : (
          <div class="scroll scroll-events" tabIndex={0} role="region" aria-label="Keys">
            <table class="table table-dense">
              <thead>
                <tr>
                  <th scope="col">Key</th>
                  <th scope="col" class="num">Version</th>
                  <th scope="col">Expires</th>
                </tr>
              </thead>
              <tbody>
                {keys.map((one) => (
                  <tr key={one.key}>
                    <th scope="row">
                      <button type="button" class="link" aria-pressed={entry?.key === one.key} onClick={() => void open(one.key)}>{clean(one.key)}</button>
                    </th>
                    <td class="num">{count(one.version)}</td>
                    <td>{one.expires_unix_ms ? <When at={one.expires_unix_ms} /> : "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
            {after ? <button type="button" class="button button-small" disabled={list.busy} onClick={() => void read(after)}>More keys</button> : null}
          </div>
        )}
      </Panel>
      <Panel title={adding ? "New key" : entry ? "Value" : "No key chosen"}>
        {change.error ? <Failure error={conflict(change.error)} /> : null}
        {adding ? <Editor key="new" save={write} busy={change.busy} /> : null}
        {entry ? <Editor key={`${entry.key} ${entry.version}`} entry={entry} save={write} busy={change.busy} remove={() => void remove(entry.key)} /> : null}
        {!adding && !entry ? <Empty title="Choose a key to see its value." /> : null}
      </Panel>
    </div>
  );
}

function Editor(props: { entry?: Entry; save: (key: string, text: string, version: number) => Promise<boolean>; busy: boolean; remove?: () => void }) {
  const { entry } = props;
  const [key, setKey] = useState(entry?.key ?? "");
  const [text, setText] = useState(entry?.text ?? "");
  const editable = mayDeploy() && (!entry || (entry.text !== undefined && entry.size <= EDIT_MAX));
  const submit = (event: Event) => {
    event.preventDefault();
    void props.save(key, text, entry?.version ?? 0);
  };
  return (
    <form onSubmit={submit}>
      {entry ? (
        <p class="text quiet">
          <code>{clean(entry.key)}</code> · version {count(entry.version)} · {bytes(entry.size)}
          {entry.expires ? <> · expires <When at={entry.expires} /></> : null}
        </p>
      ) : (
        <Field label="Key">{(id) => <input id={id} value={key} required autocomplete="off" spellcheck={false} onInput={(event) => setKey(event.currentTarget.value)} />}</Field>
      )}
      {entry && entry.text === undefined ? (
        <>
          <p class="hint">The value is not text. Its first bytes:</p>
          <pre class="value" tabIndex={0} role="group" aria-label="Bytes of the value">{entry.hex}</pre>
        </>
      ) : (
        <Field label="Value">
          {(id) => <textarea id={id} rows={8} value={text} readOnly={!editable} spellcheck={false} onInput={(event) => setText(event.currentTarget.value)} />}
        </Field>
      )}
      <div class="row">
        {editable ? <button type="submit" class="button button-filled" disabled={props.busy || (entry ? text === entry.text : key === "")}>Save</button> : null}
        {entry?.text !== undefined ? <CopyButton text={entry.text} what="value" /> : null}
        {entry && props.remove && mayDeploy() ? (
          <Confirm label="Remove" small={false} name={`Remove the key ${entry.key}`} question={`Remove the key ${entry.key}?`} yes="Remove" onYes={props.remove} disabled={props.busy} />
        ) : null}
      </div>
    </form>
  );
}

function conflict(error: ApiError): ApiError {
  return error.status === 409 || error.status === 412
    ? new ApiError(error.status, error.code, "The value was changed by somebody else meanwhile. Choose the key again to see it.")
    : error;
}
