//! The flags of the HTTP fronts: client certificates, certificates that the node orders, proxies,
//! and the access log.

use clap::Args;

/// Which authorities sign client certificates, which certificates are ordered from which authority,
/// which ports functions may have, and which proxies are trusted.
#[derive(Debug, Clone, Default, Args)]
pub(in crate::cli) struct FrontFlags {
    /// File with the authorities that sign client certificates for --https
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) client_ca: Option<String>,
    /// Names of this machine, with commas, for which a certificate of --https is ordered (ACME)
    #[arg(long, value_name = "NAMES")]
    pub(in crate::cli) acme: Option<String>,
    /// URL of an authority other than Let's Encrypt
    #[arg(long, value_name = "URL")]
    pub(in crate::cli) acme_directory: Option<String>,
    /// File with the certificates by which the authority's server is trusted
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) acme_ca: Option<String>,
    /// Mail address to which the authority may write
    #[arg(long, value_name = "ADDRESS")]
    pub(in crate::cli) acme_contact: Option<String>,
    /// File with the key of an account that the authority requires
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) acme_external_account: Option<String>,
    /// Kind of certificate, one of those that the authority offers
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) acme_profile: Option<String>,
    /// TCP ports that functions may have, such as 443,30000-32767, or off [default: 30000-32767]
    #[arg(long, value_name = "PORTS")]
    pub(in crate::cli) function_ports: Option<String>,
    /// Proxies in front of the node that say who their clients are: addresses and networks
    #[arg(long, value_name = "NETWORKS")]
    pub(in crate::cli) trusted_proxies: Option<String>,
    /// How these proxies say it: x-forwarded-for, forwarded or proxy-protocol [default:
    /// x-forwarded-for]
    #[arg(long, value_name = "HOW")]
    pub(in crate::cli) proxy_header: Option<String>,
    /// Where a line for each HTTP request goes: a file, journal or stdout [default: off]
    #[arg(long, value_name = "WHERE")]
    pub(in crate::cli) access_log: Option<String>,
    /// The format of these lines: combined, common or json [default: combined]
    #[arg(long, value_name = "FORMAT")]
    pub(in crate::cli) access_log_format: Option<String>,
    /// How much of the disk the functions' logs may take, or off [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    pub(in crate::cli) log_size: Option<String>,
    /// How long the functions' logs are kept on disk [default: 14d]
    #[arg(long, value_name = "TIME")]
    pub(in crate::cli) log_age: Option<String>,
    /// How much of the functions' logs is written to disk in a day [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub(in crate::cli) log_writes: Option<String>,
    /// The share of calls that are recorded as traces, such as 1% [default: off]
    #[arg(long, value_name = "SHARE")]
    pub(in crate::cli) trace: Option<String>,
    /// A collector that receives traces and lines of functions, such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL")]
    pub(in crate::cli) otlp: Option<String>,
}
