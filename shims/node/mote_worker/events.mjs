// The arguments of `handle(event, ctx)`: `Event` and `Context`. A fetch handler gets the same
// `Context`.
//
// This part reads an invocation. It does not know how the answer is sent.

import { Kv, callFunction, notifyObservers, publishMessage } from './services.mjs';
import { nowNs } from './wire.mjs';

function paramsOf(invocation) {
  return Object.fromEntries(new URLSearchParams(invocation?.head.fields['mote-params'] ?? ''));
}

/** The context of an invocation. */
export class Context {
  #worker;
  #invocation;
  #received = null; // [is a batch, events], once asked for
  constructor(worker, invocation) {
    this.#worker = worker;
    this.#invocation = invocation;
  }
  get function() { return this.#worker.spec.function; }
  get revision() { return this.#worker.spec.revision; }
  get env() { return process.env; }
  get id() { return this.#invocation?.id ?? null; }
  get trigger() { return this.#invocation?.trigger ?? null; }
  /** The name of the key with which the function was called; null without a key. */
  get caller() { return this.#invocation?.head.fields['mote-caller'] ?? null; }
  /** The parameters of the route by which the function was called, decoded. */
  get params() { return paramsOf(this.#invocation); }
  get log() { return console; }
  get signal() { return this.#invocation?.signal ?? null; }
  get cancelled() { return this.#invocation?.cancelled ?? false; }
  /** Milliseconds until the deadline, at least 0; null inside init. */
  remainingMs() {
    return this.#invocation ? Math.max(0, Math.floor((this.#invocation.deadlineNs - nowNs()) / 1e6)) : null;
  }
  /** The state that the node keeps for this function. */
  get kv() { return new Kv(this.#worker.node(), this.#invocation); }
  /** Calls another function of the node; resolves to its answer. */
  call(name, body, options) { return callFunction(this.#worker.node(), this.#invocation, name, body, options); }
  /** Hands a call to the node, which makes it later; resolves to its id. */
  callAsync(name, body, options) { return callFunction(this.#worker.node(), this.#invocation, name, body, options, true); }
  /** Tells those who observe a resource of this function its new state; resolves to how many they are.
   *  Without a body, the node asks the function for the state with GET. */
  notify(path, body, options) { return notifyObservers(this.#worker.node(), this.#invocation, path, body, options); }
  /** The CloudEvent of this invocation; null if it carries none, or a batch. */
  get cloudevent() {
    const [isBatch, events] = this.#events();
    return isBatch ? null : events[0] ?? null;
  }
  /** All CloudEvents of this invocation: those of a batch, the single one, or none. */
  get cloudevents() { return this.#events()[1]; }
  #events() { return (this.#received ??= this.#invocation ? this.#worker.cloudeventsOf(this.#invocation) : [false, []]); }
  /** A new CloudEvent, for instance to return it. Its source is the function without `source`. */
  newCloudevent(members) { return this.#worker.cloudevents().made({ source: `/${this.function}`, ...members }); }
  /** Publishes a message at the function's MQTT broker; settles once the broker has received it. */
  publish(topic, body, options) { return publishMessage(this.#worker.node(), this.#invocation, topic, body, options); }
  /** Part of `fetch(request, env, ctx)` elsewhere: there is no origin server to pass a request to. */
  passThroughOnException() {}
  /** Work that may go on after the answer; a drain waits for it. */
  waitUntil(promise) {
    const worker = this.#worker;
    worker.background++;
    Promise.resolve(promise).catch((error) => console.error(error)).finally(() => {
      worker.background--;
      worker.maybeLeave();
    });
  }
}

/** The event of `handle(event, ctx)`. */
export class Event {
  #invocation;
  #body;
  constructor(invocation, body) {
    this.#invocation = invocation;
    this.#body = body;
  }
  get body() { return this.#body; }
  text() { return this.#body.length ? this.#body.toString('utf8') : ''; }
  json() { return JSON.parse(this.#body.toString('utf8')); }
  get method() { return this.#invocation.method; }
  get path() { return this.#invocation.path; }
  get query() { return this.#invocation.query; }
  get args() { return Object.fromEntries(new URLSearchParams(this.#invocation.query)); }
  get trigger() { return this.#invocation.trigger; }
  get id() { return this.#invocation.id; }
  get caller() { return this.#invocation.head.fields['mote-caller'] ?? null; }
  /** The parameters of the route by which the function was called, decoded. */
  get params() { return paramsOf(this.#invocation); }
  get headers() {
    const headers = Object.assign(Object.create(null), this.#invocation.head.fields);
    Object.defineProperty(this, 'headers', { value: headers });
    return headers;
  }
  static head(event) { return event.#invocation.head; }
  static later(event, promise, next) {
    event.#invocation.next = next;
    return promise;
  }
}
