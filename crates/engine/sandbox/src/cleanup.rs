//! The clean-up after an instance has ended or could not be started.

use std::sync::Arc;

use crate::cgroup::InstanceCgroup;
use crate::data_folders::DataFolder;
use crate::slots::Slot;

/// The resources that the clean-up releases: first the cgroups of the instance, then its slot
/// and its hold on its data folder.
pub(crate) struct Cleanup {
    pub(crate) cgroup: InstanceCgroup,
    slot: Option<Slot>,
    data: Option<Arc<DataFolder>>,
}

/// Cleans up after a failed start, including one whose future was dropped. The processes of that
/// start end when the status socket closes.
pub(crate) struct Unstarted(Option<Cleanup>);

impl Unstarted {
    pub(crate) fn new(cgroup: InstanceCgroup) -> Self {
        Self(Some(Cleanup { cgroup, slot: None, data: None }))
    }

    pub(crate) fn cgroup_mut(&mut self) -> Option<&mut InstanceCgroup> {
        self.0.as_mut().map(|cleanup| &mut cleanup.cgroup)
    }

    /// Called when the program runs. From then on, the task that watches the program cleans up.
    pub(crate) fn started(mut self) -> Option<Cleanup> {
        self.0.take()
    }

    /// Takes over the slot and the data folder, which are then released only after the cgroups have
    /// been removed.
    pub(crate) fn own(&mut self, slot: Slot, data: Option<Arc<DataFolder>>) {
        if let Some(cleanup) = &mut self.0 {
            cleanup.slot = Some(slot);
            cleanup.data = data;
        }
    }

    /// The number of the slot; 0 if no slot was taken over.
    pub(crate) fn slot_number(&self) -> u32 {
        self.0.as_ref().and_then(|cleanup| cleanup.slot.as_ref()).map_or(0, Slot::number)
    }

    pub(crate) fn cgroup<T: Default>(&self, ask: impl FnOnce(&InstanceCgroup) -> T) -> T {
        self.0.as_ref().map(|cleanup| ask(&cleanup.cgroup)).unwrap_or_default()
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        if let Some(cleanup) = self.0.take() {
            remove_later(cleanup);
        }
    }
}

/// Removes the cgroups on another thread than the runtime's, because the removal blocks until the
/// last processes have left.
pub(crate) fn remove_later(cleanup: Cleanup) {
    let remove = move || {
        cleanup.cgroup.remove();
        // The slot, and with it the uid and the instance's directories, is released only after the
        // last process has ended.
        drop(cleanup.slot);
        drop(cleanup.data);
    };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(remove)),
        Err(_) => remove(),
    }
}
