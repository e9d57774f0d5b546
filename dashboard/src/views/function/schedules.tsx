import { plural, span } from "../../lib/format";
import { to } from "../../lib/route";
import { clean } from "../../lib/text";
import type { Watch } from "../../store/function";
import { Empty, Panel, State, toneOf, When } from "../../ui/base";
import { Rows } from "../../ui/rows";

export function Schedules({ watch }: { watch: Watch }) {
  const detail = watch.detail.value!;
  const list = detail.schedules ?? [];
  if (list.length === 0) {
    return (
      <Panel title="Schedules">
        <Empty title="It does not run by itself." command={'[[trigger]]\ncron = "0 6 * * *"'}>
          A trigger in mote.toml adds a schedule:
        </Empty>
      </Panel>
    );
  }
  return (
    <Panel title="Schedules" aside={<span class="quiet">{plural(list.length, "schedule")}</span>}>
      <Rows label={`Schedules of ${detail.name}`} columns={["Schedule", "Next run", "Last run", "Missed times", "Overlap", { name: "Left out", num: true }]} cards>
        {list.map((one, at) => (
          <tr key={at}>
            <th scope="row">
              <code>{one.expression}</code>
              <span class="under">
                {one.timezone ?? ""}
                {one.jitter_ms > 0 ? ` up to ${span(one.jitter_ms)} later` : ""}
              </span>
            </th>
            <td>{one.next ? <When at={one.next} /> : "–"}</td>
            <td>
              {one.last ? (
                <>
                  <When at={one.last.due} /> <State word={one.last.state ?? one.last.outcome} tone={toneOf(one.last.state ?? one.last.outcome)} />
                  {one.last.invocation ? <> <a href={to(["call", one.last.invocation], { function: detail.name })}>show</a></> : null}
                  {one.last.error ? <span class="under">{clean(one.last.error)}</span> : null}
                </>
              ) : (
                "not yet"
              )}
            </td>
            <td>{one.missed}</td>
            <td>{one.overlap}</td>
            <td>{one.left_out}</td>
          </tr>
        ))}
      
      </Rows>
    </Panel>
  );
}
