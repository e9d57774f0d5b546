//! The flags of NATS.

use clap::Args as ClapArgs;

#[derive(Debug, Clone, Default, ClapArgs)]
pub(in crate::cli) struct NatsFlags {
    /// NATS servers that keep the state of functions: nats://HOST:PORT, several with commas [default: off]
    #[arg(long, value_name = "URLS")]
    pub(in crate::cli) nats: Option<String>,
    /// Credentials for --nats: a .creds file, or a line USER:PASSWORD
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) nats_credentials: Option<String>,
    /// Certificates (PEM) of the authorities for --nats [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) nats_ca: Option<String>,
    /// Copies that a cluster of NATS servers keeps [default: 1]
    #[arg(long, value_name = "NUMBER")]
    pub(in crate::cli) nats_replicas: Option<String>,
    /// Name under which accepted invocations are kept in NATS [default: none, on disk alone]
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) journal_name: Option<String>,
    /// Journal in NATS for the runs of schedules that several nodes share [default: none]
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) schedule_journal: Option<String>,
}
