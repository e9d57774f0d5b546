//! The waiting pods as the management API sets and shows them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use mote_api::Problem;
use mote_api::pods::{PodList, PodsRequest, WaitingPod as Shown};
use mote_core::spec::PodKind;
use mote_raw_keys::PublicKey;

use crate::Pods;
use crate::waiting::WaitingPod;

/// Pods in a list.
const PODS_MAX: usize = 1_024;

impl Pods {
    /// Replaces the list, as the management API asks for it.
    pub fn put(&self, wish: &PodsRequest) -> Result<PodList, Problem> {
        let wrong = |field: &str, text: String| {
            Problem::new(422, "M1403", format!("{field}: {text}")).with_field(field)
        };
        if wish.pods.len() > PODS_MAX {
            return Err(wrong("pods", format!("at most {PODS_MAX} pods")));
        }
        let mut pods = Vec::with_capacity(wish.pods.len());
        for place in &wish.pods {
            let Ok(address) = place.address.parse::<SocketAddr>() else {
                return Err(wrong(
                    "pods.address",
                    "ADDRESS:PORT, for example 198.18.128.9:8097".into(),
                ));
            };
            let Some(key) = PublicKey::from_text(&place.key) else {
                return Err(wrong("pods.key", "64 hexadecimal digits".into()));
            };
            let kind = PodKind { shape: place.shape.clone(), function: place.function.clone() };
            pods.push(WaitingPod { name: place.name.clone(), address, key, kind });
        }
        self.0.waiting.lock().set(pods);
        self.0.lists.send_modify(|lists| *lists += 1);
        Ok(self.list())
    }

    /// The list for the management API.
    pub fn list(&self) -> PodList {
        let shown = |(pod, tried, failed): (&WaitingPod, bool, u32)| Shown {
            name: pod.name.clone(),
            address: pod.address.to_string(),
            shape: pod.kind.shape.clone(),
            tried,
            failed,
        };
        let shared = &self.0;
        PodList {
            key: shared.key.public().to_string(),
            pods: shared.waiting.lock().all().map(shown).collect(),
            running: shared.running.load(Ordering::Relaxed),
            claimed: shared.claimed.load(Ordering::Relaxed),
            held: shared.held.lock().iter().cloned().collect(),
            in_vain: shared.in_vain.load(Ordering::Relaxed),
        }
    }
}

impl fmt::Debug for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pods")
    }
}
