// Log lines of a function as they come: bounded, filtered in slices, and read on after a break.

import { signal } from "@preact/signals";
import { ApiError, call, functionPath, onReturn } from "../lib/api";
import { clean } from "../lib/text";
import type { LogLine } from "../lib/types";

export const LINES_MAX = 100_000;
/** Lines that are read at first. Older ones are read when they are asked for, or searched by the node. */
export const LINES_FIRST = 10_000;
/** How long work may go on before the page may draw again. */
const SLICE_MS = 6;
const PAUSE_MAX_MS = 15_000;
/** A stream that ends earlier is not asked for again at once. */
const STEADY_MS = 1000;

export interface Numbered extends LogLine {
  seq: number;
}

export interface Filter {
  text: string;
  level: string;
  stream: string;
}

const LEVELS = ["debug", "info", "warn", "error"];

export class LogReader {
  /** Rises when `shown` has changed. */
  readonly turn = signal(0);
  readonly state = signal<"reading" | "live" | "ended" | "lost">("reading");
  readonly error = signal<ApiError | undefined>(undefined);
  shown: Numbered[] = [];
  total = 0;
  /** Lines that were given up because there are too many. */
  dropped = 0;
  private lines: Numbered[] = [];
  private fits: (line: LogLine) => boolean = () => true;
  private seq = 0;
  private filterRun = 0;
  private filtering = false;
  private lastTime = "";
  private atLastTime = new Set<string>();
  private resumed = false;
  private abort: AbortController | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private asked = 0;
  private stopped = false;
  private paused = false;
  private readonly forget: () => void;
  private failures = 0;

  constructor(
    private readonly name: string,
    private readonly query: { invocation?: string; tail: number; follow: boolean; grep?: string; level?: string },
  ) {
    document.addEventListener("visibilitychange", this.seen);
    // A stream that was cut silently never ends by itself.
    this.forget = onReturn(this.seen);
    void this.read();
  }

  stop(): void {
    this.stopped = true;
    document.removeEventListener("visibilitychange", this.seen);
    this.forget();
    clearTimeout(this.timer);
    cancelAnimationFrame(this.asked);
    this.abort?.abort();
    this.lines = [];
    this.shown = [];
  }

  /** Stops reading until `resume`, but keeps the lines. */
  pause(): void {
    this.paused = true;
    clearTimeout(this.timer);
    this.abort?.abort();
  }

  resume(): void {
    this.paused = false;
    if (!this.stopped && !document.hidden && this.state.value !== "ended") void this.read();
  }

  /** Whether the node may have older lines than those that were read. */
  hasOlder(): boolean {
    return this.total >= this.query.tail;
  }

  /** All lines that fit, as JSON lines. */
  text(): string {
    return this.shown.map(({ seq: _, ...line }) => JSON.stringify(line)).join("\n");
  }

  setFilter(filter: Filter): void {
    this.fits = matcher(filter);
    void this.refilter();
  }

  private readonly seen = () => {
    if (document.hidden) {
      clearTimeout(this.timer);
      this.abort?.abort();
    } else if (this.state.value !== "ended" && !this.paused) void this.read();
  };

  private async read(): Promise<void> {
    clearTimeout(this.timer);
    this.abort?.abort();
    const own = new AbortController();
    this.abort = own;
    const query = new URLSearchParams();
    if (this.query.follow) query.set("follow", "true");
    if (this.query.invocation) query.set("invocation", this.query.invocation);
    if (this.query.level) query.set("level", this.query.level);
    if (this.query.grep) {
      query.set("grep", this.query.grep);
      query.set("ignore_case", "true");
    }
    this.resumed = this.lastTime !== "";
    if (this.resumed) query.set("since", this.lastTime);
    else query.set("tail", String(this.query.tail));
    let began = 0;
    try {
      const answer = await call(functionPath(this.name, `/logs?${query}`), { signal: own.signal });
      began = performance.now();
      this.failures = 0;
      this.error.value = undefined;
      this.state.value = "live";
      await this.consume(answer, own.signal);
      if (!this.query.follow) {
        this.state.value = "ended";
        return;
      }
      throw new ApiError(0, "", "The stream of log lines has ended.");
    } catch (cause) {
      if (own.signal.aborted || this.stopped) return;
      this.state.value = "lost";
      this.error.value = cause instanceof ApiError ? cause : new ApiError(0, "", "The stream of log lines was cut off.");
      if (this.error.value.status === 401 || this.error.value.status === 404) return;
      this.failures += 1;
      // A stream that was cut off is asked for again at once: the session may have ended.
      const wasLive = began > 0 && performance.now() - began > STEADY_MS;
      const pause = this.error.value.retryAfterMs ?? (wasLive ? 0 : Math.min(PAUSE_MAX_MS, 500 * 2 ** this.failures));
      if (!document.hidden) this.timer = setTimeout(() => void this.read(), pause);
    }
  }

  private async consume(answer: Response, signal: AbortSignal): Promise<void> {
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (signal.aborted) return;
      if (done) break;
      const text = rest + value;
      let began = performance.now();
      let from = 0;
      for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", from)) {
        if (end > from) this.take(text.slice(from, end));
        from = end + 1;
        if (performance.now() - began > SLICE_MS) {
          this.publish();
          await breath();
          if (signal.aborted) return;
          began = performance.now();
        }
      }
      rest = text.slice(from);
      this.publish();
    }
    if (rest !== "") this.take(rest);
    this.publish();
  }

  private take(text: string): void {
    let line: Numbered;
    try {
      line = JSON.parse(text) as Numbered;
    } catch {
      return;
    }
    if (typeof line.message !== "string" || typeof line.time !== "string") return;
    const mark = `${line.instance ?? ""} ${line.invocation ?? ""} ${line.message}`;
    if (line.time === this.lastTime) {
      // After a break the node may send lines of the last moment again.
      if (this.resumed && this.atLastTime.has(mark)) return;
    } else {
      this.lastTime = line.time;
      this.atLastTime.clear();
      this.resumed = false;
    }
    this.atLastTime.add(mark);
    this.seq += 1;
    line.seq = this.seq;
    line.message = clean(line.message);
    this.lines.push(line);
    this.total += 1;
    if (!this.filtering && this.fits(line)) this.shown.push(line);
    if (this.lines.length > LINES_MAX * 1.05) this.drop();
  }

  private drop(): void {
    const over = this.lines.length - LINES_MAX;
    const first = this.lines[over]!.seq;
    this.lines = this.lines.slice(over);
    this.dropped += over;
    let cut = 0;
    while (cut < this.shown.length && this.shown[cut]!.seq < first) cut += 1;
    if (cut > 0) this.shown = this.shown.slice(cut);
  }

  private async refilter(): Promise<void> {
    this.filterRun += 1;
    const run = this.filterRun;
    this.filtering = true;
    const found: Numbered[] = [];
    let began = performance.now();
    // Lines that come meanwhile are at the end of the same list.
    let last = 0;
    for (let at = 0; at < this.lines.length; at += 1) {
      const line = this.lines[at]!;
      if (line.seq <= last) continue;
      last = line.seq;
      if (this.fits(line)) found.push(line);
      if (at % 256 === 0 && performance.now() - began > SLICE_MS) {
        await breath();
        if (run !== this.filterRun || this.stopped) return;
        began = performance.now();
        // The list may have become shorter at its beginning.
        at = Math.min(at, this.lines.length);
        while (at > 0 && (this.lines[at - 1]?.seq ?? 0) > last) at -= 1;
      }
    }
    this.shown = found;
    this.filtering = false;
    this.publish();
  }

  private publish(): void {
    if (this.asked || this.stopped) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      this.turn.value += 1;
    });
  }
}

/** Lets the browser draw and answer. */
function breath(): Promise<void> {
  return new Promise((done) => setTimeout(done, 0));
}

/** `/text/` is a regular expression, other text is looked for as it is; neither minds upper case. */
export function matcher({ text, level, stream }: Filter): (line: LogLine) => boolean {
  const least = LEVELS.indexOf(level);
  const pattern = expression(text);
  return (line) => {
    if (least > 0 && LEVELS.indexOf(line.level) < least) return false;
    if (stream === "function" ? line.stream === "platform" : stream !== "" && line.stream !== stream) return false;
    return pattern === undefined || pattern.test(line.message) || (line.invocation !== undefined && pattern.test(line.invocation));
  };
}

/** Whether the text is an expression, which only the page can look for. */
export function isExpression(text: string): boolean {
  return /^\/(.+)\/$/.test(text);
}

function expression(text: string): RegExp | undefined {
  if (text === "") return undefined;
  const inner = /^\/(.+)\/$/.exec(text)?.[1];
  if (inner !== undefined) {
    try {
      return new RegExp(inner, "i");
    } catch {
      // Not an expression (yet): look for it as text.
    }
  }
  return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "i");
}
