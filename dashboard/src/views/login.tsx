import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, login, sessionEnd } from "../lib/api";
import { Command, Failure, Field } from "../ui/base";
import { ThemeSwitch } from "../app";

export function Login() {
  const [token, setToken] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | undefined>();
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    document.title = "Log in · mote";
    field.current?.focus();
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (busy || token.trim() === "") return;
    setBusy(true);
    setError(undefined);
    try {
      await login({ token: token.trim() });
    } catch (cause) {
      setError(explained(cause));
      field.current?.focus();
      field.current?.select();
    } finally {
      setBusy(false);
    }
  };
  return (
    <div class="login">
      <main class="login-card" id="main">
        <div class="brand brand-large">
          <img src="/dashboard/icon.svg" width="40" height="40" alt="" />
          <h1>mote</h1>
        </div>
        <p class="lead">
          Node at <strong>{location.host}</strong>
        </p>
        {sessionEnd.value ? <p class="notice" role="status">{sessionEnd.value}</p> : null}
        <form onSubmit={(event) => void submit(event)}>
          <Field label="Token" hint="It is sent to this node only and is not kept in the browser.">
            {(id, described) => (
              <input
                id={id}
                ref={field}
                type="password"
                autocomplete="off"
                spellcheck={false}
                value={token}
                aria-describedby={described}
                aria-invalid={error ? true : undefined}
                onInput={(event) => setToken(event.currentTarget.value)}
              />
            )}
          </Field>
          {error ? <Failure error={error} /> : null}
          <button type="submit" class="button button-filled button-full" disabled={busy || token.trim() === ""}>
            {busy ? "Logging in…" : "Log in"}
          </button>
        </form>
        <div class="login-help">
          <h2>Without a token</h2>
          <p>On the machine of the node, this command opens the page and logs you in:</p>
          <Command text="mote dashboard" />
          <p>An operator makes a token for you with:</p>
          <Command text="mote token create NAME --role viewer" />
        </div>
      </main>
      <footer class="login-foot">
        <ThemeSwitch />
      </footer>
    </div>
  );
}

function explained(cause: unknown): ApiError {
  if (!(cause instanceof ApiError)) return new ApiError(0, "", String(cause));
  if (cause.status === 401) return new ApiError(401, cause.code, "The node does not know this token, or the token has expired.");
  if (cause.status === 429) return new ApiError(429, cause.code, "There were too many wrong tokens from your address. Wait a minute before you try again.");
  return cause;
}
