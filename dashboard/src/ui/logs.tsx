// Lines of a log: live, searched, and as many as there are. Rows have one height, so a long line is
// cut there and shown whole below when it is chosen.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { clock, count, day, plural } from "../lib/format";
import { to } from "../lib/route";
import { isExpression, LINES_FIRST, LINES_MAX, LogReader, type Numbered } from "../store/logs";
import { CopyButton, Empty, Failure, Icon } from "./base";
import { useWindow } from "./virtual";

const ROW = 24;
/** How long after the last letter the node is asked. */
const TYPING_MS = 300;
const INVOCATION = /^[0-9a-hjkmnp-tv-z]{26}$/i;

interface Props {
  name: string;
  invocation?: string;
  /** Without it, lines that exist are read once. */
  follow: boolean;
  short?: boolean;
}

export function Logs({ name, invocation, follow, short }: Props) {
  const [text, setText] = useState("");
  const [level, setLevel] = useState("");
  const [stream, setStream] = useState("");
  const [tail, setTail] = useState(LINES_FIRST);
  const newest = useReader(name, { tail, follow, ...(invocation ? { invocation } : {}) });
  const reader = useSearch(newest, name, text, level, { follow, ...(invocation ? { invocation } : {}) });
  const [chosen, setChosen] = useState<Numbered | undefined>();
  const [stuck, setStuck] = useState(true);
  const list = useRef<HTMLDivElement | null>(null);
  const room = useRef(0);
  const top = useRef(0);
  const { box, window } = useWindow(reader.shown.length, ROW);
  const turn = reader.turn.value;

  useEffect(() => {
    reader.setFilter({ text, level, stream });
  }, [reader, text, level, stream]);

  useLayoutEffect(() => {
    const element = box.current;
    if (element && stuck) element.scrollTop = element.scrollHeight;
  }, [turn, stuck, reader, reader.shown.length]);

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => {
      room.current = element.clientHeight;
      if (stuck) element.scrollTop = element.scrollHeight;
    });
    observer.observe(element);
    return () => observer.disconnect();
  }, [stuck]);

  const scrolled = () => {
    const element = box.current;
    // A scroll event may arrive after the view was left.
    if (!element) return;
    // More lines and a window of another size move the end of the list. Only a user scrolls up.
    const isUp = element.scrollTop < top.current && room.current === element.clientHeight;
    top.current = element.scrollTop;
    if (element.scrollHeight - element.scrollTop - element.clientHeight < ROW * 2) setStuck(true);
    else if (isUp) setStuck(false);
  };
  const key = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step === undefined || !chosen) return;
    const at = reader.shown.findIndex((line) => line.seq === chosen.seq);
    const next = reader.shown[at + step];
    if (!next) return;
    event.preventDefault();
    setChosen(next);
    const element = box.current!;
    const top = (at + step) * ROW;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + ROW > element.scrollTop + element.clientHeight) element.scrollTop = top + ROW - element.clientHeight;
  };

  const shown = reader.shown;
  const isPart = reader.hasOlder();
  const error = reader.error.value;
  const state = reader.state.value;
  return (
    <div class={`logs ${short ? "logs-short" : ""}`} ref={list}>
      <div class="row bar-row" hidden={short && reader.total === 0 && !text && !level && !stream}>
        <label class="search">
          <span class="sr-only">Search log lines</span>
          <Icon name="search" />
          <input type="search" placeholder="Search text or /expression/" value={text} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
        <label class="inline">
          Level
          <select value={level} onChange={(event) => setLevel(event.currentTarget.value)}>
            <option value="">all</option>
            <option value="info">info and above</option>
            <option value="warn">warn and above</option>
            <option value="error">error</option>
          </select>
        </label>
        <label class="inline">
          From
          <select value={stream} onChange={(event) => setStream(event.currentTarget.value)}>
            <option value="">everybody</option>
            <option value="function">the function</option>
            <option value="platform">mote</option>
          </select>
        </label>
        {invocation && !short ? (
          <a class="chip" href={to(["functions", name, "logs"])}>
            Call {invocation.slice(-8)} <span aria-hidden="true">×</span>
            <span class="sr-only">, show all calls</span>
          </a>
        ) : null}
        <p class="quiet log-count">
          {text || level || stream ? `${count(shown.length)} of ${plural(reader.total, "line")}` : plural(reader.total, "line")}
          {reader !== newest ? ", searched by the node" : isPart && isExpression(text) ? ", expressions are looked for in these only" : ""}
          {reader.dropped > 0 ? `, the oldest ${count(reader.dropped)} left out` : ""}
        </p>
        {reader === newest && isPart && tail < LINES_MAX ? (
          <button type="button" class="button button-small" onClick={() => setTail(LINES_MAX)}>Read older lines</button>
        ) : null}
        {shown.length > 0 ? <Save reader={reader} name={name} /> : null}
      </div>
      {error && state === "lost" ? <Failure error={error} /> : null}
      {shown.length === 0 ? (
        <div class="log-list log-empty">
          {reader.total > 0 || reader !== newest ? (
            <Empty title={state === "reading" ? "The node searches its log…" : "No line fits."} />
          ) : (
            <Empty title={state === "reading" ? "Reading the log…" : "There are no lines."} {...(state === "reading" ? {} : { command: invocation ? `mote logs ${name} --invocation ${invocation}` : `mote logs ${name} --follow` })}>
              {state === "reading" ? null : "What the function prints, and what mote does with it, appears here."}
            </Empty>
          )}
        </div>
      ) : null}
      <div
        class="log-list"
        hidden={shown.length === 0}
        ref={box}
        tabIndex={0}
        role="region"
        aria-label={`Log lines of ${name}`}
        onScroll={scrolled}
        onKeyDown={key}
      >
        <div role="list" style={{ paddingTop: `${window.above}px`, paddingBottom: `${window.below}px` }}>
          {shown.slice(window.first, window.end).map((line, at) => (
            <div
              key={line.seq}
              role="listitem"
              aria-setsize={shown.length}
              aria-posinset={window.first + at + 1}
              class={`log-line log-${line.level} log-from-${line.stream} ${chosen?.seq === line.seq ? "log-chosen" : ""}`}
            >
              <button type="button" class="log-open" aria-expanded={chosen?.seq === line.seq} onClick={() => setChosen(chosen?.seq === line.seq ? undefined : line)}>
                <span class="log-time">{clock(line.time, true)}</span>
                <span class="log-level">{line.level}</span>
                <span class="log-text">{line.message.slice(0, 600)}</span>
              </button>
              {line.invocation && !invocation ? (
                <a class="log-call" href={to(["call", line.invocation], { function: name })} title={`Call ${line.invocation}`}>
                  {line.invocation.slice(-6)}
                </a>
              ) : null}
            </div>
          ))}
        </div>
      </div>
      {!stuck && follow ? (
        <button type="button" class="button button-small log-newest" onClick={() => setStuck(true)}>
          Jump to the newest line
        </button>
      ) : null}
      {chosen ? <Whole line={chosen} name={name} close={() => setChosen(undefined)} /> : null}
    </div>
  );
}

type Query = ConstructorParameters<typeof LogReader>[1];

/** Reads lines as long as the component shows them. */
function useReader(name: string, query: Query | undefined): LogReader;
function useReader(name: string, query: Query | undefined, none: true): LogReader | undefined;
function useReader(name: string, query: Query | undefined): LogReader | undefined {
  const key = JSON.stringify(query);
  const reader = useMemo(() => (query ? new LogReader(name, query) : undefined), [name, key]);
  useEffect(() => () => reader?.stop(), [reader]);
  return reader;
}

/**
 * The reader of the lines that fit. The node searches the lines that it has on disk, once nobody
 * types any more. The page itself searches if it has all lines, or looks for an expression.
 */
function useSearch(newest: LogReader, name: string, text: string, level: string, query: Omit<Query, "tail">): LogReader {
  const [asked, setAsked] = useState({ text: "", level: "" });
  useEffect(() => {
    const timer = setTimeout(() => setAsked({ text, level }), TYPING_MS);
    return () => clearTimeout(timer);
  }, [text, level]);
  void newest.turn.value;
  const isSearch = newest.hasOlder() && (text !== "" || level !== "") && !isExpression(text) && asked.text === text && asked.level === level;
  const found = useReader(name, isSearch ? { ...query, tail: LINES_MAX, ...(INVOCATION.test(text) ? { invocation: text.toUpperCase() } : text ? { grep: text } : {}), ...(level ? { level } : {}) } : undefined, true);
  useEffect(() => {
    if (!found) return;
    newest.pause();
    return () => newest.resume();
  }, [newest, found]);
  return found ?? newest;
}

function Whole({ line, name, close }: { line: Numbered; name: string; close: () => void }) {
  return (
    <div class="log-whole">
      <div class="row row-spread">
        <p class="quiet">
          {day(line.time)} · {line.level} · {line.stream === "platform" ? "mote" : line.stream} · @{line.revision}
          {line.instance ? ` · instance ${line.instance}` : ""}
        </p>
        <div class="row">
          {line.invocation ? (
            <>
              <a href={to(["call", line.invocation], { function: name })}>Show the call</a>
              <a href={to(["functions", name, "logs"], { invocation: line.invocation })}>Only its lines</a>
            </>
          ) : null}
          <CopyButton text={line.message} what="line" />
          <button type="button" class="button button-small" onClick={close}>Close</button>
        </div>
      </div>
      <pre class="log-message" tabIndex={0} role="group" aria-label="Chosen line">{line.message}</pre>
    </div>
  );
}

function Save({ reader, name }: { reader: LogReader; name: string }) {
  const save = () => {
    const address = URL.createObjectURL(new Blob([reader.text()], { type: "application/jsonl" }));
    const anchor = document.createElement("a");
    anchor.href = address;
    anchor.download = `${name}.jsonl`;
    anchor.click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  };
  return <button type="button" class="button button-small" onClick={save}>Save</button>;
}
