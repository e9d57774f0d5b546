// The parts of the shim that an adapter for another platform may use, through `mote_shim.mjs`.
// Everything else can change at any time, except for the exports of `mote_cloudevents.cjs`, which
// adapters may import too.
//
// An adapter gets the spec in LOAD, which it must not change, and returns a handler `(event, ctx)`.
// Adapters may also use the public members of `event` and `ctx`. Each member is read from the frame
// when it is used.

import { Event } from './events.mjs';
import { headerBlock, headerPairs } from './headers.mjs';

/** An answer that is complete: `status` is 200 to 599, `block` is a header block (text or bytes), and
 * `body` is text or bytes. The worker sends it without further checks, so it costs as much as text. */
export class Prepared {
  constructor(status, block, body) {
    this.status = status;
    this.block = block;
    this.body = body;
  }
}

/** Method, path, query, fields by name, and media type of an event. Requests that ask for the same
 * share one object, so an adapter does not change it, apart from `made`: null at first, and then
 * whatever the adapter keeps for all these requests. Costs a look-up. */
export const headOf = (event) => Event.head(event);

/** Tells the shim to put what `promise` resolves to through `next`, which returns the answer or a
 * promise of it. Returns `promise`, which the handler returns in turn. Costs one promise less than
 * `promise.then(next)`. */
export const later = (event, promise, next) => Event.later(event, promise, next);

/** The checked header block of [name, value] pairs. Throws for a name or value that HTTP does not
 * allow. Costs about a microsecond for each pair. */
export const blockOf = (pairs) => headerBlock(headerPairs(pairs));

/** The same block as bytes, for repeated use: bytes are sent in a third of the time. */
export const keptBlockOf = (pairs) => Buffer.from(blockOf(pairs), 'latin1');
