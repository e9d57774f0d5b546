// A code editor, loaded when it is first shown. It lives in a shadow root: there, its styles are
// constructed sheets, which the policy of the page permits, and not <style> elements, which it forbids.

import { useEffect, useRef, useState } from "preact/hooks";

export type Language = "python" | "javascript" | "text";

interface Props {
  /** The text at the beginning; the editor owns it from then on. */
  value: string;
  language: Language;
  label: string;
  change: (value: string) => void;
}

export function Editor({ value, language, label, change }: Props) {
  const host = useRef<HTMLDivElement>(null);
  const [state, setState] = useState<"loading" | "ready" | "plain">("loading");
  const latest = useRef({ value, change });
  latest.current = { value, change };
  const editor = useRef<{ destroy: () => void } | undefined>(undefined);

  useEffect(() => {
    let current = true;
    import("./codemirror")
      .then(({ make }) => {
        if (!current || !host.current) return;
        const root = host.current.shadowRoot ?? host.current.attachShadow({ mode: "open" });
        editor.current = make(root, latest.current.value, language, label, (text) => {
          latest.current.change(text);
        });
        setState("ready");
      })
      .catch(() => current && setState("plain"));
    return () => {
      current = false;
      editor.current?.destroy();
      editor.current = undefined;
    };
  }, [language, label]);

  return (
    <>
      <div ref={host} class="editor" hidden={state !== "ready"} />
      {state === "ready" ? null : (
        <textarea class="editor-plain" rows={16} aria-label={label} value={value} spellcheck={false} onInput={(event) => change(event.currentTarget.value)} />
      )}
    </>
  );
}
