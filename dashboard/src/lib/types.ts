// The answers of the management API that this page reads. The source is crates/base/api.

export interface Session {
  name: string;
  role: string;
  namespace?: string;
  csrf: string;
}

export interface Requests {
  total: number;
  failed: number;
  running: number;
  queued: number;
  cold_starts: number;
  starts: number;
  starts_s: number;
  p50_ms?: number;
  p99_ms?: number;
}

export type FunctionState = "idle" | "starting" | "ready" | "failed";

export interface LastError {
  time: string;
  code: string;
  message: string;
  invocation?: string;
}

/** One function of the list with `view=summary`. */
export interface Summary {
  name: string;
  runtime: string;
  revision: number;
  state: FunctionState;
  instances: number;
  starting: number;
  access: string;
  requests: Requests;
  last_error?: LastError;
}

export interface Instance {
  id: string;
  revision?: number;
  state: string;
  pid?: number;
  memory_bytes?: number;
  started_at: string;
  reason?: string;
  reason_text?: string;
  in_flight: number;
  served: number;
}

export interface Stop {
  id: string;
  revision: number;
  time: string;
  reason: string;
  reason_text?: string;
}

export interface TrafficShare {
  revision: number;
  percent: number;
  tag?: string;
}

export interface Rate {
  calls: number;
  period_ms: number;
  burst: number;
}

export interface Limits {
  memory_bytes: number;
  process_memory_bytes?: number;
  cpu_millis?: number;
  pids: number;
  timeout_ms: number;
  init_timeout_ms: number;
  concurrency?: number;
  body_bytes: number;
  disk_bytes: number;
  instances_min: number;
  instances_max?: number;
  idle_timeout_ms: number;
  queue: number;
  policy?: string;
  start?: string;
  balance?: string;
  rate?: Rate;
  caller_rate?: Rate;
  calls_at_once?: number;
  caller_calls_at_once?: number;
}

export interface Urls {
  http?: string;
  coap?: string;
  coaps?: string;
  routes?: string[];
  port?: { number: number; url?: string; problem?: string };
}

export interface MqttStatus {
  filter: string;
  broker: string;
  client_id: string;
  state: string;
  code?: string;
  message?: string;
  received: number;
  done: number;
  given_up: number;
  running: number;
}

export interface Schedule {
  function: string;
  expression: string;
  timezone?: string;
  every_ms?: number;
  missed: string;
  jitter_ms: number;
  overlap: string;
  next?: string;
  last?: { due: string; outcome: string; invocation?: string; state?: string; error?: string };
  left_out: number;
}

/** A change of a manifest that would fit what the node has seen. */
export interface Advice {
  code: string;
  text: string;
  section: string;
  change: string;
}

export interface FunctionDetail {
  advice?: Advice[];
  name: string;
  runtime: string;
  compat?: string;
  template?: string;
  revision: number;
  traffic?: TrafficShare[];
  state: FunctionState;
  instances: Instance[];
  starting: number;
  stops?: Stop[];
  bounds?: { min?: number; max?: number };
  scaling?: { desired: number; wished: number; reason: string; reason_text: string };
  access: string;
  tokens?: { issuer: string; audience: string };
  certificate_names?: string[];
  webhook?: { scheme: string; secret: string; window_ms?: number };
  secrets?: string[];
  schedules?: Schedule[];
  urls: Urls;
  mqtt?: MqttStatus[];
  limits: Limits;
  created_at: string;
  requests: Requests;
  last_error?: LastError;
}

/** Cumulative counts since the node started. Each list has one count more than `bounds_us`. */
export interface Durations {
  bounds_us: number[];
  request: Record<string, number[]>;
  queue: number[];
  start: number[];
  run: number[];
  sum_us: Record<string, number | Record<string, number>>;
}

export interface RevisionInfo {
  revision: number;
  state: string;
  percent: number;
  tag?: string;
  created_at: string;
  age_ms: number;
  code: string;
}

export interface DeployStep {
  name: string;
  detail: string;
  ms: number;
}

export interface DeployResult {
  function: string;
  revision: number;
  previous?: number;
  traffic?: TrafficShare[];
  access: string;
  unchanged?: boolean;
  held_back?: boolean;
  steps: DeployStep[];
  warnings?: string[];
  urls: Urls;
}

export interface TrafficResult {
  function: string;
  revision: number;
  previous: number;
  traffic: TrafficShare[];
  steps: DeployStep[];
}

export interface LogLine {
  time: string;
  level: string;
  message: string;
  function: string;
  revision: number;
  instance?: string;
  invocation?: string;
  stream: string;
}

export interface Check {
  name: string;
  /** `absent`: an optional part that is not installed. */
  state: "ok" | "absent" | "warn" | "fail";
  detail: string;
  hint?: string;
}

export interface Reach {
  what: string;
  address?: string;
  who: string;
}

export interface DoctorReport {
  checks: Check[];
  reach?: Reach[];
  functions?: Reach[];
}

export interface NodeStatus {
  version: string;
  pid: number;
  uptime_ms: number;
  http?: string;
  coap?: string;
  lan: boolean;
  data_dir: string;
  functions: number;
  instances: number;
  memory_bytes: number;
  budget: {
    memory_bytes: number;
    taken_bytes: number;
    peak_bytes: number;
    leaving_bytes: number;
    promised_bytes: number;
    starting: number;
    starts_max: number;
  };
  notes?: Record<string, string>;
}

export interface Invocation {
  id: string;
  function: string;
  trigger: string;
  state: "waiting" | "running" | "succeeded" | "dead" | "cancelled";
  accepted_at: string;
  due_at?: string;
  idempotency_key?: string;
  attempts: number;
  began_at?: string;
  ended_at?: string;
  status?: number;
  fault?: string;
  detail?: string;
  headers?: [string, string][];
  body?: string;
  body_base64?: string;
}

export interface TraceSummary {
  trace: string;
  span: string;
  function: string;
  revision?: number;
  trigger?: string;
  name: string;
  status?: string | number;
  outcome: string;
  started_at: string;
  duration_us: number;
  cold: boolean;
  invocation?: string;
}

export interface Span {
  span: string;
  parent?: string;
  name: string;
  kind: string;
  function?: string;
  revision?: number;
  instance?: string;
  invocation?: string;
  start_us: number;
  duration_us: number;
  status: "ok" | "error";
  attributes: Record<string, unknown>;
}

export interface Trace {
  trace: string;
  spans: Span[];
}

export interface KvKey {
  key: string;
  version: number;
  expires_unix_ms?: number;
}

export interface CallerKey {
  name: string;
  functions: string[];
  created_at: string;
  expires_at?: string;
  previous_until?: string;
}

export interface OperatorToken {
  name: string;
  role: string;
  namespace?: string;
  created_at: string;
  expires_at?: string;
}

export interface AuditEntry {
  at: string;
  who: string;
  from: string;
  act: string;
  status: number;
}

export interface Quotas {
  functions?: number;
  instances?: number;
  memory_bytes?: number;
  cpu_millis?: number;
  disk_bytes?: number;
  state_bytes?: number;
  calls_per_s?: number;
}

export interface Namespace {
  name: string;
  created_at: string;
  functions: number;
  instances: number;
  memory_bytes: number;
  cpu_millis: number;
  disk_bytes: number;
  state_bytes: number;
  quotas: Quotas;
  is_being_deleted?: boolean;
}

export interface Cell {
  name: string;
  address: string;
  state: string;
  free_bytes: number;
  in_flight: number;
  last_error?: string;
}

export interface CellList {
  name: string;
  listens?: string;
  cells: Cell[];
}
