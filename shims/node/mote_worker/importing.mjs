// How modules are imported: code that Node has not loaded itself (`mote_start.cjs`) cannot do it.

let importer = (href) => import(href);

/** Imports the module at a URL. */
export function importModule(href) { return importer(href); }

/** Has modules imported by `other` from now on. */
export function importBy(other) { importer = other; }
