//! The chain of functions that called each other until an invocation came about.

use std::sync::Arc;

use mote_spec::FunctionName;

/// Functions that may call each other in a row, the first one included.
pub const DEPTH_MAX: u8 = 16;

/// The functions that called each other until an invocation came about, from the last to the
/// first. It travels with the invocation inside the node; nothing that a function sends changes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Chain {
    /// The function that called.
    function: FunctionName,
    /// Who called that one.
    before: Option<Arc<Chain>>,
    depth: u8,
}

/// Why a function may not be called.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// The called function waits for this call already.
    #[error("a cycle of calls: {0}")]
    Cycle(String),
    /// Too many functions call each other.
    #[error("more than {DEPTH_MAX} functions call each other: {0}")]
    TooDeep(String),
}

impl Chain {
    /// The chain of an invocation of `called` that an invocation of `function` with the chain
    /// `before` makes.
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
        // The chain of the last function that runs has one name less than there are functions.
        assert_eq!(depth + 1, usize::from(DEPTH_MAX));
        assert!(matches!(error, ChainError::TooDeep(_)));
    }
}
