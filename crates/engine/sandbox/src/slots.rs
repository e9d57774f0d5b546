//! Numbers of living instances. The numbers determine the instances' user ids.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use mote_core::backend::StartError;

/// The maximum number of instances that may be alive at once. Each has its own uid.
pub(crate) const SLOTS: u32 = 65_536;

/// The numbers that are taken. Cloning this is cheap.
#[derive(Clone, Default)]
pub(crate) struct Slots(Arc<Mutex<BTreeSet<u32>>>);

impl Slots {
    /// Takes the lowest free number. Fails if all are taken.
    pub(crate) fn take(&self) -> Result<Slot, StartError> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = (0..SLOTS)
            .find(|number| !slots.contains(number))
            .ok_or_else(|| StartError::Unavailable("65,536 instances are running".to_owned()))?;
        slots.insert(number);
        Ok(Slot { number, slots: self.clone() })
    }
}

/// The number of a living instance. The number becomes free when this is dropped.
pub(crate) struct Slot {
    number: u32,
    slots: Slots,
}

impl Slot {
    /// The number, below [`SLOTS`].
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut slots = self.slots.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.remove(&self.number);
    }
}
