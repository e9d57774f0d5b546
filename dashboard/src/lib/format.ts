// Numbers, sizes and times as text.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(value: number): string {
  return plain.format(value);
}

/** At most three digits that matter: 0.25, 12.4, 1,230. */
export function figure(value: number): string {
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 100) return plain.format(value);
  return String(Number(value.toPrecision(size >= 1 ? 3 : 2)));
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let step = 0;
  let rest = value;
  while (rest >= 1024 && step < units.length - 1) {
    rest /= 1024;
    step += 1;
  }
  return `${step === 0 ? plain.format(rest) : figure(rest)} ${units[step]}`;
}

/** A duration in microseconds. */
export function micros(value: number): string {
  if (value < 999.5) return `${figure(value)} µs`;
  if (value < 999_500) return `${figure(value / 1000)} ms`;
  return span(value / 1000);
}

/** A duration in milliseconds. */
export function span(ms: number): string {
  if (ms < 999.5) return `${figure(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${figure(s)} s`;
  const parts: [number, string][] = [[86_400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([size]) => s >= size);
  const [size, unit] = parts[at]!;
  const whole = Math.floor(s / size);
  const next = parts[at + 1];
  const rest = next ? Math.floor((s - whole * size) / next[0]) : 0;
  return rest > 0 && next ? `${whole} ${unit} ${rest} ${next[1]}` : `${whole} ${unit}`;
}

export function percent(part: number, whole: number): string {
  if (whole === 0) return "0 %";
  const value = (part / whole) * 100;
  return `${value > 0 && value < 0.1 ? "< 0.1" : figure(value)} %`;
}

const two = (value: number) => String(value).padStart(2, "0");

/** 18:04:09, by the clock of the browser. */
export function clock(at: number | string, millis = false): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return "–";
  const text = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return millis ? `${text}.${String(date.getMilliseconds()).padStart(3, "0")}` : text;
}

/** 2026-11-29 18:04:09. */
export function day(at: number | string): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return "–";
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(at)}`;
}

/** "3 min ago" or "in 20 s". */
export function relative(at: number | string, now = Date.now()): string {
  const difference = now - new Date(at).getTime();
  if (Number.isNaN(difference)) return "–";
  if (Math.abs(difference) < 1000) return "now";
  const rounded = Math.floor(Math.abs(difference) / 1000) * 1000;
  // Of a time that has passed, the largest unit is enough.
  return difference > 0 ? `${span(rounded).split(" ").slice(0, 2).join(" ")} ago` : `in ${span(rounded)}`;
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}
