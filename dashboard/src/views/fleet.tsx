// The other nodes that this one knows.

import { useState } from "preact/hooks";
import { get } from "../lib/api";
import { bytes, count, plural } from "../lib/format";
import { usePoll } from "../lib/poll";
import { clean } from "../lib/text";
import type { CellList } from "../lib/types";
import { announce, Command, Empty, Failure, Field, Loading, Panel, State, toneOf } from "../ui/base";
import { Rows } from "../ui/rows";
import { Title } from "../ui/title";

export function FleetView() {
  const cells = usePoll("cells", 5000, (abort) => get<CellList>("/v1/cells", abort));
  const list = cells.data.value;
  const error = cells.error.value;
  return (
    <>
      <Title text="Fleet" lead="Cells that this node forwards calls to when it is full, and the pages of other nodes." />
      <Panel title="Cells" aside={list ? <span class="quiet">{list.name ? `this cell is ${list.name}` : plural(list.cells.length, "cell")}</span> : null}>
        {error && !list ? (
          <Failure error={error} retry={cells.refresh} />
        ) : !list ? (
          <Loading what="the cells" />
        ) : list.cells.length === 0 ? (
          <Empty title={list.listens ? "This cell knows no other one." : "This node is on its own."} command="mote up --cell :8095 --cell-key FILE --cells ADDRESS:PORT">
            {list.listens ? `It listens for cells at ${list.listens}.` : "Several nodes become cells of a cluster with the setting cell:"}
          </Empty>
        ) : (
          <Rows label="Cells" columns={["Cell", "State", { name: "Free memory", num: true }, { name: "Our calls there", num: true }, "Last error"]} cards>
            {list.cells.map((one) => (
              <tr key={one.address}>
                <th scope="row">{one.name || one.address}<span class="under">{one.address}</span></th>
                <td><State word={one.state} tone={toneOf(one.state)} /></td>
                <td>{bytes(one.free_bytes)}</td>
                <td>{count(one.in_flight)}</td>
                <td class="wrap">{clean(one.last_error ?? "–")}</td>
              </tr>
            ))}
          </Rows>
        )}
      </Panel>
      <Nodes />
    </>
  );
}

/** Where this browser keeps the addresses of other nodes. */
const KEPT = "mote-nodes";
const NODES_MAX = 50;

function kept(): string[] {
  try {
    return addresses(localStorage.getItem(KEPT) ?? "");
  } catch {
    return [];
  }
}

/** The origins in a text, such as the output of `mote nodes`. */
function addresses(text: string): string[] {
  const found = (text.match(/https?:\/\/[^\s"'<>,|]+/g) ?? []).flatMap((one) => (URL.canParse(one) ? [new URL(one).origin] : []));
  return [...new Set(found)].filter((one) => one !== location.origin).slice(0, NODES_MAX);
}

/** Links to the pages of other nodes. The browser keeps this page from reading their state. */
function Nodes() {
  const [nodes, setNodes] = useState(kept);
  const [text, setText] = useState("");
  const keep = (next: string[], said: string) => {
    setNodes(next);
    announce(said);
    try {
      localStorage.setItem(KEPT, next.join(" "));
    } catch {
      // Without a storage, the list lasts as long as the page.
    }
  };
  const added = addresses(`${nodes.join(" ")} ${text}`);
  return (
    <Panel title="Other nodes" aside={<span class="quiet">kept in this browser only</span>}>
      {nodes.length > 0 ? (
        <Rows label="Other nodes" columns={["Page of the node"]} actions>
          {nodes.map((one) => (
            <tr key={one}>
              <th scope="row"><a href={`${one}/dashboard/`} target="_blank" rel="noopener noreferrer">{one.replace(/^https?:\/\//, "")}</a></th>
              <td class="num">
                <button type="button" class="button button-small" aria-label={`Forget ${one}`} onClick={() => keep(nodes.filter((other) => other !== one), `Forgot ${one}.`)}>Forget</button>
              </td>
            </tr>
          ))}
        </Rows>
      ) : null}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          keep(added, `Added ${plural(added.length - nodes.length, "node")}.`);
          setText("");
        }}
      >
        <Field label="Add nodes" hint="Addresses of management APIs, for example what mote nodes prints.">
          {(id, described) => <textarea id={id} rows={2} value={text} aria-describedby={described} spellcheck={false} placeholder="https://10.0.0.7:6680" onInput={(event) => setText(event.currentTarget.value)} />}
        </Field>
        <button type="submit" class="button" disabled={added.length === nodes.length}>Add</button>
      </form>
      <p class="text quiet">A page cannot read other nodes, so their state is not shown here. The command line shows all nodes that it knows side by side:</p>
      <Command text="mote nodes" />
    </Panel>
  );
}
