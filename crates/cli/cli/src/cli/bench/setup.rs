//! Checks the arguments of a measurement.

use std::path::Path;
use std::time::Duration;

use mote_load::limits::{self, Limit as Bound};
use mote_load::turns::TurnsPlan;
use mote_load::{Limit, Load, Plan, Report, Request, Target};

use super::super::args::{self, BenchVia};
use super::super::failure::Failure;
use super::super::{invoke, nodes};

const DURATION: Duration = Duration::from_secs(10);
const WARMUP: Duration = Duration::from_secs(1);
/// The length of one target's turn, unless the user sets it.
const TURN: Duration = Duration::from_millis(100);
const TIMEOUT: Duration = Duration::from_secs(10);
/// The most threads, unless the user sets their number.
const THREADS_MAX: usize = 8;

pub(super) struct Setup {
    pub(super) plan: Plan,
    /// With a baseline, this plan is used instead of `plan`.
    pub(super) turns: Option<TurnsPlan>,
    pub(super) limits: Vec<Bound>,
    /// The earlier run with which this one is compared.
    pub(super) before: Option<Report>,
}

impl Setup {
    pub(super) fn of(args: &args::Bench, global: &args::Global) -> Result<Self, Failure> {
        let wrong = |flag: &str, error: &dyn std::fmt::Display| {
            Failure::new("M0101", format!("{flag}: {error}"))
        };
        let duration = |flag: &str, text: &Option<String>, default: Duration| match text {
            None => Ok(default),
            Some(text) if text == "0" => Ok(Duration::ZERO),
            Some(text) => mote_spec::quantity::parse_duration_ms(text)
                .map(Duration::from_millis)
                .map_err(|error| {
                    wrong(flag, &error).with_hint("durations are written 10s (ms, s, m, h)")
                }),
        };
        let warmup = if args.operations.is_some() { Duration::ZERO } else { WARMUP };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let plan = Plan {
            load: args.rate.map_or(Load::Closed, |rate| Load::Open { rate }),
            clients: args.clients,
            threads: args.threads.map_or((cores / 2).clamp(1, THREADS_MAX), usize::from),
            warmup: duration("--warmup", &args.warmup, warmup)?,
            limit: match args.operations {
                Some(operations) => Limit::Operations(operations),
                None => Limit::Duration(duration("--duration", &args.duration, DURATION)?),
            },
            timeout: global.timeout.map_or(TIMEOUT, Duration::from_secs),
            keeps_rows: args.raw.is_some(),
        };
        plan.check().map_err(|error| Failure::new("M0101", error.to_string()))?;
        let turns = match &args.baseline {
            None => None,
            Some(_) => {
                let turn = duration("--turn", &args.turn, TURN)?;
                let pairs_of = |span: Duration| {
                    let pairs = span.as_nanos() / (2 * turn.as_nanos()).max(1);
                    usize::try_from(pairs).unwrap_or(usize::MAX)
                };
                let turns = TurnsPlan {
                    clients: plan.clients,
                    turn,
                    pairs: pairs_of(duration("--duration", &args.duration, DURATION)?),
                    warmup_pairs: pairs_of(plan.warmup),
                    timeout: plan.timeout,
                };
                turns.check().map_err(|error| Failure::new("M0101", error.to_string()))?;
                Some(turns)
            }
        };
        let limits = args.fail_if.as_deref().map(limits::parse).transpose();
        Ok(Self {
            plan,
            turns,
            limits: limits.map_err(|error| wrong("--fail-if", &error))?.unwrap_or_default(),
            before: args.compare.as_deref().map(saved).transpose()?,
        })
    }

    pub(super) fn via(&self, args: &args::Bench) -> BenchVia {
        args.via.unwrap_or(BenchVia::Http)
    }
}

/// Reads a saved result.
fn saved(path: &Path) -> Result<Report, Failure> {
    let bad = |text: &str| Failure::new("M0102", format!("{}: {text}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| {
        let text = error.to_string();
        bad(&text.split(" (os error").next().unwrap_or("").to_lowercase())
    })?;
    let no_run = |_| bad("not a result of mote bench --save");
    serde_json::from_str(&text).map_err(no_run)
}

/// Builds the request that the arguments describe.
pub(super) async fn request(args: &args::Bench) -> Result<Request, Failure> {
    let call = args::Invoke {
        name: args.target.clone(),
        data: args.data.clone(),
        headers: args.headers.clone(),
        method: args.method.clone(),
        path: args.path.clone(),
        via: args::Via::Admin,
        show: false,
        background: false,
    };
    let request = invoke::request(&call).await?;
    let is_clean = |text: &String| !text.bytes().any(|byte| byte.is_ascii_control());
    if !request.headers.iter().all(|(name, value)| is_clean(name) && is_clean(value)) {
        return Err(Failure::new("M0101", "-H: a header must be one line"));
    }
    Ok(Request { method: request.method, headers: request.headers, body: request.body })
}

/// Returns the target of the request, which is a URL or the name of a function.
pub(super) async fn target(
    args: &args::Bench,
    name: &str,
    global: &args::Global,
    via: BenchVia,
) -> Result<Target, Failure> {
    let url = if name.contains("://") {
        if args.path != "/" {
            return Err(Failure::new("M0101", "--path: not with a URL, which contains its path"));
        }
        if args.via.is_some() {
            let failure =
                Failure::new("M0101", "--via: not with a URL, whose scheme names the protocol");
            return Err(failure.with_hint("write http://… or coap://…"));
        }
        name.to_owned()
    } else {
        let function = invoke::function(&nodes::only(global)?.client, name).await?;
        let (front, url) = match via {
            BenchVia::Http => ("HTTP", function.urls.http),
            BenchVia::Coap => ("CoAP", function.urls.coap),
        };
        let base = url.filter(|url| !url.starts_with("https:")).ok_or_else(|| {
            Failure::new("M0201", format!("the {front} front of the node is off"))
                .with_hint("use the other front: --via http or --via coap")
        })?;
        format!("{base}{}", if args.path == "/" { "" } else { &args.path })
    };
    Target::parse(&url).map_err(|error| {
        let shown: String = url.chars().take(128).flat_map(char::escape_debug).collect();
        Failure::new("M0101", format!("{shown}: {error}"))
    })
}

/// The current time in RFC 3339 format.
pub(super) fn now() -> String {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    mote_api::time::Timestamp::from_unix_ms(since.as_millis() as u64).to_string()
}
