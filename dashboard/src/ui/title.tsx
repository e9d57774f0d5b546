import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";

/** The heading of a view and the title of the page. */
export function Title({ text, lead, children }: { text: string; lead?: ComponentChildren; children?: ComponentChildren }) {
  useEffect(() => {
    document.title = `${text} · mote`;
  }, [text]);
  return (
    <div class="title">
      <div>
        <h1 tabIndex={-1}>{text}</h1>
        {lead ? <p class="lead">{lead}</p> : null}
      </div>
      {children ? <div class="title-aside">{children}</div> : null}
    </div>
  );
}
