// Repeated requests: none while the tab is hidden, with growing pauses while the node does not answer.

import { signal, type Signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { ApiError, onReturn, PATIENCE_MS } from "./api";

const PAUSE_MAX_MS = 15_000;
/** How long after its last failure a request is sent again because the node answers others. */
const RETURN_MS = 5000;

export interface Poll<T> {
  data: Signal<T | undefined>;
  error: Signal<ApiError | undefined>;
  refresh: () => void;
  /** Ends it. */
  stop: () => void;
}

/** Reads at once and then again `every` milliseconds after each answer. */
export function poll<T>(read: (signal: AbortSignal) => Promise<T>, every: number): Poll<T> {
  const data = signal<T | undefined>(undefined);
  const error = signal<ApiError | undefined>(undefined);
  let timer: ReturnType<typeof setTimeout> | undefined;
  let current: AbortController | undefined;
  let failures = 0;
  let failedAt = 0;

  const turn = async () => {
    clearTimeout(timer);
    current?.abort();
    const own = new AbortController();
    current = own;
    let pause = every;
    const patience = setTimeout(() => own.abort(new DOMException("too late", "TimeoutError")), Math.max(PATIENCE_MS, every));
    try {
      const answer = await read(own.signal);
      if (current !== own) return;
      failures = 0;
      error.value = undefined;
      data.value = answer;
    } catch (cause) {
      if (current !== own) return;
      const failure = cause instanceof ApiError ? cause : new ApiError(0, "", String(cause));
      error.value = failure;
      // A refusal that will not change by itself is asked for again in longer steps, too.
      failures += 1;
      failedAt = performance.now();
      pause = failure.retryAfterMs ?? Math.min(PAUSE_MAX_MS, every * 2 ** Math.min(failures, 6));
      pause *= 0.85 + Math.random() * 0.3;
    } finally {
      clearTimeout(patience);
    }
    later(pause);
  };
  const later = (pause: number) => {
    clearTimeout(timer);
    if (!document.hidden) timer = setTimeout(turn, pause);
  };
  const shown = () => {
    if (document.hidden) clearTimeout(timer);
    else void turn();
  };
  document.addEventListener("visibilitychange", shown);
  addEventListener("online", shown);
  const forget = onReturn(() => {
    // Other requests may succeed all the time while this one fails.
    if (failures > 0) later(Math.max(0, failedAt + RETURN_MS - performance.now()));
  });
  if (!document.hidden) void turn();

  return {
    data,
    error,
    refresh: () => void turn(),
    stop: () => {
      clearTimeout(timer);
      current?.abort();
      current = undefined;
      forget();
      document.removeEventListener("visibilitychange", shown);
      removeEventListener("online", shown);
    },
  };
}

/** A poll that lives as long as the component, and begins anew when `key` changes. */
export function usePoll<T>(key: string, every: number, read: (signal: AbortSignal) => Promise<T>): Poll<T> {
  const current = useMemo(() => poll(read, every), [key]);
  useEffect(() => () => current.stop(), [current]);
  return current;
}
