//! The settings of proxies in front of the node.

use std::sync::Arc;

use crate::{Proxies, ProxyWord};
use mote_core::destination::Networks;

use super::Check;

/// The ways in which a proxy can name its client, each with its word in the setting. The first one
/// is the default.
const WORDS: [(&str, ProxyWord); 3] = [
    ("x-forwarded-for", ProxyWord::XForwardedFor),
    ("forwarded", ProxyWord::Forwarded),
    ("proxy-protocol", ProxyWord::ProxyProtocol),
];

impl Check<'_> {
    /// The trusted proxies, if there are any.
    pub(super) fn proxies(&mut self) -> Option<Arc<Proxies>> {
        let key = "trusted_proxies";
        let key_of_word = "proxy_header";
        let given = self.given(key_of_word);
        let word = given.as_deref().unwrap_or(WORDS[0].0);
        let found = WORDS.into_iter().find(|(name, _)| *name == word);
        self.settle(key_of_word, word.to_owned());
        if found.is_none() {
            self.fault(key_of_word, "x-forwarded-for, forwarded or proxy-protocol", None);
        }
        let Some(networks) = self.given(key).filter(|text| text != "none") else {
            if given.is_some() {
                self.fault(key_of_word, "only with trusted_proxies", None);
            }
            self.settle(key, "none".to_owned());
            return None;
        };
        match Networks::parse(&networks) {
            Ok(networks) if networks != Networks::default() => {
                Some(Arc::new(Proxies::new(networks, found?.1)))
            }
            _ => {
                let wanted = "addresses and networks such as 10.0.0.0/8, separated by commas";
                self.fault(key, wanted, None);
                None
            }
        }
    }
}
