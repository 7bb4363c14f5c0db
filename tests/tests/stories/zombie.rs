//! Consumers that are paused until somebody else has done their work, and then go on as if nothing
//! had been.

use anyhow::Result;
use idem_tests::{
    harness::{Database, Session, until},
    stories::{
        Fate,
        work::{Role, Wish, notes},
    },
};

use crate::ground;

/// The message of all of these.
const MESSAGE: &str = "m1";

/// A consumer that works with SQL alone, paused with its business transaction open. Everything that
/// it tries later is refused.
async fn is_fenced_off(role: Role, database: &Database) -> Result<()> {
    let client = ground::set_up(database, role).await?;
    client
        .run("CREATE TABLE deed (message text, token bigint)")
        .await?;
    ground::receive(&client, role, MESSAGE, &Wish::default()).await?;

    let mut zombie = ground::start(role, database, MESSAGE)?;
    zombie.says_that("working").await?;
    zombie.freeze()?;
    ground::until_leases_end(&client).await?;
    let mut heir = ground::start(role, database, MESSAGE)?;
    heir.says_that("working").await?;
    heir.go_on().await?;
    heir.says_that("complete: done").await?;

    zombie.go_on().await?;
    zombie.thaw()?;
    for call in ["complete", "extend", "complete again", "release", "bury"] {
        zombie.says_that(&format!("{call}: 55000")).await?;
    }
    zombie.end(&Fate::default()).await?;
    assert_eq!(
        client.text("SELECT count(*) FROM deed").await?,
        "1",
        "what it wrote is gone"
    );
    assert_done_once(&client, role).await
}

/// Handled once: one claim, one effect, nothing left to do.
async fn assert_done_once(client: &Session, role: Role) -> Result<()> {
    let sql = format!(
        "SELECT (SELECT count(*) FROM idem.inbox), (SELECT count(*) FROM idem_effects('{MESSAGE}', '{}')), (SELECT count(*) FROM idem.dead_letter)",
        role.destination()
    );
    assert_eq!(client.text(&sql).await?, "1|1|0");
    assert_eq!(ground::unfinished(client).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_paused_beyond_the_lease_can_neither_extend_nor_complete_nor_record() -> Result<()>
{
    is_fenced_off(Role::Holder, &Database::with_idem("zombie").await?).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_holds_for_a_message_of_the_inbox() -> Result<()> {
    is_fenced_off(Role::Fetcher, &Database::with_idem("zombie").await?).await
}

/// A handler that does not know of its own death: its process was paused while it worked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leased_handler_that_was_paused_takes_no_effect() -> Result<()> {
    let database = Database::with_idem("zombie").await?;
    let client = ground::set_up(&database, Role::Leased).await?;
    let wish = Wish {
        waits: true,
        ..Wish::default()
    };
    let mut zombie = ground::start_with(Role::Leased, &database, MESSAGE, &wish)?;
    zombie.says_that("working").await?;
    zombie.freeze()?;
    let mut heir = ground::start_with(Role::Leased, &database, MESSAGE, &wish)?;
    while heir.says().await? != "handled" {}

    zombie.go_on().await?;
    zombie.thaw()?;
    // It finds out by itself or is told by the server; then the message comes again, and is known.
    let mut said = zombie.says().await?;
    if said == "lost" {
        said = zombie.says().await?;
    }
    assert_eq!(said, "duplicate");
    zombie.end(&Fate::default()).await?;
    assert_eq!(attempts(&client).await?, ["attempt 1", "attempt 2"]);
    assert_done_once(&client, Role::Leased).await
}

/// The same for a consumer of the inbox, which is a whole runtime with its own renewal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_of_the_inbox_that_was_paused_takes_no_effect() -> Result<()> {
    let database = Database::with_idem("zombie").await?;
    let client = ground::set_up(&database, Role::Durable).await?;
    let wish = Wish {
        waits: true,
        ..Wish::default()
    };
    ground::receive(&client, Role::Durable, MESSAGE, &wish).await?;
    let mut zombie = ground::start(Role::Durable, &database, "")?;
    zombie.says_that("working").await?;
    zombie.freeze()?;
    let heir = ground::start(Role::Durable, &database, "")?;
    until("the other one is done", async || {
        Ok(ground::unfinished(&client).await? == 0)
    })
    .await?;

    zombie.go_on().await?;
    zombie.thaw()?;
    // What it does with the message it has done when it is told to end and does.
    zombie.dismiss().await?;
    heir.dismiss().await?;
    assert_eq!(attempts(&client).await?, ["attempt 1", "attempt 2"]);
    assert_done_once(&client, Role::Durable).await
}

async fn attempts(client: &Session) -> Result<Vec<String>> {
    let notes = notes::read(client, MESSAGE).await?;
    Ok(notes.into_iter().filter(|note| note != "lost").collect())
}
