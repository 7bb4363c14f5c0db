//! Functions that the tests in this directory share.

use std::path::Path;

use anyhow::Result;
use idem_stories::{
    Worker,
    work::{Role, Wish, notes},
};
use idem_testkit::{Database, Session, until};

use crate::WORKER;

/// Prepares the database for workers of a role. Returns a session for checks.
pub async fn set_up(database: &Database, role: Role) -> Result<Session> {
    let client = database.connect().await?;
    notes::make_table(&client).await?;
    // The back-off is short enough for a test to wait for it.
    let destination = role.destination();
    client
        .run(&format!(
            "SELECT idem_configure_retries('{destination}', max_attempts => 3, base => '50 ms', \
             factor => 2, jitter => 0)"
        ))
        .await?;
    Ok(client)
}

/// Starts a worker that handles a message.
pub fn start(role: Role, database: &Database, message: &str) -> Result<Worker> {
    start_with(role, database, message, &Wish::default())
}

/// Starts a worker that handles a message with this payload.
pub fn start_with(role: Role, database: &Database, message: &str, wish: &Wish) -> Result<Worker> {
    Worker::start(Path::new(WORKER), arguments(role, database, message, wish)?)
}

/// Returns the arguments of a worker.
pub fn arguments(
    role: Role,
    database: &Database,
    message: &str,
    wish: &Wish,
) -> Result<Vec<String>> {
    Ok(vec![
        role.to_string(),
        format!(
            "--database={}",
            database.cluster().connection_string(database.name())
        ),
        format!("--message={message}"),
        format!("--payload={}", serde_json::to_string(wish)?),
    ])
}

/// Receives a message in the inbox of a role, if the role has an inbox.
pub async fn receive(client: &Session, role: Role, message: &str, wish: &Wish) -> Result<()> {
    if matches!(role, Role::Fetcher | Role::Durable) {
        let payload = serde_json::to_value(wish)?;
        client
            .execute(
                "SELECT idem_receive($1, $2, $3::jsonb)",
                &[&message, &role.destination(), &payload],
            )
            .await?;
    }
    Ok(())
}

/// Waits until all leases have expired, by the clock of the server.
pub async fn until_leases_end(client: &Session) -> Result<()> {
    let held = "SELECT count(*) FROM idem.pending WHERE state = 'l' AND due_at > clock_timestamp()";
    until("the leases have expired", async || {
        Ok(client.text(held).await? == "0")
    })
    .await
}

/// Returns the number of pending messages that are not dead, of all destinations.
pub async fn unfinished(client: &Session) -> Result<i64> {
    let sql = "SELECT count(*) FROM (SELECT 0 AS number, * FROM idem.pending_0 UNION ALL \
               SELECT 1, * FROM idem.pending_1) pending \
               WHERE number = (SELECT current FROM idem.pending_rotation) AND due_at < 'infinity'";
    Ok(client.query_one(sql, &[]).await?.get(0))
}
