//! The fields for browsers that the front adds to the answers to one request.

use bytes::Bytes;
use mote_core::invocation::{headers, put_header};

/// If the function has `[http.cors]`, only the node sets answer fields that begin with this prefix.
const OF_CORS: &[u8] = b"access-control-";

/// The fields that the front adds to the answers to one request, as a header block. `None` if the
/// front adds no fields.
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

    /// Returns the fields of the function's answer together with the added fields. CORS fields that
    /// the function has set are removed.
    #[inline]
    pub(crate) fn to(&self, fields: Bytes) -> Bytes {
        match &self.0 {
            None => fields,
            Some(added) => merged(&fields, added),
        }
    }

    /// The added fields, for an answer that the node itself makes.
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
