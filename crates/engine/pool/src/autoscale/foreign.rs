//! The seam for rules that are not part of the node.
//!
//! The simulator compares the node's rules with rules from publications. Such a rule decides from
//! the same observations and drives the same pool, but no setting of a function can choose it.

use std::fmt::Debug;

use super::decision::Reason;
use super::observation::Observation;

/// The number of instances that a [`ForeignRule`] proposes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    pub desired: u32,
    pub reason: Reason,
    /// When the rule decides again even if nothing happens.
    pub look_ns: Option<u64>,
}

/// A rule from outside this crate.
pub trait ForeignRule: Debug + Send {
    /// Called as often as [`Autoscaler::decide`](super::Autoscaler::decide). As with all rules, an
    /// invocation for which there is no instance gets one.
    fn decide(&mut self, o: &Observation) -> Wish;
}
