use crate::{Proxies, ProxyWord, Reach};
use mote_core::destination::Networks;

use super::*;

fn given(env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Given {
    Given {
        flags: flags.iter().map(|(key, value)| (*key, (*value).to_owned())).collect(),
        config: None,
        env: [("HOME", "/home/u")]
            .iter()
            .chain(env)
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect(),
        is_root: false,
    }
}

fn load(given: &Given) -> Result<Config, Mistakes> {
    Loaded::load(given).map(|loaded| loaded.config)
}

fn with_file(text: &str) -> (tempfile::TempDir, Given) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    std::fs::write(&path, text).unwrap();
    let given = Given { config: Some(path), ..given(&[], &[]) };
    (dir, given)
}

#[test]
fn the_reference_page_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/reference/configuration.md");
    if std::env::var_os("MOTE_BLESS").is_some() {
        std::fs::write(path, reference()).unwrap();
    }
    let stored = std::fs::read_to_string(path).unwrap_or_default();
    assert!(stored == reference(), "docs/reference/configuration.md is stale; MOTE_BLESS=1");
}

#[test]
fn the_example_of_the_reference_page_is_valid() {
    let page = reference();
    let example = page.split("```").nth(1).unwrap().trim_start_matches("toml");
    let (_dir, given) = with_file(example);
    let config = load(&given).unwrap();
    assert_eq!(config.http.unwrap().to_string(), "0.0.0.0:6683");
    assert_eq!(config.coap, None);
}

#[test]
fn defaults_stay_on_this_machine() {
    let config = load(&given(&[], &[])).unwrap();
    assert_eq!(config.http.unwrap().to_string(), "127.0.0.1:6683");
    assert_eq!(config.coap.unwrap().to_string(), "127.0.0.1:5683");
    assert_eq!(config.admin, None);
    assert_eq!(config.data, Path::new("/home/u/.local/share/mote"));
    assert_eq!(config.socket, Path::new("/home/u/.local/share/mote/mote.sock"));
}

#[test]
fn what_is_ordered_from_an_authority() {
    let flags = [
        ("https", "on"),
        ("acme", "B.example, 2001:DB8::0:1,b.example"),
        ("acme_contact", "a@b.example"),
    ];
    let words = load(&given(&[], &flags)).unwrap().acme.unwrap();
    let expected = "--contact a@b.example --directory https://acme-v02.api.letsencrypt.org/directory \
                    2001:db8::1 b.example";
    assert_eq!(words, expected.split(' ').collect::<Vec<_>>());
    for (flags, wrong) in [
        (&[("acme", "a.example")][..], "only with https"),
        (&[("https", "on"), ("acme", "*.example")], "names of hosts"),
        (&[("https", "on"), ("acme", "192.0.2.7:443")], "names of hosts"),
        (&[("https", "on"), ("acme", "a.example,")], "names of hosts"),
        (&[("https", "on"), ("acme", "--folder")], "names of hosts"),
        (&[("acme_ca", "/x")], "acme_ca: only with acme"),
        (&[("https", "on"), ("acme", "a"), ("acme_directory", "http://b/")], "https://"),
    ] {
        let mistakes = load(&given(&[], flags)).unwrap_err().to_string();
        assert!(mistakes.contains(wrong), "{flags:?}: {mistakes}");
    }
}

#[test]
fn the_logs_on_disk_have_limits() {
    let logs = |flags: &[(&'static str, &str)]| {
        let loaded = load(&given(&[], flags));
        loaded.map(|config| config.logs).map_err(|wrong| wrong.to_string())
    };
    let default = logs(&[]).unwrap().unwrap();
    assert_eq!((default.bytes, default.bytes_per_day), (64 << 20, 256 << 20));
    assert_eq!(default.age.as_secs(), 14 * 24 * 60 * 60);
    assert_eq!(logs(&[("log_size", "off")]).unwrap(), None);
    let some = logs(&[("log_size", "16MiB"), ("log_age", "12h")]).unwrap().unwrap();
    assert_eq!((some.bytes, some.age.as_secs()), (16 << 20, 12 * 60 * 60));
    for (key, value) in [("log_size", "1MiB"), ("log_age", "1s"), ("log_writes", "10KiB")] {
        let wrong = logs(&[(key, value)]).unwrap_err();
        assert!(wrong.contains(key), "{wrong}");
    }
}

#[test]
fn the_access_log_has_a_place_and_a_format() {
    let log = |flags: &[(&'static str, &str)]| {
        let loaded = load(&given(&[], flags));
        loaded.map(|config| config.access_log).map_err(|wrong| wrong.to_string())
    };
    assert_eq!(log(&[]), Ok(None));
    let some = log(&[("access_log", "/l/a.log"), ("access_log_format", "json")]).unwrap().unwrap();
    assert_eq!(format!("{some:?}"), "(File(\"/l/a.log\"), Json)");
    let some = log(&[("access_log", "journal")]).unwrap().unwrap();
    assert_eq!(format!("{some:?}"), "(Journal, Combined)");
    for (flags, fault) in [
        (&[("access_log", "syslog")][..], "access_log: a file"),
        (&[("access_log_format", "json")], "only with access_log"),
        (&[("access_log", "stdout"), ("access_log_format", "clf")], "combined, common or json"),
    ] {
        let mistakes = log(flags).unwrap_err();
        assert!(mistakes.contains(fault), "{mistakes}");
    }
}

#[test]
fn proxies_are_addresses_and_networks() {
    let proxies = |flags: &[(&'static str, &str)]| {
        load(&given(&[], flags)).map(|config| config.proxies).map_err(|wrong| wrong.to_string())
    };
    assert_eq!(proxies(&[]), Ok(None));
    let some = proxies(&[("trusted_proxies", "127.0.0.1, 10.0.0.0/8")]).unwrap().unwrap();
    let networks = Networks::parse("127.0.0.1,10.0.0.0/8").unwrap();
    assert_eq!(*some, Proxies::new(networks, ProxyWord::XForwardedFor));
    for (flags, wrong) in [
        (&[("trusted_proxies", "10.0.0.0/33")][..], "trusted_proxies: addresses"),
        (&[("trusted_proxies", "proxy.example")], "trusted_proxies: addresses"),
        (&[("trusted_proxies", ",")], "trusted_proxies: addresses"),
        (&[("proxy_header", "forwarded")], "only with trusted_proxies"),
        (&[("trusted_proxies", "::1"), ("proxy_header", "x-real-ip")], "proxy_header: x-forwarded"),
    ] {
        let mistakes = proxies(flags).unwrap_err();
        assert!(mistakes.contains(wrong), "{flags:?}: {mistakes}");
    }
}

#[test]
fn ports_of_functions_are_ranges() {
    let ports = |text: &str| load(&given(&[], &[("function_ports", text)]));
    let some = ports("443,9000-9010").unwrap().function_ports;
    assert!(some.permit(443) && some.permit(9_010) && !some.permit(30_000));
    assert!(!ports("off").unwrap().function_ports.permit(30_000));
    let wrong = ports("9010-9000").unwrap_err().to_string();
    assert!(wrong.contains("function_ports: off, or ports and ranges"), "{wrong}");
}

#[test]
fn flags_win_over_environment_over_file() {
    let (_dir, mut given) = with_file("http = \":1\"\ncoap = \":2\"\ndata = \"/d\"\n");
    given.env.push(("MOTE_COAP".into(), ":3".into()));
    given.env.push(("MOTE_HTTP".into(), ":4".into()));
    given.flags.push(("http", ":5".into()));
    let loaded = Loaded::load(&given).unwrap();
    let shown: Vec<String> = loaded
        .origins
        .iter()
        .map(|(key, text, origin)| match origin {
            Origin::File(_, line) => format!("{key} {text} line {line}"),
            other => format!("{key} {text} {other}"),
        })
        .collect();
    assert_eq!(
        shown,
        [
            "data /d line 3",
            "secrets_key secrets.key in the data folder default",
            "http 127.0.0.1:5 flag",
            "https off default",
            "certificates /d/certificates default",
            "client_ca none default",
            "acme none default",
            "acme_directory https://acme-v02.api.letsencrypt.org/directory default",
            "acme_ca the system's certificates default",
            "acme_contact none default",
            "acme_external_account none default",
            "acme_profile that of the authority default",
            "function_ports 30000-32767 default",
            "trusted_proxies none default",
            "proxy_header x-forwarded-for default",
            "access_log off default",
            "access_log_format combined default",
            "log_size 64MiB default",
            "log_age 14d default",
            "log_writes 256MiB default",
            "trace off default",
            "otlp none default",
            "coap 127.0.0.1:3 MOTE_COAP",
            "coap_tcp off default",
            "coap_dtls off default",
            "coap_tls off default",
            "admin off default",
            "socket /d/mote.sock default",
            "lan false default",
            "access local default",
            "memory 75% default",
            "threads 0 default",
            "polling true default",
            "timeout_factor 1 default",
            "prewarm auto default",
            "uid_base 1000000 default",
            "openfaas off default",
            "openwhisk off default",
            "tinyfaas off default",
            "tinyfaas_http off default",
            "tinyfaas_coap off default",
            "tinyfaas_grpc off default",
            "nuclio off default",
            "mqtt off default",
            "mqtt_tls off default",
            "mqtt_anonymous loopback default",
            "mqtt_broker mqtt://127.0.0.1:1883 default",
            "nats off default",
            "nats_credentials none default",
            "nats_ca the system's certificates default",
            "nats_replicas 1 default",
            "journal_name none default",
            "schedule_journal none default",
            "cell off default",
            "cell_key none default",
            "cells none default",
            "outgoing public default",
            "closed_networks none default",
            "shared_folders none default",
        ]
    );
}

#[test]
fn other_platforms_have_their_usual_ports() {
    let all = [("openfaas", "on"), ("tinyfaas", ":8081"), ("nuclio", "true")];
    let config = load(&given(&[], &all)).unwrap();
    let tinyfaas = config.compat.tinyfaas.unwrap();
    assert_eq!(config.compat.openfaas.unwrap().to_string(), "127.0.0.1:8080");
    assert_eq!(config.compat.nuclio.unwrap().to_string(), "127.0.0.1:8070");
    assert_eq!(tinyfaas.management.to_string(), "127.0.0.1:8081");
    assert_eq!(tinyfaas.http.unwrap().to_string(), "127.0.0.1:8000");
    assert_eq!(tinyfaas.coap.unwrap().to_string(), "127.0.0.1:5683");
    assert_eq!(tinyfaas.grpc.unwrap().to_string(), "127.0.0.1:9000");
    assert_eq!(config.coap, None, "gives way");

    let both = [("openfaas", "on"), ("tinyfaas", "on"), ("coap", ":5683")];
    let error = load(&given(&[], &both)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "error[M0203]: coap: not the address of tinyfaas_coap; found \"127.0.0.1:5683\" (--coap)\n\
         error[M0203]: tinyfaas: not the address of openfaas; found \"127.0.0.1:8080\" (--tinyfaas)"
    );
    let beyond = [("nuclio", "0.0.0.0:8070")];
    let error = load(&given(&[], &beyond)).unwrap_err().to_string();
    assert!(error.contains("nuclio: a loopback address"), "{error}");
}

#[test]
fn mistakes_are_reported_together() {
    let flags = [("http", "nonsense"), ("coap", "0.0.0.0:1"), ("lan", "maybe"), ("threads", "65")];
    let error = load(&given(&[], &flags)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "error[M0203]: lan: true or false; found \"maybe\" (--lan)\n\
         error[M0203]: threads: a whole number from 0 to 64; found \"65\" (--threads)\n\
         error[M0203]: http: ADDRESS:PORT, :PORT or off, e.g. 127.0.0.1:6683; found \"nonsense\" (--http)\n\
         error[M0203]: coap: a loopback address; found \"0.0.0.0:1\" (--coap)\n  \
         open it to the network with --lan, or with lan = true"
    );
}

#[test]
fn files_are_read_strictly() {
    for (text, expected) in [
        ("htp = \":1\"\n", "unknown key `htp` (line 1)\n  did you mean `http`?"),
        ("http = 6683\n", "http: a string; found an integer (line 1)"),
        ("threads = 65\n", "threads: a whole number from 0 to 64; found 65 (line 1)"),
        ("lan = \"true\"\n", "lan: true or false; found a string (line 1)"),
        ("[http]\n", "http: a string; found a table (line 1)"),
        ("http\n", "key with no value, expected `=` (line 1)"),
    ] {
        let (_dir, given) = with_file(text);
        let error = load(&given).unwrap_err().to_string();
        assert!(error.ends_with(expected), "{error}");
    }
    // An unknown key must not hide other mistakes.
    let (_dir, given) = with_file("htp = \":1\"\nmemory = \"much\"\ncoap = \"0.0.0.0:1\"\n");
    let error = load(&given).unwrap_err().to_string();
    for part in ["unknown key `htp`", "memory: a size", "coap: a loopback address"] {
        assert!(error.contains(part), "{part} is not in {error}");
    }
    let (dir, given) = with_file("");
    std::fs::write(dir.path().join(FILE_NAME), b"\xff").unwrap();
    assert!(load(&given).unwrap_err().to_string().ends_with("not UTF-8"));
}

#[test]
fn memory_is_a_size_or_a_share() {
    let memory =
        |text: &str| load(&given(&[("MOTE_MEMORY", text)], &[])).map(|config| config.memory).ok();
    for (text, expected) in [
        ("512MiB", Some(Share::Bytes(512 << 20))),
        ("100%", Some(Share::Percent(100))),
        ("101%", None),
        ("0%", None),
        ("%", None),
        ("512M", None),
        ("1MiB", None),
        ("much", None),
    ] {
        assert_eq!(memory(text), expected, "{text}");
    }
    assert_eq!(load(&given(&[], &[])).unwrap().memory, MEMORY_DEFAULT);
}

#[test]
fn what_callbacks_may_reach_is_one_of_three_words() {
    for (text, reach) in
        [("public", Reach::Public), ("network", Reach::Network), ("machine", Reach::Machine)]
    {
        let config = load(&given(&[], &[("outgoing", text)])).unwrap();
        assert_eq!(config.outgoing, reach);
    }
    let error = load(&given(&[], &[("mqtt_broker", "tcp://a")])).unwrap_err().to_string();
    assert!(error.contains("mqtt_broker: mqtt://HOST:PORT or mqtts://HOST:PORT; found"), "{error}");
    let error = load(&given(&[], &[("outgoing", "all")])).unwrap_err().to_string();
    assert!(error.contains("outgoing: public, network or machine; found \"all\""), "{error}");
}

#[test]
fn the_factor_of_timeouts_is_a_number_up_to_100() {
    assert_eq!(load(&given(&[], &[])).unwrap().timeout_factor, 1);
    let (_dir, in_file) = with_file("timeout_factor = 30\n");
    assert_eq!(load(&in_file).unwrap().timeout_factor, 30);
    for wrong in ["0", "101", "1.5", "-1", ""] {
        let found = load(&given(&[], &[("timeout_factor", wrong)]));
        let text = found.unwrap_err().to_string();
        assert!(text.contains("timeout_factor: a whole number from 1 to 100"), "{text}");
    }
}

#[test]
fn the_user_ids_of_instances_can_be_moved() {
    assert_eq!(load(&given(&[], &[])).unwrap().uid_base, 1_000_000);
    let (_dir, in_file) = with_file("uid_base = 2000000\n");
    assert_eq!(load(&in_file).unwrap().uid_base, 2_000_000);
    let flag = given(&[("MOTE_UID_BASE", "70000")], &[("uid_base", "3000000")]);
    assert_eq!(load(&flag).unwrap().uid_base, 3_000_000);
    for wrong in ["1000", "4294967295", "-1", "x", ""] {
        let found = load(&given(&[], &[("uid_base", wrong)]));
        let text = found.unwrap_err().to_string();
        assert!(text.contains("uid_base: a whole number from 65536 to 4294000000"), "{text}");
    }
    let (_dir, in_file) = with_file("uid_base = 1000\n");
    assert!(load(&in_file).is_err());
}

#[test]
fn nats_servers_are_checked_without_repeating_a_password() {
    let all = [("nats", "nats://a,tls://b:4443"), ("nats_replicas", "3"), ("nats_ca", "/ca.pem")];
    let nats = load(&given(&[], &all)).unwrap().nats.unwrap();
    assert_eq!(nats.servers, ["nats://a:4222", "tls://b:4443"]);
    assert_eq!((nats.replicas, nats.credentials), (3, None));
    assert_eq!(nats.authorities.unwrap().to_str(), Some("/ca.pem"));
    assert_eq!(load(&given(&[], &[("nats", "off")])).unwrap().nats, None);
    let wrong = [("nats", "nats://mote:hunter2@a"), ("nats_replicas", "9")];
    let error = load(&given(&[], &wrong)).unwrap_err().to_string();
    assert!(error.contains("nats_replicas: a whole number from 1 to 5"), "{error}");
    assert!(error.contains("nats_credentials") && !error.contains("hunter2"), "{error}");
    let (_dir, file) = with_file("nats = \"nats://a\"\nnats_replicas = 5\n");
    assert_eq!(Loaded::load(&file).unwrap().config.nats.unwrap().replicas, 5);
}

#[test]
fn a_cell_needs_a_key_and_other_cells_need_an_address() {
    let all = [("cell", "10.0.0.1:8095"), ("cell_key", "/k"), ("cells", "10.0.0.2:1, [::1]:2")];
    let cell = load(&given(&[], &all)).unwrap().cell.unwrap();
    assert_eq!(cell.listen.to_string(), "10.0.0.1:8095");
    assert_eq!(cell.key.to_str(), Some("/k"));
    assert_eq!(
        cell.others.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.0.2:1", "[::1]:2"]
    );
    assert_eq!(load(&given(&[], &[("cell", "off")])).unwrap().cell, None);
    for (flags, wanted) in [
        (&[("cell", "127.0.0.1:8095")][..], "cell: needs cell_key"),
        (&[("cells", "127.0.0.1:8095")][..], "cells: needs cell"),
        (&[("cell", "somewhere"), ("cell_key", "/k")][..], "cell: ADDRESS:PORT"),
        (&[("cell", ":1"), ("cell_key", "/k"), ("cells", "b:1")][..], "cells: ADDRESS:PORT"),
        (&[("cell", ":7"), ("cell_key", "/k"), ("http", ":7")][..], "cell: not the address"),
    ] {
        let error = load(&given(&[], flags)).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn a_journal_with_a_name_needs_nats_and_a_name_that_fits_into_a_subject() {
    let refused = |name: &str, nats: &str| {
        let flags = [("journal_name", name), ("nats", nats)];
        load(&given(&[], &flags)).map(|config| config.journal_name).map_err(|e| e.to_string())
    };
    assert_eq!(refused("line-1", "nats://10.0.0.5"), Ok(Some("line-1".to_owned())));
    let error = refused("line-1", "off").unwrap_err();
    assert!(error.contains("journal_name: needs nats"), "{error}");
    let error = refused("a.b", "nats://10.0.0.5").unwrap_err();
    assert!(error.contains("journal_name: 1 to 64 letters"), "{error}");
}

#[test]
fn keys_of_secrets_are_files_and_credentials() {
    let with = |text: &str| load(&given(&[], &[("secrets_key", text)]));
    let keys = |text: &str| -> Vec<String> {
        with(text).unwrap().secrets_key.iter().map(ToString::to_string).collect()
    };
    assert_eq!(keys("/new.key,credential:old"), ["/new.key", "credential:old"]);
    assert!(load(&given(&[], &[])).unwrap().secrets_key.is_empty());
    for wrong in ["", "/a,", "credential:", "credential:../x"] {
        let mistakes = with(wrong).unwrap_err();
        assert!(mistakes.to_string().contains("secrets_key"), "{wrong}: {mistakes}");
    }
}
