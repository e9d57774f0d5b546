// Requests to the node that serves this page. Every answer and error passes through here, so that
// the state of the connection and of the session is known in one place.

import { signal } from "@preact/signals";
import { clean } from "./text";
import type { Session } from "./types";

/** What the page knows of the connection: "limited" follows a 429. */
export const link = signal<"up" | "lost" | "limited">("up");
/** `undefined` until the node has said whether there is a session, `null` without one. */
export const session = signal<Session | null | undefined>(undefined);
/** Why the last session ended, for the login page. */
export const sessionEnd = signal("");

export class ApiError extends Error {
  constructor(
    /** The HTTP status; 0 if there was no answer. */
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint?: string,
    readonly field?: string,
    readonly retryAfterMs?: number,
  ) {
    // The node repeats texts of callers and files.
    super(clean(message));
  }
}

/** How long an answer may take. A connection that was cut silently never ends by itself. */
export const PATIENCE_MS = 10_000;

/** Whether a request was given up because it took too long, and not because nobody waits for it. */
function isLate(signal: AbortSignal): boolean {
  return (signal.reason as { name?: string } | undefined)?.name === "TimeoutError";
}

const returned = new Set<() => void>();

/** Calls `work` when the node answers again after a time without answers. Returns what ends this. */
export function onReturn(work: () => void): () => void {
  returned.add(work);
  return () => void returned.delete(work);
}

/** How long the page says that the node asked for fewer requests, if the node gave no time. */
const LIMITED_MS = 5000;
let limited: ReturnType<typeof setTimeout> | undefined;

/** Takes note of an answer. One that succeeds does not end the time for which another was put off. */
function answered(tooMany: boolean, waitMs = LIMITED_MS): void {
  if (tooMany) {
    clearTimeout(limited);
    limited = setTimeout(() => {
      limited = undefined;
      if (link.value === "limited") link.value = "up";
    }, waitMs);
  }
  const wasLost = link.value === "lost";
  link.value = limited === undefined ? "up" : "limited";
  if (wasLost) for (const work of [...returned]) work();
}

const NO_ANSWER = "The node does not answer.";

function refusal(status: number, text: string, retryAfter: string | null): ApiError {
  const seconds = retryAfter === null ? NaN : Number(retryAfter);
  const wait = Number.isFinite(seconds) ? seconds * 1000 : undefined;
  try {
    const problem = JSON.parse(text) as Record<string, unknown>;
    if (typeof problem.detail === "string") {
      return new ApiError(
        status,
        String(problem.code ?? ""),
        problem.detail,
        typeof problem.hint === "string" ? problem.hint : undefined,
        typeof problem.field === "string" ? problem.field : undefined,
        wait,
      );
    }
  } catch {
    // Not a problem of the node: perhaps a proxy answered.
  }
  return new ApiError(status, "", `The node answered with status ${status}.`, undefined, undefined, wait);
}

/** What is thrown if there is no answer, or only a part of one. */
function lost(error: unknown, signal: AbortSignal | undefined): unknown {
  if (signal?.aborted && !isLate(signal)) return error;
  link.value = "lost";
  return new ApiError(0, "", NO_ANSWER);
}

export interface Call {
  method?: string;
  body?: BodyInit;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** A 401 is an answer like any other, not the end of the session. */
  keepSession?: boolean;
  /** Return answers of every status, as for an invocation. */
  raw?: boolean;
}

/** Sends a request and returns the answer, or throws an `ApiError`. */
export async function call(path: string, options: Call = {}): Promise<Response> {
  const method = options.method ?? "GET";
  const headers = new Headers(options.headers);
  if (method !== "GET" && session.value) headers.set("mote-csrf", session.value.csrf);
  let answer: Response;
  try {
    answer = await fetch(path, {
      method,
      headers,
      credentials: "same-origin",
      cache: "no-store",
      redirect: "error",
      ...(options.body === undefined ? {} : { body: options.body }),
      ...(options.signal ? { signal: options.signal } : {}),
    });
  } catch (error) {
    throw lost(error, options.signal);
  }
  if (answer.ok || (options.raw && !answer.headers.get("mote-fault")?.startsWith("M14"))) {
    answered(false);
    return answer;
  }
  const error = refusal(answer.status, await answer.text().catch(() => ""), answer.headers.get("retry-after"));
  // A proxy in front of a node that is down answers 502 or 504 without a problem of the node.
  if (error.status >= 502 && !error.code) link.value = "lost";
  else answered(error.status === 429, error.retryAfterMs);
  if (error.status === 401 && !options.keepSession && session.value) {
    sessionEnd.value = "Your session has ended. Log in again to go on.";
    session.value = null;
  }
  throw error;
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const answer = await call(path, signal ? { signal } : {});
  return (await answer.json().catch((error: unknown) => {
    throw lost(error, signal);
  })) as T;
}

/** Sends JSON and returns JSON; `undefined` for an empty answer. */
export async function send<T>(method: string, path: string, body?: unknown): Promise<T> {
  const answer = await call(path, {
    method,
    ...(body === undefined ? {} : { body: JSON.stringify(body), headers: { "content-type": "application/json" } }),
  });
  const text = await answer.text();
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** Where this page notes the session that it has begun. Pages at other ports of the host cannot write it. */
const BEGUN = "mote-session";
let begun: string | null = null;

function note(csrf: string | null): void {
  begun = csrf;
  try {
    if (csrf === null) localStorage.removeItem(BEGUN);
    else localStorage.setItem(BEGUN, csrf);
  } catch {
    // Without a storage, the session lasts as long as the page.
  }
}

function noted(): string | null {
  try {
    return localStorage.getItem(BEGUN);
  } catch {
    return begun;
  }
}

// The tabs of a browser have one session.
addEventListener("storage", (event) => {
  if (event.key !== BEGUN || !session.value || event.newValue === session.value.csrf) return;
  if (event.newValue !== null) void readSession().catch(() => undefined);
  else {
    sessionEnd.value = "You have logged out.";
    session.value = null;
  }
});

/**
 * Asks the node whether there is a session. A page at another port of this host, such as that of a
 * function, may have put a cookie with the session of somebody else here. Such a session is not used.
 */
export async function readSession(): Promise<void> {
  const own = noted();
  if (own === null) {
    session.value = null;
    return;
  }
  let found: Session | null = null;
  try {
    found = (await (await call("/v1/session", { keepSession: true, signal: AbortSignal.timeout(PATIENCE_MS) })).json()) as Session;
  } catch (error) {
    if (error instanceof ApiError && (error.status === 0 || error.status >= 500 || error.status === 429)) throw error;
  }
  if (found && found.csrf !== own) {
    sessionEnd.value = `Another page has put a session of ${found.name} into this browser. It is not used. Log in to go on.`;
    found = null;
  }
  session.value = found;
}

const OTHER_COOKIE = `You are logged in, but the browser does not send this session: another page of ${location.hostname} has set a cookie of the same name. Delete the cookies of ${location.hostname} and log in again.`;

export async function login(proof: { token: string } | { code: string }): Promise<void> {
  const answer = await call("/v1/session", {
    method: "POST",
    body: JSON.stringify(proof),
    headers: { "content-type": "application/json" },
    keepSession: true,
  });
  const next = (await answer.json()) as Session;
  // A second cookie of this name, for a longer path, would make each request one without a session.
  const is = await call("/v1/session", { keepSession: true }).then(
    async (shown) => ((await shown.json()) as Session).csrf === next.csrf,
    (error: unknown) => !(error instanceof ApiError && error.status === 401),
  );
  if (!is) throw new ApiError(409, "", OTHER_COOKIE);
  note(next.csrf);
  sessionEnd.value = "";
  session.value = next;
}

export async function logout(): Promise<void> {
  await call("/v1/session", { method: "DELETE", keepSession: true }).catch(() => undefined);
  note(null);
  sessionEnd.value = "You have logged out.";
  session.value = null;
}

/** Whether the session's role permits changes to functions. The node decides; this hides what it would refuse. */
export function mayDeploy(): boolean {
  return session.value?.role !== "viewer";
}

/** Whether the session's role permits changes to keys, tokens and namespaces. */
export function mayOperate(): boolean {
  const role = session.value?.role;
  return role !== "viewer" && role !== "deployer";
}

export function functionPath(name: string, rest = ""): string {
  return `/v1/functions/${encodeURIComponent(name)}${rest}`;
}
