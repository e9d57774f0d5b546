// The measured past of one function: what changed between two reads of its counters.

import { signal, type Signal } from "@preact/signals";
import { functionPath, get } from "../lib/api";
import { merged, since, add } from "../lib/histogram";
import { poll, type Poll } from "../lib/poll";
import { Ring } from "../lib/ring";
import type { Durations, FunctionDetail } from "../lib/types";

const EVERY_MS = 2000;
const FINE = 150;
/** Fine columns in a coarse one: 30 s. */
const STEP = 15;
const COARSE = 120;
/** Functions whose past is kept after their page is closed. */
const KEPT = 6;

/** What happened in one interval. */
export interface Column {
  at: number;
  /** 0 if nobody has measured it, because the page was not open. */
  seconds: number;
  request: number[];
  queue: number[];
  start: number[];
  run: number[];
  total: number;
  failed: number;
  running: number;
  queued: number;
  instances: number;
  starting: number;
}

export type Phase = "request" | "queue" | "start" | "run";
export const PHASES: { phase: Phase; name: string; what: string }[] = [
  { phase: "request", name: "Request", what: "from arrival to answer" },
  { phase: "queue", name: "Queue", what: "waiting for an instance, its start included" },
  { phase: "start", name: "Start", what: "starting an instance" },
  { phase: "run", name: "Run", what: "inside the function" },
];

export class Watch {
  readonly detail: Signal<FunctionDetail | undefined> = signal(undefined);
  readonly bounds: Signal<number[]> = signal([]);
  readonly turn = signal(0);
  /** Whether the node has `durations`. */
  readonly measured = signal(true);
  private readonly fine = new Ring<Column>(FINE);
  private readonly coarse = new Ring<Column>(COARSE);
  private partial: Column | undefined;
  private parts = 0;
  private last: { at: number; durations: Durations | undefined; detail: FunctionDetail } | undefined;
  private running: Poll<void> | undefined;

  constructor(readonly name: string) {}

  start(): Poll<void> {
    this.running?.stop();
    this.running = poll((abort) => this.read(abort), EVERY_MS);
    return this.running;
  }

  stop(): void {
    this.running?.stop();
    this.running = undefined;
  }

  refresh(): void {
    this.running?.refresh();
  }

  columns(long: boolean): Column[] {
    if (!long) return this.fine.all();
    return this.partial ? [...this.coarse.all(), this.partial] : this.coarse.all();
  }

  private async read(abort: AbortSignal): Promise<void> {
    const [detail, durations] = await Promise.all([
      get<FunctionDetail>(functionPath(this.name), abort),
      get<Durations>(functionPath(this.name, "/durations"), abort).catch((error: { status?: number }) => {
        if (error.status === 404) return undefined;
        throw error;
      }),
    ]);
    this.measured.value = durations !== undefined;
    const now = performance.now();
    const last = this.last;
    this.last = { at: now, durations, detail };
    this.detail.value = detail;
    if (durations && durations.bounds_us.length !== this.bounds.value.length) this.bounds.value = durations.bounds_us;
    // What happened while nobody looked is not the rate of one moment: the time is left empty.
    const missed = last ? Math.round((now - last.at) / EVERY_MS) : 0;
    if (last && missed < 4) this.push(column(detail, durations, last, (now - last.at) / 1000));
    else for (let at = Math.min(missed, FINE); at > 0; at -= 1) this.push(empty(Date.now() - at * EVERY_MS));
    this.turn.value += 1;
  }

  private push(one: Column): void {
    this.fine.push(one);
    if (!this.partial) this.partial = { ...one, request: [...one.request], queue: [...one.queue], start: [...one.start], run: [...one.run] };
    else {
      const into = this.partial;
      for (const { phase } of PHASES) add(into[phase], one[phase]);
      into.at = one.at;
      into.seconds += one.seconds;
      into.total += one.total;
      into.failed += one.failed;
      into.running = Math.max(into.running, one.running);
      into.queued = Math.max(into.queued, one.queued);
      if (one.seconds > 0) into.instances = one.instances;
      into.starting = Math.max(into.starting, one.starting);
    }
    this.parts += 1;
    if (this.parts === STEP) {
      this.coarse.push(this.partial);
      this.partial = undefined;
      this.parts = 0;
    }
  }
}

function empty(at: number): Column {
  return { at, seconds: 0, request: [], queue: [], start: [], run: [], total: 0, failed: 0, running: 0, queued: 0, instances: 0, starting: 0 };
}

function column(
  detail: FunctionDetail,
  durations: Durations | undefined,
  last: { durations: Durations | undefined; detail: FunctionDetail },
  seconds: number,
): Column {
  const length = durations ? durations.bounds_us.length + 1 : 0;
  const earlier = last.durations;
  const lists = (phase: "queue" | "start" | "run") =>
    durations ? since(durations[phase] ?? [], earlier?.[phase]) : [];
  return {
    at: Date.now(),
    seconds,
    request: durations ? since(merged(durations.request, length), earlier && merged(earlier.request, length)) : [],
    queue: lists("queue"),
    start: lists("start"),
    run: lists("run"),
    total: Math.max(0, detail.requests.total - last.detail.requests.total),
    failed: Math.max(0, detail.requests.failed - last.detail.requests.failed),
    running: detail.requests.running,
    queued: detail.requests.queued,
    instances: detail.instances.length,
    starting: detail.starting,
  };
}

const watches = new Map<string, Watch>();

/** The watch of a function. The past of the functions that were looked at last is kept. */
export function watchOf(name: string): Watch {
  const found = watches.get(name) ?? new Watch(name);
  watches.delete(name);
  watches.set(name, found);
  for (const [other, watch] of watches) {
    if (watches.size <= KEPT) break;
    watch.stop();
    watches.delete(other);
  }
  return found;
}

export function forgetWatches(): void {
  for (const watch of watches.values()) watch.stop();
  watches.clear();
}
