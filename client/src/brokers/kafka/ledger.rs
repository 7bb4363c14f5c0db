//! What was delivered and not yet settled, in all partitions that are assigned to this consumer.

use std::{
    collections::{BTreeMap, HashMap},
    time::Instant,
};

use super::offsets::OffsetTracker;

/// A partition of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) topic: String,
    pub(super) partition: i32,
}

/// What a receipt is good for: one offset, as long as its partition stays assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) place: Place,
    pub(super) offset: i64,
    /// A partition that was revoked and comes back is another assignment: the same offset is
    /// delivered again then.
    assignment: u64,
}

/// The deliveries of all assigned partitions, those that shall come again (`T`), and what may be
/// committed.
#[derive(Debug)]
pub(super) struct Ledger<T> {
    partitions: HashMap<Place, Partition>,
    /// By the time at which they are due, and then in the order in which they came.
    again: BTreeMap<(Instant, u64), (Ticket, T)>,
    /// Numbers assignments, and entries of `again`.
    counter: u64,
}

#[derive(Debug)]
struct Partition {
    assignment: u64,
    tracker: OffsetTracker,
    /// What the client was told last.
    stored: Option<i64>,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self {
            partitions: HashMap::new(),
            again: BTreeMap::new(),
            counter: 0,
        }
    }
}

impl<T> Ledger<T> {
    /// Notes a message that the broker delivered.
    pub(super) fn deliver(&mut self, place: Place, offset: i64) -> Ticket {
        if let Some(partition) = self.partitions.get_mut(&place)
            && partition.tracker.deliver(offset)
        {
            let assignment = partition.assignment;
            return Ticket {
                place,
                offset,
                assignment,
            };
        }
        // Its first message, or it went backwards, and then older tickets must not settle what has
        // the same numbers.
        self.counter += 1;
        let assignment = self.counter;
        let mut tracker = OffsetTracker::default();
        let _first = tracker.deliver(offset);
        let partition = Partition {
            assignment,
            tracker,
            stored: None,
        };
        self.partitions.insert(place.clone(), partition);
        Ticket {
            place,
            offset,
            assignment,
        }
    }

    /// Whether this delivery still waits to be settled, by us.
    pub(super) fn is_current(&self, ticket: &Ticket) -> bool {
        let partition = self.partitions.get(&ticket.place);
        partition.is_some_and(|found| {
            found.assignment == ticket.assignment && found.tracker.is_unsettled(ticket.offset)
        })
    }

    /// Settles a delivery. One of a partition that was revoked does nothing: it is another
    /// consumer's now.
    pub(super) fn settle(&mut self, ticket: &Ticket) {
        if let Some(partition) = self.partitions.get_mut(&ticket.place)
            && partition.assignment == ticket.assignment
        {
            partition.tracker.settle(ticket.offset);
        }
    }

    /// Keeps a delivery that shall come again; its offset stays unsettled meanwhile.
    pub(super) fn again(&mut self, ticket: Ticket, item: T, due: Instant) {
        if self.is_current(&ticket) {
            self.counter += 1;
            self.again.insert((due, self.counter), (ticket, item));
        }
    }

    /// When the next one shall come again.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.again.keys().next().map(|(due, _)| *due)
    }

    /// Takes one whose time has come.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<(Ticket, T)> {
        self.again
            .first_entry()
            .filter(|entry| entry.key().0 <= now)
            .map(|entry| entry.remove())
    }

    /// How many are delivered and not settled, those that shall come again included.
    pub(super) fn unsettled(&self) -> usize {
        self.partitions
            .values()
            .map(|partition| partition.tracker.unsettled())
            .sum()
    }

    /// Forgets a partition that belongs to another consumer now.
    pub(super) fn revoke(&mut self, place: &Place) {
        self.partitions.remove(place);
        self.again.retain(|_, (ticket, _)| ticket.place != *place);
    }

    /// The offsets that the client has not been told yet.
    pub(super) fn unstored(&self) -> Vec<(Place, i64)> {
        let offsets = self.partitions.iter().filter_map(|(place, partition)| {
            let offset = partition.tracker.committable()?;
            (partition.stored != Some(offset)).then(|| (place.clone(), offset))
        });
        offsets.collect()
    }

    /// The client has been told.
    pub(super) fn stored(&mut self, offsets: &[(Place, i64)]) {
        for (place, offset) in offsets {
            if let Some(partition) = self.partitions.get_mut(place) {
                partition.stored = Some(*offset);
            }
        }
    }

    /// Where the next owner of these partitions has to begin, as far as anything was delivered
    /// here.
    pub(super) fn committable(&self, places: &[Place]) -> Vec<(Place, i64)> {
        let offsets = places.iter().filter_map(|place| {
            let offset = self.partitions.get(place)?.tracker.committable()?;
            Some((place.clone(), offset))
        });
        offsets.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn place(partition: i32) -> Place {
        Place {
            topic: "t".into(),
            partition,
        }
    }

    #[test]
    fn a_late_receipt_of_a_revoked_partition_does_nothing() {
        let mut ledger = Ledger::<()>::default();
        let late = ledger.deliver(place(0), 7);
        ledger.revoke(&place(0));
        ledger.settle(&late);
        assert!(!ledger.is_current(&late));
        assert_eq!(ledger.unstored(), []);

        // The partition comes back, and with it the same offset.
        let current = ledger.deliver(place(0), 7);
        ledger.settle(&late);
        assert_eq!(ledger.unstored(), [(place(0), 7)]);
        ledger.settle(&current);
        assert_eq!(ledger.unstored(), [(place(0), 8)]);
    }

    #[test]
    fn older_receipts_settle_nothing_of_a_partition_that_went_backwards() {
        let mut ledger = Ledger::<()>::default();
        let old = ledger.deliver(place(0), 7);
        ledger.deliver(place(0), 8);
        ledger.deliver(place(0), 7);
        ledger.settle(&old);
        assert_eq!(
            (ledger.unsettled(), ledger.unstored()),
            (1, vec![(place(0), 7)])
        );
    }

    #[test]
    fn what_shall_come_again_holds_its_offset_and_comes_when_it_is_due() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let (first, second) = (ledger.deliver(place(0), 0), ledger.deliver(place(0), 1));
        ledger.again(first.clone(), "first", later);
        ledger.again(second.clone(), "second", now);
        assert_eq!(ledger.next_due(), Some(now));
        assert_eq!(ledger.take_due(now), Some((second.clone(), "second")));
        assert_eq!(ledger.take_due(now), None);
        ledger.settle(&second);
        assert_eq!(ledger.unstored(), [(place(0), 0)]);
        assert_eq!(ledger.take_due(later), Some((first, "first")));
    }

    #[test]
    fn a_revoked_partition_takes_along_what_should_have_come_again() {
        let mut ledger = Ledger::default();
        let now = Instant::now();
        let (gone, stays) = (ledger.deliver(place(0), 0), ledger.deliver(place(1), 0));
        ledger.again(gone.clone(), "gone", now);
        ledger.again(stays, "stays", now);
        ledger.revoke(&place(0));
        ledger.again(gone, "gone", now);
        assert_eq!(ledger.take_due(now).map(|(_, item)| item), Some("stays"));
        assert_eq!(ledger.take_due(now), None);
        assert_eq!(ledger.unsettled(), 1);
    }

    #[test]
    fn the_client_is_told_once_and_the_end_of_a_partition_is_known() {
        let mut ledger = Ledger::<()>::default();
        let ticket = ledger.deliver(place(0), 4);
        ledger.settle(&ticket);
        let offsets = ledger.unstored();
        assert_eq!(offsets, [(place(0), 5)]);
        ledger.stored(&offsets);
        assert_eq!(ledger.unstored(), []);
        assert_eq!(ledger.committable(&[place(0), place(1)]), offsets);
    }
}
