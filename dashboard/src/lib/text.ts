// Text from functions and callers, for the screen and for a shell.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/;

/** Leaves colour codes out, and replaces characters that would hide or turn around the text next to them. */
export function clean(text: string): string {
  if (!HIDDEN.test(text)) return text;
  return text
    .replace(/\u001b\[[\d;]*m/g, "")
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, "\ufffd");
}

/** Quotes a text for a POSIX shell, if that is needed. */
export function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

const SECRET = /authori[sz]ation|cookie|token|secret|password|passwd|signature|credential|session|api[-_]?key|^x-key$|[-_]key$/i;

/** Whether a header of this name usually carries a secret. */
export function isSecret(name: string): boolean {
  return SECRET.test(name);
}

export const MASK = "••••••••";

/** The text of a value that may be bytes; `undefined` if it is no text. */
export function asText(value: Uint8Array): string | undefined {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(value);
  } catch {
    return undefined;
  }
}

export function asHex(value: Uint8Array, most = 512): string {
  return [...value.slice(0, most)].map((byte, at) => byte.toString(16).padStart(2, "0") + (at % 16 === 15 ? "\n" : " ")).join("");
}
