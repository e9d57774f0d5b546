//! Tests the rules for names of header fields.

use mote_spec::fields::is_set_by_node;

#[test]
fn fields_of_the_node_are_known_by_their_names() {
    for name in [
        "mote-source",
        "Mote-Source-Status",
        "MOTE-SCHEDULE_DUE",
        "mote_attempt",
        "MOTE_Caller",
        // Programs receive these names as the same variables as the corresponding names with
        // hyphens.
        "mote.caller",
        "mote~caller",
        "mote'source.status",
        "mqtt-topic",
        "MQTT_User-x-mqtt-sender",
        "Coap-Content-Format",
    ] {
        assert!(is_set_by_node(name.as_bytes()), "{name}");
    }
    for name in [
        "",
        "mote",
        "mote-",
        "mote-order-key",
        "mote-attempts",
        "x-mote-source",
        "mqtt",
        "x-mqtt-topic",
    ] {
        assert!(!is_set_by_node(name.as_bytes()), "{name}");
    }
}
