//! What is known of a call, from what happened to it.

/// One line of the journal. What is recorded never changes; the numbers are in the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallEvent {
    /// An attempt is about to ask.
    Begun = 0,
    /// An attempt was answered.
    Finished = 1,
    /// An attempt certainly had no effect.
    TakenBack = 2,
    /// The other side refused for good.
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

/// What whoever is about to ask must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallState {
    /// Nobody has asked, or whoever did has certainly had no effect.
    New,
    /// Somebody has asked and was never heard of again.
    Unknown,
    /// It was answered.
    Done,
    /// It was refused for good.
    Failed,
}

/// The attempts at one call, told in their order. Times are microseconds of any epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attempts {
    /// When each attempt began that was not taken back. Who tells of a failure is taken to be the
    /// newest of them: the others may have had their effect, and one that is counted too often
    /// costs a question, one too few a second payment.
    unheard: Vec<i64>,
    made: i32,
    last_begun_at: Option<i64>,
    end: Option<CallState>,
}

impl Attempts {
    pub fn tell(&mut self, event: CallEvent, at: i64) {
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

    /// How many were begun, as far as the journal remembers.
    #[must_use]
    pub fn made(&self) -> i32 {
        self.made
    }

    /// When the first began that may have had an effect; of calls that all were taken back, when
    /// the last began.
    #[must_use]
    pub fn begun_at(&self) -> Option<i64> {
        self.unheard.first().copied().or(self.last_begun_at)
    }
}

/// How the journal keeps an error: as a JSON string, in the column of the responses.
#[must_use]
pub fn error_to_json(error: &str) -> String {
    serde_json::Value::from(error).to_string()
}

/// The error that [`error_to_json`] has kept; anything else as it is.
#[must_use]
pub fn error_from_json(json: &str) -> String {
    serde_json::from_str(json).unwrap_or_else(|_| json.to_owned())
}

#[cfg(test)]
mod tests {
    use super::CallEvent::*;
    use super::*;
    use proptest::prelude::*;

    /// Each event at the second of its place.
    fn told(events: &[CallEvent]) -> Attempts {
        let mut attempts = Attempts::default();
        for (at, event) in (0..).zip(events) {
            attempts.tell(*event, at);
        }
        attempts
    }

    #[test]
    fn every_history_has_its_state() {
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
            let attempts = told(events);
            assert_eq!(
                (attempts.state(), attempts.made(), attempts.begun_at()),
                (state, made, begun_at),
                "{events:?}"
            );
        }
    }

    #[test]
    fn an_attempt_that_had_no_effect_says_nothing_of_the_one_before() {
        let attempts = told(&[Begun, Begun, TakenBack]);
        assert_eq!(
            (attempts.state(), attempts.begun_at()),
            (CallState::Unknown, Some(0))
        );
        assert_eq!(
            told(&[Begun, Begun, TakenBack, TakenBack]).state(),
            CallState::New
        );
    }

    #[test]
    fn what_is_left_of_a_history_is_understood() {
        assert_eq!(told(&[Finished]).state(), CallState::Done);
        assert_eq!(told(&[TakenBack]).state(), CallState::New);
        assert_eq!(told(&[TakenBack]).begun_at(), None);
    }

    #[test]
    fn numbers_are_those_of_the_tables() {
        for (number, event) in (0..).zip([Begun, Finished, TakenBack, Refused]) {
            assert_eq!(CallEvent::from_number(number), Some(event));
        }
        assert_eq!(CallEvent::from_number(4), None);
        assert_eq!(CallEvent::from_number(-1), None);
    }

    proptest! {
        #[test]
        fn an_error_comes_back_as_it_was(error in ".{0,40}") {
            prop_assert_eq!(error_from_json(&error_to_json(&error)), error);
        }

        /// As many are unheard as were begun and not taken back, whatever the order in which they
        /// end.
        #[test]
        fn new_means_that_every_attempt_was_taken_back(begun in 0usize..8, taken_back in 0usize..8) {
            let taken_back = taken_back.min(begun);
            let events: Vec<_> = [vec![Begun; begun], vec![TakenBack; taken_back]].concat();
            prop_assert_eq!(told(&events).state() == CallState::New, begun == taken_back);
        }
    }
}
