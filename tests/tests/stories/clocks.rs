//! Workers whose clock is wrong by an hour. Only that of the server counts, so nothing is
//! different.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use idem_tests::{
    clock::Clock,
    harness::{Database, Session, until},
    stories::{
        Fate, Worker,
        work::{LEASE, Role, Wish, notes},
    },
};

use crate::{WORKER, ground};

const HOUR: i64 = 3_600;

const MESSAGE: &str = "m1";

/// Much more than any of these takes, and much less than the clocks are wrong by.
const SOON: f64 = 600.0;

fn start(role: Role, database: &Database, wish: &Wish, wrong_by: i64) -> Result<Worker> {
    let message = if role == Role::Leased { MESSAGE } else { "" };
    let arguments = ground::arguments(role, database, message, wish)?;
    Worker::start_with(
        Path::new(WORKER),
        arguments,
        Some(Clock::wrong_by(wrong_by)?),
    )
}

/// What the worker says of its deliveries, but for those that came too early.
async fn says(worker: &mut Worker) -> Result<String> {
    loop {
        let said = worker.says().await?;
        if said != "leased" {
            return Ok(said);
        }
    }
}

/// How long after a moment the worker began this attempt, by the server's clock.
async fn attempt_after(client: &Session, moment: &str, attempt: usize) -> Result<f64> {
    let noted =
        notes::seconds_after(client, moment, MESSAGE, &format!("attempt {attempt}")).await?;
    noted.with_context(|| format!("attempt {attempt} was not made"))
}

/// When the message is next given to anybody.
async fn due_at(client: &Session) -> Result<String> {
    client
        .text("SELECT max(due_at) FROM (SELECT due_at FROM idem.pending_0 UNION ALL SELECT due_at FROM idem.pending_1) work")
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_clock_is_wrong() -> Result<()> {
    let database = Database::empty("clock").await?;
    for wrong_by in [-HOUR, HOUR] {
        let mut worker = start(Role::Clock, &database, &Wish::default(), wrong_by)?;
        let believed: i64 = worker.says().await?.parse()?;
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?;
        assert!(
            (believed - now - wrong_by).abs() < 300,
            "{believed} instead of {now}"
        );
    }
    Ok(())
}

/// Nobody gets the message while its worker is alive, and everybody when it is dead, whose clock is
/// whatever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_lasts_as_long_with_a_wrong_clock() -> Result<()> {
    for wrong_by in [-HOUR, HOUR] {
        let database = Database::with_idem("clock").await?;
        let client = ground::set_up(&database, Role::Leased).await?;
        let wish = Wish {
            waits: true,
            ..Wish::default()
        };
        let mut worker = start(Role::Leased, &database, &wish, wrong_by)?;
        worker.says_that("working").await?;
        let first = due_at(&client).await?;
        until("the lease is renewed", async || {
            let renewed = format!(
                "SELECT '{}'::timestamptz > '{first}'",
                due_at(&client).await?
            );
            Ok(client.text(&renewed).await? == "t")
        })
        .await?;
        let acquire = format!(
            "SELECT outcome, retry_after <= '{} ms' FROM idem_acquire('{MESSAGE}', '{}')",
            LEASE.as_millis(),
            Role::Leased.destination()
        );
        assert_eq!(client.text(&acquire).await?, "in_progress|t");
        worker.kill().await?;

        let due_at = due_at(&client).await?;
        let mut heir = start(Role::Leased, &database, &wish, -wrong_by)?;
        assert_eq!(says(&mut heir).await?, "handled");
        let waited = attempt_after(&client, &due_at, 2).await?;
        assert!(
            (0.0..SOON).contains(&waited),
            "{wrong_by}: {waited} s after the end of the lease"
        );
        heir.end(&Fate::default()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_counted_and_followed_by_the_same_rests_with_a_wrong_clock() -> Result<()> {
    for wrong_by in [-HOUR, HOUR] {
        let database = Database::with_idem("clock").await?;
        let client = ground::set_up(&database, Role::Leased).await?;
        let wish = Wish {
            fails: 2,
            ..Wish::default()
        };
        let mut worker = start(Role::Leased, &database, &wish, wrong_by)?;
        for said in ["failed", "failed", "handled"] {
            assert_eq!(says(&mut worker).await?, said, "{wrong_by}");
        }
        let failed = "SELECT at FROM note WHERE text = 'attempt 1'";
        let first = client.text(failed).await?;
        // 50 ms and twice as much, as the set-up has it.
        for (attempt, at_least) in [(2, 0.050), (3, 0.150)] {
            let rested = attempt_after(&client, &first, attempt).await?;
            assert!(
                (at_least..SOON).contains(&rested),
                "{wrong_by}: {rested} s before attempt {attempt}"
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_to_be_delivered_later_is_delivered_then_with_a_wrong_clock() -> Result<()> {
    for wrong_by in [-HOUR, HOUR] {
        let database = Database::with_idem("clock").await?;
        let client = ground::set_up(&database, Role::Durable).await?;
        let worker = start(Role::Durable, &database, &Wish::default(), wrong_by)?;
        let receive = format!(
            "SELECT idem_receive('{MESSAGE}', '{}', '{{\"fails\": 1}}'::jsonb, deliver_after => clock_timestamp() + '1 s')",
            Role::Durable.destination()
        );
        assert_eq!(client.text(&receive).await?, "t");
        let due_at = due_at(&client).await?;
        until("it is handled", async || {
            Ok(notes::read(&client, MESSAGE).await?.len() == 2
                && ground::unfinished(&client).await? == 0)
        })
        .await?;
        for (attempt, at_least) in [(1, 0.0), (2, 0.050)] {
            let waited = attempt_after(&client, &due_at, attempt).await?;
            assert!(
                (at_least..SOON).contains(&waited),
                "{wrong_by}: attempt {attempt} {waited} s after it was due"
            );
        }
        worker.dismiss().await?;
    }
    Ok(())
}
