import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { functionPath, mayDeploy, send } from "../../lib/api";
import { bytes, count, day, span } from "../../lib/format";
import { go, to } from "../../lib/route";
import { clean } from "../../lib/text";
import type { FunctionDetail, Rate } from "../../lib/types";
import type { Watch } from "../../store/function";
import { refreshFunctions } from "../../store/node";
import { announce, Confirm, CopyButton, Empty, Failure, Field, Panel, State, toneOf, useAction } from "../../ui/base";

export function Settings({ watch }: { watch: Watch }) {
  const detail = watch.detail.value!;
  return (
    <>
      <div class="columns">
        <Reach detail={detail} />
        <Triggers detail={detail} />
      </div>
      <div class="columns">
        <Limits detail={detail} />
        <div>
          <Access detail={detail} />
          {mayDeploy() ? <Scale watch={watch} /> : null}
        </div>
      </div>
      {mayDeploy() ? <Remove name={detail.name} /> : null}
    </>
  );
}

function Pairs({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="pairs">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Address({ url }: { url: string }) {
  return (
    <span class="address">
      <code>{url}</code>
      <CopyButton text={url} what={url} />
    </span>
  );
}

function Reach({ detail }: { detail: FunctionDetail }) {
  const { urls } = detail;
  const rows: [string, ComponentChildren][] = [];
  if (urls.http) rows.push(["HTTP", <Address url={urls.http} />]);
  if (urls.coap) rows.push(["CoAP", <Address url={urls.coap} />]);
  if (urls.coaps) rows.push(["CoAP, encrypted", <Address url={urls.coaps} />]);
  if (urls.port) rows.push([`Port ${urls.port.number}`, urls.port.url ? <Address url={urls.port.url} /> : (urls.port.problem ?? "not open")]);
  for (const route of urls.routes ?? []) rows.push([`Route ${rows.length}`, <code>{route}</code>]);
  return <Panel title="Where it can be called">{rows.length ? <Pairs rows={rows} /> : <Empty title="No front is on." />}</Panel>;
}

function Triggers({ detail }: { detail: FunctionDetail }) {
  const mqtt = detail.mqtt ?? [];
  const schedules = detail.schedules ?? [];
  return (
    <Panel title="Triggers">
      {mqtt.length === 0 && schedules.length === 0 ? (
        <Empty title="Only calls start it.">It has no MQTT topic and no schedule. A [[trigger]] in mote.toml adds one.</Empty>
      ) : null}
      <ul class="failing">
        {mqtt.map((one) => (
          <li key={`${one.broker} ${one.filter}`}>
            <p class="row row-spread">
              <span>MQTT <code>{clean(one.filter)}</code></span>
              <State word={one.state} tone={toneOf(one.state)} />
            </p>
            <p class="quiet small">
              {one.broker}, as {one.client_id}: {count(one.received)} received, {count(one.done)} done, {count(one.running)} running, {count(one.given_up)} given up
            </p>
            {one.message ? <p class="error-line"><code>{one.code}</code> {clean(one.message)}</p> : null}
          </li>
        ))}
        {schedules.map((one, at) => (
          <li key={at}>
            Schedule <code>{one.expression}</code> · <a href={to(["functions", detail.name, "schedules"])}>next runs</a>
          </li>
        ))}
      </ul>
    </Panel>
  );
}

function rate(value: Rate | undefined): string {
  if (!value) return "no limit";
  return `${count(value.calls)} per ${span(value.period_ms)}, ${count(value.burst)} at once after a pause`;
}

function Limits({ detail }: { detail: FunctionDetail }) {
  const { limits } = detail;
  return (
    <Panel title="Limits">
      <Pairs
        rows={[
          ["Memory of an instance", bytes(limits.memory_bytes)],
          ...(limits.process_memory_bytes ? [["Memory of a process", bytes(limits.process_memory_bytes)] as [string, string]] : []),
          ["CPU of an instance", limits.cpu_millis === undefined ? "no limit" : `${limits.cpu_millis / 1000} cores`],
          ["Processes and threads", count(limits.pids)],
          ["Time for a call", span(limits.timeout_ms)],
          ["Time for a start", span(limits.init_timeout_ms)],
          ["Calls at once in an instance", limits.concurrency === undefined ? "chosen by the runtime" : count(limits.concurrency)],
          ["Body of a request", bytes(limits.body_bytes)],
          ["Space for files", bytes(limits.disk_bytes)],
          ["Instances", `${limits.instances_min} to ${limits.instances_max ?? "one per core"}`],
          ["An idle instance stays", `at most ${span(limits.idle_timeout_ms)}`],
          ["Calls that may wait", count(limits.queue)],
          ["Scaling policy", limits.policy || "auto"],
          ["Start", limits.start || "cold"],
          ["Choice of the instance", limits.balance || "late-binding"],
          ["Calls of all callers", rate(limits.rate)],
          ["Calls of each caller", rate(limits.caller_rate)],
          ["Unfinished calls at once", limits.calls_at_once === undefined ? "no limit" : count(limits.calls_at_once)],
          ["Unfinished calls of each caller", limits.caller_calls_at_once === undefined ? "no limit" : count(limits.caller_calls_at_once)],
        ]}
      />
    </Panel>
  );
}

function Access({ detail }: { detail: FunctionDetail }) {
  return (
    <Panel title="Configuration">
      <Pairs
        rows={[
          ["Runtime", detail.compat ? `${detail.runtime}, as ${detail.compat}${detail.template ? ` (${detail.template})` : ""}` : detail.runtime],
          ["First deployed", day(detail.created_at)],
          ["Who may call it", detail.access],
          ...(detail.tokens ? [["Tokens", clean(`of ${detail.tokens.issuer} for ${detail.tokens.audience}`)] as [string, string]] : []),
          ...(detail.certificate_names?.length ? [["Certificates", clean(detail.certificate_names.join(", "))] as [string, string]] : []),
          ...(detail.webhook ? [["Signature", `${detail.webhook.scheme}, with the secret ${detail.webhook.secret}`] as [string, string]] : []),
          ["Secrets that it reads", detail.secrets?.length ? detail.secrets.join(", ") : "none"],
        ]}
      />
    </Panel>
  );
}

function Scale({ watch }: { watch: Watch }) {
  const detail = watch.detail.value!;
  const [values, setValues] = useState({ instances: "", min: "", max: "" });
  const [note, setNote] = useState("");
  const action = useAction();
  const scale = (body: Record<string, unknown>) =>
    action.run(async () => {
      const result = await send<{ ready: number; starting: number; stopped: number; note?: string }>("POST", functionPath(detail.name, "/scale"), body);
      setNote(`${result.ready} ready, ${result.starting} starting, ${result.stopped} stopping. ${result.note ?? ""}`);
      setValues({ instances: "", min: "", max: "" });
      announce("Scaled.");
      watch.refresh();
    });
  const submit = (event: Event) => {
    event.preventDefault();
    const body: Record<string, number> = {};
    for (const [name, value] of Object.entries(values)) if (value !== "") body[name] = Number(value);
    if (Object.keys(body).length > 0) void scale(body);
  };
  const bounds = detail.bounds;
  const field = (name: "instances" | "min" | "max", label: string) => (
    <Field label={label}>
      {(id) => <input id={id} type="number" min={0} max={10_000} inputMode="numeric" value={values[name]} onInput={(event) => setValues({ ...values, [name]: event.currentTarget.value })} />}
    </Field>
  );
  return (
    <Panel title="Scale by hand">
      {bounds && (bounds.min !== undefined || bounds.max !== undefined) ? (
        <p class="warning">
          Bounds set by hand hold until the next deploy: {bounds.min ?? "–"} to {bounds.max ?? "–"}.{" "}
          <button type="button" class="button button-small" disabled={action.busy} onClick={() => void scale({ reset: true })}>Use those of mote.toml</button>
        </p>
      ) : null}
      <form onSubmit={submit}>
        <div class="fields">
          {field("instances", "Instances now")}
          {field("min", "At least")}
          {field("max", "At most")}
        </div>
        <p class="hint">“Instances now” acts once. The bounds hold until the next deploy.</p>
        {action.error ? <Failure error={action.error} /> : null}
        {note ? <p class="notice" role="status">{note}</p> : null}
        <button type="submit" class="button" disabled={action.busy || Object.values(values).every((value) => value === "")}>Scale</button>
      </form>
    </Panel>
  );
}

function Remove({ name }: { name: string }) {
  const action = useAction();
  const remove = () =>
    action.run(async () => {
      await send("DELETE", functionPath(name));
      announce(`${name} was removed.`);
      refreshFunctions();
      go(["functions"]);
    });
  return (
    <Panel title="Remove the function">
      {action.error ? <Failure error={action.error} /> : null}
      <div class="row row-spread">
        <p class="quiet">All revisions are removed. Calls that run finish.</p>
        <Confirm label="Remove" small={false} name={`Remove ${name}`} question={`Remove ${name} with all its revisions? This cannot be undone.`} yes="Remove" onYes={() => void remove()} disabled={action.busy} />
      </div>
    </Panel>
  );
}
