//! `mote config`.

use std::path::PathBuf;

use mote_api::exit;
use mote_node::settings::{Given, Loaded, SETTINGS};

use super::args::{Config as ConfigArgs, ConfigVerb, NodeFlags};
use super::failure::Failure;
use super::output::{Output, table};

/// Loads the node's configuration from flags, environment and file. Every mistake in the configuration
/// gives the exit code 78, on which service units do not restart.
pub(super) fn load(
    flags: Vec<(&'static str, String)>,
    config: Option<PathBuf>,
) -> Result<Loaded, Failure> {
    Loaded::load(&Given::from_process(flags, config)).map_err(|mistakes| {
        let mut failure = Failure::from(mistakes);
        failure.exit = exit::CONFIG;
        failure
    })
}

/// Returns the settings that were given as flags, with their keys.
pub(super) fn given(flags: &NodeFlags) -> Vec<(&'static str, String)> {
    let mut given = Vec::new();
    for (key, value) in [
        ("data", &flags.data),
        ("secrets_key", &flags.secrets_key),
        ("http", &flags.http),
        ("https", &flags.https),
        ("certificates", &flags.certificates),
        ("client_ca", &flags.front.client_ca),
        ("acme", &flags.front.acme),
        ("acme_directory", &flags.front.acme_directory),
        ("acme_ca", &flags.front.acme_ca),
        ("acme_contact", &flags.front.acme_contact),
        ("acme_external_account", &flags.front.acme_external_account),
        ("acme_profile", &flags.front.acme_profile),
        ("function_ports", &flags.front.function_ports),
        ("trusted_proxies", &flags.front.trusted_proxies),
        ("proxy_header", &flags.front.proxy_header),
        ("access_log", &flags.front.access_log),
        ("access_log_format", &flags.front.access_log_format),
        ("log_size", &flags.front.log_size),
        ("log_age", &flags.front.log_age),
        ("log_writes", &flags.front.log_writes),
        ("trace", &flags.front.trace),
        ("otlp", &flags.front.otlp),
        ("coap", &flags.coap),
        ("coap_tcp", &flags.coap_tcp),
        ("coap_dtls", &flags.coap_dtls),
        ("coap_tls", &flags.coap_tls),
        ("admin", &flags.admin),
        ("socket", &flags.socket),
        ("memory", &flags.memory),
        ("threads", &flags.pace.threads),
        ("polling", &flags.pace.polling),
        ("timeout_factor", &flags.pace.timeout_factor),
        ("access", &flags.access),
        ("prewarm", &flags.prewarm),
        ("uid_base", &flags.uid_base),
        ("openfaas", &flags.openfaas),
        ("openwhisk", &flags.openwhisk),
        ("tinyfaas", &flags.tinyfaas),
        ("tinyfaas_http", &flags.tinyfaas_http),
        ("tinyfaas_coap", &flags.tinyfaas_coap),
        ("tinyfaas_grpc", &flags.tinyfaas_grpc),
        ("nuclio", &flags.nuclio),
        ("mqtt", &flags.mqtt),
        ("mqtt_tls", &flags.mqtt_tls),
        ("mqtt_anonymous", &flags.mqtt_anonymous),
        ("mqtt_broker", &flags.mqtt_broker),
        ("nats", &flags.nats.nats),
        ("nats_credentials", &flags.nats.nats_credentials),
        ("nats_ca", &flags.nats.nats_ca),
        ("nats_replicas", &flags.nats.nats_replicas),
        ("journal_name", &flags.nats.journal_name),
        ("schedule_journal", &flags.nats.schedule_journal),
        ("cell", &flags.cells.cell),
        ("cell_key", &flags.cells.cell_key),
        ("cells", &flags.cells.cells),
        ("outgoing", &flags.outgoing),
        ("closed_networks", &flags.closed_networks),
        ("shared_folders", &flags.shared_folders),
    ] {
        if let Some(value) = value {
            given.push((key, value.clone()));
        }
    }
    if flags.lan {
        given.push(("lan", "true".to_owned()));
    }
    given
}

pub(super) fn run(args: &ConfigArgs, output: &Output) -> Result<(), Failure> {
    match &args.verb {
        ConfigVerb::Check { file, flags } => {
            load(given(flags), file.clone().or_else(|| flags.config.clone()))?;
            output.say("the configuration is valid");
            Ok(())
        }
        ConfigVerb::Schema => {
            let text = serde_json::to_string_pretty(&mote_spec::manifest::schema());
            output.print(text.unwrap_or_default().as_bytes())?;
            output.print(b"\n")
        }
        ConfigVerb::Show(flags) => {
            let loaded = load(given(flags), flags.config.clone())?;
            let mut names = Vec::new();
            let mut rows = Vec::new();
            let mut values = Vec::new();
            for (key, text, origin) in &loaded.origins {
                names.push(*key);
                rows.push(vec![(*key).to_owned(), text.clone(), origin.to_string()]);
                let setting = SETTINGS.iter().find(|setting| setting.key == *key);
                values.push(serde_json::json!({
                    "key": key,
                    "value": text,
                    "origin": origin.to_string(),
                    "default": setting.map(|setting| setting.default),
                    "meaning": setting.map(|setting| setting.text),
                }));
            }
            output.results(&values, &values, &names, || table(&["KEY", "VALUE", "ORIGIN"], &rows))
        }
    }
}
