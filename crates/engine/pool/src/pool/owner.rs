//! The owner of an instance that serves one caller or one invocation.

/// For whom alone an instance is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    /// A caller; without a name, all invocations whose caller has none.
    Caller(Option<Box<[u8]>>),
    /// The one invocation that it was given.
    Call,
}

impl Owner {
    pub(super) fn is(&self, caller: Option<&[u8]>) -> bool {
        matches!(self, Owner::Caller(owner) if owner.as_deref() == caller)
    }
}
