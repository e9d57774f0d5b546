// Deploy from files that are dropped here, or from a small function that is written here.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, call, functionPath, mayDeploy } from "../lib/api";
import { bytes, plural, span } from "../lib/format";
import { to } from "../lib/route";
import { gzip, tar, type Packed } from "../lib/tar";
import type { DeployResult } from "../lib/types";
import { functions, refreshFunctions } from "../store/node";
import { announce, Command, Empty, Failure, Field, Icon, Panel } from "../ui/base";
import { Editor, type Language } from "../ui/editor";
import { Steps } from "../ui/steps";
import { Title } from "../ui/title";

/** Folders that are not part of a function. */
const LEFT_OUT = /(^|\/)(\.git|\.hg|\.svn|__pycache__|\.venv|node_modules\/\.cache|\.DS_Store)(\/|$)/;
const FILES_MAX = 20_000;
/** The page holds the files in memory while it packs them. */
const BYTES_MAX = 512 * 1024 * 1024;
const NAME = /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$/;

interface Source {
  title: string;
  name: string;
  files: Packed[];
  /** An archive that is sent as it is. */
  archive?: Blob;
}

interface Outcome {
  result?: DeployResult;
  error?: ApiError;
  dry: boolean;
}

export function DeployView() {
  const [mode, setMode] = useState<"files" | "write">("files");
  const [dropped, setDropped] = useState<Source | undefined>();
  const [written, setWritten] = useState<Source>(() => template("python"));
  const source = mode === "files" ? dropped : written;
  if (!mayDeploy()) {
    return (
      <>
        <Title text="Deploy" />
        <Empty title="Your role, viewer, may not deploy." command="mote token create NAME --role deployer">
          An operator of the node can give you a token with the role deployer:
        </Empty>
      </>
    );
  }
  return (
    <>
      <Title text="Deploy" lead="The new revision receives calls when one of its instances is ready. If a step fails, the old one keeps serving." />
      <div class="segments bar-row" role="group" aria-label="Where the code comes from">
        <button type="button" aria-pressed={mode === "files"} onClick={() => setMode("files")}>Files or a folder</button>
        <button type="button" aria-pressed={mode === "write"} onClick={() => setMode("write")}>Write a small function</button>
      </div>
      {mode === "files" ? <Drop source={dropped} take={setDropped} /> : <Write source={written} take={setWritten} />}
      {source ? <Send key={mode} source={source} /> : null}
      {mode === "files" && !dropped ? (
        <Panel title="From the command line">
          <p class="text">The same, with the files where they are:</p>
          <Command text="mote deploy FOLDER" />
        </Panel>
      ) : null}
    </>
  );
}

function Drop({ source, take }: { source: Source | undefined; take: (source: Source | undefined) => void }) {
  const [over, setOver] = useState(false);
  const [problem, setProblem] = useState("");
  const [reading, setReading] = useState(false);
  const files = useRef<HTMLInputElement>(null);
  const folder = useRef<HTMLInputElement>(null);

  const accept = async (read: () => Promise<{ path: string; file: File }[]>) => {
    setReading(true);
    setProblem("");
    try {
      const found = await read();
      const made = await sourceOf(found);
      take(made);
      announce(`Read ${plural(made.archive ? 1 : made.files.length, "file")}.`);
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    } finally {
      setReading(false);
    }
  };
  const dropped = (event: DragEvent) => {
    event.preventDefault();
    setOver(false);
    // The entries must be taken before the first wait: the list is emptied afterwards.
    const entries = [...(event.dataTransfer?.items ?? [])].map((item) => item.webkitGetAsEntry()).filter((entry) => entry !== null);
    void accept(() => walk(entries));
  };
  const chosen = (event: Event) => {
    const input = event.currentTarget as HTMLInputElement;
    const list = [...(input.files ?? [])];
    input.value = "";
    if (list.length > 0) void accept(async () => list.map((file) => ({ path: file.webkitRelativePath || file.name, file })));
  };
  return (
    <Panel title="Code">
      <div
        class={`drop ${over ? "drop-over" : ""}`}
        onDragOver={(event) => { event.preventDefault(); setOver(true); }}
        onDragLeave={() => setOver(false)}
        onDrop={dropped}
      >
        <Icon name="deploy" />
        <p>Drop a file, a folder or an archive (.tar, .tar.gz) here</p>
        <div class="row">
          <button type="button" class="button" onClick={() => files.current?.click()}>Choose files</button>
          <button type="button" class="button" onClick={() => folder.current?.click()}>Choose a folder</button>
        </div>
        <input ref={files} type="file" multiple hidden aria-label="Files" onChange={chosen} />
        <input ref={(element) => { folder.current = element; element?.setAttribute("webkitdirectory", ""); }} type="file" hidden aria-label="Folder" onChange={chosen} />
      </div>
      {reading ? <p class="loading" role="status">Reading the files…</p> : null}
      {problem ? <p class="warning" role="alert">{problem}</p> : null}
      {source ? <FileList source={source} /> : null}
    </Panel>
  );
}

function FileList({ source }: { source: Source }) {
  if (source.archive) return <p class="text">{source.title}, {bytes(source.archive.size)}, is sent as it is.</p>;
  const size = source.files.reduce((sum, file) => sum + file.content.length, 0);
  return (
    <details class="more">
      <summary>{source.title}: {plural(source.files.length, "file")}, {bytes(size)}</summary>
      <ul class="file-list">
        {source.files.slice(0, 200).map((file) => (
          <li key={file.path}><code>{file.path}</code> <span class="quiet">{bytes(file.content.length)}{file.executable ? ", executable" : ""}</span></li>
        ))}
      </ul>
      {source.files.length > 200 ? <p class="quiet">and {plural(source.files.length - 200, "more file")}</p> : null}
    </details>
  );
}

/** All files below dropped entries. */
async function walk(entries: FileSystemEntry[]): Promise<{ path: string; file: File }[]> {
  const found: { path: string; file: File }[] = [];
  const visit = async (entry: FileSystemEntry, path: string): Promise<void> => {
    if (LEFT_OUT.test(path)) return;
    if (found.length >= FILES_MAX) throw new Error(`These are more than ${FILES_MAX} files. Drop only the folder of the function.`);
    if (entry.isFile) {
      const file = await new Promise<File>((done, fail) => (entry as FileSystemFileEntry).file(done, fail));
      found.push({ path, file });
      return;
    }
    const reader = (entry as FileSystemDirectoryEntry).createReader();
    for (;;) {
      // One read returns at most a hundred entries.
      const some = await new Promise<FileSystemEntry[]>((done, fail) => reader.readEntries(done, fail));
      if (some.length === 0) return;
      for (const one of some) await visit(one, `${path}/${one.name}`);
    }
  };
  for (const entry of entries) await visit(entry, entry.name);
  return found;
}

async function sourceOf(found: { path: string; file: File }[]): Promise<Source> {
  const list = found.filter(({ path }) => !LEFT_OUT.test(path));
  if (list.length === 0) throw new Error("There are no files in what you chose.");
  const only = list[0]!;
  if (list.length === 1 && /\.(tar|tar\.gz|tgz)$/i.test(only.file.name)) {
    return { title: only.file.name, name: nameOf(only.file.name), files: [], archive: only.file };
  }
  const size = list.reduce((sum, { file }) => sum + file.size, 0);
  if (size > BYTES_MAX) throw new Error(`These files have ${bytes(size)}. Above ${bytes(BYTES_MAX)}, use the command line: mote deploy FOLDER`);
  // What lies in one folder is the function's folder.
  const top = only.path.split("/")[0]!;
  const inFolder = only.path.includes("/") && list.every(({ path }) => path.startsWith(`${top}/`));
  const files = await Promise.all(
    list.map(async ({ path, file }) => {
      const content = new Uint8Array(await file.arrayBuffer());
      return { path: inFolder ? path.slice(top.length + 1) : path, content, executable: isProgram(content) };
    }),
  );
  files.sort((a, b) => (a.path < b.path ? -1 : 1));
  const manifest = files.find((file) => file.path === "mote.toml");
  const name = (manifest && nameIn(new TextDecoder().decode(manifest.content))) ?? nameOf(inFolder ? top : only.file.name);
  return { title: inFolder ? top : plural(files.length, "file"), name, files };
}

/** A browser does not tell the mode of a file: scripts with #! and programs can be executed. */
function isProgram(content: Uint8Array): boolean {
  return (content[0] === 0x23 && content[1] === 0x21) || (content[0] === 0x7f && content[1] === 0x45 && content[2] === 0x4c && content[3] === 0x46);
}

/** The name in a manifest, which stands above the first section. */
function nameIn(manifest: string): string | undefined {
  const head = manifest.split(/^\s*\[/m)[0]!;
  return /^\s*name\s*=\s*["']([^"']+)["']/m.exec(head)?.[1];
}

/** A name for a function from that of its file or folder, as the command line makes it. */
function nameOf(file: string): string {
  return file
    .replace(/\.(tar\.gz|[A-Za-z0-9]+)$/, "")
    .toLowerCase()
    .replace(/[_. ]+/g, "-")
    .replace(/[^a-z0-9-]/g, "")
    .replace(/^-+|-+$/g, "")
    .slice(0, 63);
}

type Kind = "python" | "node" | "shell";
const KINDS: { kind: Kind; name: string; file: string; language: Language; code: string }[] = [
  {
    kind: "python",
    name: "Python",
    file: "app.py",
    language: "python",
    code: 'def handle(event, ctx):\n    ctx.log.info("called with %s", event.method)\n    name = event.query or "world"\n    return f"Hello, {name}!\\n"\n',
  },
  {
    kind: "node",
    name: "Node",
    file: "index.mjs",
    language: "javascript",
    code: 'export default {\n  async fetch(request, ctx) {\n    console.log("called with", request.method);\n    return new Response("Hello, world!\\n");\n  },\n};\n',
  },
  {
    kind: "shell",
    name: "Shell",
    file: "run.sh",
    language: "text",
    code: "#!/bin/sh\n# The body is on stdin, the answer on stdout, the log on stderr.\nexec tr a-z A-Z\n",
  },
];

function template(kind: Kind, name = "hello"): Source {
  const one = KINDS.find((row) => row.kind === kind)!;
  return { title: one.file, name, files: [packed(one.file, one.code)] };
}

function packed(path: string, text: string): Packed {
  const content = new TextEncoder().encode(text);
  return { path, content, executable: isProgram(content) };
}

function Write({ source, take }: { source: Source; take: (source: Source) => void }) {
  const [kind, setKind] = useState<Kind>("python");
  const [code, setCode] = useState(KINDS[0]!.code);
  const [manifest, setManifest] = useState("");
  const [withManifest, setWithManifest] = useState(false);
  const one = KINDS.find((row) => row.kind === kind)!;
  const touched = KINDS.every((row) => row.code !== code);
  useEffect(() => {
    const files = [packed(one.file, code)];
    if (withManifest && manifest.trim() !== "") files.push(packed("mote.toml", manifest));
    const name = (withManifest && nameIn(manifest)) || source.name;
    take({ title: one.file, name, files });
  }, [kind, code, manifest, withManifest]);
  const change = (next: Kind) => {
    setKind(next);
    if (!touched) setCode(KINDS.find((row) => row.kind === next)!.code);
  };
  return (
    <Panel
      title="Code"
      aside={
        <label class="inline">
          Language
          <select value={kind} onChange={(event) => change(event.currentTarget.value as Kind)}>
            {KINDS.map((row) => <option key={row.kind} value={row.kind}>{row.name}</option>)}
          </select>
        </label>
      }
    >
      <p class="quiet text"><code>{one.file}</code></p>
      <Editor key={kind} value={code} language={one.language} label={`Code of ${one.file}`} change={setCode} />
      <p class="hint">Tab indents. Press Escape, then Tab, to leave the editor.</p>
      <label class="check">
        <input type="checkbox" checked={withManifest} onChange={(event) => setWithManifest(event.currentTarget.checked)} />
        With a mote.toml
      </label>
      {withManifest ? (
        <textarea rows={8} aria-label="mote.toml" value={manifest} spellcheck={false} placeholder={'version = 1\n\n[limits]\nmemory = "64MiB"'} onInput={(event) => setManifest(event.currentTarget.value)} />
      ) : null}
    </Panel>
  );
}

function Send({ source }: { source: Source }) {
  const [name, setName] = useState(source.name);
  const [held, setHeld] = useState(false);
  const [busy, setBusy] = useState<"" | "check" | "deploy">("");
  const [outcome, setOutcome] = useState<Outcome | undefined>();
  useEffect(() => setName(source.name), [source.name]);
  const valid = NAME.test(name);
  const existing = useMemo(() => functions.value?.find((one) => one.name === name), [name, functions.value]);

  const send = async (dry: boolean) => {
    setBusy(dry ? "check" : "deploy");
    setOutcome(undefined);
    try {
      const body = source.archive ?? (await gzip(tar(source.files)));
      const query = new URLSearchParams();
      if (dry) query.set("dry_run", "true");
      if (held) query.set("no_traffic", "true");
      const answer = await call(functionPath(name, query.size > 0 ? `?${query}` : ""), { method: "PUT", body, headers: { "content-type": "application/x-tar" } });
      const result = (await answer.json()) as DeployResult;
      setOutcome({ result, dry });
      announce(dry ? "The check found no error." : `${name} revision ${result.revision} is ready.`);
      if (!dry) refreshFunctions();
    } catch (error) {
      setOutcome({ error: error instanceof ApiError ? error : new ApiError(0, "", String(error)), dry });
    } finally {
      setBusy("");
    }
  };
  return (
    <Panel title="Deploy">
      <form onSubmit={(event) => { event.preventDefault(); void send(false); }}>
        <div class="fields">
          <Field label="Name" hint={existing ? `${name} exists with revision ${existing.revision}. This makes a new one.` : "The name in the address of the function."}>
            {(id, described) => (
              <input id={id} value={name} required aria-describedby={described} aria-invalid={!valid} autocomplete="off" spellcheck={false} onInput={(event) => setName(event.currentTarget.value.trim())} />
            )}
          </Field>
        </div>
        {!valid && name !== "" ? <p class="warning">A name has 1 to 63 of a–z, 0–9 and -, and does not begin or end with -.</p> : null}
        <label class="check">
          <input type="checkbox" checked={held} onChange={(event) => setHeld(event.currentTarget.checked)} disabled={!existing} />
          Without traffic: give it a share later, on the page of its revisions
        </label>
        <div class="row">
          <button type="submit" class="button button-filled" disabled={busy !== "" || !valid}>{busy === "deploy" ? "Deploying…" : "Deploy"}</button>
          <button type="button" class="button" disabled={busy !== "" || !valid} onClick={() => void send(true)}>{busy === "check" ? "Checking…" : "Check only"}</button>
          {busy ? <Elapsed /> : null}
        </div>
      </form>
      {outcome?.error ? <div class="outcome"><Failure error={outcome.error} /></div> : null}
      {outcome?.result ? <Result result={outcome.result} dry={outcome.dry} /> : null}
    </Panel>
  );
}

function Elapsed() {
  const [began] = useState(Date.now());
  const [now, setNow] = useState(began);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return <span class="quiet">{now - began > 900 ? `${span(Math.round((now - began) / 1000) * 1000)}; packages and builds take longest` : ""}</span>;
}

function Result({ result, dry }: { result: DeployResult; dry: boolean }) {
  return (
    <div class="outcome">
      <Steps steps={result.steps} />
      {(result.warnings ?? []).map((text, at) => <p class="warning" key={at}>{text}</p>)}
      <div class="notice" role="status">
        {dry ? (
          <p>The check found no error. Nothing was changed; the revision would be {result.revision}.</p>
        ) : (
          <>
            <p>
              <strong>{result.function}@{result.revision}</strong> {result.unchanged ? "is the same as before; nothing was changed" : result.held_back ? "is ready, without traffic" : "is live"}
              {result.previous && !result.unchanged && !result.held_back ? ` (was @${result.previous})` : ""}.
            </p>
            <p class="row">
              <a href={to(["functions", result.function])}>Show it</a>
              <a href={to(["try", result.function])}>Try it</a>
              {result.urls.http ? <code>{result.urls.http}</code> : null}
            </p>
          </>
        )}
      </div>
    </div>
  );
}
