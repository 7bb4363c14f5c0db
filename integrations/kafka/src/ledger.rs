//! Records the unsettled deliveries in all partitions that are assigned to this consumer.

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) topic: String,
    pub(super) partition: i32,
}

/// The identity of a delivery: one offset, valid as long as its partition stays assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) place: Place,
    pub(super) offset: i64,
    /// The number of the assignment. A partition that is revoked and assigned again has a new
    /// number, because the same offset is then delivered a second time.
    assignment: u64,
}

/// The deliveries of all assigned partitions, the messages that the source has yet to deliver
/// (`T`), and the offsets that may be committed.
#[derive(Debug)]
pub(super) struct Ledger<T> {
    partitions: HashMap<Place, Partition>,
    /// The fetched messages and the messages that are to be redelivered, ordered by the time at
    /// which they are due and then by the order in which they were added.
    waiting: BTreeMap<(Instant, u64), (Ticket, T)>,
    /// The last number that was given to an assignment or an entry of `waiting`.
    counter: u64,
}

#[derive(Debug)]
struct Partition {
    assignment: u64,
    /// The fetched offsets that are not settled, with the sizes of their records. Offsets are
    /// fetched in ascending order, with gaps because of compaction and transaction markers. They
    /// are settled in any order.
    unsettled: BTreeMap<i64, usize>,
    /// The sum of these sizes.
    bytes: usize,
    /// The highest delivered offset plus one.
    end: i64,
    /// The offset that was last stored in the client.
    stored: Option<i64>,
}

impl Partition {
    /// Returns the offset to commit, at which the group continues after a restart: all delivered
    /// offsets below it are settled.
    fn committable(&self) -> i64 {
        self.unsettled
            .first_key_value()
            .map_or(self.end, |(offset, _)| *offset)
    }
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self {
            partitions: HashMap::new(),
            waiting: BTreeMap::new(),
            counter: 0,
        }
    }
}

impl<T> Ledger<T> {
    /// Records a message of this size that the broker delivered.
    pub(super) fn deliver(&mut self, place: Place, offset: i64, bytes: usize) -> Ticket {
        let known = self.partitions.get_mut(&place);
        let assignment = match known.filter(|known| offset >= known.end) {
            Some(partition) => {
                partition.unsettled.insert(offset, bytes);
                partition.bytes += bytes;
                partition.end = offset + 1;
                partition.assignment
            }
            // This is the first message of the partition, or its offsets went backwards, because
            // the log was truncated or the offset of the group was reset. Older tickets must not
            // settle new deliveries with the same offset.
            None => {
                self.counter += 1;
                let partition = Partition {
                    assignment: self.counter,
                    unsettled: BTreeMap::from([(offset, bytes)]),
                    bytes,
                    end: offset + 1,
                    stored: None,
                };
                self.partitions.insert(place.clone(), partition);
                self.counter
            }
        };
        Ticket {
            place,
            offset,
            assignment,
        }
    }

    /// Returns whether this delivery is unsettled and its partition is still assigned.
    pub(super) fn is_current(&self, ticket: &Ticket) -> bool {
        let partition = self.partitions.get(&ticket.place);
        partition.is_some_and(|found| {
            found.assignment == ticket.assignment && found.unsettled.contains_key(&ticket.offset)
        })
    }

    /// Settles a delivery. Does nothing if its partition was revoked, because another consumer owns
    /// the partition.
    pub(super) fn settle(&mut self, ticket: &Ticket) {
        if let Some(partition) = self.partitions.get_mut(&ticket.place)
            && partition.assignment == ticket.assignment
        {
            partition.bytes -= partition.unsettled.remove(&ticket.offset).unwrap_or(0);
        }
    }

    /// Keeps a message that the source must deliver when it is due. Its offset stays unsettled.
    pub(super) fn wait(&mut self, ticket: Ticket, item: T, due: Instant) {
        if self.is_current(&ticket) {
            self.counter += 1;
            self.waiting.insert((due, self.counter), (ticket, item));
        }
    }

    /// Returns the time when the next waiting message is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.waiting.keys().next().map(|(due, _)| *due)
    }

    /// Removes and returns a message that is due and unsettled.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<T> {
        loop {
            let first = self.waiting.first_entry();
            let (ticket, item) = first.filter(|entry| entry.key().0 <= now)?.remove();
            // If the offsets of its partition went backwards, the message is delivered again.
            if self.is_current(&ticket) {
                return Some(item);
            }
        }
    }

    /// Returns the number of unsettled messages, including waiting messages, and their size.
    pub(super) fn unsettled(&self) -> (usize, usize) {
        let all = self.partitions.values();
        all.fold((0, 0), |(count, bytes), partition| {
            (count + partition.unsettled.len(), bytes + partition.bytes)
        })
    }

    /// Removes a partition that was revoked, with its waiting messages.
    pub(super) fn revoke(&mut self, place: &Place) {
        self.partitions.remove(place);
        self.waiting.retain(|_, (ticket, _)| ticket.place != *place);
    }

    /// Returns the offsets that may be committed and are not stored in the client.
    pub(super) fn unstored(&self) -> Vec<(Place, i64)> {
        let offsets = self.partitions.iter().filter_map(|(place, partition)| {
            let offset = partition.committable();
            (partition.stored != Some(offset)).then(|| (place.clone(), offset))
        });
        offsets.collect()
    }

    /// Records that these offsets are stored in the client.
    pub(super) fn stored(&mut self, offsets: &[(Place, i64)]) {
        for (place, offset) in offsets {
            if let Some(partition) = self.partitions.get_mut(place) {
                partition.stored = Some(*offset);
            }
        }
    }

    /// Returns the offsets at which the next owner of these partitions must begin. Partitions
    /// without a delivery are left out.
    pub(super) fn committable(&self, places: &[Place]) -> Vec<(Place, i64)> {
        let offsets = places.iter().filter_map(|place| {
            let offset = self.partitions.get(place)?.committable();
            Some((place.clone(), offset))
        });
        offsets.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn place(partition: i32) -> Place {
        Place {
            topic: "t".into(),
            partition,
        }
    }

    #[test]
    fn late_receipt_of_a_revoked_partition_does_nothing() {
        let mut ledger = Ledger::<()>::default();
        let late = ledger.deliver(place(0), 7, 1);
        ledger.revoke(&place(0));
        ledger.settle(&late);
        assert!(!ledger.is_current(&late));
        assert_eq!(ledger.unstored(), []);

        // The partition is assigned again, and the same offset is redelivered.
        let current = ledger.deliver(place(0), 7, 1);
        ledger.settle(&late);
        assert_eq!(ledger.unstored(), [(place(0), 7)]);
        ledger.settle(&current);
        assert_eq!(ledger.unstored(), [(place(0), 8)]);
    }

    #[test]
    fn older_receipt_settles_nothing_after_offsets_go_backwards() {
        let mut ledger = Ledger::<()>::default();
        let old = ledger.deliver(place(0), 7, 1);
        ledger.deliver(place(0), 8, 1);
        ledger.deliver(place(0), 7, 1);
        ledger.settle(&old);
        assert_eq!(
            (ledger.unsettled(), ledger.unstored()),
            ((1, 1), vec![(place(0), 7)])
        );
    }

    #[test]
    fn waiting_redelivery_holds_its_offset_until_it_is_settled() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let (first, second) = (
            ledger.deliver(place(0), 0, 1),
            ledger.deliver(place(0), 1, 1),
        );
        ledger.wait(first.clone(), "first", later);
        ledger.wait(second.clone(), "second", now);
        assert_eq!(ledger.next_due(), Some(now));
        assert_eq!(ledger.take_due(now), Some("second"));
        assert_eq!(ledger.take_due(now), None);
        ledger.settle(&second);
        assert_eq!(ledger.unstored(), [(place(0), 0)]);
        assert_eq!(ledger.take_due(later), Some("first"));
    }

    #[test]
    fn revoked_partition_drops_its_waiting_messages() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        let (gone, stays) = (
            ledger.deliver(place(0), 0, 1),
            ledger.deliver(place(1), 0, 1),
        );
        ledger.wait(gone.clone(), "gone", now);
        ledger.wait(stays, "stays", now);
        ledger.revoke(&place(0));
        ledger.wait(gone, "gone", now);
        assert_eq!(ledger.take_due(now), Some("stays"));
        assert_eq!(ledger.take_due(now), None);
        assert_eq!(ledger.unsettled(), (1, 1));
    }

    #[test]
    fn offset_is_stored_once_and_stays_committable() {
        let mut ledger = Ledger::<()>::default();
        let ticket = ledger.deliver(place(0), 4, 1);
        ledger.settle(&ticket);
        let offsets = ledger.unstored();
        assert_eq!(offsets, [(place(0), 5)]);
        ledger.stored(&offsets);
        assert_eq!(ledger.unstored(), []);
        assert_eq!(ledger.committable(&[place(0), place(1)]), offsets);
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Deliver the offset that is above the last offset by this number.
        Deliver(i64),
        /// Settle the nth of all delivered offsets, settled or not.
        Settle(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (1..4i64).prop_map(Step::Deliver),
            any::<prop::sample::Index>().prop_map(Step::Settle),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// Goal: the ledger agrees with a simple model, a list of all delivered offsets that is
        /// searched from its beginning.
        #[test]
        fn ledger_agrees_with_the_model(steps in steps()) {
            let mut ledger = Ledger::<()>::default();
            let mut model: Vec<(Ticket, bool)> = Vec::new();
            for step in steps {
                match step {
                    Step::Deliver(gap) => {
                        let offset = model.last().map_or(0, |(last, _)| last.offset) + gap;
                        model.push((ledger.deliver(place(0), offset, 7), false));
                    }
                    Step::Settle(nth) if !model.is_empty() => {
                        let count = model.len();
                        let (ticket, is_settled) = &mut model[nth.index(count)];
                        prop_assert_eq!(ledger.is_current(ticket), !*is_settled);
                        ledger.settle(ticket);
                        *is_settled = true;
                    }
                    Step::Settle(_) => {}
                }
                let open = model
                    .iter()
                    .find(|(_, is_settled)| !is_settled)
                    .map(|(ticket, _)| ticket.offset);
                let committable = open.or(model.last().map(|(last, _)| last.offset + 1));
                prop_assert_eq!(
                    ledger.committable(&[place(0)]),
                    Vec::from_iter(committable.map(|offset| (place(0), offset)))
                );
                let unsettled = model.iter().filter(|(_, is_settled)| !is_settled).count();
                prop_assert_eq!(ledger.unsettled(), (unsettled, 7 * unsettled));
            }
        }
    }
}
