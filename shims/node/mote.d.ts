// Types for functions in TypeScript and JavaScript, for editors and type checkers.
//
// `mote new` writes this file next to a function. Nothing loads it while the function runs:
//
//   import type { Context, Event } from './mote.d.ts';            // TypeScript
//   /** @param {import('./mote.d.ts').Event} event */              // JavaScript

export type Trigger = 'http' | 'coap' | 'mqtt' | 'admin' | 'schedule' | 'function' | 'unknown';

/** Text and bytes are sent as they are, other values as JSON. */
export type Content = string | Uint8Array | ArrayBuffer | object | number | boolean | null;

export type Fields = Record<string, string> | Iterable<[string, string]>;

/** The event of `handle(event, ctx)`. */
export interface Event {
  /** A Buffer. */
  readonly body: Uint8Array;
  readonly method: string;
  /** The path after the function's name. */
  readonly path: string;
  readonly query: string;
  /** The parameters of the query. */
  readonly args: Record<string, string>;
  /** Names are in lower case. Duplicates are joined by ", ". */
  readonly headers: Record<string, string>;
  readonly trigger: Trigger;
  readonly id: string;
  /** The name that the access mode proves. */
  readonly caller: string | null;
  /** The parameters of the route by which the function was called. */
  readonly params: Record<string, string>;
  text(): string;
  json(): any;
}

/** A value of the state, with the version that a change can require. */
export interface Entry {
  readonly key: string;
  /** A Buffer. */
  readonly value: Uint8Array;
  readonly version: number;
  readonly expiresMs: number | null;
  readonly text: string;
  json(): any;
}

/** Entries in the order of their keys. `after` continues the listing; it is null at its end. */
export type Listing = Entry[] & { after: string | null };

/** The state of the function. Errors have a `code`: full, invalid, denied, unavailable or conflict. */
export interface Kv {
  /** The shared namespace of this name, which the manifest must list in `[kv] shared`. */
  shared(name: string): Kv;
  /** A Buffer. */
  get(key: string): Promise<Uint8Array | null>;
  entry(key: string): Promise<Entry | null>;
  /** Resolves to the version. `ttl` is in seconds. A required version of 0 means: there must be no entry. */
  put(key: string, value: Content, options?: { ttl?: number; version?: number; durable?: boolean }): Promise<number>;
  /** Resolves to whether the key existed. */
  delete(key: string, options?: { version?: number; durable?: boolean }): Promise<boolean>;
  list(prefix?: string, options?: { limit?: number; after?: string | null; values?: boolean }): Promise<Listing>;
  /** Adds to a whole number; resolves to the sum, a bigint where a number would not be exact. */
  increment(key: string, by?: number | bigint, options?: { ttl?: number; durable?: boolean }): Promise<number | bigint>;
}

/** The answer of a called function. */
export interface Reply {
  readonly status: number;
  readonly headers: Record<string, string>;
  /** A Buffer. */
  readonly body: Uint8Array;
  /** Whether the status is below 400. */
  readonly ok: boolean;
  readonly text: string;
  json(): any;
}

export interface CallOptions {
  method?: string;
  path?: string;
  query?: string;
  headers?: Fields;
}

/** A CloudEvent. Extensions are members, too. */
export interface CloudEvent {
  readonly id: string;
  readonly source: string;
  readonly type: string;
  readonly specversion: string;
  readonly subject?: string;
  readonly datacontenttype?: string;
  readonly dataschema?: string;
  readonly data?: any;
  readonly [extension: string]: any;
}

/** The context of an invocation. */
export interface Context {
  readonly function: string;
  readonly revision: number;
  readonly env: Record<string, string | undefined>;
  /** Null inside `init`, like the following members. */
  readonly id: string | null;
  readonly trigger: Trigger | null;
  /** The name that the access mode proves. */
  readonly caller: string | null;
  /** Aborted when the caller no longer waits. */
  readonly signal: AbortSignal | null;
  readonly params: Record<string, string>;
  readonly cancelled: boolean;
  readonly kv: Kv;
  readonly cloudevent: CloudEvent | null;
  readonly cloudevents: CloudEvent[];
  newCloudevent(members: { type: string; data?: any; source?: string; [attribute: string]: any }): CloudEvent;
  /** Milliseconds until the deadline, at least 0; null inside `init`. */
  remainingMs(): number | null;
  /** Work that may go on after the answer. */
  waitUntil(promise: Promise<unknown>): void;
  /** Calls another function of the node. `timeout` is in seconds. */
  call(name: string, body?: Content, options?: CallOptions & { timeout?: number }): Promise<Reply>;
  /** Hands a call to the node, which makes it later; resolves to its id. `delay` is in seconds. */
  callAsync(
    name: string,
    body?: Content,
    options?: CallOptions & { delay?: number; key?: string; order?: string },
  ): Promise<string>;
  /** Publishes a message at the MQTT broker of the function. */
  publish(
    topic: string,
    body?: Content,
    options?: {
      qos?: 0 | 1 | 2;
      retain?: boolean;
      contentType?: string;
      responseTopic?: string;
      correlation?: string | Uint8Array;
      user?: Fields;
    },
  ): Promise<void>;
  /** Tells the observers of a resource its new state; resolves to how many they are. */
  notify(
    path: string,
    body?: Content,
    options?: { contentType?: string; maxAge?: number; headers?: Fields },
  ): Promise<number>;
}

/** `export function handle(event, ctx)`. */
export type Handle = (event: Event, ctx: Context) => unknown;

/** The default export of a function with Fetch. */
export interface Fetcher {
  fetch(request: Request, ctx: Context): Response | Promise<Response>;
}
