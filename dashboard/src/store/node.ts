// What all views know of the node: its status, its functions, their rates, and the events that
// follow from two looks at the same function. Runs as long as there is a session.

import { computed, signal } from "@preact/signals";
import { functionPath, get, session } from "../lib/api";
import { poll, type Poll } from "../lib/poll";
import { clean } from "../lib/text";
import { Ring } from "../lib/ring";
import type { DoctorReport, FunctionDetail, NodeStatus, Summary } from "../lib/types";

const EVERY_MS = 2000;
const DOCTOR_EVERY_MS = 60_000;
/** Points of a function's small chart. */
const POINTS = 40;
const EVENTS_MAX = 200;
/** Functions that are looked at more closely in one turn, so that a busy node is not asked too much. */
const CLOSER_MAX = 12;

export interface Sample {
  at: number;
  /** Calls in a second. */
  rate: number;
  /** Failed calls in a second. */
  failed: number;
}

export interface NodeEvent {
  key: string;
  at: number;
  function: string;
  kind: "start" | "stop" | "failed";
  title: string;
  reason: string;
  invocation?: string;
}

export const status = signal<NodeStatus | undefined>(undefined);
export const doctor = signal<DoctorReport | undefined>(undefined);
export const functions = signal<Summary[] | undefined>(undefined);
export const events = signal<NodeEvent[]>([]);
/** The last closer look at functions that have instances. */
export const details = signal<ReadonlyMap<string, FunctionDetail>>(new Map());
export const series = new Map<string, Ring<Sample>>();
/** Rises with each new list, for what reads `series`. */
export const turn = signal(0);
/** When the node's functions were last read. */
export const readAt = signal(0);

export const total = computed(() => {
  const sum = { calls: 0, failed: 0, running: 0, queued: 0, instances: 0, starting: 0 };
  for (const one of functions.value ?? []) {
    sum.calls += one.requests.total;
    sum.failed += one.requests.failed;
    sum.running += one.requests.running;
    sum.queued += one.requests.queued;
    sum.instances += one.instances;
    sum.starting += one.starting;
  }
  return sum;
});

let polls: Poll<unknown>[] = [];
let functionsPoll: Poll<unknown> | undefined;
let doctorPoll: Poll<unknown> | undefined;
let before = new Map<string, Summary>();
let beforeAt = 0;
let watchers = 0;
const seen = new Set<string>();

export function startStore(): void {
  stopStore();
  // A token for a namespace may not read the state of the whole node.
  const whole = !session.value?.namespace;
  functionsPoll = poll((abort) => readFunctions(abort), EVERY_MS);
  polls = [functionsPoll];
  if (!whole) return;
  doctorPoll = poll((abort) => get<DoctorReport>("/v1/doctor", abort).then((answer) => (doctor.value = answer)), DOCTOR_EVERY_MS);
  polls.push(
    doctorPoll,
    poll((abort) => get<NodeStatus>("/v1/status", abort).then((answer) => (status.value = answer)), EVERY_MS),
  );
}

export function stopStore(): void {
  for (const one of polls) one.stop();
  polls = [];
  status.value = undefined;
  doctor.value = undefined;
  functions.value = undefined;
  events.value = [];
  details.value = new Map();
  series.clear();
  seen.clear();
  before = new Map();
  beforeAt = 0;
}

export function refreshFunctions(): void {
  functionsPoll?.refresh();
}

export function refreshDoctor(): void {
  doctorPoll?.refresh();
}

/** While somebody watches, functions whose instances change are looked at more closely. */
export function watchEvents(): () => void {
  watchers += 1;
  refreshFunctions();
  return () => {
    watchers -= 1;
  };
}

async function readFunctions(abort: AbortSignal): Promise<void> {
  const list = (await get<{ functions: Summary[] }>("/v1/functions?view=summary", abort)).functions;
  const now = performance.now();
  const passed = (now - beforeAt) / 1000;
  const names = new Map<string, Summary>();
  const changed: string[] = [];
  const failures: NodeEvent[] = [];
  for (const one of list) {
    names.set(one.name, one);
    const last = before.get(one.name);
    const known = details.value.has(one.name);
    if (last && beforeAt > 0 && passed > 0) {
      const ring = series.get(one.name) ?? new Ring<Sample>(POINTS);
      series.set(one.name, ring);
      ring.push({
        at: Date.now(),
        rate: Math.max(0, one.requests.total - last.requests.total) / passed,
        failed: Math.max(0, one.requests.failed - last.requests.failed) / passed,
      });
      if (one.last_error && one.last_error.time !== last.last_error?.time) failures.push(failure(one));
    } else if (one.last_error) {
      failures.push(failure(one));
    }
    const moved =
      !last || last.instances !== one.instances || last.starting !== one.starting || last.requests.starts !== one.requests.starts;
    if ((moved && (one.instances > 0 || one.starting > 0 || known)) || (!known && one.instances > 0)) changed.push(one.name);
  }
  for (const name of series.keys()) if (!names.has(name)) series.delete(name);
  before = names;
  beforeAt = now;
  functions.value = list;
  readAt.value = Date.now();
  turn.value += 1;
  addEvents(failures);
  if (watchers > 0) await lookCloser(changed, names, abort);
}

function failure(one: Summary): NodeEvent {
  const error = one.last_error!;
  return {
    key: `failed ${one.name} ${error.time}`,
    at: new Date(error.time).getTime(),
    function: one.name,
    kind: "failed",
    title: `call failed (${error.code})`,
    reason: clean(error.message),
    ...(error.invocation ? { invocation: error.invocation } : {}),
  };
}

async function lookCloser(changed: string[], names: Map<string, Summary>, abort: AbortSignal): Promise<void> {
  const next = new Map<string, FunctionDetail>();
  for (const [name, one] of details.value) if (names.has(name)) next.set(name, one);
  const fresh: NodeEvent[] = [];
  await Promise.all(
    changed.slice(0, CLOSER_MAX).map(async (name) => {
      const one = await get<FunctionDetail>(functionPath(name), abort).catch(() => undefined);
      if (!one) return;
      next.set(name, one);
      fresh.push(...changesOf(one));
    }),
  );
  // What was not looked at because there was too much is looked at in the next turn.
  for (const name of changed.slice(CLOSER_MAX)) before.delete(name);
  details.value = next;
  addEvents(fresh);
}

/** The starts and stops that a function still remembers. */
export function changesOf(one: FunctionDetail): NodeEvent[] {
  const starts = one.instances.map((instance) => ({
    key: `start ${one.name} ${instance.id} ${instance.started_at}`,
    at: new Date(instance.started_at).getTime(),
    function: one.name,
    kind: "start" as const,
    title: `instance ${instance.id} started`,
    reason: instance.reason_text || instance.reason || "",
  }));
  const stops = (one.stops ?? []).map((stop) => ({
    key: `stop ${one.name} ${stop.id} ${stop.time}`,
    at: new Date(stop.time).getTime(),
    function: one.name,
    kind: "stop" as const,
    title: `instance ${stop.id} stopped (${stop.reason})`,
    reason: stop.reason_text || "",
  }));
  return [...starts, ...stops];
}

function addEvents(found: NodeEvent[]): void {
  const fresh = found.filter((one) => !seen.has(one.key));
  if (fresh.length === 0) return;
  const all = [...fresh, ...events.value].sort((a, b) => b.at - a.at).slice(0, EVENTS_MAX);
  events.value = all;
  for (const one of fresh) seen.add(one.key);
  if (seen.size > EVENTS_MAX * 5) {
    seen.clear();
    for (const one of all) seen.add(one.key);
  }
}
