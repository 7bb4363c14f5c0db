//! What these stories have in common.

use std::path::Path;

use anyhow::Result;
use idem_tests::{
    harness::{Database, Session, until},
    stories::{
        Worker,
        work::{Role, Wish, notes},
    },
};

use crate::WORKER;

/// Prepares the database for workers of a role, and answers a session to look at it.
pub async fn set_up(database: &Database, role: Role) -> Result<Session> {
    let client = database.connect().await?;
    notes::make_table(&client).await?;
    // Failures are followed by rests that a test can wait for.
    let destination = role.destination();
    client
        .run(&format!(
            "SELECT idem_configure_retries('{destination}', max_attempts => 3, base => '50 ms', factor => 2, jitter => 0)"
        ))
        .await?;
    Ok(client)
}

/// Starts a worker on a message.
pub fn start(role: Role, database: &Database, message: &str) -> Result<Worker> {
    start_with(role, database, message, &Wish::default())
}

/// The same, and the message says something.
pub fn start_with(role: Role, database: &Database, message: &str, wish: &Wish) -> Result<Worker> {
    Worker::start(Path::new(WORKER), arguments(role, database, message, wish)?)
}

/// What it is told.
pub fn arguments(
    role: Role,
    database: &Database,
    message: &str,
    wish: &Wish,
) -> Result<Vec<String>> {
    Ok(vec![
        role.argument().to_owned(),
        format!(
            "--database={}",
            database.cluster().connection_string(database.name())
        ),
        format!("--message={message}"),
        format!("--payload={}", serde_json::to_string(wish)?),
    ])
}

/// Puts a message into the inbox of a role, if it has one.
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

/// Waits until all leases have ended, by the server's clock.
pub async fn until_leases_end(client: &Session) -> Result<()> {
    let held = "SELECT count(*) FROM idem.pending WHERE state = 'l' AND due_at > clock_timestamp()";
    until("the leases end", async || {
        Ok(client.text(held).await? == "0")
    })
    .await
}

/// How much work is not done and not dead, of any destination.
pub async fn unfinished(client: &Session) -> Result<i64> {
    let sql = "SELECT count(*) FROM (SELECT 0 turn, * FROM idem.pending_0 UNION ALL SELECT 1, * FROM idem.pending_1) work \
               WHERE turn = (SELECT current FROM idem.pending_rotation) AND due_at < 'infinity'";
    Ok(client.query_one(sql, &[]).await?.get(0))
}
