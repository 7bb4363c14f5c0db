//! A consumer without a client library: it leases with SQL, and says how each call ended.

use anyhow::{Context, Result};
use tokio_postgres::{Client, Error, NoTls};

use super::{Ears, LEASE, Post, Role};

/// The way to a lease, for a message at its broker and for one in the inbox.
const ACQUIRE: &str =
    "SELECT token FROM idem_acquire($1, $2, $3::text::interval) WHERE outcome = 'acquired'";
const FETCH: &str = "SELECT token FROM idem_next($2, 1, $3::text::interval) WHERE id = $1";

pub async fn run(role: Role, post: &Post, mut ears: Ears) -> Result<()> {
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
        .context("the message is not to be had")?;
    let hand = Hand {
        client,
        message: &post.message,
        destination: role.destination(),
        token: row.try_get(0)?,
    };
    // Its work is done in a transaction that is open now.
    hand.client.batch_execute("BEGIN").await?;
    hand.client
        .execute(
            "INSERT INTO deed (message, token) VALUES ($1, $2)",
            &[&hand.message, &hand.token],
        )
        .await?;
    ears.say_and_wait("working").await?;
    hand.say("complete", hand.complete().await);
    hand.client.batch_execute("COMMIT").await?;
    hand.say("extend", hand.call("idem_extend($1, $2, $3)").await);
    hand.say("complete again", hand.complete().await);
    hand.say(
        "release",
        hand.call("idem_release($1, $2, $3, 'late')").await,
    );
    hand.say(
        "bury",
        hand.call("idem_bury($1, $2, $3, 'x'::bytea, 'late')").await,
    );
    Ok(())
}

struct Hand<'h> {
    client: Client,
    message: &'h str,
    destination: &'h str,
    token: i64,
}

impl Hand<'_> {
    async fn complete(&self) -> Result<(), Error> {
        let effects = r#"'[{"topic": "handled", "payload": 1}]'"#;
        self.call(&format!("idem_complete($1, $2, $3, {effects})"))
            .await
    }

    async fn call(&self, call: &str) -> Result<(), Error> {
        let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
            [&self.message, &self.destination, &self.token];
        self.client
            .execute(&format!("SELECT {call}"), &parameters)
            .await
            .map(drop)
    }

    fn say(&self, what: &str, answer: Result<(), Error>) {
        match answer {
            Ok(()) => println!("{what}: done"),
            Err(error) => println!(
                "{what}: {}",
                error.code().map_or("no answer", |code| code.code())
            ),
        }
    }
}
