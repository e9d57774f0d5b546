//! Addresses of the management API, one constant per route, in axum's `{name}` notation.

/// `GET`: the node's properties and current state.
pub const STATUS: &str = "/v1/status";
/// `GET`: the checks of this machine.
pub const DOCTOR: &str = "/v1/doctor";
/// `GET`, `PUT` (replaces the list): the other cells of the cluster.
pub const CELLS: &str = "/v1/cells";
/// `GET`: the journals of accepted invocations that the node runs, if it keeps them in NATS.
pub const JOURNALS: &str = "/v1/journals";
/// `PUT` (takes it over and runs it), `DELETE` (gives it back): one of them.
pub const JOURNAL: &str = "/v1/journals/{name}";
/// `GET`: all functions.
pub const FUNCTIONS: &str = "/v1/functions";
/// `GET`, `PUT` (deploy), `DELETE`: one function.
pub const FUNCTION: &str = "/v1/functions/{name}";
/// `GET`: its stored revisions.
pub const REVISIONS: &str = "/v1/functions/{name}/revisions";
/// `PUT`: stores an archive as the revision of this number, without traffic. For the agent of a
/// cluster, which numbers revisions itself.
pub const REVISION: &str = "/v1/functions/{name}/revisions/{number}";
/// `PUT`: sets the whole split, history included, as a cluster has decided it.
pub const SPLIT: &str = "/v1/functions/{name}/split";
/// `PUT`: splits its traffic over revisions.
pub const TRAFFIC: &str = "/v1/functions/{name}/traffic";
/// `POST`: sends all traffic back to an earlier revision.
pub const ROLLBACK: &str = "/v1/functions/{name}/rollback";
/// `POST`: runs a function once; `{name}` may be `NAME@TAG`.
pub const INVOKE: &str = "/v1/functions/{name}/invoke";
/// `POST`: starts or stops instances now, or sets their bounds.
pub const SCALE: &str = "/v1/functions/{name}/scale";
/// `GET`: log lines of one function, one JSON object per line.
pub const LOGS: &str = "/v1/functions/{name}/logs";
/// `GET`: accepted invocations, newest first.
pub const INVOCATIONS: &str = "/v1/invocations";
/// `GET`, `DELETE` (cancel): one accepted invocation.
pub const INVOCATION: &str = "/v1/invocations/{id}";
/// `POST`: runs a dead letter again.
pub const RETRY: &str = "/v1/invocations/{id}/retry";
/// `DELETE`: removes dead letters.
pub const DEAD_LETTERS: &str = "/v1/dead-letters";
/// `DELETE`: removes one dead letter.
pub const DEAD_LETTER: &str = "/v1/dead-letters/{id}";
/// `GET`: the schedules of all functions.
pub const SCHEDULES: &str = "/v1/schedules";
/// `GET`: names of all secrets.
pub const SECRETS: &str = "/v1/secrets";
/// `PUT` (creates or replaces), `DELETE`: one secret.
pub const SECRET: &str = "/v1/secrets/{name}";
/// `GET`, `POST` (makes one): the keys of callers.
pub const KEYS: &str = "/v1/keys";
/// `DELETE` (makes it invalid): one of them.
pub const KEY: &str = "/v1/keys/{name}";
/// `POST`: replaces it by a new one.
pub const KEY_ROTATE: &str = "/v1/keys/{name}/rotate";
/// `GET`, `POST` (makes one): the tokens of those who manage the node.
pub const TOKENS: &str = "/v1/tokens";
/// `DELETE` (makes it invalid): one of them.
pub const TOKEN: &str = "/v1/tokens/{name}";
/// `GET`, `POST` (makes one): the namespaces.
pub const NAMESPACES: &str = "/v1/namespaces";
/// `GET`, `PUT` (replaces its limits), `DELETE`: one of them.
pub const NAMESPACE: &str = "/v1/namespaces/{name}";
/// `GET`: what was changed, when and by whom.
pub const AUDIT: &str = "/v1/audit";
/// `GET`: what the namespaces of functions' state hold.
pub const KV: &str = "/v1/kv";
/// `GET` (lists keys), `DELETE` (removes all): one namespace, `FUNCTION` or `shared:NAME`.
pub const KV_NAMESPACE: &str = "/v1/kv/{namespace}";
/// `GET`, `PUT`, `DELETE`, `POST` (adds to a number): the entry of the query parameter `key`.
pub const KV_ENTRY: &str = "/v1/kv/{namespace}/entry";
/// `GET`: users of the node's own MQTT broker.
pub const MQTT_USERS: &str = "/v1/mqtt/users";
/// `PUT` (creates or replaces), `DELETE`: one of them.
pub const MQTT_USER: &str = "/v1/mqtt/users/{name}";
/// `PUT`: makes the entities of an OpenWhisk manifest.
pub const OPENWHISK: &str = "/v1/openwhisk";
/// `GET`: the OpenAPI document.
pub const OPENAPI: &str = "/v1/openapi.json";
/// `GET`: 200 while the process is running.
pub const LIVEZ: &str = "/livez";
/// `GET`: 200 when invocations can be served, else 503.
pub const READYZ: &str = "/readyz";
/// `GET`: metrics in the Prometheus text format.
pub const METRICS: &str = "/metrics";

/// Request header of an invocation through the management API: the method that the function
/// receives.
pub const HEADER_METHOD: &str = "mote-method";
/// Request header: path and query that the function receives, beginning with `/`.
pub const HEADER_PATH: &str = "mote-path";
/// Request header: the namespace of the names in the request that are written without one.
pub const HEADER_NAMESPACE: &str = "mote-namespace";
/// Response header: the id of the invocation.
pub const HEADER_INVOCATION: &str = "mote-invocation";
/// Response header: the error code, if `mote` made the answer and not the function.
pub const HEADER_FAULT: &str = "mote-fault";

/// The address of one function; `name` must be a valid function name.
pub fn function(name: &str) -> String {
    format!("{FUNCTIONS}/{name}")
}
