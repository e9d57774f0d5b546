/** @param {import('./mote.d.ts').Event} event */
export function handle(event) {
  const due = event.headers['mote-schedule-due'];
  console.log(`the run of ${due}`);
  return { ran: due };
}
