const CELSIUS_MAX = 60;

/** @param {import('./mote.d.ts').Event} event */
export function handle(event) {
  const { celsius } = event.json();
  if (celsius <= CELSIUS_MAX) return ''; // an empty answer is not published
  return { alarm: `${event.headers['mqtt-topic']} reports ${celsius} degrees` };
}
