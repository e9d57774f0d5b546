// The small parts that all views share.

import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError } from "../lib/api";
import { day, relative } from "../lib/format";
import { clean } from "../lib/text";
import { turn } from "../store/node";

let last = 0;

/** An id that no other element of the page has. */
function useUnique(): string {
  return useMemo(() => {
    last += 1;
    return `id-${last}`;
  }, []);
}

const PATHS: Record<string, string> = {
  ok: "M3.5 8.5l3 3 6-7",
  warn: "M8 2.5l6.2 11H1.8zM8 6.5v3.2M8 11.8v.2",
  fail: "M4 4l8 8M12 4l-8 8",
  start: "M5 3.5v9l7-4.5z",
  stop: "M4 4h8v8H4z",
  node: "M2.5 3h11v4h-11zM2.5 9h11v4h-11zM5 5h.01M5 11h.01",
  functions: "M6 3c-2 0-2 2-2 3s0 2-1.5 2C4 8 4 9 4 10s0 3 2 3M10 3c2 0 2 2 2 3s0 2 1.5 2C12 8 12 9 12 10s0 3-2 3",
  try: "M2.5 3.5h11v9h-11zM5 6.5l2 1.5-2 1.5M8.5 10h2.5",
  deploy: "M8 11V3M4.5 6.5L8 3l3.5 3.5M3 13.5h10",
  access: "M10.5 8.5a3 3 0 1 0-2.6-1.6L3 11.800V13.500h2l.8-.8v-1.200h1.200l1.700-1.700c.500.400 1.100.700 1.800.700",
  fleet: "M8 2.500v4M3.500 13.500v-3h9v3M8 6.500v4M6.500 2.500h3M2 13.500h3M11 13.500h3",
  search: "M7 3a4 4 0 1 1 0 8 4 4 0 0 1 0-8M10 10l3.500 3.500",
  copy: "M5.500 5.500h8v8h-8zM10.500 5.500v-3h-8v8h3",
  menu: "M2.500 4.500h11M2.500 8h11M2.500 11.500h11",
  "theme-system": "M2.5 3h11v7.5h-11zM6 13.500h4M8 10.500v3",
  "theme-light": "M8 5a3 3 0 1 1 0 6 3 3 0 0 1 0-6M8 1.500v1M8 13.500v1M1.500 8h1M13.500 8h1M3.400 3.400l.7.7M11.900 11.900l.7.7M12.600 3.400l-.7.7M4.100 11.900l-.7.7",
  "theme-dark": "M12.500 9.800A5.200 5.200 0 0 1 6.200 3.500 5.200 5.200 0 1 0 12.500 9.800",
  out: "M9.500 3h-6v10h6M7 8h6.500M11 5.500L13.500 8 11 10.500",
};

export function Icon({ name }: { name: keyof typeof PATHS | string }) {
  return (
    <svg class={`icon icon-${name}`} viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" focusable="false">
      <path d={PATHS[name] ?? ""} fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}

/** A state as a word with a mark; never colour alone. */
export function State({ word, tone }: { word: string; tone: "ok" | "warn" | "fail" | "busy" | "quiet" }) {
  return (
    <span class={`state state-${tone}`}>
      <span class="mark" aria-hidden="true" />
      {word}
    </span>
  );
}

export function toneOf(state: string): "ok" | "warn" | "fail" | "busy" | "quiet" {
  if (state === "ready" || state === "ok" || state === "live" || state === "succeeded" || state === "connected" || state === "subscribed") return "ok";
  if (state === "failed" || state === "fail" || state === "dead" || state === "unreachable" || state === "failing" || state === "error") return "fail";
  if (state === "warn" || state === "draining" || state === "connecting") return "warn";
  if (state === "starting" || state === "running" || state === "waiting") return "busy";
  return "quiet";
}

export function Panel(props: { title: string; aside?: ComponentChildren; children: ComponentChildren; class?: string }) {
  return (
    <section class={`panel ${props.class ?? ""}`}>
      <header class="panel-head">
        <h2>{props.title}</h2>
        {props.aside ? <div class="panel-aside">{props.aside}</div> : null}
      </header>
      {props.children}
    </section>
  );
}

export function Stat(props: { label: string; value: ComponentChildren; note?: ComponentChildren; tone?: "fail" | "warn" }) {
  return (
    <div class={`stat ${props.tone ? `stat-${props.tone}` : ""}`}>
      <dt>{props.label}</dt>
      <dd>
        <span class="stat-value">{props.value}</span>
        {props.note ? <span class="stat-note">{props.note}</span> : null}
      </dd>
    </div>
  );
}

export function Empty(props: { title: string; children?: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <p class="empty-title">{props.title}</p>
      {props.children ? <div class="empty-text">{props.children}</div> : null}
      {props.command ? <Command text={props.command} /> : null}
    </div>
  );
}

/** A command line with a button that copies it. */
export function Command({ text, label }: { text: string; label?: string }) {
  return (
    <div class="command">
      {/* Only a text that may scroll is a stop of the keyboard. */}
      <pre {...(text.length > 400 ? { tabIndex: 0 } : {})} role="group" aria-label={label ?? "command"}>{clean(text)}</pre>
      <CopyButton text={text} what={label ?? "command"} />
    </div>
  );
}

/** What screen readers are told; one region for the page. */
export const announced = signal("");

export function announce(text: string): void {
  announced.value = announced.value === text ? `${text}\u00a0` : text;
}

export function CopyButton({ text, what }: { text: string; what: string }) {
  const [done, setDone] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    if (!(await toClipboard(text))) {
      announce("The browser does not permit copying.");
      return;
    }
    setDone(true);
    announce(`Copied: ${what}`);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setDone(false), 1600);
  };
  return (
    <button type="button" class="button button-small copy" onClick={() => void copy()} aria-label={`${done ? "Copied" : "Copy"}: ${what}`}>
      <Icon name={done ? "ok" : "copy"} />
      <span class="copy-word">{done ? "Copied" : "Copy"}</span>
    </button>
  );
}

/** `navigator.clipboard` exists only over TLS and on this machine. */
async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "sr-only";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function Failure({ error, retry }: { error: ApiError; retry?: () => void }) {
  return (
    <div class="failure" role="alert">
      <p>
        <strong>{heading(error)}</strong> {error.message}
      </p>
      {error.hint ? <p class="hint">{error.hint}</p> : null}
      {error.code ? (
        <p class="hint">
          <code>mote explain {error.code}</code> says more.
        </p>
      ) : null}
      {retry ? (
        <button type="button" class="button button-small" onClick={retry}>
          Try again
        </button>
      ) : null}
    </div>
  );
}

function heading(error: ApiError): string {
  if (error.status === 0) return "Not reached.";
  if (error.status === 401) return "Not logged in.";
  if (error.status === 403) return "Not permitted.";
  if (error.status === 404) return "Not found.";
  if (error.status === 429) return "Too many requests.";
  return error.code ? `Refused (${error.code}).` : "Refused.";
}

/** A time that says how long ago it was, with the full time as its title. */
export function When({ at }: { at: string | number }) {
  void turn.value;
  return (
    <time dateTime={new Date(at).toString() === "Invalid Date" ? "" : new Date(at).toISOString()} title={day(at)}>
      {relative(at)}
    </time>
  );
}

/** A button that asks before it acts. */
export function Confirm(props: { label: string; question: string; yes: string; onYes: () => void | Promise<void>; disabled?: boolean; small?: boolean; plain?: boolean; name?: string }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useUnique();
  return (
    <>
      <button
        type="button"
        class={`button ${props.plain ? "" : "button-danger"} ${props.small === false ? "" : "button-small"}`}
        disabled={props.disabled}
        aria-label={props.name}
        onClick={() => dialog.current?.showModal()}
      >
        {props.label}
      </button>
      <dialog ref={dialog} aria-labelledby={id} class="dialog">
        <p id={id}>{clean(props.question)}</p>
        <form method="dialog" class="row row-end">
          <button class="button" value="no">
            Cancel
          </button>
          <button class={`button button-filled ${props.plain ? "" : "button-danger"}`} value="yes" onClick={() => void props.onYes()}>
            {props.yes}
          </button>
        </form>
      </dialog>
    </>
  );
}

export function Field(props: { label: string; hint?: string; children: (id: string, described?: string) => JSX.Element; class?: string }) {
  const id = useUnique();
  const hint = useUnique();
  return (
    <div class={`field ${props.class ?? ""}`}>
      <label for={id}>{props.label}</label>
      {props.children(id, props.hint ? hint : undefined)}
      {props.hint ? (
        <p class="hint" id={hint}>
          {props.hint}
        </p>
      ) : null}
    </div>
  );
}

/** Runs a change, shows that it runs, and keeps its error. */
export function useAction(): { busy: boolean; error: ApiError | undefined; run: (work: () => Promise<void>) => Promise<boolean>; clear: () => void } {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | undefined>();
  const run = async (work: () => Promise<void>) => {
    setBusy(true);
    setError(undefined);
    try {
      await work();
      return true;
    } catch (cause) {
      setError(cause instanceof ApiError ? cause : new ApiError(0, "", String(cause)));
      return false;
    } finally {
      setBusy(false);
    }
  };
  return { busy, error, run, clear: () => setError(undefined) };
}

export function Loading({ what }: { what: string }) {
  return <p class="loading">Reading {what}…</p>;
}
