//! Tests the rules for topics of messages to MQTT brokers.

use mote_spec::mqtt::{TOPIC_BYTES_MAX, check_topic};

#[test]
fn topics_are_checked() {
    for good in ["a", "/", "a//b", "a b/ü", "a/$x"] {
        assert_eq!(check_topic(good), Ok(()), "{good:?}");
    }
    let long = "x".repeat(TOPIC_BYTES_MAX + 1);
    for bad in [
        "",
        "#",
        "a/+",
        "a#",
        "$SYS/a",
        "$share/g/a",
        "a\0",
        "a\nb",
        "a\u{fffe}",
        "\u{fdd0}",
        &long,
    ] {
        assert!(check_topic(bad).is_err(), "{bad:?}");
    }
}
