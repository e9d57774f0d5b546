//! How many instances a revision should have, as pure state machines that take the time as an
//! argument.
//!
//! The engine, a controller and the simulator (`mote-lab`) drive the same code: they describe a
//! revision in an [`Observation`] and carry out the [`Decision`]. This module does not know how
//! instances start. What a node can afford is decided in [`crate::budget`].
//!
//! Start with [`Autoscaler::decide`]; then read `auto.rs`, the default rule. `knative.rs`, `hpa.rs`
//! and `openfaas.rs` reproduce the rules of other platforms, for users of those platforms and as
//! baselines.

mod auto;
mod cost;
mod decision;
mod demand;
mod estimate;
mod foreign;
mod history;
mod hpa;
mod keep_alive;
mod knative;
mod lint;
mod observation;
mod openfaas;
mod proposal;
mod staffing;
mod target;
#[cfg(test)]
mod tests;

use demand::Demand;
use mote_spec::policy::Policy;
use proposal::{MS_NS, Proposal};

pub use cost::{break_even_s, memory_cost_s};
pub use decision::{Cut, Decision, Reason};
pub use estimate::Estimate;
pub use foreign::{ForeignRule, Wish};
pub use keep_alive::{IdleCosts, IdleTimes, WarmPlan};
pub use lint::{Known, Warning, lint};
pub use observation::Observation;
pub use proposal::Bounds;
pub use staffing::{Load, Patience, servers_for};

/// The shortest time between two decisions while invocations wait. It is shorter than any start, so
/// deciding more often gains nothing.
pub const LOOK_MIN_NS: u64 = 5 * MS_NS;

#[derive(Debug)]
enum Rule {
    Auto(auto::Auto),
    Target(target::Target),
    Knative(knative::Knative),
    Hpa(hpa::Hpa),
    OpenFaas(openfaas::OpenFaas),
    Foreign(Box<dyn ForeignRule>),
}

/// The autoscaler of one revision: its rule, and what it has learned. While the function is busy,
/// it takes a few kilobytes.
#[derive(Debug)]
pub struct Autoscaler {
    bounds: Bounds,
    rule: Rule,
    demand: Demand,
}

impl Autoscaler {
    /// A new autoscaler that knows nothing yet.
    pub fn new(policy: &Policy, bounds: Bounds) -> Self {
        let bounds = bounds.checked(policy);
        let rule = match policy {
            Policy::Auto => Rule::Auto(auto::Auto::new()),
            Policy::Knative(settings) => Rule::Knative(knative::Knative::new(settings.clone())),
            Policy::Hpa(settings) => Rule::Hpa(hpa::Hpa::new(settings.clone())),
            Policy::OpenFaas(settings) => Rule::OpenFaas(openfaas::OpenFaas::new(settings.clone())),
            _ => Rule::Target(target::Target::new(policy.clone())),
        };
        Self { bounds, rule, demand: Demand::default() }
    }

    /// A new autoscaler with a rule from outside this crate.
    pub fn foreign(rule: Box<dyn ForeignRule>, bounds: Bounds) -> Self {
        let bounds = bounds.checked(&Policy::Auto);
        Self { bounds, rule: Rule::Foreign(rule), demand: Demand::default() }
    }

    /// Sets the bounds from the next decision on, and keeps what was learned.
    pub fn set_bounds(&mut self, policy: &Policy, bounds: Bounds) {
        self.bounds = bounds.checked(policy);
    }

    /// Takes over what the autoscaler of the previous revision has learned about the function's
    /// callers.
    pub fn inherit(&mut self, before: &Autoscaler) {
        if let (Rule::Auto(auto), Rule::Auto(before)) = (&mut self.rule, &before.rule) {
            auto.inherit(before);
        }
    }

    /// Notes that `inside` invocations run or wait from now on. Call this after every change; it
    /// takes constant time. Returns whether a decision is due, because work arrived after an idle
    /// time or because the last work ended.
    pub fn settle(&mut self, inside: u32, now_ns: u64) -> bool {
        let edge = self.demand.settle(inside, now_ns);
        if let (Rule::Auto(auto), Some(edge)) = (&mut self.rule, edge) {
            auto.turned(edge, self.demand.settled_ns());
        }
        edge.is_some()
    }

    /// Decides how many instances there should be, which takes microseconds. Call it in these
    /// cases:
    ///
    /// - an invocation could not be handed over at once, but not more often than every [`LOOK_MIN_NS`]
    ///   unless there is no instance
    /// - the last work has ended
    /// - an instance became ready or died
    /// - the time [`Decision::look_ns`] has come
    pub fn decide(&mut self, o: &Observation) -> Decision {
        self.settle(o.in_flight + o.queued, o.now_ns);
        let now_ns = self.demand.settled_ns();
        let demand_ns_total = self.demand.total_ns();
        let o = &Observation { now_ns, demand_ns_total, ..*o };
        let proposal = match &mut self.rule {
            Rule::Auto(rule) => rule.decide(o, &self.bounds),
            Rule::Target(rule) => rule.decide(o, &self.bounds),
            Rule::Knative(rule) => rule.decide(o),
            Rule::Hpa(rule) => rule.decide(o),
            Rule::OpenFaas(rule) => rule.decide(o, &self.bounds),
            Rule::Foreign(rule) => {
                let Wish { desired, reason, look_ns } = rule.decide(o);
                Proposal { look_ns, ..Proposal::new(desired, reason) }
            }
        };
        // Under any rule, a waiting caller gets at least one instance. This must also hold if the
        // rule's reason is only to keep instances for the next invocation, because the pool starts
        // no instance for that reason.
        let starts_none = proposal.desired <= 1 || proposal.reason == Reason::KeepAlive;
        let (wished, reason) = if starts_none && o.live() == 0 && o.queued > 0 {
            (proposal.desired.max(1), Reason::FirstInvocation)
        } else {
            (proposal.desired, proposal.reason)
        };
        let desired = wished.max(self.bounds.min).min(self.bounds.max);
        let cut = match desired.cmp(&wished) {
            std::cmp::Ordering::Greater => Some(Cut::Min),
            std::cmp::Ordering::Less => Some(Cut::Max),
            std::cmp::Ordering::Equal => None,
        };
        let Proposal { look_ns, predicted_ns, .. } = proposal;
        Decision { desired, wished, reason, cut, look_ns, predicted_ns }
    }
}
