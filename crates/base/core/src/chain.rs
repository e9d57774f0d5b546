//! The chain of calls from function to function that led to an invocation.

use std::sync::Arc;

use mote_spec::FunctionName;

/// The longest chain of functions that call each other, counting the first function.
pub const DEPTH_MAX: u8 = 16;

/// The functions whose calls led to an invocation, from the last to the first. The chain travels
/// with the invocation inside the node, and nothing that a function sends can change it.
#[derive(Debug, PartialEq, Eq)]
pub struct Chain {
    /// The function that made the call.
    function: FunctionName,
    /// The chain that led to that function's own invocation.
    before: Option<Arc<Chain>>,
    depth: u8,
}

/// Why a function may not be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The called function is already in the chain, so it would wait for itself.
    #[error("a cycle of calls: {0}")]
    Cycle(String),
    /// The chain of calls is too long.
    #[error("more than {DEPTH_MAX} functions call each other: {0}")]
    TooDeep(String),
}

impl Chain {
    /// The chain of an invocation that `function` causes by calling `called`. `before` is the chain
    /// of the calling invocation.
    pub fn extend(
        function: &FunctionName,
        before: Option<&Arc<Chain>>,
        called: &FunctionName,
    ) -> Result<Arc<Chain>, ChainError> {
        let depth = before.map_or(0, |chain| chain.depth) + 1;
        let chain = Chain { function: function.clone(), before: before.cloned(), depth };
        if chain.names().any(|name| name == called) {
            return Err(ChainError::Cycle(chain.text(called)));
        }
        if depth >= DEPTH_MAX {
            return Err(ChainError::TooDeep(chain.text(called)));
        }
        Ok(Arc::new(chain))
    }

    /// The functions, from the last to the first.
    pub fn names(&self) -> impl Iterator<Item = &FunctionName> {
        let mut next = Some(self);
        std::iter::from_fn(move || {
            let chain = next?;
            next = chain.before.as_deref();
            Some(&chain.function)
        })
    }

    fn text(&self, called: &FunctionName) -> String {
        let mut names: Vec<_> = self.names().map(FunctionName::as_str).collect();
        names.reverse();
        names.push(called.as_str());
        names.join(" calls ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> FunctionName {
        FunctionName::new(text).unwrap()
    }

    #[test]
    fn chains_end_at_cycles_and_at_their_depth() {
        let first = Chain::extend(&name("a"), None, &name("b")).unwrap();
        let second = Chain::extend(&name("b"), Some(&first), &name("c")).unwrap();
        let cycle = Chain::extend(&name("c"), Some(&second), &name("a")).unwrap_err();
        assert_eq!(cycle.to_string(), "a cycle of calls: a calls b calls c calls a");
        assert!(Chain::extend(&name("a"), None, &name("a")).is_err());
        let mut chain = None;
        let mut depth = 0;
        let error = loop {
            let from = format!("f{depth}");
            let to = format!("f{}", depth + 1);
            match Chain::extend(&name(&from), chain.as_ref(), &name(&to)) {
                Ok(longer) => (chain, depth) = (Some(longer), depth + 1),
                Err(error) => break error,
            }
        };
        // The chain of the last function that runs has one name fewer than there are functions.
        assert_eq!(depth + 1, usize::from(DEPTH_MAX));
        assert!(matches!(error, ChainError::TooDeep(_)));
    }
}
