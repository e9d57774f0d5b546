// Makes a tar.gz of files in the browser.

export interface Packed {
  path: string;
  content: Uint8Array;
  executable?: boolean;
}

const BLOCK = 512;
const encoder = new TextEncoder();

function field(header: Uint8Array, at: number, length: number, text: Uint8Array | string): void {
  const bytes = typeof text === "string" ? encoder.encode(text) : text;
  header.set(bytes.subarray(0, length), at);
}

function octal(value: number, length: number): string {
  return value.toString(8).padStart(length - 1, "0");
}

function block(name: Uint8Array, prefix: Uint8Array, size: number, mode: number, type: string): Uint8Array {
  const header = new Uint8Array(BLOCK);
  field(header, 0, 100, name);
  field(header, 100, 8, octal(mode, 8));
  field(header, 108, 8, octal(0, 8));
  field(header, 116, 8, octal(0, 8));
  field(header, 124, 12, octal(size, 12));
  field(header, 136, 12, octal(0, 12));
  header.fill(32, 148, 156);
  field(header, 156, 1, type);
  field(header, 257, 8, "ustar\x0000");
  field(header, 345, 155, prefix);
  const sum = header.reduce((total, byte) => total + byte, 0);
  field(header, 148, 8, `${octal(sum, 7)}\0 `);
  return header;
}

const NONE = new Uint8Array();

/** The header of a file, with an extended one before it if the path does not fit. */
function headers(path: string, size: number, mode: number): Uint8Array[] {
  const bytes = encoder.encode(path);
  if (bytes.length <= 100) return [block(bytes, NONE, size, mode, "0")];
  for (let at = bytes.length - 101; at < Math.min(bytes.length, 156); at += 1) {
    if (at >= 0 && bytes[at] === 47) return [block(bytes.subarray(at + 1), bytes.subarray(0, at), size, mode, "0")];
  }
  const rest = encoder.encode(` path=${path}\n`);
  let length = rest.length + 1;
  while (String(length).length + rest.length !== length) length = String(length).length + rest.length;
  const record = encoder.encode(`${length} path=${path}\n`);
  return [block(encoder.encode("pax"), NONE, record.length, 0o644, "x"), padded(record), block(bytes.subarray(0, 100), NONE, size, mode, "0")];
}

function padded(content: Uint8Array): Uint8Array {
  const whole = new Uint8Array(Math.ceil(content.length / BLOCK) * BLOCK);
  whole.set(content);
  return whole;
}

export function tar(files: Packed[]): Uint8Array[] {
  const parts: Uint8Array[] = [];
  for (const { path, content, executable } of files) {
    parts.push(...headers(path, content.length, executable ? 0o755 : 0o644));
    if (content.length > 0) parts.push(padded(content));
  }
  parts.push(new Uint8Array(BLOCK * 2));
  return parts;
}

export async function gzip(parts: Uint8Array[]): Promise<Blob> {
  const source = new Blob(parts as BlobPart[]).stream();
  return new Response(source.pipeThrough(new CompressionStream("gzip"))).blob();
}
