// A list of which only the rows on the screen exist. Every row has the same height.

import type { ComponentChildren, Ref } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

const AROUND = 8;

export interface Window {
  first: number;
  end: number;
  above: number;
  below: number;
}

/** The rows of `count` that the scrolled element shows. */
export function useWindow(count: number, height: number): { box: Ref<HTMLDivElement> & { current: HTMLDivElement | null }; window: Window } {
  const box = useRef<HTMLDivElement>(null);
  const [place, setPlace] = useState({ top: 0, room: 600 });
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    let asked = 0;
    const read = () => {
      asked = 0;
      const next = { top: element.scrollTop, room: element.clientHeight };
      setPlace((old) => (Math.abs(old.top - next.top) < height && old.room === next.room ? old : next));
    };
    const ask = () => {
      if (!asked) asked = requestAnimationFrame(read);
    };
    read();
    element.addEventListener("scroll", ask, { passive: true });
    const observer = new ResizeObserver(ask);
    observer.observe(element);
    return () => {
      cancelAnimationFrame(asked);
      element.removeEventListener("scroll", ask);
      observer.disconnect();
    };
  }, [height]);
  const first = Math.max(0, Math.min(Math.floor(place.top / height) - AROUND, count - 1));
  const end = Math.min(count, Math.ceil((place.top + place.room) / height) + AROUND);
  return { box, window: { first, end, above: first * height, below: Math.max(0, (count - end) * height) } };
}

export function Spacer({ height, columns }: { height: number; columns: number }): ComponentChildren {
  return height > 0 ? (
    <tr aria-hidden="true" class="spacer">
      <td colSpan={columns} style={{ height: `${height}px` }} />
    </tr>
  ) : null;
}
