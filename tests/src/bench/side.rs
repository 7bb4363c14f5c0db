//! The two sides: the same traffic, told apart by one statement.

use super::wire::Answer;

/// The consuming endpoint of all claims.
pub const DESTINATION: &str = "orders.reserve-inventory";

/// Who remembers the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Idem,
    HandWritten,
}

impl Side {
    /// Both, in an order that changes from round to round: neither always runs on what the other
    /// has warmed or worn.
    pub fn in_turn(round: usize) -> [Self; 2] {
        if round.is_multiple_of(2) {
            [Self::Idem, Self::HandWritten]
        } else {
            [Self::HandWritten, Self::Idem]
        }
    }

    /// The database of this side.
    pub fn database(self) -> &'static str {
        match self {
            Self::Idem => "idem",
            Self::HandWritten => "handwritten",
        }
    }

    /// Claims `$1` for the destination `$2`.
    pub fn claim_sql(self) -> &'static str {
        match self {
            Self::Idem => "SELECT idem_try_claim($1::text, $2)",
            Self::HandWritten => {
                "INSERT INTO inbox (message_id, destination) VALUES ($1, $2) ON CONFLICT DO NOTHING"
            }
        }
    }

    /// Whether the claim was won.
    pub fn won(self, answer: &Answer) -> bool {
        match self {
            Self::Idem => answer.is_true(),
            Self::HandWritten => answer.rows == 1,
        }
    }
}
