import { useMemo, useState } from "preact/hooks";
import { Spark } from "../charts/spark";
import { mayDeploy } from "../lib/api";
import { count, figure, span } from "../lib/format";
import { route, setQuery, to } from "../lib/route";
import type { Summary } from "../lib/types";
import { functions, series, turn } from "../store/node";
import { Empty, Icon, Loading, State, toneOf } from "../ui/base";
import { Title } from "../ui/title";
import { Spacer, useWindow } from "../ui/virtual";

const ROW = 44;

type Order = "name" | "rate" | "p99" | "failed" | "instances";
const ORDERS: { order: Order; name: string }[] = [
  { order: "name", name: "Name" },
  { order: "rate", name: "Calls per second" },
  { order: "p99", name: "99th percentile" },
  { order: "failed", name: "Failed calls" },
  { order: "instances", name: "Instances" },
];

export function FunctionsView() {
  const list = functions.value;
  const search = route.value.query.get("q") ?? "";
  const [order, setOrder] = useState<Order>("name");
  const step = turn.value;
  const shown = useMemo(() => ordered(filtered(list ?? [], search), order), [list, search, order, step]);
  if (!list) {
    return (
      <>
        <Title text="Functions" />
        <Loading what="the functions" />
      </>
    );
  }
  return (
    <>
      <Title text="Functions">
        {mayDeploy() ? (
          <a class="button button-filled" href={to(["deploy"])}>
            <Icon name="deploy" />
            Deploy
          </a>
        ) : null}
      </Title>
      {list.length === 0 ? (
        <Empty title="There are no functions yet." command="mote deploy hello.py">
          {mayDeploy() ? <>Drop a file on the page <a href={to(["deploy"])}>Deploy</a>, or use the command line:</> : "Deploy one with the command line:"}
        </Empty>
      ) : (
        <>
          <div class="row bar-row">
            <label class="search">
              <span class="sr-only">Search functions</span>
              <Icon name="search" />
              <input type="search" placeholder="Search by name, language or state" value={search} onInput={(event) => setQuery("q", event.currentTarget.value)} />
            </label>
            <label class="inline">
              Order by
              <select value={order} onChange={(event) => setOrder(event.currentTarget.value as Order)}>
                {ORDERS.map((one) => <option key={one.order} value={one.order}>{one.name}</option>)}
              </select>
            </label>
            <p class="quiet" role="status">
              {search ? `${count(shown.length)} of ${count(list.length)}` : `${count(list.length)} functions`}
            </p>
          </div>
          {shown.length === 0 ? <Empty title={`No function fits “${search}”.`} /> : <Table rows={shown} />}
        </>
      )}
    </>
  );
}

function filtered(list: Summary[], search: string): Summary[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return list;
  return list.filter((one) => {
    const text = `${one.name} ${one.runtime} ${one.state} ${one.access}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

function ordered(list: Summary[], order: Order): Summary[] {
  if (order === "name") return list;
  const key: Record<Exclude<Order, "name">, (one: Summary) => number> = {
    rate: (one) => series.get(one.name)?.last()?.rate ?? 0,
    p99: (one) => one.requests.p99_ms ?? 0,
    failed: (one) => one.requests.failed,
    instances: (one) => one.instances,
  };
  const of = key[order];
  return [...list].sort((a, b) => of(b) - of(a));
}

function Table({ rows }: { rows: Summary[] }) {
  const { box, window } = useWindow(rows.length, ROW);
  return (
    <div class="scroll scroll-tall panel flush" ref={box} tabIndex={0} role="region" aria-label="Functions">
      <table class="table functions" aria-rowcount={rows.length + 1}>
        <thead>
          <tr aria-rowindex={1}>
            <th scope="col">Function</th>
            <th scope="col">State</th>
            <th scope="col" class="num">Instances</th>
            <th scope="col" class="rate-column">Calls/s</th>
            <th scope="col" class="num">Median</th>
            <th scope="col" class="num"><abbr title="99th percentile">p99</abbr></th>
            <th scope="col" class="num">Failed</th>
            <th scope="col" class="num">Cold</th>
          </tr>
        </thead>
        <tbody>
          <Spacer height={window.above} columns={8} />
          {rows.slice(window.first, window.end).map((one, at) => (
            <Row key={one.name} one={one} index={window.first + at + 2} />
          ))}
          <Spacer height={window.below} columns={8} />
        </tbody>
      </table>
    </div>
  );
}

function Row({ one, index }: { one: Summary; index: number }) {
  const samples = series.get(one.name)?.all() ?? [];
  const rate = samples[samples.length - 1]?.rate;
  const { requests } = one;
  return (
    <tr style={{ height: `${ROW}px` }} aria-rowindex={index}>
      <th scope="row">
        <a class="clip" href={to(["functions", one.name])}>{one.name}</a>
        <span class="under">{one.runtime} · @{one.revision} · {one.access}</span>
      </th>
      <td><State word={one.state} tone={toneOf(one.state)} /></td>
      <td class="num" data-label="instances">{count(one.instances)}{one.starting > 0 ? <small> +{one.starting}</small> : null}</td>
      <td class="rate-column">
        <span class="rate">
          <Spark values={samples.map((sample) => sample.rate)} failed={samples.map((sample) => sample.failed)} />
          <span class="num">{rate === undefined ? "–" : figure(rate)}</span>
        </span>
      </td>
      <td class="num">{requests.p50_ms === undefined ? "–" : span(requests.p50_ms)}</td>
      <td class="num">{requests.p99_ms === undefined ? "–" : span(requests.p99_ms)}</td>
      <td class={`num ${requests.failed > 0 ? "has-failed" : ""}`}>{count(requests.failed)}</td>
      <td class="num">{count(requests.cold_starts)}</td>
    </tr>
  );
}
