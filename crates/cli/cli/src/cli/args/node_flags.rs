//! The settings of a node on the command line.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::cells::CellFlags;
use super::front::FrontFlags;
use super::nats::NatsFlags;
use super::pace::PaceFlags;

/// The settings of a node on the command line.
#[derive(Debug, Clone, Default, ClapArgs)]
pub(in crate::cli) struct NodeFlags {
    /// Folder for functions, packages and the store
    #[arg(long, value_name = "DIR")]
    pub(in crate::cli) data: Option<String>,
    /// File with the key that encrypts secrets, or credential:NAME [default: made in the data folder]
    #[arg(long, value_name = "KEY")]
    pub(in crate::cli) secrets_key: Option<String>,
    /// Address of the HTTP front, :PORT, or off [default: 127.0.0.1:6683]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) http: Option<String>,
    /// Address of the HTTP front over TLS, :PORT, on, or off [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) https: Option<String>,
    /// Folder with the certificates of --https and their keys
    #[arg(long, value_name = "DIR")]
    pub(in crate::cli) certificates: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) front: FrontFlags,
    /// Address of the CoAP front, :PORT, or off [default: 127.0.0.1:5683]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) coap: Option<String>,
    /// Address of the CoAP front over TCP, :PORT, on, or off [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) coap_tcp: Option<String>,
    /// Address of the CoAP front over DTLS, :PORT, on, or off [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) coap_dtls: Option<String>,
    /// Address of the CoAP front over TLS, :PORT, on, or off [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) coap_tls: Option<String>,
    /// Address of the management API over TCP, for other machines over TLS [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) admin: Option<String>,
    /// Path of the management socket
    #[arg(long, value_name = "PATH")]
    pub(in crate::cli) socket: Option<String>,
    /// Let other machines reach the node; [access] in mote.toml says who may call a function
    #[arg(long)]
    pub(in crate::cli) lan: bool,
    /// Who may call functions without [access]: local (this machine), public, or key [default: local]
    #[arg(long, value_name = "WHO")]
    pub(in crate::cli) access: Option<String>,
    /// Memory for all instances together: a size, or a share of the machine's [default: 75%]
    #[arg(long, value_name = "SIZE")]
    pub(in crate::cli) memory: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) pace: PaceFlags,
    /// Memory for prewarmed interpreters: a size, auto, or off
    #[arg(long, value_name = "SIZE")]
    pub(in crate::cli) prewarm: Option<String>,
    /// First user id for instances, if the node runs as root [default: 1000000]
    #[arg(long, value_name = "ID")]
    pub(in crate::cli) uid_base: Option<String>,
    /// API of OpenFaaS, for faas-cli: an address, :PORT, or on [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) openfaas: Option<String>,
    /// API of OpenWhisk, for wsk: an address, :PORT, or on [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) openwhisk: Option<String>,
    /// API and fronts of tinyFaaS: an address, :PORT, or on [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) tinyfaas: Option<String>,
    /// HTTP front of tinyFaaS [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) tinyfaas_http: Option<String>,
    /// CoAP front of tinyFaaS [default: 127.0.0.1:5683]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) tinyfaas_coap: Option<String>,
    /// gRPC front of tinyFaaS [default: 127.0.0.1:9000]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) tinyfaas_grpc: Option<String>,
    /// API of Nuclio's dashboard: an address, :PORT, or on [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) nuclio: Option<String>,
    /// The node's own MQTT broker: an address, :PORT, or on [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) mqtt: Option<String>,
    /// The node's own MQTT broker with TLS: an address, :PORT, or on [default: off]
    #[arg(long, value_name = "ADDR")]
    pub(in crate::cli) mqtt_tls: Option<String>,
    /// MQTT clients without a user name: loopback, off, or all [default: loopback]
    #[arg(long, value_name = "CLIENTS")]
    pub(in crate::cli) mqtt_anonymous: Option<String>,
    /// Broker for functions that name no broker [default: local, or mqtt://127.0.0.1:1883]
    #[arg(long, value_name = "URL")]
    pub(in crate::cli) mqtt_broker: Option<String>,
    #[command(flatten)]
    pub(in crate::cli) nats: NatsFlags,
    #[command(flatten)]
    pub(in crate::cli) cells: CellFlags,
    /// What callbacks may reach: public, network, or machine [default: public]
    #[arg(long, value_name = "REACH")]
    pub(in crate::cli) outgoing: Option<String>,
    /// Networks that * in [allow] net does not open: private, or 10.0.0.0/8,… [default: none]
    #[arg(long, value_name = "NETWORKS")]
    pub(in crate::cli) closed_networks: Option<String>,
    /// Folders that functions may read: /srv/models, or NAMESPACE=/srv/plant,… [default: none]
    #[arg(long, value_name = "FOLDERS")]
    pub(in crate::cli) shared_folders: Option<String>,
    /// Configuration file
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) config: Option<PathBuf>,
}
