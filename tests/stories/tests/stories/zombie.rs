//! Tests of consumers that are paused until another consumer has handled their message. The paused
//! consumers then continue as if they still held the message.

use anyhow::Result;
use idem_stories::{
    Fate,
    work::{Role, Wish, notes},
};
use idem_testkit::{Database, Session, until};

use crate::fixtures;

/// The id of the message in all these tests.
const MESSAGE: &str = "m1";

/// Pauses a consumer that uses SQL only, while its business transaction is open and until another
/// consumer has completed the message. Asserts that every function that the paused consumer
/// executes afterwards fails.
async fn assert_fenced_off(role: Role, database: &Database) -> Result<()> {
    let client = fixtures::set_up(database, role).await?;
    client
        .run("CREATE TABLE deed (message text, token bigint)")
        .await?;
    fixtures::receive(&client, role, MESSAGE, &Wish::default()).await?;

    let mut zombie = fixtures::start(role, database, MESSAGE)?;
    zombie.says_that("working").await?;
    zombie.freeze()?;
    fixtures::until_leases_end(&client).await?;
    let mut successor = fixtures::start(role, database, MESSAGE)?;
    successor.says_that("working").await?;
    successor.go_on().await?;
    successor.says_that("complete: done").await?;

    zombie.go_on().await?;
    zombie.thaw()?;
    for function in ["complete", "extend", "complete again", "release", "bury"] {
        zombie.says_that(&format!("{function}: 55000")).await?;
    }
    zombie.end(&Fate::default()).await?;
    assert_eq!(
        client.text("SELECT count(*) FROM deed").await?,
        "1",
        "the writes of the paused consumer are rolled back"
    );
    assert_done_once(&client, role).await
}

/// Asserts that the message was handled once: one claim, one effect, no dead letter and no pending
/// message.
async fn assert_done_once(client: &Session, role: Role) -> Result<()> {
    let sql = format!(
        "SELECT (SELECT count(*) FROM idem.inbox), \
         (SELECT count(*) FROM idem_effects('{MESSAGE}', '{}')), \
         (SELECT count(*) FROM idem.dead_letter)",
        role.destination()
    );
    assert_eq!(client.text(&sql).await?, "1|1|0");
    assert_eq!(fixtures::unfinished(client).await?, 0);
    Ok(())
}

/// A consumer that is paused until its lease has expired cannot extend the lease, complete the
/// message or record effects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_holder_cannot_write_after_its_lease() -> Result<()> {
    assert_fenced_off(Role::Holder, &Database::with_idem("zombie").await?).await
}

/// A consumer of an inbox message that is paused until its lease has expired cannot extend the
/// lease, complete the message or record effects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_holder_of_an_inbox_message_cannot_write() -> Result<()> {
    assert_fenced_off(Role::Fetcher, &Database::with_idem("zombie").await?).await
}

/// The process of a handler is paused while it works, and continues after its lease has expired and
/// another handler has handled the message. The paused handler has no effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_leased_handler_has_no_effect() -> Result<()> {
    let database = Database::with_idem("zombie").await?;
    let client = fixtures::set_up(&database, Role::Leased).await?;
    let wish = Wish {
        waits: true,
        ..Wish::default()
    };
    let mut zombie = fixtures::start_with(Role::Leased, &database, MESSAGE, &wish)?;
    zombie.says_that("working").await?;
    zombie.freeze()?;
    let mut successor = fixtures::start_with(Role::Leased, &database, MESSAGE, &wish)?;
    while successor.says().await? != "handled" {}

    zombie.go_on().await?;
    zombie.thaw()?;
    // The handler detects the lost lease itself, or gets an error from the server. Then the message
    // is redelivered and is a duplicate.
    let mut said = zombie.says().await?;
    if said == "lost" {
        said = zombie.says().await?;
    }
    assert_eq!(said, "duplicate");
    zombie.end(&Fate::default()).await?;
    assert_eq!(attempts(&client).await?, ["attempt 1", "attempt 2"]);
    assert_done_once(&client, Role::Leased).await
}

/// A consumer of the inbox that is paused until its lease has expired has no effect. This consumer
/// is a complete runtime that renews its leases itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_consumer_of_the_inbox_has_no_effect() -> Result<()> {
    let database = Database::with_idem("zombie").await?;
    let client = fixtures::set_up(&database, Role::Durable).await?;
    let wish = Wish {
        waits: true,
        ..Wish::default()
    };
    fixtures::receive(&client, Role::Durable, MESSAGE, &wish).await?;
    let mut zombie = fixtures::start(Role::Durable, &database, "")?;
    zombie.says_that("working").await?;
    zombie.freeze()?;
    let successor = fixtures::start(Role::Durable, &database, "")?;
    until("the successor is done", async || {
        Ok(fixtures::unfinished(&client).await? == 0)
    })
    .await?;

    zombie.go_on().await?;
    zombie.thaw()?;
    // A worker that is asked to stop ends only after it has finished its message.
    zombie.dismiss().await?;
    successor.dismiss().await?;
    assert_eq!(attempts(&client).await?, ["attempt 1", "attempt 2"]);
    assert_done_once(&client, Role::Durable).await
}

async fn attempts(client: &Session) -> Result<Vec<String>> {
    let notes = notes::read(client, MESSAGE).await?;
    Ok(notes.into_iter().filter(|note| note != "lost").collect())
}
