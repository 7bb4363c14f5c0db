//! Messages that kill whoever handles them.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Result, ensure};
use idem_tests::{
    harness::{Database, Session, until},
    stories::{
        Ending, Fate, Worker,
        work::{Role, Wish, notes},
    },
};

use crate::{WORKER, ground};

/// As the set-up has it.
const MAX_ATTEMPTS: usize = 3;

const POISON: &str = "poison";

fn wish_of(message: &str) -> Wish {
    Wish {
        aborts: message == POISON,
        ..Wish::default()
    }
}

/// The poison is dead after exactly so many attempts, with everything that is known of it; all
/// others were handled once.
async fn assert_poison_alone_is_dead(
    client: &Session,
    role: Role,
    others: &[String],
) -> Result<()> {
    assert_eq!(
        notes::read(client, POISON).await?,
        ["attempt 1", "attempt 2", "attempt 3"]
    );
    let letters = "SELECT id, attempt, convert_from(payload, 'UTF8')::jsonb ->> 'aborts', jsonb_array_length(errors) FROM idem.dead_letter";
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_the_inbox_that_kills_its_consumer_is_dead_after_its_attempts_and_hurts_no_other()
-> Result<()> {
    let database = Database::with_idem("poison").await?;
    let client = ground::set_up(&database, Role::Durable).await?;
    let good = good_ones();
    for message in [&good[..7], &[POISON.to_owned()], &good[7..]].concat() {
        ground::receive(&client, Role::Durable, &message, &wish_of(&message)).await?;
    }
    let mut deaths = 0;
    let arguments = ground::arguments(Role::Durable, &database, "", &Wish::default())?;
    let start = || Worker::start(Path::new(WORKER), &arguments);
    let mut worker = start()?;
    until("all is done", async || {
        if worker.has_ended()? {
            deaths += 1;
            worker = start()?;
        }
        Ok(ground::unfinished(&client).await? == 0)
    })
    .await?;
    worker.dismiss().await?;
    assert_eq!(deaths, MAX_ATTEMPTS);
    assert_poison_alone_is_dead(&client, Role::Durable, &good).await
}

/// Here the message lives at its broker: whoever dies with it in hand is given it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_a_broker_that_kills_its_consumer_is_dead_after_its_attempts_and_hurts_no_other()
-> Result<()> {
    let database = Database::with_idem("poison").await?;
    let client = ground::set_up(&database, Role::Leased).await?;
    let good = good_ones()[..3].to_vec();
    let mut deaths = BTreeMap::new();
    for message in [&good[..1], &[POISON.to_owned()], &good[1..]].concat() {
        loop {
            let worker = ground::start_with(Role::Leased, &database, &message, &wish_of(&message))?;
            match worker.end(&Fate::default()).await? {
                Ending::Done => break,
                _ => *deaths.entry(message.clone()).or_insert(0) += 1,
            }
            ensure!(deaths[&message] <= 10, "{message} is never done");
        }
    }
    assert_eq!(deaths, BTreeMap::from([(POISON.to_owned(), MAX_ATTEMPTS)]));
    assert_poison_alone_is_dead(&client, Role::Leased, &good).await
}
