//! Tests of the durable inbox: received messages are returned in order, are redelivered until they
//! are done, become dead letters after their last attempt, and are never dropped.

mod bytes;
mod dead_letters;
mod forward;
mod from_broker;
mod hand_over;
mod large;
mod leases;
mod order;
mod payloads;
mod poison;
mod processed;
mod survival;
mod wake;

use anyhow::Result;
use idem_testkit::Session;

/// A message as `idem_next` returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Handed {
    token: i64,
    id: String,
    attempt: i32,
    last_error: String,
}

/// Receives a message with its id as payload. Returns true when the message is new.
async fn receive(session: &Session, id: &str, more: &str) -> Result<bool> {
    let sql = format!("SELECT idem_receive('{id}', 'mail', '\"{id}\"'::jsonb{more})");
    Ok(session.text(&sql).await? == "t")
}

/// Leases up to `max_messages` messages of the destination `mail` for an hour.
async fn next(session: &Session, max_messages: i32) -> Result<Vec<Handed>> {
    next_for(session, max_messages, "1 hour").await
}

async fn next_for(session: &Session, max_messages: i32, lease: &str) -> Result<Vec<Handed>> {
    let sql = format!(
        "SELECT token, id, attempt, coalesce(last_error, '-'), \
         payload = convert_to(to_jsonb(id)::text, 'UTF8') \
         FROM idem_next('mail', {max_messages}, '{lease}')"
    );
    let rows = session.text(&sql).await?;
    rows.lines()
        .map(|row| {
            let fields: Vec<_> = row.split('|').collect();
            let [token, id, attempt, error, intact] = fields[..] else {
                anyhow::bail!("{row}")
            };
            anyhow::ensure!(intact == "t", "the payload of {id} has changed");
            Ok(Handed {
                token: token.parse()?,
                id: id.to_owned(),
                attempt: attempt.parse()?,
                last_error: error.to_owned(),
            })
        })
        .collect()
}

fn ids(handed: &[Handed]) -> Vec<&str> {
    handed.iter().map(|h| h.id.as_str()).collect()
}

/// Runs the business transaction of a message, which contains only the claim.
async fn claim(session: &Session, id: &str) -> Result<bool> {
    Ok(session
        .text(&format!("SELECT idem_try_claim('{id}', 'mail')"))
        .await?
        == "t")
}

/// Releases the message with an error. Returns the back-off, or `NULL` when the message is dead.
async fn fail(session: &Session, handed: &Handed, error: &str) -> Result<String> {
    let Handed { id, token, .. } = handed;
    session
        .text(&format!(
            "SELECT idem_release('{id}', 'mail', {token}, '{error}')"
        ))
        .await
}

/// Configures retries without back-off.
async fn without_back_off(session: &Session, max_attempts: i32) -> Result<()> {
    session
        .run(&format!(
            "SELECT idem_configure_retries('mail', {max_attempts}, base => '0')"
        ))
        .await
}
