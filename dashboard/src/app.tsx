// The frame of the page: navigation, the state of the connection, and the view of the address.

import { effect } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { link, login, logout, readSession, session, sessionEnd, ApiError } from "./lib/api";
import { count } from "./lib/format";
import { route, to } from "./lib/route";
import { setTheme, theme, type Theme } from "./lib/theme";
import { doctor, functions, startStore, status, stopStore } from "./store/node";
import { forgetWatches } from "./store/function";
import { announced, Icon, Loading, State } from "./ui/base";
import { Login } from "./views/login";
import { NodeView } from "./views/node";
import { FunctionsView } from "./views/functions";
import { FunctionView } from "./views/function";
import { CallView } from "./views/call";
import { TryView } from "./views/try";
import { DeployView } from "./views/deploy";
import { AccessView } from "./views/access";
import { FleetView } from "./views/fleet";

const PLACES: { path: string; name: string; icon: string }[] = [
  { path: "", name: "Node", icon: "node" },
  { path: "functions", name: "Functions", icon: "functions" },
  { path: "try", name: "Try", icon: "try" },
  { path: "deploy", name: "Deploy", icon: "deploy" },
  { path: "access", name: "Access", icon: "access" },
  { path: "fleet", name: "Fleet", icon: "fleet" },
];

/** Decides what is shown first: the session that the browser has, or a one-time code of the address. */
async function begin(): Promise<void> {
  const code = /^#code=([\w.~-]+)$/.exec(location.hash)?.[1];
  if (code) {
    // The code must not stay in the history.
    history.replaceState(null, "", location.pathname);
    dispatchEvent(new HashChangeEvent("hashchange"));
    try {
      await login({ code });
      return;
    } catch (error) {
      sessionEnd.value =
        error instanceof ApiError && (error.status === 0 || error.status === 409)
          ? error.message
          : "The link has expired or was used before. Links work once, for a minute. Make a new one, or log in with a token.";
      session.value = null;
      return;
    }
  }
  for (let pause = 1000; ; pause = Math.min(pause * 2, 15_000)) {
    try {
      await readSession();
      return;
    } catch {
      await new Promise((done) => setTimeout(done, pause));
    }
  }
}

let begun = false;

export function App() {
  useEffect(() => {
    if (begun) return;
    begun = true;
    void begin();
    addEventListener("hashchange", () => {
      if (location.hash.startsWith("#code=")) void begin();
    });
    let name: string | undefined;
    effect(() => {
      const next = session.value ? `${session.value.name} ${session.value.csrf}` : undefined;
      if (next === name) return;
      name = next;
      if (next) startStore();
      else {
        stopStore();
        forgetWatches();
      }
    });
  }, []);
  if (session.value === undefined) {
    return (
      <main class="alone" id="main">
        <h1 class="sr-only">mote</h1>
        {link.value === "lost" ? <p role="status">The node does not answer. Trying again…</p> : <Loading what="the session" />}
      </main>
    );
  }
  if (session.value === null) return <Login />;
  return <Frame />;
}

function Frame() {
  const place = route.value.path[0] ?? "";
  const main = useRef<HTMLElement>(null);
  const first = useRef(true);
  const address = route.value.path.join("/");
  const part = place === "call" ? "functions" : place;
  useEffect(() => {
    // A new view is announced by its heading.
    if (first.current) first.current = false;
    else main.current?.querySelector("h1")?.focus();
    scrollTo(0, 0);
  }, [address]);
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); main.current?.focus(); }}>
        Skip to content
      </a>
      <header class="top">
        <a class="brand" href={to([])} aria-label="mote, start">
          <img src="/dashboard/icon.svg" width="24" height="24" alt="" />
          <span>mote</span>
        </a>
        <span class="where" title={`Address of this node: ${location.host}`}>{location.host}</span>
        <Connection />
        <div class="tools">
          <ThemeSwitch />
          <span class="who" title={session.value?.namespace ? `namespace ${session.value.namespace}` : "the whole node"}>
            {session.value?.name}
            <small>{session.value?.role}{session.value?.namespace ? `, ${session.value.namespace}` : ""}</small>
          </span>
          <button type="button" class="button button-quiet" onClick={() => void logout()} aria-label="Log out">
            <Icon name="out" />
            <span class="wide">Log out</span>
          </button>
        </div>
      </header>
      <nav class="side" aria-label="Views">
        <ul>
          {PLACES.filter((one) => one.path !== "fleet" || !session.value?.namespace).map((one) => (
            <li key={one.path}>
              <a href={to(one.path ? [one.path] : [])} aria-current={part === one.path ? "page" : undefined}>
                <Icon name={one.icon} />
                {one.path === "" && session.value?.namespace ? "Namespace" : one.name}
                <Badge path={one.path} />
              </a>
            </li>
          ))}
        </ul>
        <p class="version">{status.value ? `mote ${status.value.version}` : ""}</p>
      </nav>
      <main id="main" ref={main} tabIndex={-1}>
        <View place={place} />
      </main>
      <p class="sr-only" role="status" aria-live="polite">{announced.value}</p>
    </div>
  );
}

function Badge({ path }: { path: string }) {
  if (path === "functions" && functions.value) return <span class="badge">{count(functions.value.length)}</span>;
  const wrong = doctor.value?.checks.filter((one) => one.state === "fail").length ?? 0;
  if (path === "" && wrong > 0) {
    return (
      <span class="badge badge-fail">
        {wrong}
        <span class="sr-only"> failed checks</span>
      </span>
    );
  }
  return null;
}

function View({ place }: { place: string }): ComponentChildren {
  const [, second, third] = route.value.path;
  switch (place) {
    case "":
      return <NodeView />;
    case "functions":
      return second ? <FunctionView key={second} name={second} tab={third ?? "overview"} /> : <FunctionsView />;
    case "call":
      return second ? <CallView key={second} id={second} /> : <Nothing />;
    case "try":
      return <TryView name={second} />;
    case "deploy":
      return <DeployView />;
    case "access":
      return <AccessView tab={second ?? "keys"} />;
    case "fleet":
      return <FleetView />;
    default:
      return <Nothing />;
  }
}

function Nothing() {
  return (
    <>
      <h1 tabIndex={-1}>No such page</h1>
      <p>
        The address <code>{location.hash}</code> leads nowhere. <a href={to([])}>Go to the start.</a>
      </p>
    </>
  );
}

/** One line says whether what is on the screen is true now. */
function Connection() {
  const state = link.value;
  return (
    <p class={`connection connection-${state}`} role="status">
      {state === "up" ? <State word="live" tone="ok" /> : null}
      {state === "lost" ? <State word="The node does not answer. What you see is old; trying again." tone="fail" /> : null}
      {state === "limited" ? <State word="The node asks for fewer requests. Updates are slower." tone="warn" /> : null}
    </p>
  );
}

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };
const NAMES: Record<Theme, string> = { system: "as the system", light: "light", dark: "dark" };

/** One button that goes through the three choices. */
export function ThemeSwitch() {
  const next = NEXT[theme.value];
  return (
    <button type="button" class="button button-quiet" onClick={() => setTheme(next)} title={`Colours: ${NAMES[theme.value]}`} aria-label={`Colours: ${NAMES[theme.value]}. Change to ${NAMES[next]}`}>
      <Icon name={`theme-${theme.value}`} />
    </button>
  );
}
