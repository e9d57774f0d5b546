// Waiting for the next invocation without sleeping, while it is likely to come at once.
//
// Waking a process that sleeps costs more than a short function takes. While the waits are shorter than
// MAX_MS, the event loop is kept turning for as long as the last ones took. The engine follows the same
// rule (`halt_poll.rs`), and says with each invocation whether this worker may.

const MAX_MS = 0.3; // the longest window, and the longest wait that opens one
const FIRST_MS = 0.0125; // the window after the first short wait

export class Poll {
  constructor() {
    this.allowed = false;
    this.window = 0;
    this.since = 0; // when the worker began to wait
    this.turning = false;
    this.turn = this.turn.bind(this);
  }

  /** The worker has nothing to do from `now` on, in milliseconds. */
  waits(now) {
    this.since = now;
    if (!this.allowed || this.window === 0 || this.turning) return;
    this.turning = true;
    setImmediate(this.turn);
  }

  /** Something came at `now`. */
  came(now) {
    const wait = now - this.since;
    if (wait > MAX_MS) this.window = 0;
    else if (wait > this.window) this.window = Math.min(Math.max(this.window * 2, FIRST_MS), MAX_MS);
  }

  turn() {
    if (performance.now() - this.since < this.window) setImmediate(this.turn);
    else this.turning = false;
  }
}
