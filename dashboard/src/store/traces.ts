// Recorded calls. A node that records none is asked once in a session.

import { ApiError, get, session } from "../lib/api";
import type { Session, TraceSummary } from "../lib/types";

/** The session in which the node said that it records none. Its restart ends all sessions. */
let without: Session | undefined;

/** The newest recorded calls that fit; `null` if the node records none. */
export async function readTraces(query: Record<string, string>, abort?: AbortSignal): Promise<TraceSummary[] | null> {
  if (without && without === session.value) return null;
  try {
    return (await get<{ traces: TraceSummary[] }>(`/v1/traces?${new URLSearchParams(query)}`, abort)).traces;
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    without = session.value ?? undefined;
    return null;
  }
}
