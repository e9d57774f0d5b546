//! The known room at other cells, and the choice of the cell that receives an invocation. Pure: the
//! time and random numbers are arguments.

use std::collections::{BTreeMap, HashMap};

use mote_core::elsewhere::{Load, RevisionKey};

use crate::frames::Refused;

/// How long a cell is not asked for a revision again after it has reported that it does not have
/// the revision.
const ABSENT_NS: u64 = 1_000_000_000;

/// The number of a cell, unique while the node runs.
pub(crate) type CellId = u64;

/// All other cells.
#[derive(Debug, Default)]
pub(crate) struct Board {
    cells: BTreeMap<CellId, Cell>,
}

#[derive(Debug, Default)]
struct Cell {
    is_up: bool,
    is_draining: bool,
    free_bytes: u64,
    /// The revisions that the cell has listed, and those that were claimed since its last report.
    revisions: HashMap<RevisionKey, Room>,
}

/// The room for a revision at a cell: what the cell reported, less what was claimed since then.
#[derive(Debug, Clone, Copy, Default)]
struct Room {
    ready: u32,
    more: u32,
    /// The cell does not have the revision. It is not asked again before this time.
    absent_until_ns: Option<u64>,
}

impl Cell {
    fn room(&self, wanted: &RevisionKey, memory_bytes: u64, now_ns: u64) -> Room {
        if !self.is_up || self.is_draining {
            return Room::default();
        }
        match self.revisions.get(wanted) {
            Some(room) if room.absent_until_ns.is_none_or(|until_ns| now_ns < until_ns) => *room,
            _ => {
                let instances = self.free_bytes / memory_bytes.max(1);
                Room { more: u32::try_from(instances).unwrap_or(u32::MAX), ..Room::default() }
            }
        }
    }
}

impl Room {
    fn places(&self) -> u32 {
        match self.absent_until_ns {
            Some(_) => 0,
            None => self.ready.saturating_add(self.more),
        }
    }

    /// Any place at a ready instance ranks above every place that needs a new instance.
    fn rank(&self) -> (u32, u32) {
        (self.ready, self.more)
    }
}

impl Board {
    /// Records that a connection to a cell was made.
    pub(crate) fn up(&mut self, id: CellId) {
        self.cells.insert(id, Cell { is_up: true, ..Cell::default() });
    }

    /// Records that the connection to a cell was lost, or that the cell was removed from the list.
    pub(crate) fn down(&mut self, id: CellId) {
        self.cells.remove(&id);
    }

    /// Records the load that a cell has reported.
    pub(crate) fn report(&mut self, id: CellId, load: Load, is_draining: bool, now_ns: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        cell.free_bytes = load.free_bytes;
        cell.is_draining = is_draining;
        cell.revisions
            .retain(|_, room| room.absent_until_ns.is_some_and(|until_ns| now_ns < until_ns));
        for (key, places) in load.revisions {
            let room = Room { ready: places.ready, more: places.more, absent_until_ns: None };
            cell.revisions.insert(key, room);
        }
    }

    /// Picks two random cells with room, and takes a place at the better one. `random` chooses the
    /// two.
    pub(crate) fn claim(
        &mut self,
        wanted: &RevisionKey,
        memory_bytes: u64,
        random: u64,
        now_ns: u64,
    ) -> Option<CellId> {
        let found = |(id, cell): (&CellId, &Cell)| {
            let room = cell.room(wanted, memory_bytes, now_ns);
            (room.places() > 0).then_some((*id, room))
        };
        let mut candidates: Vec<_> = self.cells.iter().filter_map(found).collect();
        if candidates.len() > 2 {
            let first = (random as u32 as usize) % candidates.len();
            candidates.swap(0, first);
            let second = 1 + ((random >> 32) as usize) % (candidates.len() - 1);
            candidates.swap(1, second);
            candidates.truncate(2);
        }
        let (id, mut room) = candidates.into_iter().max_by_key(|(_, room)| room.rank())?;
        match room.ready {
            0 => room.more -= 1,
            _ => room.ready -= 1,
        }
        self.cells.get_mut(&id)?.revisions.insert(wanted.clone(), room);
        Some(id)
    }

    /// Frees a place, because an invocation at the cell has ended.
    pub(crate) fn release(&mut self, id: CellId, wanted: &RevisionKey) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        if let Some(room) = cell.revisions.get_mut(wanted) {
            room.ready = room.ready.saturating_add(1);
        }
    }

    /// Records that a cell refused an invocation.
    pub(crate) fn refused(&mut self, id: CellId, wanted: &RevisionKey, why: Refused, now_ns: u64) {
        let Some(cell) = self.cells.get_mut(&id) else { return };
        let absent = (why == Refused::NotHere).then_some(now_ns + ABSENT_NS);
        let room = Room { ready: 0, more: 0, absent_until_ns: absent };
        cell.revisions.insert(wanted.clone(), room);
    }

    /// Counts the places for a revision at all cells. A cell that has not listed the revision
    /// counts as 1 place if it has free memory.
    pub(crate) fn places(&self, wanted: &RevisionKey, now_ns: u64) -> u32 {
        let cells = self.cells.values();
        let places = cells.map(|cell| match cell.revisions.contains_key(wanted) {
            true => cell.room(wanted, 1, now_ns).places(),
            false => u32::from(cell.is_up && !cell.is_draining && cell.free_bytes > 0),
        });
        places.fold(0, u32::saturating_add)
    }

    /// Returns the free memory of a cell, and whether the cell is draining. `None` if there is no
    /// connection to it.
    pub(crate) fn cell(&self, id: CellId) -> Option<(u64, bool)> {
        let cell = self.cells.get(&id).filter(|cell| cell.is_up)?;
        Some((cell.free_bytes, cell.is_draining))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mote_core::elsewhere::Places;
    use mote_spec::FunctionName;

    const MIB: u64 = 1 << 20;
    const SECOND: u64 = 1_000_000_000;

    fn key(name: &str, number: u64) -> RevisionKey {
        RevisionKey { function: FunctionName::new(name).unwrap(), number, content: 1 }
    }

    fn load(free_mib: u64, ready: u32, more: u32) -> Load {
        let revisions = vec![(key("f", 1), Places { ready, more })];
        Load { free_bytes: free_mib * MIB, revisions }
    }

    fn board(loads: &[Load]) -> Board {
        let mut board = Board::default();
        for (id, load) in loads.iter().enumerate() {
            board.up(id as u64);
            board.report(id as u64, load.clone(), false, 0);
        }
        board
    }

    #[test]
    fn places_are_used_up_and_come_back() {
        let mut board = board(&[load(0, 1, 1)]);
        let claim = |board: &mut Board| board.claim(&key("f", 1), MIB, 0, 0);
        assert_eq!(claim(&mut board), Some(0));
        assert_eq!(claim(&mut board), Some(0));
        assert_eq!(claim(&mut board), None);
        board.release(0, &key("f", 1));
        assert_eq!(board.places(&key("f", 1), 0), 1);
        assert_eq!(claim(&mut board), Some(0));
        assert_eq!(claim(&mut board), None);
        board.report(0, load(0, 0, 2), false, 0);
        assert_eq!(claim(&mut board), Some(0));
    }

    #[test]
    fn a_revision_that_is_not_listed_starts_in_free_memory() {
        let mut board = board(&[load(130, 0, 0)]);
        let other = key("g", 1);
        assert_eq!(board.claim(&other, 64 * MIB, 0, 0), Some(0));
        assert_eq!(board.claim(&other, 64 * MIB, 0, 0), Some(0));
        assert_eq!(board.claim(&other, 64 * MIB, 0, 0), None);
        assert_eq!(board.claim(&key("f", 1), MIB, 0, 0), None, "its bound is reached there");
    }

    #[test]
    fn another_revision_has_its_own_room() {
        let mut board = board(&[load(0, 5, 5)]);
        assert_eq!(board.claim(&key("f", 2), MIB, 0, 0), None);
        let other_content = RevisionKey { content: 2, ..key("f", 1) };
        assert_eq!(board.claim(&other_content, MIB, 0, 0), None);
    }

    #[test]
    fn a_cell_without_the_revision_is_asked_again_after_a_second() {
        let mut board = board(&[load(1_000, 0, 0)]);
        let other = key("g", 1);
        assert_eq!(board.claim(&other, MIB, 0, 0), Some(0));
        board.refused(0, &other, Refused::NotHere, 0);
        assert_eq!(board.claim(&other, MIB, 0, SECOND / 2), None);
        board.report(0, load(1_000, 0, 0), false, SECOND / 2);
        assert_eq!(board.claim(&other, MIB, 0, SECOND / 2), None, "a report changes nothing");
        assert_eq!(board.claim(&other, MIB, 0, SECOND), Some(0));
    }

    #[test]
    fn a_busy_cell_is_asked_again_after_its_next_report() {
        let mut board = board(&[load(0, 3, 0)]);
        board.refused(0, &key("f", 1), Refused::Busy, 0);
        assert_eq!(board.claim(&key("f", 1), MIB, 0, 100 * SECOND), None);
        board.report(0, load(0, 3, 0), false, 100 * SECOND);
        assert_eq!(board.claim(&key("f", 1), MIB, 0, 100 * SECOND), Some(0));
    }

    #[test]
    fn cells_that_stop_or_are_down_get_nothing() {
        let mut board = board(&[load(0, 3, 0), load(0, 9, 0)]);
        board.report(1, load(0, 9, 0), true, 0);
        assert_eq!(board.claim(&key("f", 1), MIB, 0, 0), Some(0));
        board.down(0);
        assert_eq!(board.claim(&key("f", 1), MIB, 0, 0), None);
        assert_eq!(board.cell(0), None);
        assert_eq!(board.cell(1), Some((0, true)));
    }

    #[test]
    fn the_better_of_two_random_cells_is_chosen() {
        let loads: Vec<_> = (0..8).map(|at| load(0, at, 0)).collect();
        let mut chosen = [0; 8];
        let mut random = 1_u64;
        for _ in 0..4_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mixed = random ^ (random >> 29);
            let id = board(&loads).claim(&key("f", 1), MIB, mixed, 0).unwrap();
            chosen[id as usize] += 1;
        }
        assert_eq!(chosen[0], 0, "it has no room");
        assert_eq!(chosen[1], 0, "the other one of the two is always better");
        for at in 2..7 {
            assert!(chosen[at] < chosen[at + 1], "{chosen:?}");
            assert!(chosen[at] > 50, "not only the best one is chosen: {chosen:?}");
        }
    }
}
