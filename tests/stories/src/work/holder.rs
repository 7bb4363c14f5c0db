//! A consumer without the client library: it leases with SQL, and prints the result of each
//! statement.

use anyhow::{Context, Result};
use tokio_postgres::{Client, Error, NoTls};

use super::{
    control::Control,
    post::{LEASE, Post, Role},
};

/// The statement that leases a message of a broker.
const ACQUIRE: &str =
    "SELECT token FROM idem_acquire($1, $2, $3::text::interval) WHERE outcome = 'acquired'";
/// The statement that leases a received message.
const FETCH: &str = "SELECT token FROM idem_next($2, 1, $3::text::interval) WHERE id = $1";

pub async fn run(role: Role, post: &Post, mut control: Control) -> Result<()> {
    let (client, connection) = tokio_postgres::connect(&post.database, NoTls).await?;
    tokio::spawn(connection);
    let sql = if role == Role::Fetcher {
        FETCH
    } else {
        ACQUIRE
    };
    let lease = format!("{} ms", LEASE.as_millis());
    let row = client
        .query_opt(sql, &[&post.message, &role.destination(), &lease])
        .await?
        .context("the message cannot be leased")?;
    let hand = Hand {
        client,
        message: &post.message,
        destination: role.destination(),
        token: row.try_get(0)?,
    };
    // The business writes are in a transaction that stays open while the worker waits.
    hand.client.batch_execute("BEGIN").await?;
    hand.client
        .execute(
            "INSERT INTO deed (message, token) VALUES ($1, $2)",
            &[&hand.message, &hand.token],
        )
        .await?;
    control.report_and_wait("working").await?;
    hand.print("complete", hand.complete().await);
    hand.client.batch_execute("COMMIT").await?;
    hand.print("extend", hand.select("idem_extend($1, $2, $3)").await);
    hand.print("complete again", hand.complete().await);
    hand.print(
        "release",
        hand.select("idem_release($1, $2, $3, 'late')").await,
    );
    hand.print(
        "bury",
        hand.select("idem_bury($1, $2, $3, 'x'::bytea, 'late')")
            .await,
    );
    Ok(())
}

/// A lease that was acquired with SQL.
struct Hand<'h> {
    client: Client,
    message: &'h str,
    destination: &'h str,
    token: i64,
}

impl Hand<'_> {
    async fn complete(&self) -> Result<(), Error> {
        let effects = r#"'[{"topic": "handled", "payload": 1}]'"#;
        self.select(&format!("idem_complete($1, $2, $3, {effects})"))
            .await
    }

    /// Executes a function with the id, the destination and the token as parameters.
    async fn select(&self, function: &str) -> Result<(), Error> {
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&self.message, &self.destination, &self.token];
        self.client
            .execute(&format!("SELECT {function}"), &parameters)
            .await
            .map(drop)
    }

    /// Prints the result of a function: `done`, or the SQLSTATE.
    fn print(&self, what: &str, result: Result<(), Error>) {
        match result {
            Ok(()) => println!("{what}: done"),
            Err(error) => println!(
                "{what}: {}",
                error.code().map_or("no SQLSTATE", |code| code.code())
            ),
        }
    }
}
