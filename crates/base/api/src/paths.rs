//! The addresses of the management API. There is one constant for each route, in axum's `{name}`
//! notation.

/// `GET`: the node's properties and current state.
pub const STATUS: &str = "/v1/status";
/// `GET`: the checks of this machine.
pub const DOCTOR: &str = "/v1/doctor";
/// `GET`, `PUT` (replaces the list): the other cells of the cluster.
pub const CELLS: &str = "/v1/cells";
/// `GET`: the journals of accepted invocations that the node runs, if it keeps them in NATS.
pub const JOURNALS: &str = "/v1/journals";
/// `PUT` (takes the journal over and runs it), `DELETE` (gives the journal back): one journal.
pub const JOURNAL: &str = "/v1/journals/{name}";
/// `GET`: all functions.
pub const FUNCTIONS: &str = "/v1/functions";
/// `GET`, `PUT` (deploy), `DELETE`: one function.
pub const FUNCTION: &str = "/v1/functions/{name}";
/// `GET`: the stored revisions of a function.
pub const REVISIONS: &str = "/v1/functions/{name}/revisions";
/// `PUT`: stores an archive as the revision with this number, without traffic. The agent of a cluster
/// uses this route, because a cluster numbers revisions itself.
pub const REVISION: &str = "/v1/functions/{name}/revisions/{number}";
/// `PUT`: sets the whole traffic split of a function with its history. The cluster has decided the
/// split.
pub const SPLIT: &str = "/v1/functions/{name}/split";
/// `PUT`: splits the traffic of a function over its revisions.
pub const TRAFFIC: &str = "/v1/functions/{name}/traffic";
/// `POST`: sends all traffic back to an earlier revision.
pub const ROLLBACK: &str = "/v1/functions/{name}/rollback";
/// `POST`: runs a function once; `{name}` may be `NAME@TAG`.
pub const INVOKE: &str = "/v1/functions/{name}/invoke";
/// `POST`: starts or stops instances of a function now, or sets how many there may be.
pub const SCALE: &str = "/v1/functions/{name}/scale";
/// `GET`: log lines of one function, one JSON object per line.
pub const LOGS: &str = "/v1/functions/{name}/logs";
/// `GET`: the calls of one function from now on, one JSON object per line.
pub const RECORDING: &str = "/v1/functions/{name}/recording";
/// `GET`: the progress of one function's deploy, while it waits for a container image.
pub const PROGRESS: &str = "/v1/functions/{name}/progress";
/// `GET`: how long the invocations and starts of one function took.
pub const DURATIONS: &str = "/v1/functions/{name}/durations";
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
/// `GET`, `POST` (makes a key): the keys of callers.
pub const KEYS: &str = "/v1/keys";
/// `DELETE` (makes the key invalid): the key of one caller.
pub const KEY: &str = "/v1/keys/{name}";
/// `POST`: replaces the key of a caller with a new one.
pub const KEY_ROTATE: &str = "/v1/keys/{name}/rotate";
/// `GET`, `POST` (makes a token): the tokens of people and programs that manage the node.
pub const TOKENS: &str = "/v1/tokens";
/// `DELETE` (makes the token invalid): one token.
pub const TOKEN: &str = "/v1/tokens/{name}";
/// `GET`, `POST` (begins it, with a token or a code), `DELETE` (ends it): the session of a browser.
pub const SESSION: &str = "/v1/session";
/// `POST`: makes a code that begins one session.
pub const SESSION_CODE: &str = "/v1/session/code";
/// `GET`, `POST` (makes a namespace): all namespaces.
pub const NAMESPACES: &str = "/v1/namespaces";
/// `GET`, `PUT` (replaces the limits), `DELETE`: one namespace.
pub const NAMESPACE: &str = "/v1/namespaces/{name}";
/// `GET`: the record of what was changed, when and by whom.
pub const AUDIT: &str = "/v1/audit";
/// `GET`: how much state the namespaces of functions contain.
pub const KV: &str = "/v1/kv";
/// `GET` (lists keys), `DELETE` (removes all): the state in one namespace, `FUNCTION` or `shared:NAME`.
pub const KV_NAMESPACE: &str = "/v1/kv/{namespace}";
/// `GET`, `PUT`, `DELETE`, `POST` (adds to a number): the entry that the query parameter `key` names.
pub const KV_ENTRY: &str = "/v1/kv/{namespace}/entry";
/// `GET`: the data folders of functions.
pub const FILES: &str = "/v1/files";
/// `GET` (lists a folder), `DELETE` (removes all): the data folder of one function.
pub const FILES_OF: &str = "/v1/files/{name}";
/// `GET`, `PUT`, `DELETE`: the file that the query parameter `path` names.
pub const FILE: &str = "/v1/files/{name}/content";
/// `GET`: users of the node's own MQTT broker.
pub const MQTT_USERS: &str = "/v1/mqtt/users";
/// `PUT` (creates or replaces), `DELETE`: one user of the broker.
pub const MQTT_USER: &str = "/v1/mqtt/users/{name}";
/// `PUT`: creates the entities of an OpenWhisk manifest.
pub const OPENWHISK: &str = "/v1/openwhisk";
/// `GET`: the recorded calls, newest first.
pub const TRACES: &str = "/v1/traces";
/// `GET`: the parts of one trace.
pub const TRACE: &str = "/v1/traces/{trace}";
/// `GET`: the OpenAPI document.
pub const OPENAPI: &str = "/v1/openapi.json";
/// `GET`: an OpenAPI document of the functions.
pub const FUNCTIONS_OPENAPI: &str = "/v1/openapi/functions.json";
/// `GET`: 200 while the process is running.
pub const LIVEZ: &str = "/livez";
/// `GET`: 200 if invocations can be served, otherwise 503.
pub const READYZ: &str = "/readyz";
/// `GET`: metrics in the Prometheus text format.
pub const METRICS: &str = "/metrics";

/// Request header of an invocation through the management API. Its value is the method that the
/// function receives.
pub const HEADER_METHOD: &str = "mote-method";
/// Request header with the path and query that the function receives. The value begins with `/`.
pub const HEADER_PATH: &str = "mote-path";
/// Request header of an invocation that repeats a recorded one. Its value is the trigger that the
/// function sees. The function then also receives the request's `mote-caller` and `mote-params`.
pub const HEADER_TRIGGER: &str = "mote-trigger";
/// Field of a deploy: the login at the registry of a container image, for this deploy alone. The value
/// is a [`RegistryLogin`](crate::types::RegistryLogin) as JSON in base64.
pub const HEADER_REGISTRY_LOGIN: &str = "mote-registry-login";
/// Request header with the namespace of all names in the request that are written without one.
pub const HEADER_NAMESPACE: &str = "mote-namespace";
/// Request header of a change that a browser sends with its session. Its value is the session's
/// `csrf`.
pub const HEADER_CSRF: &str = "mote-csrf";
/// Response header with the id of the invocation.
pub const HEADER_INVOCATION: &str = "mote-invocation";
/// Response header with the error code, if `mote` made the answer and not the function.
pub const HEADER_FAULT: &str = "mote-fault";

/// Returns the address of one function. `name` must be a valid function name.
pub fn function(name: &str) -> String {
    format!("{FUNCTIONS}/{name}")
}
