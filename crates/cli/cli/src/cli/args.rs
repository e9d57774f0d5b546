//! The verbs and their flags.

mod cells;
mod config;
mod deploy;
mod dev;
mod export;
mod files;
mod front;
mod import;
mod key;
mod kv;
mod login;
mod mqtt;
mod namespace;
mod nats;
mod new;
mod node_flags;
mod operators;
mod pace;
mod secret;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};

pub(super) use self::config::{Config, ConfigVerb};
pub(super) use self::deploy::{Deploy, OnFailure};
pub(super) use self::dev::{Dev, Test};
pub(super) use self::export::{Export as ExportVerb, ExportImage, ExportKubernetes, ExportTo};
pub(super) use self::files::{Files, FilesVerb};
pub(super) use self::import::Import;
pub(super) use self::key::{Key, KeyCreate, KeyRevoke, KeyVerb};
pub(super) use self::kv::{Kv, KvKeys, KvVerb};
pub(super) use self::login::{Login, Logout};
pub(super) use self::mqtt::{Mqtt, MqttUsersVerb, MqttVerb};
pub(super) use self::namespace::{Limits, NamespaceVerb, Namespaces};
pub(super) use self::new::New;
pub(super) use self::node_flags::NodeFlags;
pub(super) use self::operators::{AuditArgs, Token, TokenCreate, TokenRevoke, TokenVerb};
pub(super) use self::secret::SecretSet;

/// The text below the help of `mote`.
const ENVIRONMENT: &str = "\
Environment:
  MOTE_NODE    Node to talk to, as --node
  MOTE_TOKEN   Token for a node that is reached over TCP: the text in the file admin.token of its
               data folder
  MOTE_SOCKET  Management socket of the node on this machine
  MOTE_NAMESPACE
               Namespace of names that are written without one, as --namespace
  MOTE_NODES   File with the names of nodes [default: nodes.toml in ~/.config/mote, for root in
               /etc/mote]
  NO_COLOR     Print no colours";

/// A function platform for the edge.
#[derive(Debug, Parser)]
#[command(name = "mote", version, propagate_version = true, max_term_width = 100, after_help = ENVIRONMENT)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) global: Global,
    #[command(subcommand)]
    pub(super) verb: Verb,
}

/// Flags of every verb.
#[derive(Debug, Clone, Default, ClapArgs)]
pub(super) struct Global {
    /// How results are printed
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value = "table",
        help_heading = "Everywhere"
    )]
    pub(super) output: Format,
    /// Node to talk to: https://HOST:PORT, the path of a socket, or a name [env: MOTE_NODE]
    ///
    /// A node that is reached over TCP requires a token: set it in MOTE_TOKEN. The token is the
    /// text in the file admin.token of the node's data folder. The file nodes.toml gives names to
    /// nodes and groups of nodes, with a file for each token. Some verbs take several nodes, with
    /// commas between them.
    #[arg(long, global = true, value_name = "NODE", help_heading = "Everywhere")]
    pub(super) node: Option<String>,
    /// Namespace of names that are written without one [env: MOTE_NAMESPACE]
    ///
    /// With --namespace plant, the name hello means the function hello.plant, and lists show only what
    /// is in the namespace plant.
    #[arg(long, global = true, value_name = "NAME", help_heading = "Everywhere")]
    pub(super) namespace: Option<String>,
    /// Seconds to wait for the node
    #[arg(long, global = true, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86400), help_heading = "Everywhere")]
    pub(super) timeout: Option<u64>,
    /// Print only results and errors
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub(super) quiet: bool,
    /// Print more details
    #[arg(short, long, global = true, help_heading = "Everywhere")]
    pub(super) verbose: bool,
    /// When to use colour
    #[arg(long, global = true, value_enum, default_value = "auto", help_heading = "Everywhere")]
    pub(super) color: When,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Format {
    #[default]
    Table,
    Json,
    Jsonl,
    Yaml,
    Name,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum When {
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Start the node, and deploy functions if any are given
    Up(Up),
    /// Begin a function: write a small example with a test
    New(New),
    Dev(Dev),
    Test(Test),
    /// Deploy functions from folders or files
    Deploy(Deploy),
    /// Write a mote.toml for each function of another platform
    Import(Import),
    /// Write functions as files for another platform
    Export(ExportVerb),
    /// Run a function once
    Invoke(Invoke),
    /// List functions
    #[command(visible_alias = "ls")]
    List,
    /// Keep the token of a node, so that --node finds the node by a name
    Login(Login),
    /// Forget nodes that mote login has kept, and their tokens
    Logout(Logout),
    /// Show the state of the nodes that nodes.toml or --node names
    Nodes,
    /// Show one function
    Describe {
        /// Its name
        name: String,
    },
    /// List schedules: when functions run by themselves
    Schedules {
        /// Only those of this function
        name: Option<String>,
    },
    /// List a function's revisions
    Revisions {
        /// Its name
        name: String,
    },
    /// Send all traffic back to an earlier revision
    Rollback {
        /// Name of the function
        name: String,
        /// Revision to return to [default: the one that was live before]
        #[arg(value_name = "REVISION")]
        revision: Option<String>,
    },
    /// Show or split a function's traffic
    Traffic(Traffic),
    /// Show the logs of functions
    Logs(Logs),
    Record(Record),
    Replay(Replay),
    /// Start or stop instances now, or set their bounds
    Scale(Scale),
    /// Watch functions and their instances
    Top(Top),
    /// Remove functions
    #[command(visible_alias = "rm")]
    Remove(RemoveFunctions),
    /// Look up and cancel invocations that the node has accepted for later
    Invocation(Invocation),
    /// Look up and cancel the runs of chains
    Runs(Runs),
    /// Manage accepted invocations that have failed for good
    DeadLetters(DeadLetters),
    /// Manage the secrets that functions read
    Secret(Secret),
    /// Manage the keys with which callers call functions
    Key(Key),
    /// Manage the tokens with which people and programs manage the node over the network
    Token(Token),
    /// Manage namespaces, which separate the functions of several owners
    Namespace(Namespaces),
    /// Show what was changed on the node, when, by whom and from where
    Audit(AuditArgs),
    /// Read and change the state that functions keep
    Kv(Kv),
    /// Read and change the files in the data folders of functions
    Files(Files),
    /// Manage the users of the node's own MQTT broker
    Mqtt(Mqtt),
    /// Open the node's dashboard in a browser
    ///
    /// The command makes an address that logs one browser in, within a minute and with the rights of
    /// this user or of the token. If this machine has no display, or with --output name, it prints
    /// the address.
    Dashboard,
    /// Check the node and its machine
    Doctor,
    /// Measure how fast a function or a URL answers
    Bench(Bench),
    /// Compare scaling policies in simulated time; needs no node
    Simulate(Simulate),
    /// Install mote in a Kubernetes cluster, or remove it
    #[command(disable_help_flag = true)]
    Cluster {
        /// Arguments for mote-cluster, for example install --dry-run
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
        arguments: Vec<OsString>,
    },
    Upgrade(mote_upgrade::Args),
    /// Check or show the node's configuration, or print the schema of mote.toml
    Config(Config),
    /// Explain an error code
    Explain {
        /// The code, e.g. M0302
        code: String,
    },
    /// Print a completion script
    Completion {
        /// Name of the shell
        shell: Shell,
    },
    /// Print the version
    Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Up {
    #[command(flatten)]
    pub(super) node: NodeFlags,
    /// Folders or files to deploy at start, unless nothing in them has changed
    #[arg(value_name = "PATH")]
    pub(super) deploy: Vec<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Traffic {
    /// Name of the function
    pub(super) name: String,
    /// REVISION=PERCENT, REVISION:TAG=PERCENT, REVISION:TAG, or REVISION: to remove its tag
    ///
    /// If shares are given, revisions that are not named lose their share; they keep their tag.
    #[arg(value_name = "SHARE")]
    pub(super) shares: Vec<String>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Invoke {
    /// Its name, or NAME@TAG for one revision
    pub(super) name: String,
    /// Body: text, @FILE, or - for standard input
    #[arg(short, long, value_name = "DATA")]
    pub(super) data: Option<String>,
    /// Header, NAME: VALUE
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub(super) headers: Vec<String>,
    /// Method [default: POST with a body, else GET]
    #[arg(short, long)]
    pub(super) method: Option<String>,
    /// Path and query that the function receives
    #[arg(long, default_value = "/")]
    pub(super) path: String,
    /// Protocol for the call
    #[arg(long, value_enum, default_value = "admin")]
    pub(super) via: Via,
    /// Print the equivalent curl or coap-client command instead
    #[arg(long)]
    pub(super) show: bool,
    /// Do not wait: print the id of the accepted invocation
    #[arg(long = "async")]
    pub(super) background: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Via {
    Admin,
    Http,
    Coap,
}

/// Keep real calls of a function in a file
///
/// Writes each call and its answer as a line of JSON. Values of header fields that may be secrets, such
/// as authorization and cookie, are left out. Paths and bodies are kept as they are. The recording ends
/// with this command.
#[derive(Debug, ClapArgs)]
pub(super) struct Record {
    /// Name of the function
    pub(super) name: String,
    /// The new file [default: NAME.jsonl]
    pub(super) file: Option<PathBuf>,
    /// End after this many calls
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(super) count: u64,
    /// End after this time
    #[arg(long = "for", value_name = "DURATION", default_value = "10m")]
    pub(super) time: String,
}

/// Send recorded calls again, and compare the answers
///
/// Sends the calls of a file one after the other, through the node and without the access checks of the
/// function, or to a URL. Compares status, content type and body. JSON is compared by its value. The
/// exit code is 1 if an answer differs.
#[derive(Debug, ClapArgs)]
pub(super) struct Replay {
    /// A file that mote record wrote
    pub(super) file: PathBuf,
    /// NAME or NAME@TAG of a function, or http://HOST:PORT/PATH [default: the function in the file]
    pub(super) target: Option<String>,
}

/// Measure how fast a function or a URL answers
///
/// Without --rate each client sends the next operation after the answer (a closed loop). With --rate
/// operations start by a fixed schedule (an open loop). Latency and --timeout (10 s by default) count
/// from the scheduled start of an operation.
#[derive(Debug, ClapArgs)]
pub(super) struct Bench {
    /// NAME or NAME@TAG of a function, or a URL: http://HOST:PORT/PATH, coap://HOST:PORT/PATH
    pub(super) target: String,
    /// Connections (HTTP) or ports (CoAP), each with one operation at a time
    #[arg(short, long, value_name = "N", default_value_t = 16)]
    pub(super) clients: usize,
    /// Operations of each client; with --rate, of all clients together
    #[arg(short = 'n', long, value_name = "N", conflicts_with = "duration")]
    pub(super) operations: Option<u64>,
    /// How long to measure [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(super) duration: Option<String>,
    /// Operations per second, by a schedule
    #[arg(short, long, value_name = "N")]
    pub(super) rate: Option<f64>,
    /// Time before the measurement [default: 1s; with --operations 0s]
    #[arg(long, value_name = "TIME")]
    pub(super) warmup: Option<String>,
    /// Threads of the generator [default: half the processors, 8 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) threads: Option<u16>,
    /// Method [default: POST with a body, else GET]
    #[arg(short, long)]
    pub(super) method: Option<String>,
    /// Body: text, @FILE, or - for standard input
    #[arg(short, long, visible_alias = "body", value_name = "DATA")]
    pub(super) data: Option<String>,
    /// Header, NAME: VALUE
    #[arg(short = 'H', long = "header", value_name = "HEADER")]
    pub(super) headers: Vec<String>,
    /// Path and query that the function receives, for NAME
    #[arg(long, default_value = "/")]
    pub(super) path: String,
    /// Protocol for the calls [default: http]
    #[arg(long, value_enum)]
    pub(super) via: Option<BenchVia>,
    /// Write the result to a file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(super) save: Option<PathBuf>,
    /// Write every measured operation to a file, as CSV
    #[arg(long, value_name = "FILE")]
    pub(super) raw: Option<PathBuf>,
    /// Compare with a result that was saved
    #[arg(long, value_name = "FILE")]
    pub(super) compare: Option<PathBuf>,
    /// Print the result as a file of this kind
    #[arg(long, value_enum, value_name = "KIND")]
    pub(super) export: Option<Export>,
    /// Exit with 9 if a limit is exceeded, e.g. 'p99>10ms,errors>0'
    #[arg(long, value_name = "LIMITS")]
    pub(super) fail_if: Option<String>,
    /// Compare with this function or URL: both are called in turns, and the ratio of their rates is
    /// printed
    #[arg(long, value_name = "TARGET", conflicts_with_all = ["operations", "rate", "threads", "raw", "compare", "export", "fail_if", "experiment"])]
    pub(super) baseline: Option<String>,
    /// Length of each turn of --baseline [default: 100ms]
    #[arg(long, value_name = "TIME", requires = "baseline")]
    pub(super) turn: Option<String>,
    /// A named series of runs, over HTTP and CoAP
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["clients", "duration", "rate", "raw", "compare", "export", "fail_if"])]
    pub(super) experiment: Option<Experiment>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum BenchVia {
    Http,
    Coap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Export {
    Csv,
    Md,
    Html,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Experiment {
    /// 1, 4, 16, 64, 256, 1024 clients x 500 operations, three times; an answer within 1 s is a success
    ClosedSweep,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Logs {
    /// Names of functions [default: all functions]
    pub(super) names: Vec<String>,
    /// Keep printing new lines
    #[arg(short, long)]
    pub(super) follow: bool,
    /// Only the last lines; with --follow, of each function
    #[arg(long, value_name = "LINES")]
    pub(super) tail: Option<u64>,
    /// Only lines younger than this: a duration such as 10m, or a time such as 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    pub(super) since: Option<String>,
    /// Only lines that contain this text; upper and lower case matter
    #[arg(long, value_name = "TEXT")]
    pub(super) grep: Option<String>,
    /// Only lines of at least this level
    #[arg(long, value_name = "LEVEL", value_parser = ["debug", "info", "warn", "error"])]
    pub(super) level: Option<String>,
    /// Only lines of one invocation
    #[arg(long, value_name = "ID")]
    pub(super) invocation: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Scale {
    /// Its name
    pub(super) name: String,
    /// Number of instances to have now; the autoscaler may change it again afterwards
    #[arg(value_name = "N")]
    pub(super) instances: Option<u32>,
    /// Minimum number of instances, until the next deploy
    #[arg(long, value_name = "N")]
    pub(super) min: Option<u32>,
    /// Maximum number of instances, until the next deploy
    #[arg(long, value_name = "N")]
    pub(super) max: Option<u32>,
    /// Return to the bounds of the manifest
    #[arg(long)]
    pub(super) reset: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Top {
    /// Function whose instances are shown
    pub(super) name: Option<String>,
    /// Print one table, measured over a second
    #[arg(long)]
    pub(super) once: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Remove {
    /// Their names
    #[arg(required = true)]
    pub(super) names: Vec<String>,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub(super) yes: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct RemoveFunctions {
    #[command(flatten)]
    pub(super) remove: Remove,
    /// Also remove the state and the files that they keep in the node
    #[arg(long)]
    pub(super) with_state: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Simulate {
    /// Families of demand, experiments, or recorded traces (FILE.csv) [default: all families]
    #[arg(value_name = "SCENARIO")]
    pub(super) scenarios: Vec<String>,
    /// Policies to compare
    #[arg(
        long,
        value_name = "POLICIES",
        value_delimiter = ',',
        default_value = "auto,knative,hpa,openfaas"
    )]
    pub(super) policy: Vec<String>,
    /// Milliseconds an instance takes to start [default: 50; experiments have their own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(super) start_ms: Option<u64>,
    /// Milliseconds of processor time that a start takes [default: 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(super) start_cpu_ms: Option<u64>,
    /// Memory of the node for instances, divided by its cores: the rate of memory in the column COST
    /// [default: 4GiB]
    #[arg(long, value_name = "SIZE")]
    pub(super) core_memory: Option<String>,
    /// Maximum number of instances of one function [default: 20; experiments have their own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) max: Option<u32>,
    /// Memory of the node for instances, e.g. 1GiB [default: as much as they need]
    #[arg(long, value_name = "SIZE")]
    pub(super) memory: Option<String>,
    /// Seed of all random numbers [default: 11; experiments have their own]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// Simulated time, e.g. 10m [default: the scenario's own]
    #[arg(long = "for", value_name = "DURATION")]
    pub(super) duration: Option<String>,
    /// List families, experiments and policies
    #[arg(long)]
    pub(super) list: bool,
    /// The same as -o json
    #[arg(long)]
    pub(super) json: bool,
    /// Write the course of every run to a file
    #[arg(long, value_name = "FILE")]
    pub(super) csv: Option<PathBuf>,
    /// Draw the course of every run, policies side by side
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct Invocation {
    #[command(subcommand)]
    pub(super) verb: InvocationVerb,
}

#[derive(Debug, Subcommand)]
pub(super) enum InvocationVerb {
    /// List accepted invocations, newest first
    #[command(visible_alias = "ls")]
    List {
        /// Only those of this function
        #[arg(long, value_name = "NAME")]
        function: Option<String>,
        /// Only those in this state: waiting, running, succeeded, dead or cancelled
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// At most this many, up to 1,000 [default: 100]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show one invocation: its state, its attempts and its answer
    Show {
        /// Its id
        id: String,
    },
    /// Print the body of its answer
    Result {
        /// Its id
        id: String,
    },
    /// Cancel waiting or running invocations
    #[command(group = clap::ArgGroup::new("which").required(true))]
    Cancel {
        /// Their ids
        #[arg(value_name = "ID", group = "which")]
        ids: Vec<String>,
        /// All waiting invocations of this function, 1,000 at most
        #[arg(long, value_name = "NAME", group = "which")]
        function: Option<String>,
    },
}

#[derive(Debug, ClapArgs)]
pub(super) struct Runs {
    #[command(subcommand)]
    pub(super) verb: RunVerb,
}

#[derive(Debug, Subcommand)]
pub(super) enum RunVerb {
    /// List runs that the node has accepted, newest first
    #[command(visible_alias = "ls")]
    List {
        /// Only those of this chain
        #[arg(long, value_name = "NAME")]
        chain: Option<String>,
        /// Only those in this state: waiting, running, succeeded, dead or cancelled
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
        /// At most this many, up to 1,000 [default: 100]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show one run: its state, its steps and its output
    Show {
        /// Its id
        id: String,
    },
    /// Cancel waiting or running runs
    #[command(group = clap::ArgGroup::new("which").required(true))]
    Cancel {
        /// Their ids
        #[arg(value_name = "ID", group = "which")]
        ids: Vec<String>,
        /// All waiting runs of this chain, 1,000 at most
        #[arg(long, value_name = "NAME", group = "which")]
        chain: Option<String>,
    },
}

#[derive(Debug, ClapArgs)]
pub(super) struct DeadLetters {
    #[command(subcommand)]
    pub(super) verb: DeadLetterVerb,
}

#[derive(Debug, Subcommand)]
pub(super) enum DeadLetterVerb {
    /// List dead letters, newest first
    #[command(visible_alias = "ls")]
    List {
        /// Only those of this function
        #[arg(long, value_name = "NAME")]
        function: Option<String>,
        /// At most this many, up to 1,000 [default: 100]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
    /// Show one dead letter
    Show {
        /// Its id
        id: String,
    },
    /// Run dead letters again, with all their attempts
    #[command(group = clap::ArgGroup::new("which").required(true))]
    Retry {
        /// Their ids
        #[arg(value_name = "ID", group = "which")]
        ids: Vec<String>,
        /// All dead letters of this function, 1,000 at most
        #[arg(long, value_name = "NAME", group = "which")]
        function: Option<String>,
    },
    /// Delete dead letters
    #[command(visible_alias = "rm", group = clap::ArgGroup::new("which").required(true))]
    Delete {
        /// Their ids
        #[arg(value_name = "ID", group = "which")]
        ids: Vec<String>,
        /// All dead letters of this function, 1,000 at most
        #[arg(long, value_name = "NAME", group = "which")]
        function: Option<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, ClapArgs)]
pub(super) struct Secret {
    #[command(subcommand)]
    pub(super) verb: SecretVerb,
}

#[derive(Debug, Subcommand)]
pub(super) enum SecretVerb {
    /// Create or replace a secret; its value is read from standard input or a file
    Set(SecretSet),
    /// List secrets and the functions that read them, without their values
    #[command(visible_alias = "ls")]
    List,
    /// Remove secrets
    #[command(visible_alias = "rm")]
    Remove(Remove),
}
