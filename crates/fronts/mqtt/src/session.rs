//! Tracks messages between their arrival and their acknowledgement, over several connections.
//!
//! If the broker has not received an acknowledgement, it sends the message again on the session's
//! next connection, with the same packet id. [`Session`] recognises such a message. If the message
//! is still running, it is not run again. If it has already run, it is acknowledged. Messages are
//! recognised by packet id and content, because a broker that has lost its state may reuse an id
//! for another message.
//!
//! The state is in memory. After a crash of the node, every unacknowledged message runs again.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::packet::Publish;

/// What to do with a message that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The message has to run. The number identifies this run.
    Run(u64),
    /// The message is already running, so there is nothing to do.
    Running,
    /// The message has run. It has to be acknowledged after its reply has been published.
    Done(Option<Publish>),
}

/// The unacknowledged messages of a session.
#[derive(Debug, Default)]
pub struct Session {
    entries: HashMap<u16, Entry>,
    runs: u64,
}

#[derive(Debug)]
struct Entry {
    run: u64,
    content: u64,
    qos: u8,
    /// Whether the broker has sent the message on the current connection and therefore expects the
    /// acknowledgement on it.
    is_here: bool,
    /// The message's reply, once it has run.
    done: Option<Option<Publish>>,
}

impl Session {
    /// Called when a connection begins. If the broker has no session, packet ids refer to new
    /// messages.
    pub fn connected(&mut self, session_present: bool) {
        if session_present {
            self.entries.values_mut().for_each(|entry| entry.is_here = false);
        } else {
            self.entries.clear();
        }
    }

    pub fn arrived(&mut self, message: &Publish) -> Arrival {
        let mut hasher = DefaultHasher::new();
        (&message.topic, &message.payload).hash(&mut hasher);
        let content = hasher.finish();
        if message.qos > 0
            && message.dup
            && let Some(entry) = self.entries.get_mut(&message.id)
            && (entry.content, entry.qos) == (content, message.qos)
        {
            entry.is_here = true;
            return match &entry.done {
                None => Arrival::Running,
                Some(reply) => Arrival::Done(reply.clone()),
            };
        }
        self.runs += 1;
        let run = self.runs;
        if message.qos > 0 {
            let entry = Entry { run, content, qos: message.qos, is_here: true, done: None };
            self.entries.insert(message.id, entry);
        }
        Arrival::Run(run)
    }

    /// Called when a run has ended. Returns whether the message can be acknowledged now. If not, it
    /// is acknowledged when the broker sends it again.
    pub fn ended(&mut self, id: u16, run: u64, reply: Option<&Publish>) -> bool {
        match self.entries.get_mut(&id) {
            Some(entry) if entry.run == run => {
                entry.done = Some(reply.cloned());
                entry.is_here
            }
            _ => false,
        }
    }

    /// Called when a run was given up without a result. The message runs again when the broker
    /// sends it again.
    pub fn forget(&mut self, id: u16, run: u64) {
        if self.entries.get(&id).is_some_and(|entry| entry.run == run) {
            self.entries.remove(&id);
        }
    }

    /// Called when the acknowledgement (PUBACK or PUBREC) has been written. A message with QoS 2 is
    /// remembered until the broker releases its id.
    pub fn acknowledged(&mut self, id: u16) {
        if self.entries.get(&id).is_some_and(|entry| entry.qos < 2) {
            self.entries.remove(&id);
        }
    }

    /// Called when the broker releases the id of a message with QoS 2. A message that is still
    /// running is not affected, because a broker never releases its id before it has received the
    /// PUBREC.
    pub fn released(&mut self, id: u16) {
        if self.entries.get(&id).is_some_and(|entry| entry.qos == 2 && entry.done.is_some()) {
            self.entries.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: u16, qos: u8, dup: bool, payload: &'static str) -> Publish {
        let topic = "t".to_owned();
        Publish { id, qos, dup, topic, payload: payload.into(), ..Publish::default() }
    }

    fn run(arrival: Arrival) -> u64 {
        match arrival {
            Arrival::Run(run) => run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_message_that_runs_is_not_run_again_after_a_reconnection() {
        for qos in [1, 2] {
            let mut session = Session::default();
            let first = run(session.arrived(&message(1, qos, false, "a")));
            session.connected(true);
            assert_eq!(session.arrived(&message(1, qos, true, "a")), Arrival::Running);
            assert!(session.ended(1, first, None));
        }
    }

    #[test]
    fn a_run_that_ended_while_the_broker_was_away_is_acknowledged_later() {
        let mut session = Session::default();
        let first = run(session.arrived(&message(1, 1, false, "a")));
        session.connected(true);
        let reply = message(0, 1, false, "reply");
        assert!(!session.ended(1, first, Some(&reply)), "the broker does not expect it yet");
        assert_eq!(session.arrived(&message(1, 1, true, "a")), Arrival::Done(Some(reply)));
        session.acknowledged(1);
        run(session.arrived(&message(1, 1, true, "a")));
    }

    #[test]
    fn qos_2_has_one_effect_for_each_id_until_it_is_released() {
        let mut session = Session::default();
        let first = run(session.arrived(&message(1, 2, false, "a")));
        assert!(session.ended(1, first, None));
        session.acknowledged(1);
        session.connected(true);
        assert_eq!(session.arrived(&message(1, 2, true, "a")), Arrival::Done(None));
        session.acknowledged(1);
        session.released(1);
        run(session.arrived(&message(1, 2, true, "a")));
        session.released(1);
        assert_eq!(session.arrived(&message(1, 2, true, "a")), Arrival::Running);
    }

    #[test]
    fn ids_of_another_session_or_another_message_mean_new_messages() {
        let mut session = Session::default();
        let first = run(session.arrived(&message(1, 1, false, "a")));
        session.connected(false);
        let second = run(session.arrived(&message(1, 1, true, "a")));
        assert!(!session.ended(1, first, None));
        assert!(session.ended(1, second, None));
        run(session.arrived(&message(1, 1, true, "b")));
        let third = run(session.arrived(&message(1, 1, false, "b")));
        session.forget(1, third);
        run(session.arrived(&message(1, 1, true, "b")));
    }

    #[test]
    fn qos_0_is_always_new() {
        let mut session = Session::default();
        run(session.arrived(&message(0, 0, false, "a")));
        let second = run(session.arrived(&message(0, 0, true, "a")));
        assert!(!session.ended(0, second, None));
    }
}
