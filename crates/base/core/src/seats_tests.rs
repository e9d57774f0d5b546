//! Tests who gets a seat at the limit, and whose seat ends to make room.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

use super::*;

type Name = u32;

fn take(seats: &Seats<Name>, owner: Name, count: usize) -> Vec<Seat<Name>> {
    (0..count).map(|_| seats.take(owner).expect("room can be made")).collect()
}

/// The positions of the seats that have ended.
fn ended(seats: &[Seat<Name>]) -> Vec<usize> {
    (0..seats.len()).filter(|at| seats[*at].is_ended()).collect()
}

#[test]
fn a_newcomer_gets_the_oldest_seat_of_the_owner_with_the_most() {
    let seats = Seats::new(8, 8);
    let two = take(&seats, 2, 2);
    let five = take(&seats, 5, 6);
    let mut others = Vec::new();
    for left in (3..=5).rev() {
        others.extend(take(&seats, 10 + left as Name, 1));
        assert_eq!(seats.taken_by(&5), left);
    }
    assert_eq!(ended(&five), [0, 1, 2]);
    // The greediest owner displaces only itself, and so does every owner that would have more seats
    // than the greediest.
    let more = take(&seats, 5, 1);
    assert_eq!(ended(&five), [0, 1, 2, 3]);
    let again = take(&seats, 2, 1);
    assert_eq!((ended(&two).len() + ended(&five).len(), seats.taken()), (5, 8));
    assert_eq!(ended(&others), [0_usize; 0]);
    drop((two, five, others, more, again));
    assert_eq!(seats.taken(), 0);
    let state = seats.0.lock();
    assert!(state.by_key.is_empty() && state.seats.is_empty() && state.owners.is_empty());
    assert!(state.greediest.iter().all(BTreeSet::is_empty));
}

#[test]
fn an_owner_at_its_own_limit_displaces_itself() {
    let seats = Seats::new(8, 3);
    let mut own = take(&seats, 1, 4);
    assert_eq!(ended(&own), [0]);
    own.remove(0);
    let working: Vec<_> = own.iter().map(|seat| seat.begin().expect("it has not ended")).collect();
    assert_eq!(seats.take(1).err(), Some(Exceeded::Share));
    assert_eq!(take(&seats, 2, 3).len(), 3, "others have room");
    drop(working);
    assert!(seats.take(1).is_ok());
    assert_eq!(ended(&own), [0]);
}

#[test]
fn among_equals_the_one_that_is_there_longest_makes_room() {
    let seats = Seats::new(4, 4);
    let mut held: Vec<_> = (0..4).flat_map(|owner| take(&seats, owner, 1)).collect();
    for owner in 4..20 {
        held.extend(take(&seats, owner, 1));
        let expected: Vec<usize> = (0..owner as usize - 3).collect();
        assert_eq!(ended(&held), expected, "the newcomer stays the longest");
    }
}

#[test]
fn work_is_never_ended_and_counts_again_when_it_is_over() {
    let seats = Seats::new(3, 3);
    let held = take(&seats, 1, 3);
    let working: Vec<_> = held.iter().map(|seat| seat.begin().expect("it has not ended")).collect();
    assert_eq!(seats.take(2).err(), Some(Exceeded::Total));
    assert_eq!(seats.taken(), 3, "a refused newcomer leaves nothing behind");
    // A seat with two works is idle only after both have ended.
    let second = held[1].begin().expect("it has not ended");
    drop(working);
    let other = seats.take(2).expect("room");
    assert_eq!(ended(&held), [0], "the oldest idle one");
    let _more = [3, 4].map(|owner| take(&seats, owner, 1));
    assert_eq!((other.is_ended(), ended(&held)), (true, vec![0, 2]));
    drop(second);
    let _last = [5, 6, 7].map(|owner| take(&seats, owner, 1));
    assert_eq!(ended(&held), [0, 1, 2]);
    // No work can begin on a seat that has ended.
    assert!(held[0].begin().is_none());
}

#[test]
fn seats_that_are_used_outlast_others_of_their_owner() {
    let seats = Seats::new(4, 4);
    let held = take(&seats, 1, 4);
    drop(held[0].begin());
    drop(held[1].begin());
    let _other = take(&seats, 2, 2);
    assert_eq!(ended(&held), [2, 3]);
}

#[test]
fn a_seat_with_a_proof_outlasts_all_without_one() {
    let seats = Seats::new(6, 6);
    let proven = take(&seats, 1, 3);
    proven.iter().for_each(|seat| seat.prove(Standing::Proven).expect("no limit for it"));
    let anonymous = take(&seats, 2, 1);
    anonymous[0].prove(Standing::Anonymous).expect("below the limit");
    let unproven = take(&seats, 3, 2);
    let mut others = Vec::new();
    for owner in 10..30 {
        others.extend(take(&seats, owner, 1));
    }
    assert_eq!((ended(&proven).len(), ended(&anonymous).len(), ended(&unproven).len()), (0, 0, 2));
    // If nobody else holds a seat, a proven owner with many idle seats loses one. Operators lose
    // their seats last.
    drop((anonymous, unproven, others));
    let operator = take(&seats, 9, 3);
    operator.iter().for_each(|seat| seat.prove(Standing::Operator).expect("no limit for it"));
    let newcomer = take(&seats, 4, 1);
    assert_eq!((ended(&proven), ended(&operator).len()), (vec![0], 0));
    assert!(newcomer[0].begin().is_some());
}

#[test]
fn a_proven_owner_gets_a_further_seat_and_keeps_the_others() {
    let seats = Seats::new(6, 6);
    let proven = take(&seats, 1, 2);
    proven.iter().for_each(|seat| seat.prove(Standing::Operator).expect("no limit for it"));
    let others: Vec<_> = (2..6).flat_map(|owner| take(&seats, owner, 1)).collect();
    let more = take(&seats, 1, 1);
    assert_eq!((ended(&proven).len(), ended(&others), ended(&more).len()), (0, vec![0], 0));
    // Without a proof, the owner gets no more room than the others.
    let more = take(&seats, 1, 2);
    assert_eq!((ended(&proven).len(), ended(&others), ended(&more)), (0, vec![0], vec![0]));
}

#[test]
fn anonymous_callers_leave_the_reserve_to_proven_ones() {
    let seats = Seats::with_reserve(8, 8, 2);
    let crowd = take(&seats, 1, 6);
    let at_work = |seat: &Seat<Name>| {
        seat.prove(Standing::Anonymous).expect("below the limit");
        assert!(seat.begin_work());
    };
    crowd.iter().for_each(at_work);
    // All seats that anonymous callers may have are at work. Another caller is admitted at first,
    // and is refused once it is known to have no proof.
    let late = take(&seats, 2, 1).remove(0);
    assert_eq!(late.prove(Standing::Anonymous), Err(Exceeded::Total));
    assert_eq!(late.prove(Standing::Proven), Ok(()));
    drop(late);
    // An idle anonymous seat makes room.
    crowd[3].end_work();
    let late = take(&seats, 2, 1).remove(0);
    assert_eq!(late.prove(Standing::Anonymous), Ok(()));
    assert_eq!(ended(&crowd), [3]);
    // A holder that proves more frees its anonymous seat.
    assert_eq!(late.prove(Standing::Proven), Ok(()));
    let third = take(&seats, 3, 1).remove(0);
    assert_eq!(third.prove(Standing::Anonymous), Ok(()));
}

#[test]
fn a_user_at_its_share_displaces_itself_wherever_it_connects_from() {
    let seats = Seats::new(16, 4);
    let user = 100;
    let mut held = Vec::new();
    for address in 1..=8 {
        let seat = take(&seats, address, 1).remove(0);
        seat.belong(user, 3, Standing::Proven).expect("its oldest one ends");
        held.push(seat);
        assert_eq!(seats.taken_by(&address), 0, "it counts for its user alone");
    }
    assert_eq!((ended(&held), seats.taken_by(&user)), (vec![0, 1, 2, 3, 4], 3));
    // The user's address has room for other owners, and no seat at work can end.
    assert_eq!(ended(&take(&seats, 8, 4)), [0_usize; 0]);
    assert!(held[5..].iter().all(Seat::begin_work));
    let late = take(&seats, 9, 1).remove(0);
    assert_eq!(late.belong(user, 3, Standing::Proven), Err(Exceeded::Share));
    // A refused holder that stays does not make room for the next one.
    let later = take(&seats, 10, 1).remove(0);
    assert_eq!(later.belong(user, 3, Standing::Proven), Err(Exceeded::Share));
    drop((held, late, later));
    assert_eq!(seats.taken(), 0);
    assert!(seats.0.lock().by_key.is_empty());
}

#[test]
fn proven_holders_leave_a_part_to_newcomers_and_operators() {
    let seats = Seats::new(8, 8).with_most(Standing::Proven, 6);
    let prove = |owner, address| {
        let seat = take(&seats, address, 1).remove(0);
        seat.belong(owner, 8, Standing::Proven).expect("one of the greediest ends");
        seat
    };
    let modest = prove(200, 1);
    let greedy: Vec<_> = (2..12).map(|address| prove(100, address)).collect();
    assert_eq!((seats.taken_by(&100), seats.taken_by(&200), seats.taken()), (5, 1, 6));
    // Newcomers displace each other, but never a proven holder.
    let crowd: Vec<_> = (20..30).flat_map(|address| take(&seats, address, 1)).collect();
    assert_eq!((ended(&crowd).len(), ended(&greedy).len()), (8, 5));
    // Proven holders at work cannot lose their seats, so a further proven holder is refused. An
    // operator is admitted.
    assert!(modest.begin_work() && greedy[5..].iter().all(Seat::begin_work));
    let late = take(&seats, 40, 1).remove(0);
    assert_eq!(late.prove(Standing::Proven), Err(Exceeded::Total));
    assert_eq!(late.prove(Standing::Operator), Ok(()));
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn whoever_waits_for_the_end_of_a_seat_is_woken() {
    let seats = Seats::new(1, 1);
    let first = seats.take(1).expect("free");
    let woken = Arc::new(Woken::default());
    let waker = woken.clone().into();
    let mut cx = Context::from_waker(&waker);
    let mut end = std::pin::pin!(first.ended());
    assert!(end.as_mut().poll(&mut cx).is_pending());
    let _second = seats.take(2).expect("room is made");
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(end.as_mut().poll(&mut cx).is_ready());
    assert!(std::pin::pin!(first.ended()).poll(&mut cx).is_ready(), "also for one who asks late");
}

/// Takes many random steps, and checks the invariants after each step.
#[test]
fn no_order_of_events_breaks_the_rules() {
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    for round in 0..40 {
        let seats = Seats::with_reserve(24, 16, 4).with_most(Standing::Proven, 18);
        let mut held: Vec<(Name, Seat<Name>, Standing, u32)> = Vec::new();
        let mut evicted = 0;
        for _ in 0..2_000 {
            let idle = |held: &[(Name, Seat<Name>, Standing, u32)]| {
                let mut idle: HashMap<Name, u32> = HashMap::new();
                for (owner, seat, standing, works) in held {
                    let counts = *works == 0 && !seat.is_ended() && *standing < Standing::Proven;
                    *idle.entry(*owner).or_default() += u32::from(counts);
                }
                idle
            };
            match next(6) {
                0..3 => {
                    let owner = next(1 + round % 9) as Name;
                    let before = idle(&held);
                    let all: Vec<Name> = held.iter().map(|one| one.0).collect();
                    match seats.take(owner) {
                        Ok(seat) => held.push((owner, seat, Standing::Unproven, 0)),
                        Err(why) => {
                            let own = before.get(&owner).copied().unwrap_or(0);
                            assert_eq!(own, 0, "refused with an idle seat of its own: {why:?}");
                        }
                    }
                    for at in (0..held.len()).rev() {
                        if held[at].1.is_ended() {
                            let (victim, _, standing, works) = held.remove(at);
                            evicted += 1;
                            assert_eq!(works, 0, "work was ended");
                            // A seat at work counts as idle until a search for room finds it at
                            // work.
                            let of_victim = all.iter().filter(|one| **one == victim).count();
                            let of_owner = before.get(&owner).copied().unwrap_or(0) as usize;
                            let less = standing < Standing::Proven && of_victim < of_owner;
                            assert!(victim == owner || !less, "{owner} displaced {victim}");
                        }
                    }
                }
                3 if !held.is_empty() => {
                    let at = next(held.len() as u64) as usize;
                    held.swap_remove(at).1.is_ended();
                }
                4 if !held.is_empty() => {
                    let at = next(held.len() as u64) as usize;
                    let standing = STANDINGS[next(4) as usize];
                    let owner = next(12) as Name;
                    let proved = match next(3) {
                        0 => held[at].1.belong(owner, 16, standing).map(|()| owner),
                        _ => held[at].1.prove(standing).map(|()| held[at].0),
                    };
                    match proved {
                        Ok(owner) => {
                            held[at].0 = owner;
                            held[at].2 = held[at].2.max(standing);
                        }
                        // A holder that was refused has to leave.
                        Err(_) => drop(held.swap_remove(at)),
                    }
                    held.retain(|one| !one.1.is_ended());
                }
                _ if !held.is_empty() => {
                    let at = next(held.len() as u64) as usize;
                    let (_, seat, _, works) = &mut held[at];
                    if next(2) == 0 {
                        assert!(seat.begin_work(), "an ended seat was still held");
                        *works += 1;
                    } else if *works > 0 {
                        seat.end_work();
                        *works -= 1;
                    }
                }
                _ => {}
            }
            assert_eq!(seats.taken(), held.len());
            assert!(held.len() <= 24);
            let anonymous = held.iter().filter(|one| one.2 == Standing::Anonymous).count();
            assert!(anonymous <= 20, "anonymous callers use the reserve");
            let proven = held.iter().filter(|one| one.2 == Standing::Proven).count();
            assert!(proven <= 18, "proven ones use the part of newcomers");
        }
        assert!(round % 9 == 0 || evicted > 0, "the limit was never reached");
        drop(held);
        assert_eq!(seats.taken(), 0);
        assert!(seats.0.lock().greediest.iter().all(BTreeSet::is_empty));
    }
}
