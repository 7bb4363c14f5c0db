//! Tests of messages that crash the workers that handle them.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Result, ensure};
use idem_stories::{
    Ending, Fate, Worker,
    work::{Role, Wish, notes},
};
use idem_testkit::{Database, Session, until};

use crate::{WORKER, fixtures};

/// The maximum number of attempts that the set-up configures.
const MAX_ATTEMPTS: usize = 3;

const POISON: &str = "poison";

fn wish_of(message: &str) -> Wish {
    Wish {
        aborts: message == POISON,
        ..Wish::default()
    }
}

/// Asserts that the poison message is a dead letter after exactly [`MAX_ATTEMPTS`] attempts, with
/// its payload and its errors, and that all other messages were handled once.
async fn assert_poison_alone_is_dead(
    client: &Session,
    role: Role,
    others: &[String],
) -> Result<()> {
    assert_eq!(
        notes::read(client, POISON).await?,
        ["attempt 1", "attempt 2", "attempt 3"]
    );
    let letters = "SELECT id, attempt, convert_from(payload, 'UTF8')::jsonb ->> 'aborts', \
                   jsonb_array_length(errors) FROM idem.dead_letter";
    assert_eq!(
        client.text(letters).await?,
        format!("{POISON}|{MAX_ATTEMPTS}|true|{MAX_ATTEMPTS}")
    );
    let handled = "SELECT id FROM idem.inbox ORDER BY id";
    assert_eq!(client.text(handled).await?, others.join("\n"));
    for message in others {
        let sql = format!(
            "SELECT count(*) FROM idem_effects('{message}', '{}')",
            role.destination()
        );
        assert_eq!(client.text(&sql).await?, "1", "{message}");
    }
    Ok(())
}

fn good_ones() -> Vec<String> {
    (10..30).map(|number| format!("good-{number}")).collect()
}

/// A message of the inbox that crashes its consumer becomes a dead letter after its last attempt,
/// and all good messages are handled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inbox_poison_dies_after_its_attempts_others_are_handled() -> Result<()> {
    let database = Database::with_idem("poison").await?;
    let client = fixtures::set_up(&database, Role::Durable).await?;
    let good = good_ones();
    for message in [&good[..7], &[POISON.to_owned()], &good[7..]].concat() {
        fixtures::receive(&client, Role::Durable, &message, &wish_of(&message)).await?;
    }
    let mut deaths = 0;
    let arguments = fixtures::arguments(Role::Durable, &database, "", &Wish::default())?;
    let start = || Worker::start(Path::new(WORKER), &arguments);
    let mut worker = start()?;
    until("all messages are done", async || {
        if worker.has_ended()? {
            deaths += 1;
            worker = start()?;
        }
        Ok(fixtures::unfinished(&client).await? == 0)
    })
    .await?;
    worker.dismiss().await?;
    assert_eq!(deaths, MAX_ATTEMPTS);
    assert_poison_alone_is_dead(&client, Role::Durable, &good).await
}

/// A broker holds the message and redelivers it after each crash. The message becomes a dead letter
/// after its last attempt, and all good messages are handled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_poison_dies_after_its_attempts_others_handled() -> Result<()> {
    let database = Database::with_idem("poison").await?;
    let client = fixtures::set_up(&database, Role::Leased).await?;
    let good = good_ones()[..3].to_vec();
    let mut deaths = BTreeMap::new();
    for message in [&good[..1], &[POISON.to_owned()], &good[1..]].concat() {
        loop {
            let worker =
                fixtures::start_with(Role::Leased, &database, &message, &wish_of(&message))?;
            match worker.end(&Fate::default()).await? {
                Ending::Done => break,
                _ => *deaths.entry(message.clone()).or_insert(0) += 1,
            }
            ensure!(
                deaths[&message] <= 10,
                "{message} is not done after 10 crashes"
            );
        }
    }
    assert_eq!(deaths, BTreeMap::from([(POISON.to_owned(), MAX_ATTEMPTS)]));
    assert_poison_alone_is_dead(&client, Role::Leased, &good).await
}
