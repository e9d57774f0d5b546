// Requests to the node that serves this page. Every answer and error passes through here, so that
// the state of the connection and of the session is known in one place.

import { signal } from "@preact/signals";
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
    super(message);
  }
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
  link.value = limited === undefined ? "up" : "limited";
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
    if (options.signal?.aborted) throw error;
    link.value = "lost";
    throw new ApiError(0, "", NO_ANSWER);
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
  return (await answer.json()) as T;
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

/** Asks the node whether there is a session. */
export async function readSession(): Promise<void> {
  try {
    const answer = await call("/v1/session", { keepSession: true });
    session.value = (await answer.json()) as Session;
  } catch (error) {
    if (error instanceof ApiError && error.status === 0) throw error;
    session.value = null;
  }
}

export async function login(proof: { token: string } | { code: string }): Promise<void> {
  const answer = await call("/v1/session", {
    method: "POST",
    body: JSON.stringify(proof),
    headers: { "content-type": "application/json" },
    keepSession: true,
  });
  sessionEnd.value = "";
  session.value = (await answer.json()) as Session;
}

export async function logout(): Promise<void> {
  await call("/v1/session", { method: "DELETE", keepSession: true }).catch(() => undefined);
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
