// One function. Each part of the page is a view of its own with an address.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { to } from "../../lib/route";
import type { Poll } from "../../lib/poll";
import { watchOf, type Watch } from "../../store/function";
import { Empty, Failure, Icon, Loading, State, toneOf } from "../../ui/base";
import { Title } from "../../ui/title";
import { Overview } from "./overview";
import { LogsTab } from "./logs";
import { Calls } from "./calls";
import { Revisions } from "./revisions";
import { Settings } from "./settings";
import { StateBrowser } from "./state";
import { Schedules } from "./schedules";

const TABS: { tab: string; name: string }[] = [
  { tab: "overview", name: "Overview" },
  { tab: "logs", name: "Logs" },
  { tab: "calls", name: "Calls" },
  { tab: "revisions", name: "Revisions" },
  { tab: "settings", name: "Settings" },
  { tab: "state", name: "State" },
  { tab: "schedules", name: "Schedules" },
];

export function FunctionView({ name, tab }: { name: string; tab: string }) {
  const watch = useMemo(() => watchOf(name), [name]);
  const [running, setRunning] = useState<Poll<void> | undefined>();
  useEffect(() => {
    setRunning(watch.start());
    return () => watch.stop();
  }, [watch]);
  const detail = watch.detail.value;
  const error = running?.error.value;
  if (error?.status === 404) {
    return (
      <>
        <Title text={name} />
        <Empty title={`There is no function ${name}.`} command="mote list">
          {error.hint ?? "It was removed, or its name is misspelt."} <a href={to(["functions"])}>Show all functions.</a>
        </Empty>
      </>
    );
  }
  return (
    <>
      <Title
        text={name}
        lead={
          detail ? (
            <>
              <State word={detail.state} tone={toneOf(detail.state)} /> {detail.runtime} · revision {detail.revision} · called by {callers(detail.access)}
            </>
          ) : undefined
        }
      >
        <a class="button" href={to(["try", name])}>
          <Icon name="try" />
          Try
        </a>
      </Title>
      <nav class="tabs" aria-label={`Parts of ${name}`}>
        <ul>
          {TABS.map((one) => (
            <li key={one.tab}>
              <a href={to(one.tab === "overview" ? ["functions", name] : ["functions", name, one.tab])} aria-current={tab === one.tab ? "page" : undefined}>
                {one.name}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      {error && !detail ? <Failure error={error} retry={() => watch.refresh()} /> : null}
      {!detail && !error ? <Loading what="the function" /> : null}
      {detail ? <Part watch={watch} tab={tab} /> : null}
    </>
  );
}

function Part({ watch, tab }: { watch: Watch; tab: string }): ComponentChildren {
  switch (tab) {
    case "logs":
      return <LogsTab name={watch.name} />;
    case "calls":
      return <Calls name={watch.name} />;
    case "revisions":
      return <Revisions watch={watch} />;
    case "settings":
      return <Settings watch={watch} />;
    case "state":
      return <StateBrowser name={watch.name} />;
    case "schedules":
      return <Schedules watch={watch} />;
    default:
      return <Overview watch={watch} />;
  }
}

function callers(access: string): string {
  const words: Record<string, string> = {
    public: "everybody",
    local: "this machine only",
    key: "holders of a key",
    basic: "users with a password",
    jwt: "holders of a token (JWT)",
    mtls: "clients with a certificate",
    webhook: "signed requests",
  };
  return words[access] ?? access;
}
