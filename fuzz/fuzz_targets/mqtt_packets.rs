//! Packets of an MQTT broker: whatever the bytes, and however they are cut, reading ends, a message
//! is not larger than permitted, and it can be written again.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use mote_mqtt::message;
use mote_mqtt::packet::{self, Packet, Read};
use mote_spec::mqtt::MqttVersion;

const BYTES_MAX: usize = 1 << 10;

fuzz_target!(|data: &[u8]| {
    let Some((first, data)) = data.split_first() else { return };
    let version = if first & 1 == 0 { MqttVersion::V311 } else { MqttVersion::V5 };
    let cut = usize::from(first >> 1).min(data.len());
    let mut buffer = BytesMut::new();
    for piece in [&data[..cut], &data[cut..]] {
        buffer.extend_from_slice(piece);
        loop {
            let before = buffer.len();
            match packet::read(&mut buffer, version, BYTES_MAX) {
                Ok(Read::More) => break,
                Ok(Read::Packet(Packet::Publish(read))) => {
                    assert!(read.payload.len() <= BYTES_MAX && buffer.len() < before);
                    let head = message::head(&read);
                    assert!(head.path().starts_with(b"/"));
                    packet::publish(&mut BytesMut::new(), version, &read);
                }
                Ok(Read::Packet(_)) => assert!(buffer.len() < before),
                Ok(Read::TooLarge { skip, .. }) => {
                    let _ = buffer.split_to(skip.min(buffer.len()));
                    if skip > 0 {
                        break;
                    }
                }
                Err(_) => return,
            }
        }
    }
});
