import { route } from "../../lib/route";
import { Logs } from "../../ui/logs";

export function LogsTab({ name }: { name: string }) {
  const invocation = route.value.query.get("invocation") ?? undefined;
  return (
    <section aria-label="Logs">
      <h2 class="sr-only">Logs</h2>
      <Logs key={invocation ?? ""} name={name} follow {...(invocation ? { invocation } : {})} />
    </section>
  );
}
