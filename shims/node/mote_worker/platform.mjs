// The platform's own classes of the Fetch standard, loaded when one of them is first needed.
//
// Loading them takes as long as the whole start of Node, because it also compiles a parser for the
// answers of servers. Most functions get by with the light objects of `fetch` and `web_headers`.

const NAMES = ['Request', 'Response', 'Headers'];
const before = NAMES.map((name) => Object.getOwnPropertyDescriptor(globalThis, name));
const platformFetch = globalThis.fetch;

let classes = null;
let linked = null; // what connects the light classes with these

function load() {
  const now = NAMES.map((name) => Object.getOwnPropertyDescriptor(globalThis, name));
  const found = before.map((property) => (property.get ? property.get.call(globalThis) : property.value));
  // The platform's getters have replaced themselves with the classes, so the former properties are
  // restored.
  NAMES.forEach((name, at) => Object.defineProperty(globalThis, name, now[at]));
  classes = Object.fromEntries(NAMES.map((name, at) => [name, found[at]]));
  linked?.(classes);
  return classes;
}

export const real = {
  get Request() { return (classes ?? load()).Request; },
  get Response() { return (classes ?? load()).Response; },
  get Headers() { return (classes ?? load()).Headers; },
  fetch(input, init) {
    if (classes === null) load();
    return platformFetch(input, init);
  },
};

/** Whether the platform's class of this name made `value`; false until that class is loaded. */
export function isReal(name, value) { return classes !== null && value instanceof classes[name]; }

/** Whether the platform's classes are loaded. */
export function isLoaded() { return classes !== null; }

/** Calls `link` with the classes once they are loaded. */
export function whenLoaded(link) { linked = link; }
