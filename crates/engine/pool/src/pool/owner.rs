//! The owner of an instance that serves only one caller or one invocation.

/// The caller or invocation that an instance is reserved for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    /// A caller. `None` stands for all callers without a name.
    Caller(Option<Box<[u8]>>),
    /// The one invocation that the instance was given.
    Call,
}

impl Owner {
    pub(super) fn is(&self, caller: Option<&[u8]>) -> bool {
        matches!(self, Owner::Caller(owner) if owner.as_deref() == caller)
    }
}
