//! The settings of the access log.

use std::path::PathBuf;

use crate::{AccessLogFormat, AccessLogPlace};

use super::Check;

/// The formats, each with its word in the setting. The first one is the default.
const FORMATS: [(&str, AccessLogFormat); 3] = [
    ("combined", AccessLogFormat::Combined),
    ("common", AccessLogFormat::Common),
    ("json", AccessLogFormat::Json),
];

impl Check<'_> {
    /// The destination and the format of the access log, if there is one.
    pub(super) fn access_log(&mut self) -> Option<(AccessLogPlace, AccessLogFormat)> {
        let key = "access_log";
        let key_of_format = "access_log_format";
        let given = self.given(key_of_format);
        let word = given.as_deref().unwrap_or(FORMATS[0].0);
        let found = FORMATS.into_iter().find(|(name, _)| *name == word);
        self.settle(key_of_format, word.to_owned());
        if found.is_none() {
            self.fault(key_of_format, "combined, common or json", None);
        }
        let place = self.given(key).unwrap_or_else(|| "off".to_owned());
        self.settle(key, place.clone());
        let place = match place.as_str() {
            "off" if given.is_some() => {
                self.fault(key_of_format, "only with access_log", None);
                return None;
            }
            "off" => return None,
            "journal" => AccessLogPlace::Journal,
            "stdout" => AccessLogPlace::Stdout,
            path if path.contains('/') => AccessLogPlace::File(PathBuf::from(path)),
            _ => {
                let wanted = "a file such as /var/log/mote/access.log, journal, stdout or off";
                self.fault(key, wanted, None);
                return None;
            }
        };
        Some((place, found?.1))
    }
}
