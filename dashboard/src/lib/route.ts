// The address after `#`: a path and a query.

import { signal } from "@preact/signals";

export interface Route {
  path: string[];
  query: URLSearchParams;
}

function read(): Route {
  const text = location.hash.replace(/^#\/?/, "");
  const [path = "", query = ""] = text.split("?", 2);
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal<Route>(read());
addEventListener("hashchange", () => (route.value = read()));

/** Makes an address, `#/functions/hello?q=x`. */
export function to(path: (string | number)[], query: Record<string, string | undefined> = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) search.set(name, value);
  const text = search.toString();
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${text ? `?${text}` : ""}`;
}

export function go(path: (string | number)[], query: Record<string, string | undefined> = {}): void {
  location.hash = to(path, query);
}

/** Changes the query without an entry in the history. */
export function setQuery(name: string, value: string): void {
  const query = new URLSearchParams(route.value.query);
  if (value) query.set(name, value);
  else query.delete(name);
  const address = to(route.value.path, Object.fromEntries(query));
  history.replaceState(null, "", address);
  route.value = { path: route.value.path, query };
}
