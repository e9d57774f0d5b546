//! Tests the ledger: which memory is reserved, promised and given back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use mote_engine::ledger::{
    Evictable, Held, Ledger, Refusal, Reservation, RoomRequest, Survey, UNLIMITED,
};
use mote_pool::budget::{Budget, IdleInstance, Lack, Occupied};
use parking_lot::Mutex;
use tokio::sync::Notify;

const MIB: u64 = 1 << 20;

fn ledger(mib: u64, starts_max: u32) -> Arc<Ledger> {
    Ledger::new(Budget { memory_bytes: mib * MIB, starts_max })
}

fn wish(mib: u64) -> RoomRequest<'static> {
    let memory_bytes = mib * MIB;
    RoomRequest {
        memory_bytes,
        cpu_millis: Some(500),
        evict: true,
        function: "f",
        revision: 1,
        is_part_of_start: false,
        waiter: None,
    }
}

fn has_room(reservation: &mut Reservation) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    matches!(pin!(reservation.room()).poll(&mut context), Poll::Ready(()))
}

/// Idle instances that exit when they are asked to.
#[derive(Default)]
struct Sleepers {
    held: Mutex<Vec<(u64, Reservation)>>,
    occupied: Vec<Occupied>,
}

impl Evictable for Sleepers {
    fn survey(&self, _: &RoomRequest<'_>, _: u64, into: &mut Survey) {
        into.occupied.extend(&self.occupied);
        let idle = |(id, _): &(u64, Reservation)| IdleInstance {
            id: *id,
            memory_bytes: 64 * MIB,
            paused: false,
            idle_ns: 1,
            demand_per_s: *id as f64,
            start_ns: 1,
        };
        into.idle.extend(self.held.lock().iter().filter(|(_, held)| !held.has_left()).map(idle));
    }
    fn evict(&self, id: u64, _: &RoomRequest<'_>, _: u64) -> bool {
        let mut held = self.held.lock();
        let Some((_, held)) =
            held.iter_mut().find(|(known, held)| *known == id && !held.has_left())
        else {
            return false;
        };
        held.leave();
        true
    }
}

#[test]
fn what_was_reserved_comes_back() {
    let ledger = ledger(128, 8);
    let mut a = ledger.reserve(&wish(64)).unwrap();
    let b = ledger.reserve(&wish(64)).unwrap();
    assert!(has_room(&mut a));
    let refused = ledger.reserve(&wish(1)).err().unwrap();
    assert_eq!(refused, Refusal { lack: Lack::Memory, room_in_ns: None, exceeded: None });
    assert_eq!(ledger.reserve(&wish(129)).err().unwrap().lack, Lack::TooLarge);
    assert!((ledger.pressure() - 1.0).abs() < 1e-9);
    drop((a, b));
    let status = ledger.status();
    assert_eq!((status.taken_bytes, status.starting, status.peak_bytes), (0, 0, 128 * MIB));
}

#[test]
fn starts_at_once_are_bounded_and_the_refused_are_told() {
    let ledger = ledger(128, 1);
    let first = ledger.reserve(&wish(8)).unwrap();
    let told = Arc::new(Notify::new());
    let asking = RoomRequest { waiter: Some(&told), ..wish(8) };
    assert_eq!(ledger.reserve(&asking).err().unwrap().lack, Lack::Starts);
    let version = ledger.version();
    first.started();
    assert!(ledger.version() > version);
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(told.notified()).poll(&mut context).is_ready());
    let _second = ledger.reserve(&asking).unwrap();
}

#[test]
fn a_part_of_a_start_is_no_further_start_and_gives_back_what_it_does_not_need() {
    let ledger = ledger(128, 1);
    let of_plant = |mib| RoomRequest { function: "f.plant", ..wish(mib) };
    let _start = ledger.reserve(&of_plant(32)).unwrap();
    let part = RoomRequest { is_part_of_start: true, ..of_plant(64) };
    let mut reservation = ledger.reserve(&part).unwrap();
    assert!(has_room(&mut reservation));
    assert_eq!(ledger.status().starting, 1);
    reservation.shrink(16 * MIB);
    reservation.shrink(20 * MIB);
    assert_eq!(ledger.status().taken_bytes, 48 * MIB);
    assert_eq!(ledger.held_by("plant").memory_bytes, 48 * MIB);
    drop(reservation);
    assert_eq!(ledger.status().taken_bytes, 32 * MIB);
    let held = ledger.held_by("plant");
    assert_eq!((held.instances, held.memory_bytes), (1, 32 * MIB));
}

#[test]
fn a_start_waits_until_its_victim_is_gone_and_nobody_takes_its_place() {
    let ledger = ledger(128, 8);
    let sleepers = Arc::new(Sleepers::default());
    for id in [1, 2] {
        sleepers.held.lock().push((id, ledger.reserve(&wish(64)).unwrap()));
    }
    ledger.add_source(sleepers.clone());
    let mut new = ledger.reserve(&wish(64)).unwrap();
    assert!(!has_room(&mut new), "the least wanted was asked to go, and is still there");
    assert_eq!(ledger.status().taken_bytes, 128 * MIB);
    let unasked = RoomRequest { evict: false, ..wish(1) };
    assert!(ledger.reserve(&unasked).is_err(), "what leaves is promised");
    let gone = sleepers.held.lock().remove(0);
    assert_eq!(gone.0, 1);
    drop(gone);
    assert!(has_room(&mut new));
    assert_eq!(ledger.status().taken_bytes, 128 * MIB);
    // If a start is given up while it waits, its promise is released.
    let waiting = ledger.reserve(&wish(64)).unwrap();
    drop(waiting);
    sleepers.held.lock().clear();
    drop(new);
    let status = ledger.status();
    assert_eq!((status.taken_bytes, status.leaving_bytes, status.promised_bytes), (0, 0, 0));
    assert_eq!(status.peak_bytes, 128 * MIB);
}

#[test]
fn a_refusal_says_when_there_may_be_room() {
    let ledger = ledger(128, 8);
    let _busy = ledger.reserve(&wish(128)).unwrap();
    let occupied = [(64, 9), (32, 5), (32, 7)]
        .map(|(mib, free_in_ns)| Occupied { memory_bytes: mib * MIB, free_in_ns });
    ledger.add_source(Arc::new(Sleepers { occupied: occupied.into(), ..Sleepers::default() }));
    let room = |mib| ledger.reserve(&wish(mib)).err().unwrap().room_in_ns;
    assert_eq!((room(32), room(64), room(65), room(128)), (Some(5), Some(7), Some(9), Some(9)));
}

/// Idle instances of a namespace exit to make room for it, and the namespace never holds more than
/// its limit.
#[test]
fn a_namespace_stays_below_its_limit() {
    let ledger = ledger(1_024, 8);
    let of_plant = |function| RoomRequest { function, ..wish(64) };
    let sleepers = Arc::new(Sleepers::default());
    for id in [1, 2] {
        sleepers.held.lock().push((id, ledger.reserve(&of_plant("a.plant")).unwrap()));
    }
    ledger.add_source(sleepers.clone());
    ledger.limit("plant", Held { instances: 2, ..UNLIMITED });
    let refused = ledger.reserve(&of_plant("b.plant")).err().unwrap();
    assert_eq!((refused.lack, refused.room_in_ns), (Lack::Memory, Some(0)));
    let exceeded = refused.exceeded.unwrap();
    let held = Held { instances: 2, memory_bytes: 128 * MIB, cpu_millis: 1_000 };
    assert_eq!(exceeded.held, held);
    let text = exceeded.text("plant");
    assert!(text.contains("2 of at most 2 instances"), "{text}");
    // One of the instances has been asked to exit, and that is enough.
    assert!(ledger.reserve(&of_plant("b.plant")).is_err());
    let left = sleepers.held.lock().iter().filter(|(_, held)| held.has_left()).count();
    assert_eq!(left, 1);
    assert!(ledger.reserve(&of_plant("b.orchard")).is_ok());
    assert!(ledger.reserve(&of_plant("b")).is_ok());
    sleepers.held.lock().retain(|(_, held)| !held.has_left());
    let new = ledger.reserve(&of_plant("b.plant")).unwrap();
    assert_eq!(ledger.held_by("plant").instances, 2);
    ledger.limit("plant", Held { memory_bytes: 130 * MIB, ..UNLIMITED });
    assert!(ledger.reserve(&of_plant("b.plant")).is_err());
    ledger.limit("plant", Held { cpu_millis: 1_400, ..UNLIMITED });
    assert!(ledger.reserve(&of_plant("b.plant")).is_err());
    sleepers.held.lock().clear();
    drop(new);
    assert_eq!(ledger.held_by("plant"), Held::default());
}
