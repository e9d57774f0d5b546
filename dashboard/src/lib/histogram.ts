// Counts per bucket, and what follows from them.

/** The difference of two cumulative lists; the later one itself if the node has started anew between them. */
export function since(later: number[], earlier: number[] | undefined): number[] {
  if (!earlier || earlier.length !== later.length) return later.map(() => 0);
  const difference = later.map((value, at) => value - earlier[at]!);
  return difference.some((value) => value < 0) ? later.slice() : difference;
}

export function sum(counts: number[]): number {
  let total = 0;
  for (const value of counts) total += value;
  return total;
}

export function add(into: number[], counts: number[]): void {
  for (let at = 0; at < counts.length; at += 1) into[at] = (into[at] ?? 0) + counts[at]!;
}

/** All lists of a record added up. */
export function merged(lists: Record<string, number[]>, length: number): number[] {
  const total = new Array<number>(length).fill(0);
  for (const list of Object.values(lists)) add(total, list);
  return total;
}

/**
 * The value below which the share `part` of the counts lies, in the unit of the bounds. Between two
 * bounds it is interpolated on a logarithmic scale. `undefined` without counts.
 */
export function quantile(counts: number[], bounds: number[], part: number): number | undefined {
  const total = sum(counts);
  if (total === 0) return undefined;
  const rank = part * total;
  let before = 0;
  for (let at = 0; at < counts.length; at += 1) {
    const here = counts[at]!;
    if (here > 0 && before + here >= rank) {
      if (at >= bounds.length) return bounds[bounds.length - 1];
      const high = bounds[at]!;
      const low = at === 0 ? high / 2 : bounds[at - 1]!;
      return low * (high / low) ** ((rank - before) / here);
    }
    before += here;
  }
  return bounds[bounds.length - 1];
}
