//! Tracks the delivered offsets of one partition, and which of them are settled.

use std::collections::BTreeSet;

/// Finds the offset that may be committed: all delivered offsets below it are settled.
///
/// Offsets are delivered in ascending order, with gaps because of compaction and transaction
/// markers. They are settled in any order.
#[derive(Debug, Default)]
pub(super) struct OffsetTracker {
    unsettled: BTreeSet<i64>,
    /// The highest delivered offset plus one. `None` before the first delivery.
    end: Option<i64>,
}

impl OffsetTracker {
    /// Records a delivery. Returns false, and records nothing, if the offset is not above all
    /// earlier offsets. In this case the log was truncated or the group's offset was reset, and the
    /// state of this tracker is no longer valid.
    #[must_use]
    pub(super) fn deliver(&mut self, offset: i64) -> bool {
        if self.end.is_some_and(|end| offset < end) {
            return false;
        }
        self.unsettled.insert(offset);
        self.end = Some(offset + 1);
        true
    }

    /// Settles an offset. Returns false if the offset was not delivered or is already settled.
    pub(super) fn settle(&mut self, offset: i64) -> bool {
        self.unsettled.remove(&offset)
    }

    /// Returns whether this offset was delivered and is not settled.
    pub(super) fn is_unsettled(&self, offset: i64) -> bool {
        self.unsettled.contains(&offset)
    }

    /// Returns the number of unsettled offsets.
    pub(super) fn unsettled(&self) -> usize {
        self.unsettled.len()
    }

    /// Returns the offset to commit, at which the group continues after a restart. `None` before
    /// the first delivery.
    pub(super) fn committable(&self) -> Option<i64> {
        self.unsettled.first().copied().or(self.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn delivered(offsets: impl IntoIterator<Item = i64>) -> OffsetTracker {
        let mut tracker = OffsetTracker::default();
        for offset in offsets {
            assert!(tracker.deliver(offset));
        }
        tracker
    }

    #[test]
    fn nothing_is_committed_before_the_first_delivery() {
        assert_eq!(OffsetTracker::default().committable(), None);
    }

    #[test]
    fn lowest_unsettled_offset_limits_the_commit() {
        let mut tracker = delivered(5..9);
        assert_eq!(tracker.committable(), Some(5));
        assert!(tracker.settle(6) && tracker.settle(8));
        assert_eq!(tracker.committable(), Some(5));
        assert!(tracker.settle(5));
        assert_eq!(tracker.committable(), Some(7));
        assert!(tracker.settle(7));
        assert_eq!((tracker.committable(), tracker.unsettled()), (Some(9), 0));
    }

    #[test]
    fn offset_is_settled_once() {
        let mut tracker = delivered([3]);
        assert!(tracker.settle(3));
        assert!(!tracker.settle(3));
        assert!(!tracker.settle(4));
    }

    #[test]
    fn offset_that_goes_backwards_is_detected() {
        let mut tracker = delivered([3, 7]);
        assert!(!tracker.deliver(7));
        assert!(!tracker.deliver(5));
        assert_eq!((tracker.committable(), tracker.unsettled()), (Some(3), 2));
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
        /// Goal: the tracker agrees with a simple model, a list of all delivered offsets that is
        /// searched from its beginning.
        #[test]
        fn tracker_agrees_with_the_model(steps in steps()) {
            let mut tracker = OffsetTracker::default();
            let mut model: Vec<(i64, bool)> = Vec::new();
            for step in steps {
                match step {
                    Step::Deliver(gap) => {
                        let offset = model.last().map_or(0, |(last, _)| *last) + gap;
                        prop_assert!(tracker.deliver(offset));
                        model.push((offset, false));
                    }
                    Step::Settle(nth) if !model.is_empty() => {
                        let count = model.len();
                        let (offset, is_settled) = &mut model[nth.index(count)];
                        prop_assert_eq!(tracker.settle(*offset), !*is_settled);
                        *is_settled = true;
                    }
                    Step::Settle(_) => {}
                }
                let open = model
                    .iter()
                    .find(|(_, is_settled)| !is_settled)
                    .map(|(offset, _)| *offset);
                prop_assert_eq!(
                    tracker.committable(),
                    open.or(model.last().map(|(last, _)| last + 1))
                );
                prop_assert_eq!(
                    tracker.unsettled(),
                    model.iter().filter(|(_, is_settled)| !is_settled).count()
                );
            }
        }
    }
}
