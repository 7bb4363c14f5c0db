//! The two sides: the same traffic with different claim statements.

use super::wire::Answer;

/// The destination of all claims.
pub const DESTINATION: &str = "orders.reserve-inventory";

/// The system that remembers the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Idem,
    HandWritten,
}

impl Side {
    /// Returns both sides, in an order that alternates from round to round, so that neither side
    /// always runs on the state that the other side has left.
    pub fn in_turn(round: usize) -> [Self; 2] {
        if round.is_multiple_of(2) {
            [Self::Idem, Self::HandWritten]
        } else {
            [Self::HandWritten, Self::Idem]
        }
    }

    /// Returns the database of this side.
    pub fn database(self) -> &'static str {
        match self {
            Self::Idem => "idem",
            Self::HandWritten => "handwritten",
        }
    }

    /// Returns the statement that claims `$1` for the destination `$2`.
    pub fn claim_sql(self) -> &'static str {
        match self {
            Self::Idem => "SELECT idem_try_claim($1::text, $2)",
            Self::HandWritten => {
                "INSERT INTO inbox (message_id, destination) VALUES ($1, $2) ON CONFLICT DO NOTHING"
            }
        }
    }

    /// Returns whether the claim was won.
    pub fn won(self, result: &Answer) -> bool {
        match self {
            Self::Idem => result.is_true(),
            Self::HandWritten => result.rows == 1,
        }
    }
}

/// The order of known ids.
#[derive(Clone, Copy)]
pub enum Order {
    Random,
    OfTime,
}
