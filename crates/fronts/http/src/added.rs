//! Fields for browsers in the answers to one request.

use bytes::Bytes;
use mote_core::invocation::{headers, put_header};

/// Fields of an answer that only the node sets if the function has `[http.cors]`.
const OF_CORS: &[u8] = b"access-control-";

/// The fields that answers to one request have in addition, as a header block; `None` without
/// `[http.cors]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Added(Option<Box<[u8]>>);

impl Added {
    pub(crate) fn new(block: Box<[u8]>) -> Self {
        Self(Some(block))
    }

    pub(crate) fn and(&self, other: &Self) -> Self {
        let all: Vec<u8> =
            [self, other].iter().flat_map(|one| one.0.iter().flatten()).copied().collect();
        Self((!all.is_empty()).then(|| all.into()))
    }

    /// The fields of a function's answer with these, which replace its own of the same names.
    #[inline]
    pub(crate) fn to(&self, fields: Bytes) -> Bytes {
        match &self.0 {
            None => fields,
            Some(added) => merged(&fields, added),
        }
    }

    /// The fields for an answer of the node itself.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        headers(self.0.as_deref().unwrap_or_default())
    }
}

#[cold]
fn merged(fields: &[u8], added: &[u8]) -> Bytes {
    let mut block = Vec::with_capacity(fields.len() + added.len());
    let is_of_cors = |name: &[u8]| {
        name.get(..OF_CORS.len()).is_some_and(|start| start.eq_ignore_ascii_case(OF_CORS))
    };
    for (name, value) in headers(fields).filter(|(name, _)| !is_of_cors(name)) {
        put_header(&mut block, name, value);
    }
    block.extend_from_slice(added);
    block.into()
}
