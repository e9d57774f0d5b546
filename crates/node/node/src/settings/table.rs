//! The settings of a node, with their descriptions.

/// One setting of a node. The reference page and the checks use this table.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// The key in the file. In the environment, it is in upper case after `MOTE_`; as a flag, it
    /// follows `--`.
    pub key: &'static str,
    /// A description of the default.
    pub default: &'static str,
    pub text: &'static str,
}

/// Every setting, in the order of the reference page.
pub const SETTINGS: [Setting; 59] = [
    Setting {
        key: "data",
        default: "`/var/lib/mote` for root, otherwise `~/.local/share/mote`",
        text: "Folder for functions, packages and the store. Only one node at a time can use it.",
    },
    Setting {
        key: "secrets_key",
        default: "`secrets.key` in the data folder, which the node makes",
        text: "File with the key that encrypts secrets: at least 32 bytes, which not every user of the machine may read. `credential:NAME` is a credential of systemd. Of several with commas, the first one encrypts and all decrypt: put a new key first, and remove the old one after the next start.",
    },
    Setting {
        key: "http",
        default: "`127.0.0.1:6683`",
        text: "Address of the HTTP front, or `off`. `:PORT` keeps the default host.",
    },
    Setting {
        key: "https",
        default: "`off`",
        text: "Address of the HTTP front over TLS, `on` for port 6684, or `off`. `:PORT` keeps the default host.",
    },
    Setting {
        key: "certificates",
        default: "`certificates` in the data folder",
        text: "Folder with the certificates of `https`, `coap_tls`, `coap_dtls` and `mqtt_tls` and their keys (PEM): `NAME.crt` or `NAME.pem` with `NAME.key`, or folders that have `fullchain.pem` with `privkey.pem`, or `tls.crt` with `tls.key`. A client gets the first one that is valid for the host that it names. The node reads changed files again. If the folder is the default one and has none, the node makes a certificate of its own.",
    },
    Setting {
        key: "client_ca",
        default: "none",
        text: "File with the certificates (PEM) of the authorities that sign the certificates of clients, and with their revocation lists, if there are any. If it is set, the ports of `https`, `coap_tls`, `coap_dtls` and `mqtt_tls` ask each client for a certificate; over DTLS, a client needs one unless it has a pre-shared key. Clients need a valid certificate to call functions with the access mode `mtls`, and `callers` in their manifest can restrict its names. At the MQTT broker, a certificate stands for the user that it names. The node reads a changed file again.",
    },
    Setting {
        key: "acme",
        default: "none",
        text: "DNS names and public addresses of this machine, separated by commas. The node orders a certificate for them from an authority (ACME) and renews it. Needs `https`. By setting it, you agree to the terms of the authority. See [HTTPS](../guides/https.md#ordered-from-an-authority).",
    },
    Setting {
        key: "acme_directory",
        default: "that of Let's Encrypt",
        text: "URL of the directory of another authority (`https://`).",
    },
    Setting {
        key: "acme_ca",
        default: "the system's certificates",
        text: "File with the root certificates (PEM) that the node trusts when it connects to the authority.",
    },
    Setting {
        key: "acme_contact",
        default: "none",
        text: "Mail address to which the authority may write.",
    },
    Setting {
        key: "acme_external_account",
        default: "none",
        text: "File with the identifier of a key and the key (base64url), separated by a space, for authorities that require an existing customer account (external account binding).",
    },
    Setting {
        key: "acme_profile",
        default: "that of the authority",
        text: "Certificate profile, one of those that the authority offers: for example `shortlived`, which Let's Encrypt requires for IP addresses.",
    },
    Setting {
        key: "function_ports",
        default: "`30000-32767`",
        text: "TCP ports that functions may have for themselves (`node_port` in `[http]`): ports and ranges, separated by commas, or `off`. A port listens at the host of `https` and speaks TLS if that front is on, otherwise at the host of `http`. See [A port of its own](../guides/routes.md#a-port-of-its-own).",
    },
    Setting {
        key: "trusted_proxies",
        default: "none",
        text: "Proxies in front of the node, as addresses and networks (`127.0.0.1, 10.0.0.0/8`). The node believes what they say about their clients: access rules and rates then apply to the address of the client. The limit on connections from one address still applies to the proxy; with the PROXY protocol, it applies to the client. See [Proxies in front of a node](../guides/operating.md#proxies-in-front-of-a-node).",
    },
    Setting {
        key: "proxy_header",
        default: "`x-forwarded-for`",
        text: "How these proxies report the address of a client: in the field `x-forwarded-for` or `forwarded` of each request, or by `proxy-protocol` at the beginning of each connection.",
    },
    Setting {
        key: "access_log",
        default: "`off`",
        text: "Where the node writes a line for each HTTP request of a function: a file, `journal` (that of systemd), `stdout`, or `off`. See [Access log](../guides/operating.md#access-log).",
    },
    Setting {
        key: "access_log_format",
        default: "`combined`",
        text: "The format of these lines: `common` or `combined`, as of other web servers, or `json`.",
    },
    Setting {
        key: "log_size",
        default: "`64MiB`",
        text: "How much of the disk the lines of all functions' logs may take, from 16 MiB to 1 GiB. The oldest lines are removed. With `off`, lines are only in memory and end with the node. See [Logs](../guides/operating.md#logs-of-functions).",
    },
    Setting { key: "log_age", default: "`14d`", text: "How long these lines are kept." },
    Setting {
        key: "log_writes",
        default: "`256MiB`",
        text: "How much of these lines the node writes to the disk on one day (UTC), so that an SD card lasts. A function may use half of it, and the last fifth is for warnings, errors and messages of the node. Further lines are only in memory.",
    },
    Setting {
        key: "trace",
        default: "`off`, or `1%` with `otlp`",
        text: "The share of calls that the node records as traces, such as `1%`, `0.05%` or `100%`, or `off`. If it is not off, calls that fail, take longer than a second or belong to a trace that somebody else records are recorded, too. See [Traces](../guides/operating.md#traces).",
    },
    Setting {
        key: "otlp",
        default: "none",
        text: "Address of a collector (OpenTelemetry) that receives the traces and the lines of functions: `http://HOST:4318` or `https://HOST` for OTLP over HTTP, or `grpc://HOST:4317`.",
    },
    Setting {
        key: "coap",
        default: "`127.0.0.1:5683`",
        text: "Address of the CoAP front (UDP), or `off`. `:PORT` keeps the default host.",
    },
    Setting {
        key: "coap_tcp",
        default: "`off`",
        text: "Address of the CoAP front over TCP (`coap+tcp://`), `on` for port 5683, or `off`. `:PORT` keeps the default host.",
    },
    Setting {
        key: "coap_dtls",
        default: "`off`",
        text: "Address of the CoAP front over DTLS (`coaps://`), `on` for port 5684, or `off`. `:PORT` keeps the default host. Clients use the keys of callers, or certificates (guide coap-dtls.md).",
    },
    Setting {
        key: "coap_tls",
        default: "`off`",
        text: "Address of the CoAP front over TLS (`coaps+tcp://`), `on` for port 5684, or `off`. `:PORT` keeps the default host. It has the certificates of `https`, and `client_ca` holds for it, too.",
    },
    Setting {
        key: "admin",
        default: "`off`",
        text: "Address of the management API over TCP, which requires a token. The Unix socket is always available. Other machines must use TLS (`https://`); with `http://` before the address, they may use plain HTTP as well.",
    },
    Setting {
        key: "socket",
        default: "`/run/mote/mote.sock` for root, otherwise `$XDG_RUNTIME_DIR/mote.sock` or `mote.sock` in the data folder",
        text: "Path of the management socket.",
    },
    Setting {
        key: "lan",
        default: "`false`",
        text: "Whether other machines can reach HTTP and CoAP. If `false`, only this machine can.",
    },
    Setting {
        key: "access",
        default: "`local`",
        text: "Who may call functions whose `mote.toml` has no [`[access]`](../guides/access.md): `local` (only this machine), `public` (everyone who reaches the node) or `key` (callers with a key).",
    },
    Setting {
        key: "memory",
        default: "`75%`",
        text: "Memory budget of all instances together, counted by their memory limits: a size such as `512MiB`, or a share of the machine's memory (or of what the node's control group allows). When it is used up, the node stops idle instances, and calls that cannot be served in time receive 503.",
    },
    Setting {
        key: "threads",
        default: "`0`",
        text: "Threads that serve connections and instances, at most 64. 0 chooses by the machine: one below 8 cores, then one for every 4 cores.",
    },
    Setting {
        key: "polling",
        default: "`true`",
        text: "Whether the node polls for the next request for up to 0.3 ms before it sleeps, if the last requests came as quickly. Polling saves the time of a wake-up and lets other programs run; `false` saves power. Always off on a machine with one core.",
    },
    Setting {
        key: "timeout_factor",
        default: "`1`",
        text: "The node multiplies `timeout` and `init_timeout` (in `[limits]`) of each function by this whole number, from 1 to 100. Raise it on a machine that is much slower than the one for which the manifests were written.",
    },
    Setting {
        key: "prewarm",
        default: "`auto`: a 16th of `memory`; on a small node up to a quarter, for one Python and one Node",
        text: "Memory for prewarmed interpreters, which shorten cold starts: a size such as `64MiB`, or `off`. A prewarmed Python counts as 16 MiB, a prewarmed Bun as 48 MiB, a prewarmed Node or Deno as 64 MiB. The node keeps one of each kind that deployed functions need, and more after bursts. This memory is part of `memory`, and is freed first when instances need it.",
    },
    Setting {
        key: "uid_base",
        default: "`1000000`",
        text: "The first of the 65,536 user ids for instances on a node that root runs; each instance has its own, with an equal group id. From 65536 to 4294000000. No other user or container engine should use these ids: `mote doctor` names a range of `/etc/subuid` or `/etc/subgid` that overlaps them.",
    },
    Setting {
        key: "openfaas",
        default: "`off`",
        text: "Address of OpenFaaS's API, which faas-cli uses: `on` is `127.0.0.1:8080`, or port 8080 of all addresses with `lan`. The user is `admin`; the password is the token in the file `admin.token` of the data folder.",
    },
    Setting {
        key: "openwhisk",
        default: "`off`",
        text: "Address of OpenWhisk's API, which wsk uses: `on` is `127.0.0.1:3233`. The key is any name, `:`, and the token in the file `admin.token` of the data folder.",
    },
    Setting {
        key: "tinyfaas",
        default: "`off`",
        text: "Address of tinyFaaS's management API: `on` is `127.0.0.1:8080`, or port 8080 of all addresses with `lan`. It also turns on tinyFaaS's fronts. On loopback it requires no credentials, elsewhere the token.",
    },
    Setting {
        key: "tinyfaas_http",
        default: "`127.0.0.1:8000` if `tinyfaas` is on",
        text: "Address of tinyFaaS's HTTP front, or `off`.",
    },
    Setting {
        key: "tinyfaas_coap",
        default: "`127.0.0.1:5683` if `tinyfaas` is on",
        text: "Address of tinyFaaS's CoAP front (UDP), or `off`. If this front uses the port of the node's own CoAP front and `coap` is not set, the node's own front is off.",
    },
    Setting {
        key: "tinyfaas_grpc",
        default: "`127.0.0.1:9000` if `tinyfaas` is on",
        text: "Address of tinyFaaS's gRPC front, or `off`.",
    },
    Setting {
        key: "nuclio",
        default: "`off`",
        text: "Address of the API of Nuclio's dashboard: `on` is `127.0.0.1:8070`, or port 8070 of all addresses with `lan`. On loopback it requires no credentials, elsewhere the token.",
    },
    Setting {
        key: "mqtt",
        default: "`off`",
        text: "Address of the node's own MQTT broker: `on` is `127.0.0.1:1883`, or port 1883 of all addresses with `lan`. `mote mqtt users` manages its users.",
    },
    Setting {
        key: "mqtt_tls",
        default: "`off`",
        text: "Address of the node's own MQTT broker for TLS: `on` is `127.0.0.1:8883`, or port 8883 of all addresses with `lan`. Needs `mqtt`. It has the certificates of `https`, and `client_ca` holds for it, too.",
    },
    Setting {
        key: "mqtt_anonymous",
        default: "`loopback`",
        text: "Clients of the node's own MQTT broker that need no user name: `loopback` is programs of this machine, `all` is everybody who reaches the broker, `off` is nobody. They may publish and receive everything.",
    },
    Setting {
        key: "mqtt_broker",
        default: "`local` if `mqtt` is on, otherwise `mqtt://127.0.0.1:1883`",
        text: "Broker of MQTT triggers and of functions that name none: `mqtt://HOST:PORT`, `mqtts://HOST:PORT` for TLS, or `local` for the node's own.",
    },
    Setting {
        key: "nats",
        default: "`off`",
        text: "NATS servers with JetStream that keep the state of functions, which all nodes with this setting share: `nats://HOST:PORT`, `tls://HOST:PORT` for TLS, several with commas, or `off`.",
    },
    Setting {
        key: "nats_credentials",
        default: "none",
        text: "File with the credentials for `nats`: NATS's own form (`.creds`), or one line `USER:PASSWORD`.",
    },
    Setting {
        key: "nats_ca",
        default: "the system's certificates",
        text: "File with certificates (PEM) of the authorities that sign the certificates of `nats`.",
    },
    Setting {
        key: "nats_replicas",
        default: "`1`",
        text: "Copies that a cluster of NATS servers keeps of everything, on as many servers: 1 to 5. All nodes need the same number.",
    },
    Setting {
        key: "journal_name",
        default: "none",
        text: "Name under which the node keeps its accepted invocations in NATS (`nats`), so that they outlive the machine: 1 to 64 letters, digits, `-` and `_`. A node that is started elsewhere with this name continues them, and the former node accepts none any more, so two nodes that work at the same time need different names. Without a name, accepted invocations are on the disk of this machine alone.",
    },
    Setting {
        key: "schedule_journal",
        default: "none",
        text: "Name of a journal in NATS that keeps the runs of schedules, for nodes that share their schedules (`journal_name` is needed too). Schedules run on the node that runs this journal; `PUT /v1/journals/NAME` of the management API lets a node run it. Each time of a schedule is accepted once, also if the journal moves to another node. Without a name, each node runs its own schedules.",
    },
    Setting {
        key: "cell",
        default: "`off`",
        text: "Address at which the node listens for other nodes of its cluster, which are called cells and forward invocations to each other that they cannot run: `ADDRESS:PORT`, or `off`. Needs `cell_key`.",
    },
    Setting {
        key: "cell_key",
        default: "none",
        text: "File with the key that all cells of a cluster share: 32 to 4,096 bytes that nobody can guess, for example from `head -c 32 /dev/urandom | base64`. Cells prove to each other that they have it, and encrypt what they send.",
    },
    Setting {
        key: "cells",
        default: "none",
        text: "The other cells: `ADDRESS:PORT`, several with commas. `PUT /v1/cells` of the management API replaces the list while the node runs.",
    },
    Setting {
        key: "outgoing",
        default: "`public`",
        text: "Addresses that the node itself may reach: results of accepted invocations, callbacks of OpenFaaS's API, archives of tinyFaaS's `/uploadURL`, and keys of issuers of tokens. `public` is the internet, `network` adds private networks, `machine` adds this machine. The node's own ports are never reached.",
    },
    Setting {
        key: "closed_networks",
        default: "none",
        text: "Networks that `*` in `[allow] net` does not open: networks such as `10.0.0.0/8`, addresses, and `private` for all private networks, separated by commas. A function reaches a host there only if its manifest names this host. `mote cluster install` closes the networks of the cluster.",
    },
    Setting {
        key: "shared_folders",
        default: "none",
        text: "Folders of this machine that functions may read (`{ from = \"/srv/models\" }` in `[files]`), separated by commas. `/srv/models` is for functions of the default namespace, `plant=/srv/models` for those of the namespace `plant`, `*=/srv/models` for all. A function may name only exactly these folders, and reads all that the permissions of the files allow every user. See [Files](../guides/files.md#folders-of-the-machine).",
    },
];
