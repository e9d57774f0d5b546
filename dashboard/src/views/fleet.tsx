// The other nodes that this one knows.

import { get } from "../lib/api";
import { bytes, count, plural } from "../lib/format";
import { usePoll } from "../lib/poll";
import type { CellList } from "../lib/types";
import { Command, Empty, Failure, Loading, Panel, State, toneOf } from "../ui/base";
import { Title } from "../ui/title";

export function FleetView() {
  const cells = usePoll("cells", 5000, (abort) => get<CellList>("/v1/cells", abort));
  const list = cells.data.value;
  const error = cells.error.value;
  return (
    <>
      <Title text="Fleet" lead="Nodes that this one forwards calls to when it is full." />
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
          <div class="scroll-x" tabIndex={0} role="region" aria-label="Cells">
            <table class="table table-dense">
              <thead>
                <tr>
                  <th scope="col">Cell</th>
                  <th scope="col">State</th>
                  <th scope="col" class="num">Free memory</th>
                  <th scope="col" class="num">Our calls there</th>
                  <th scope="col">Last error</th>
                </tr>
              </thead>
              <tbody>
                {list.cells.map((one) => (
                  <tr key={one.address}>
                    <th scope="row">{one.name || one.address}<span class="under">{one.address}</span></th>
                    <td><State word={one.state} tone={toneOf(one.state)} /></td>
                    <td class="num">{bytes(one.free_bytes)}</td>
                    <td class="num">{count(one.in_flight)}</td>
                    <td class="wrap">{one.last_error ?? "–"}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Panel>
      <Panel title="Other nodes">
        <p class="text">Each node has its own page, at the address of its management API. The command line shows all nodes that it knows at once:</p>
        <Command text="mote nodes" />
      </Panel>
    </>
  );
}
