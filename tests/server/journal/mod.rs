//! Tests of the journal of external calls. A call begins before its request, and is finished or
//! failed after the request. When the result of the last request is not recorded, `idem_begin_call`
//! returns `unknown`.

mod lifetime;
mod races;
mod states;

use anyhow::Result;
use idem_testkit::Session;

const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// Returns the statement that begins the step `charge` of a message.
fn begin_charge(id: &str) -> String {
    format!("SELECT state, attempt FROM idem_begin_call('{id}', 'orders', 'charge')")
}

/// Begins the step `charge` of a message. Returns its state and the number of the attempt.
async fn begin(session: &Session, id: &str) -> Result<String> {
    session.text(&begin_charge(id)).await
}

async fn finish(session: &Session, id: &str, response: &str) -> Result<()> {
    session
        .run(&format!(
            "SELECT idem_finish_call('{id}', 'orders', 'charge', '{response}')"
        ))
        .await
}

async fn fail(session: &Session, id: &str, error: &str, retryable: bool) -> Result<()> {
    session
        .run(&format!(
            "SELECT idem_fail_call('{id}', 'orders', 'charge', '{error}', {retryable})"
        ))
        .await
}

/// Returns step, state, attempts, response and error of each call of a message.
async fn calls(session: &Session, id: &str) -> Result<String> {
    session
        .text(&format!(
            "SELECT step, state, attempt, response, error FROM idem_calls('{id}', 'orders')"
        ))
        .await
}
