//! What a driver of the runner does.

use anyhow::Result;
use serde_json::Value;

use crate::value::{Cell, Saved};

/// An error of the server, with the parts that cases compare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Five characters.
    pub sqlstate: String,
    /// Empty when there is none.
    pub hint: String,
    pub message: String,
}

/// The result of a statement: its rows, or the error of the server.
pub type Outcome = Result<Vec<Vec<Cell>>, Refusal>;

/// Executes the statements of cases. Each connection is in autocommit mode.
pub trait Driver {
    /// Executes one statement on the connection with this name, and opens the connection first if
    /// the case has not used it yet.
    ///
    /// # Errors
    /// Fails when the driver fails. An error of the server is a result.
    fn execute(
        &mut self,
        session: &str,
        sql: &str,
        arguments: &[Value],
        saved: &Saved,
    ) -> impl Future<Output = Result<Outcome>>;

    /// Closes the connections of a case.
    ///
    /// # Errors
    /// Fails when the driver fails.
    fn close(&mut self) -> impl Future<Output = Result<()>>;
}
