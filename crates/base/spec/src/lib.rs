//! The spec of a function, and every form in which it is written.
//!
//! Pure: no I/O, no clock, no environment and no async (`clippy.toml` bans them). This crate must
//! not know how a function is run, stored or reached.
//!
//! Start with [`FunctionSpec`] (`function.rs`), the checked and complete form, which every other
//! crate uses. Each of its parts has a file next to it: `limits.rs`, `scale.rs`, `access.rs`,
//! `http.rs`, `mqtt.rs`, `schedule.rs` and so on. These files contain each default with its reason.
//! `check.rs` says which values are allowed.
//!
//! The forms in which a function is written:
//!
//! - [`manifest`]: `mote.toml`, read key by key, so that every mistake names its line.
//!   [`toml_reader`] and [`quantity`] read it, and also the settings of a node.
//! - [`json`]: the stored form, which also travels with code
//! - [`routes`]: hosts and paths, and the table in which the route of a request is found
//!
//! To add a key to `mote.toml`:
//!
//! - Read the key in [`manifest`].
//! - Add a field with its default to `function.rs`, or to the part to which it belongs.
//! - Add its limits to `check.rs`, and the field to [`json`].
//! - Set the field in `plan.rs` of `mote-project`, which makes a spec from a manifest.
//! - Describe the key in `docs/reference/manifest.md`.

// Every district uses these items, so each comment says what the item promises. Elsewhere, a
// comment is written only if it says more than the name.
#![warn(missing_docs)]

mod access;
pub mod addresses;
mod background;
mod check;
mod doors;
mod egress;
mod error;
pub mod fields;
pub mod files;
mod function;
pub mod hop_by_hop;
mod http;
mod image;
pub mod json;
mod limits;
pub mod manifest;
pub mod mqtt;
pub mod name;
mod platform;
pub mod policy;
mod protocol;
pub mod quantity;
mod rate;
pub mod routes;
mod runtime;
mod scale;
mod schedule;
mod secret;
mod spelling;
mod state;
pub mod toml_reader;

pub use access::{
    Access, CertificateRules, HmacRules, SignatureEncoding, SignatureHash, TokenKeys, TokenRules,
    WEBHOOK_BODY_BYTES_MAX, WebhookRules, WebhookScheme,
};
pub use background::{
    AGE_MS_MAX_DEFAULT, ATTEMPTS_DEFAULT, ATTEMPTS_MAX, AsyncRules, BACKOFF_MS_DEFAULT,
    BACKOFF_MS_MAX_DEFAULT, FUNCTION_PART, Recipient, RetryOn, Topic,
};
pub use doors::{OPENFAAS_GATEWAY_PORT, OPENFAAS_GATEWAYS, OWN_FRONT, SERVER_PORT, SERVICES_PORT};
pub use egress::{ANY_HOST, Egress, Transport, USUAL_PORTS};
pub use error::SpecError;
pub use files::Files;
pub use function::{CoapResource, FunctionSpec};
pub use http::{CORS_AGE_S_MAX, Cors, HttpRules, StaticFiles, is_below, is_origin};
pub use image::FunctionImage;
pub use limits::{
    BODY_BYTES_DEFAULT, BODY_BYTES_MAX, DISK_BYTES_DEFAULT, INIT_TIMEOUT_MS_DEFAULT, Limits,
    MEMORY_BYTES_DEFAULT, MEMORY_BYTES_DEFAULT_NODE, MEMORY_BYTES_MIN, PIDS_DEFAULT,
    STREAM_IDLE_MS_DEFAULT, STREAM_IDLE_MS_MAX, TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX,
};
pub use manifest::Manifest;
pub use name::FunctionName;
pub use platform::{Platform, TEMPLATE_GO_CLASSIC};
pub use protocol::Protocol;
pub use rate::{CALLS_AT_ONCE_MAX, RATE_CALLS_MAX, RATE_PERIOD_MS_MAX, Rate, Rates};
pub use runtime::{
    CONCURRENCY_DEFAULT_CHAIN, CONCURRENCY_DEFAULT_EXEC, CONCURRENCY_DEFAULT_GO,
    CONCURRENCY_DEFAULT_NODE, CONCURRENCY_DEFAULT_PYTHON, CONCURRENCY_DEFAULT_RUST,
    CONCURRENCY_DEFAULT_SERVER, CONCURRENCY_DEFAULT_WASM, Runtime,
};
pub use scale::{
    IDLE_TIMEOUT_MS_DEFAULT, INSTANCES_MAX, QUEUE_DEFAULT, QUEUE_MAX, SPARE_MAX, Scale,
    ScaleOverride, StartPolicy, TARGET_MAX,
};
pub use schedule::{
    EVERY_MS_MAX, EVERY_MS_MIN, EXPRESSION_BYTES_MAX, JITTER_MS_MAX, Missed, Overlap,
    SCHEDULE_BODY_BYTES_MAX, SCHEDULES_MAX, Schedule, ScheduledCall, TIMEZONE_DEFAULT, When,
};
pub use secret::is_secret_name;
pub use spelling::nearest;
pub use state::{QUOTA_BYTES_DEFAULT, QUOTA_BYTES_MAX, SHARED_MAX, StateRules};
