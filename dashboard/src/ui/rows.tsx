// Tables that several views have: a panel with a list from the node, and its states.

import { cloneElement, isValidElement, toChildArray, type ComponentChildren, type VNode } from "preact";
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
  /** Left out on a narrow screen. */
  rest?: boolean;
}

interface Table {
  label: string;
  columns: (string | Column)[];
  /** The last cell of each row has buttons; its column has no visible name. */
  actions?: boolean;
  /** On a narrow screen, each row is a block of names and values. */
  cards?: boolean;
  /** The table scrolls within a part of the screen. */
  tall?: "calls" | "tall";
  /** Rows, with a cell for each column. */
  children: ComponentChildren;
}

/** A table that scrolls in its place. */
export function Rows({ label, columns, actions, cards, tall, children }: Table) {
  const all = columns.map((one) => (typeof one === "string" ? { name: one } : one));
  return (
    <div class={tall ? `scroll scroll-${tall}` : "scroll-x"} tabIndex={0} role="region" aria-label={label}>
      <table class={`table table-dense ${cards ? "table-cards" : ""}`}>
        <thead>
          <tr>
            {all.map((column) => <th key={column.name} scope="col" class={names(column)}>{column.name}</th>)}
            {actions ? <th scope="col"><span class="sr-only">Actions</span></th> : null}
          </tr>
        </thead>
        <tbody>{toChildArray(children).map((row) => named(row, all))}</tbody>
      </table>
    </div>
  );
}

function names(column: Column, own?: unknown): string | undefined {
  return [own, column.num ? "num" : "", column.rest ? "rest" : ""].filter(Boolean).join(" ") || undefined;
}

type Props = { class?: string; children?: ComponentChildren };

/** A row whose cells know their columns. */
function named(row: ComponentChildren, columns: Column[]): ComponentChildren {
  if (!isValidElement(row)) return row;
  const cells = toChildArray((row.props as Props).children).map((cell, at) => {
    const column = columns[at];
    if (!isValidElement(cell) || !column) return cell;
    return cloneElement(cell as VNode<Record<string, unknown>>, { "data-label": column.name, class: names(column, (cell.props as Props).class) });
  });
  return cloneElement(row as VNode<Props>, {}, cells);
}
