// Tables that several views have: a panel with a list from the node, and its states.

import type { ComponentChildren } from "preact";
import type { ApiError } from "../lib/api";
import { plural } from "../lib/format";
import { Failure, Loading, Panel } from "./base";

interface Listed {
  title: string;
  /** What the panel shows next to its title; without it, how many rows there are. */
  aside?: ComponentChildren;
  /** Not known before the first answer. */
  count: number | undefined;
  what: string;
  many?: string;
  error: ApiError | undefined;
  retry: () => void;
  empty: ComponentChildren;
  /** Above the list, also if it is empty. */
  before?: ComponentChildren;
  children: ComponentChildren;
}

/** A panel with a list: what is shown while it is read, if that fails, and if it is empty. */
export function ListPanel({ title, aside, count, what, many, error, retry, empty, before, children }: Listed) {
  return (
    <Panel title={title} aside={aside ?? (count === undefined ? null : <span class="quiet">{plural(count, what, many)}</span>)}>
      {before}
      {count === undefined ? error ? <Failure error={error} retry={retry} /> : <Loading what={many ?? `${what}s`} /> : count === 0 ? empty : children}
    </Panel>
  );
}

export interface Column {
  name: string;
  /** Numbers are at the right. */
  num?: boolean;
}

/** A table that scrolls in its place. `actions` adds a last column without a visible name. */
export function Rows({ label, columns, actions, children, tall }: { label: string; columns: (string | Column)[]; actions?: boolean; children: ComponentChildren; tall?: "events" | "tall" }) {
  return (
    <div class={tall ? `scroll scroll-${tall}` : "scroll-x"} tabIndex={0} role="region" aria-label={label}>
      <table class="table table-dense">
        <thead>
          <tr>
            {columns.map((one) => {
              const column = typeof one === "string" ? { name: one } : one;
              return <th key={column.name} scope="col" class={column.num ? "num" : undefined}>{column.name}</th>;
            })}
            {actions ? <th scope="col"><span class="sr-only">Actions</span></th> : null}
          </tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}
