// Call a function by hand: the request, its answer with its times, and the same as a command line.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, call, functionPath, get, mayDeploy } from "../lib/api";
import { bytes, span } from "../lib/format";
import { go, to } from "../lib/route";
import { asHex, asText, clean, isSecret, MASK, quoted } from "../lib/text";
import type { FunctionDetail } from "../lib/types";
import { functions } from "../store/node";
import { announce, Command, CopyButton, Empty, Failure, Field, Loading, Panel, State, useAction } from "../ui/base";
import { Title } from "../ui/title";

const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
const SHOWN_MAX = 256 * 1024;
/** Headers that the management API keeps for itself, or that a page cannot set. */
const KEPT = /^(authorization|cookie|host|connection|content-length|transfer-encoding|origin|referer|te|upgrade|keep-alive|expect|date|via|proxy-.*|sec-.*|mote-.*|accept-encoding)$/i;

interface Header {
  name: string;
  value: string;
}

interface Answer {
  status: number;
  headers: [string, string][];
  size: number;
  text?: string;
  hex?: string;
  took: number;
  phases: { name: string; ms: number }[];
  invocation?: string;
  fault?: string;
}

export function TryView({ name }: { name: string | undefined }) {
  const list = functions.value;
  const [method, setMethod] = useState("GET");
  const [path, setPath] = useState("/");
  const [headers, setHeaders] = useState<Header[]>([]);
  const [body, setBody] = useState("");
  const [answer, setAnswer] = useState<Answer | undefined>();
  const [detail, setDetail] = useState<FunctionDetail | undefined>();
  const action = useAction();
  const abort = useRef<AbortController | undefined>(undefined);

  useEffect(() => {
    setAnswer(undefined);
    setDetail(undefined);
    action.clear();
    if (!name) return;
    const own = new AbortController();
    get<FunctionDetail>(functionPath(name), own.signal).then(setDetail).catch(() => undefined);
    return () => {
      own.abort();
      abort.current?.abort();
    };
  }, [name]);

  const hasBody = method !== "GET" && method !== "HEAD";
  const fields = headers.filter((one) => one.name.trim() !== "");
  const submit = (event: Event) => {
    event.preventDefault();
    if (!name) return;
    void action.run(async () => {
      setAnswer(undefined);
      const own = new AbortController();
      abort.current = own;
      try {
        const got = await invoke(name, method, path, fields, hasBody ? body : undefined, own.signal);
        setAnswer(got);
        announce(`Answered with status ${got.status} in ${span(got.took)}.`);
      } catch (error) {
        if (!own.signal.aborted) throw error;
      }
    });
  };
  const kept = fields.filter((one) => KEPT.test(one.name.trim()));
  return (
    <>
      <Title text={name ? `Try ${name}` : "Try"} lead="Send a request to a function and see what it answers." />
      {!mayDeploy() ? <p class="warning">Your role, viewer, may not call functions from here.</p> : null}
      {list === undefined ? (
        <Loading what="the functions" />
      ) : list.length === 0 ? (
        <Empty title="There are no functions to try." command="mote deploy hello.py" />
      ) : (
        <div class="columns">
          <Panel title="Request">
            <form onSubmit={submit}>
              <Field label="Function">
                {(id) => (
                  <>
                    <input
                      id={id}
                      list={`${id}-names`}
                      value={name ?? ""}
                      placeholder="name"
                      autocomplete="off"
                      spellcheck={false}
                      onChange={(event) => event.currentTarget.value && go(["try", event.currentTarget.value.trim()])}
                    />
                    <datalist id={`${id}-names`}>
                      {list.slice(0, 500).map((one) => <option key={one.name} value={one.name} />)}
                    </datalist>
                  </>
                )}
              </Field>
              <div class="fields fields-request">
                <Field label="Method">
                  {(id) => (
                    <select id={id} value={method} onChange={(event) => setMethod(event.currentTarget.value)}>
                      {METHODS.map((one) => <option key={one}>{one}</option>)}
                    </select>
                  )}
                </Field>
                <Field label="Path and query" class="grow">
                  {(id) => <input id={id} value={path} spellcheck={false} autocomplete="off" onInput={(event) => setPath(event.currentTarget.value)} />}
                </Field>
              </div>
              <Headers headers={headers} change={setHeaders} />
              {kept.length > 0 ? (
                <p class="warning">
                  {kept.map((one) => one.name.trim()).join(", ")} cannot be sent from this page: the browser or the management API keeps {kept.length === 1 ? "it" : "them"}. The command lines below contain {kept.length === 1 ? "it" : "them"}.
                </p>
              ) : null}
              {hasBody ? (
                <Field label="Body">
                  {(id) => <textarea id={id} rows={6} value={body} spellcheck={false} onInput={(event) => setBody(event.currentTarget.value)} />}
                </Field>
              ) : null}
              <div class="row">
                <button type="submit" class="button button-filled" disabled={action.busy || !name || !path.startsWith("/") || !mayDeploy()}>
                  {action.busy ? "Waiting for the answer…" : "Send"}
                </button>
                {action.busy ? <button type="button" class="button" onClick={() => abort.current?.abort()}>Cancel</button> : null}
                {!path.startsWith("/") ? <span class="hint">A path begins with /</span> : null}
              </div>
            </form>
          </Panel>
          <Panel title="Answer" aside={answer ? <StatusWord answer={answer} /> : null}>
            {action.error ? <Failure error={action.error} /> : null}
            {answer ? <Shown answer={answer} name={name!} /> : action.busy ? <Loading what="the answer" /> : action.error ? null : <Empty title="No request was sent yet." />}
          </Panel>
        </div>
      )}
      {detail ? <Commands detail={detail} method={method} path={path} headers={fields} body={hasBody ? body : ""} /> : null}
    </>
  );
}

async function invoke(name: string, method: string, path: string, headers: Header[], body: string | undefined, signal: AbortSignal): Promise<Answer> {
  const sent: Record<string, string> = {};
  for (const one of headers) {
    const field = one.name.trim();
    if (KEPT.test(field)) continue;
    sent[field] = sent[field] === undefined ? one.value : `${sent[field]}, ${one.value}`;
  }
  const began = performance.now();
  let answer: Response;
  try {
    answer = await call(functionPath(name, "/invoke"), {
      method: "POST",
      headers: { ...sent, "mote-method": method, "mote-path": encoded(path) },
      raw: true,
      signal,
      ...(body ? { body } : {}),
    });
  } catch (error) {
    if (error instanceof TypeError) throw new ApiError(400, "", "A name or value of a header is not valid.");
    throw error;
  }
  const value = new Uint8Array(await answer.arrayBuffer());
  const took = performance.now() - began;
  const shown = value.slice(0, SHOWN_MAX);
  const text = asText(shown) ?? (value.length > SHOWN_MAX ? asText(shown.slice(0, SHOWN_MAX - 4)) : undefined);
  const invocation = answer.headers.get("mote-invocation");
  const fault = answer.headers.get("mote-fault");
  return {
    status: answer.status,
    headers: [...answer.headers],
    size: value.length,
    took,
    phases: timing(answer.headers.get("server-timing") ?? ""),
    ...(text === undefined ? { hex: asHex(value) } : { text }),
    ...(invocation ? { invocation } : {}),
    ...(fault ? { fault } : {}),
  };
}

/** The path as it is sent: what is not plain ASCII is written with percent signs. */
function encoded(path: string): string {
  return path.replace(/[^\x21-\x7e]+/gu, encodeURIComponent);
}

/** Reads `queue;dur=0.1, init;dur=7`. */
function timing(field: string): { name: string; ms: number }[] {
  return field
    .split(",")
    .map((part) => /^\s*([\w-]+)\s*;.*?dur=([\d.]+)/.exec(part))
    .filter((match) => match !== null)
    .map((match) => ({ name: match[1]!, ms: Number(match[2]) }));
}

const PHASE_NAMES: Record<string, string> = {
  queue: "waiting in the queue",
  init: "starting an instance",
  handover: "handing over",
  invoke: "inside the function",
  "to-worker": "to the worker",
  "from-worker": "from the worker",
};

function StatusWord({ answer }: { answer: Answer }) {
  const tone = answer.status < 400 ? "ok" : answer.status < 500 ? "warn" : "fail";
  return <State word={`status ${answer.status}`} tone={tone} />;
}

function Shown({ answer, name }: { answer: Answer; name: string }) {
  const type = answer.headers.find(([field]) => field === "content-type")?.[1] ?? "";
  const text = useMemo(() => (answer.text === undefined ? undefined : clean(pretty(answer.text, type))), [answer]);
  const most = Math.max(0.001, ...answer.phases.map((one) => one.ms));
  return (
    <>
      <p class="text">
        <strong>{span(answer.took)}</strong> as this browser measures it, {bytes(answer.size)}
        {answer.fault ? <>, answered by mote with <code>{answer.fault}</code></> : null}
        {answer.invocation ? <> · <a href={to(["call", answer.invocation], { function: name })}>show the call and its log lines</a></> : null}
      </p>
      {answer.phases.length > 0 ? (
        <table class="table table-dense">
          <caption class="sr-only">Times inside the node</caption>
          <tbody>
            {answer.phases.map((one) => (
              <tr key={one.name}>
                <th scope="row">{PHASE_NAMES[one.name] ?? one.name}</th>
                <td class="num">{span(one.ms)}</td>
                <td class="bar-column" aria-hidden="true"><span class="bar" style={{ width: `${(one.ms / most) * 100}%` }} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : null}
      <h3>Body</h3>
      {answer.size === 0 ? (
        <p class="quiet">empty</p>
      ) : (
        <>
          {answer.size > SHOWN_MAX ? <p class="hint">Only the first {bytes(SHOWN_MAX)} are shown.</p> : null}
          {text === undefined ? <p class="hint">Not text. The first bytes:</p> : null}
          <pre class="value" tabIndex={0} role="group" aria-label="Body of the answer">{text ?? answer.hex}</pre>
          {answer.text !== undefined ? <CopyButton text={answer.text} what="body" /> : null}
        </>
      )}
      <details class="more">
        <summary>{answer.headers.length} headers</summary>
        <dl class="pairs pairs-code">
          {answer.headers.map(([field, value]) => (
            <div key={field}>
              <dt>{clean(field)}</dt>
              <dd>{isSecret(field) ? MASK : clean(value)}</dd>
            </div>
          ))}
        </dl>
      </details>
    </>
  );
}

function pretty(text: string, type: string): string {
  if (!/[/+]json/.test(type)) return text;
  try {
    return JSON.stringify(JSON.parse(text), undefined, 2);
  } catch {
    return text;
  }
}

function Headers({ headers, change }: { headers: Header[]; change: (next: Header[]) => void }) {
  const set = (at: number, part: Partial<Header>) => change(headers.map((one, index) => (index === at ? { ...one, ...part } : one)));
  return (
    <fieldset class="header-fields">
      <legend>Headers</legend>
      {headers.map((one, at) => (
        <div class="header-field" key={at}>
          <input aria-label={`Name of header ${at + 1}`} placeholder="name" value={one.name} spellcheck={false} autocomplete="off" onInput={(event) => set(at, { name: event.currentTarget.value })} />
          <input
            aria-label={`Value of header ${at + 1}`}
            placeholder="value"
            type={(isSecret(one.name.trim()) ? "password" : "text") as "text"}
            value={one.value}
            spellcheck={false}
            autocomplete="off"
            onInput={(event) => set(at, { value: event.currentTarget.value })}
          />
          <button type="button" class="button button-small" aria-label={`Remove header ${at + 1}`} onClick={() => change(headers.filter((_, index) => index !== at))}>×</button>
        </div>
      ))}
      <button type="button" class="button button-small" onClick={() => change([...headers, { name: "", value: "" }])}>Add a header</button>
    </fieldset>
  );
}

function Commands({ detail, method, path, headers, body }: { detail: FunctionDetail; method: string; path: string; headers: Header[]; body: string }) {
  const [secrets, setSecrets] = useState(false);
  const shown = headers.map((one) => ({ name: one.name.trim(), value: isSecret(one.name.trim()) && !secrets ? MASK : one.value }));
  const hidden = headers.some((one) => isSecret(one.name.trim()));
  const place = path === "/" ? "" : encoded(path);
  const { urls } = detail;
  const parts = (list: string[]) => list.filter(Boolean).join(" ");
  const curl = urls.http
    ? parts(["curl", method === "GET" ? "" : method === "HEAD" ? "-I" : `-X ${method}`, ...shown.map((one) => `-H ${quoted(`${one.name}: ${one.value}`)}`), body ? `--data-binary ${quoted(body)}` : "", quoted(urls.http + place)])
    : undefined;
  const coapMethod = { GET: "get", POST: "post", PUT: "put", DELETE: "delete", PATCH: "patch" }[method];
  const type = /json/.test(headers.find((one) => one.name.trim().toLowerCase() === "content-type")?.value ?? "") ? "-t json" : "";
  const coap = urls.coap && coapMethod ? parts(["coap-client", `-m ${coapMethod}`, body ? `-e ${quoted(body)}` : "", body ? type : "", quoted(urls.coap + place)]) : undefined;
  const own = parts(["mote invoke", detail.name, `-m ${method}`, place ? `--path ${quoted(place)}` : "", ...shown.map((one) => `-H ${quoted(`${one.name}: ${one.value}`)}`), body ? `-d ${quoted(body)}` : ""]);
  return (
    <Panel
      title="The same as a command line"
      aside={
        hidden ? (
          <label class="check">
            <input type="checkbox" checked={secrets} onChange={(event) => setSecrets(event.currentTarget.checked)} />
            Show secrets
          </label>
        ) : null
      }
    >
      {curl ? <Line name="curl" text={curl} /> : null}
      {coap ? <Line name="coap-client" text={coap} /> : null}
      {(detail.mqtt ?? []).map((one) => (
        <Line key={`${one.broker} ${one.filter}`} name="mosquitto_pub" text={publish(one.broker, one.filter, body)} />
      ))}
      <Line name="mote" text={own} />
    </Panel>
  );
}

function Line({ name, text }: { name: string; text: string }) {
  return (
    <div class="command-line">
      <h3>{name}</h3>
      <Command text={text} label={`${name} command`} />
    </div>
  );
}

/** A topic that fits the filter: wildcards become a word. */
function publish(broker: string, filter: string, body: string): string {
  const topic = filter.replace(/^\$share\/[^/]+\//, "").replaceAll("+", "any").replace(/#$/, "any");
  const place = /^mqtts?:\/\/(?:\[([^\]]+)\]|([^:/]+))(?::(\d+))?/.exec(broker);
  const host = place?.[1] ?? place?.[2];
  const parts = ["mosquitto_pub"];
  if (host && host !== "127.0.0.1" && host !== "localhost") parts.push("-h", quoted(host));
  if (place?.[3] && place[3] !== "1883") parts.push("-p", place[3]);
  parts.push("-q 1", "-t", quoted(topic), "-m", quoted(body || "hello"));
  return parts.join(" ");
}
