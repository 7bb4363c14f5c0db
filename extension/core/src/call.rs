//! The state of an external call, computed from its journal entries.

/// An entry of the journal. It never changes after it was written. The column `kind` of the
/// journal's tables stores these numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEvent {
    /// An attempt is about to send its request.
    Begun = 0,
    /// An attempt received its response.
    Finished = 1,
    /// An attempt certainly had no effect.
    TakenBack = 2,
    /// The external system rejected the request permanently.
    Refused = 3,
}

impl CallEvent {
    #[must_use]
    pub fn from_number(number: i16) -> Option<Self> {
        [Self::Begun, Self::Finished, Self::TakenBack, Self::Refused]
            .into_iter()
            .find(|event| *event as i16 == number)
    }
}

/// The state of an external call. An attempt reads it before it sends a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallState {
    /// No attempt was made, or every attempt certainly had no effect.
    New,
    /// An attempt was begun and its result is unknown.
    Unknown,
    /// A response was recorded.
    Done,
    /// The external system rejected the request permanently.
    Failed,
}

/// The attempts at one external call, computed from its events in their order. Times are in
/// microseconds since any fixed time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attempts {
    /// The start times of the attempts that may have had an effect. `TakenBack` removes only the
    /// newest one, because the earlier attempts may have had an effect. The list must contain every
    /// such attempt: a caller that gets the state `New` sends the request again.
    unheard: Vec<i64>,
    made: i32,
    last_begun_at: Option<i64>,
    end: Option<CallState>,
}

impl Attempts {
    pub fn record(&mut self, event: CallEvent, at: i64) {
        match event {
            CallEvent::Begun => {
                self.unheard.push(at);
                self.made += 1;
                self.last_begun_at = Some(at);
            }
            CallEvent::TakenBack => {
                self.unheard.pop();
            }
            CallEvent::Finished => self.end = Some(CallState::Done),
            CallEvent::Refused => self.end = Some(CallState::Failed),
        }
    }

    #[must_use]
    pub fn state(&self) -> CallState {
        match self.end {
            Some(end) => end,
            None if self.unheard.is_empty() => CallState::New,
            None => CallState::Unknown,
        }
    }

    /// Returns the number of begun attempts that the journal still holds.
    #[must_use]
    pub fn made(&self) -> i32 {
        self.made
    }

    /// Returns the start time of the first attempt that may have had an effect. If all attempts
    /// were taken back, returns the start time of the last attempt.
    #[must_use]
    pub fn begun_at(&self) -> Option<i64> {
        self.unheard.first().copied().or(self.last_begun_at)
    }
}

#[cfg(test)]
mod tests {
    use super::CallEvent::*;
    use super::*;
    use proptest::prelude::*;

    /// Replays the events; the event with index n happens at time n.
    fn replay(events: &[CallEvent]) -> Attempts {
        let mut attempts = Attempts::default();
        for (at, event) in (0..).zip(events) {
            attempts.record(*event, at);
        }
        attempts
    }

    #[test]
    fn events_determine_state() {
        for (events, state, made, begun_at) in [
            (&[][..], CallState::New, 0, None),
            (&[Begun], CallState::Unknown, 1, Some(0)),
            (&[Begun, Begun], CallState::Unknown, 2, Some(0)),
            (&[Begun, Finished], CallState::Done, 1, Some(0)),
            (&[Begun, TakenBack], CallState::New, 1, Some(0)),
            (&[Begun, TakenBack, Begun], CallState::Unknown, 2, Some(2)),
            (
                &[Begun, TakenBack, Begun, Finished],
                CallState::Done,
                2,
                Some(2),
            ),
            (&[Begun, Refused], CallState::Failed, 1, Some(0)),
            (&[Begun, Begun, Finished], CallState::Done, 2, Some(0)),
        ] {
            let attempts = replay(events);
            assert_eq!(
                (attempts.state(), attempts.made(), attempts.begun_at()),
                (state, made, begun_at),
                "{events:?}"
            );
        }
    }

    #[test]
    fn taken_back_attempt_leaves_earlier_one_unknown() {
        let attempts = replay(&[Begun, Begun, TakenBack]);
        assert_eq!(
            (attempts.state(), attempts.begun_at()),
            (CallState::Unknown, Some(0))
        );
        assert_eq!(
            replay(&[Begun, Begun, TakenBack, TakenBack]).state(),
            CallState::New
        );
    }

    #[test]
    fn truncated_history_has_state() {
        assert_eq!(replay(&[Finished]).state(), CallState::Done);
        assert_eq!(replay(&[TakenBack]).state(), CallState::New);
        assert_eq!(replay(&[TakenBack]).begun_at(), None);
    }

    #[test]
    fn event_numbers_match_tables() {
        for (number, event) in (0..).zip([Begun, Finished, TakenBack, Refused]) {
            assert_eq!(CallEvent::from_number(number), Some(event));
        }
        assert_eq!(CallEvent::from_number(4), None);
        assert_eq!(CallEvent::from_number(-1), None);
    }

    proptest! {
        /// The state is `New` exactly when as many attempts were taken back as were begun.
        #[test]
        fn state_is_new_when_all_attempts_were_taken_back(
            begun in 0usize..8,
            taken_back in 0usize..8,
        ) {
            let taken_back = taken_back.min(begun);
            let events: Vec<_> = [vec![Begun; begun], vec![TakenBack; taken_back]].concat();
            prop_assert_eq!(replay(&events).state() == CallState::New, begun == taken_back);
        }
    }
}
