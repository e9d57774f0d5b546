// The colour theme: that of the system unless the user has chosen one.

import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const KEY = "mote-theme";

function stored(): Theme {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system";
  }
}

export const theme = signal<Theme>(stored());
/** Rises whenever the colours on the screen have changed, so that canvases are drawn again. */
export const paint = signal(0);

export function setTheme(value: Theme): void {
  theme.value = value;
  try {
    if (value === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, value);
  } catch {
    // Without storage the choice holds until the page is closed.
  }
  apply();
}

function apply(): void {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  paint.value += 1;
}

apply();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (paint.value += 1));

/** A colour of the style sheet as the browser computes it now. */
export function colour(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  probe.style.display = "none";
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
