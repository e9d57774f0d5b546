// What an adapter for another platform may use of the shim, through `mote_shim.mjs`. Everything else
// can change at any time, except for what `mote_cloudevents.cjs` exports, which adapters may import too.
//
// An adapter gets the spec of LOAD, which it does not change, and returns a handler of `(event, ctx)`.
// The public members of these two are for adapters too; each is read from the frame when it is used.

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

/** The same as bytes, for a block that is used again: bytes are sent in a third of the time. */
export const keptBlockOf = (pairs) => Buffer.from(blockOf(pairs), 'latin1');
