//! Tests of workers with a clock that is wrong by an hour. Leases, back-offs and delays use the
//! clock of the database server only, so the results are the same as with a correct clock.

use std::{
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result};
use idem_stories::{
    Fate, Worker,
    work::{LEASE, Role, Wish, notes},
};
use idem_testkit::clock::Clock;
use idem_testkit::{Database, Session, until};

use crate::{WORKER, fixtures};

const HOUR: i64 = 3_600;

const MESSAGE: &str = "m1";

/// A time in seconds that is much longer than every wait of these tests, and much shorter than the
/// error of the clocks.
const SOON: f64 = 600.0;

fn start(role: Role, database: &Database, wish: &Wish, wrong_by: i64) -> Result<Worker> {
    let message = if role == Role::Leased { MESSAGE } else { "" };
    let arguments = fixtures::arguments(role, database, message, wish)?;
    Worker::start_with(
        Path::new(WORKER),
        arguments,
        Some(Clock::wrong_by(wrong_by)?),
    )
}

/// Returns the next report of the worker about a delivery. Skips the report `leased`, which means
/// that the message was still leased at its delivery.
async fn says(worker: &mut Worker) -> Result<String> {
    loop {
        let said = worker.says().await?;
        if said != "leased" {
            return Ok(said);
        }
    }
}

/// Returns the time in seconds from `moment` to the start of this attempt, by the clock of the
/// server.
async fn attempt_after(client: &Session, moment: &str, attempt: usize) -> Result<f64> {
    let noted =
        notes::seconds_after(client, moment, MESSAGE, &format!("attempt {attempt}")).await?;
    noted.with_context(|| format!("attempt {attempt} was not made"))
}

/// Returns the time at which the message is due again.
async fn due_at(client: &Session) -> Result<String> {
    client
        .text(
            "SELECT max(due_at) FROM (SELECT due_at FROM idem.pending_0 UNION ALL SELECT due_at \
             FROM idem.pending_1) pending",
        )
        .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_reads_the_wrong_clock() -> Result<()> {
    let database = Database::empty("clock").await?;
    for wrong_by in [-HOUR, HOUR] {
        let mut worker = start(Role::Clock, &database, &Wish::default(), wrong_by)?;
        let believed: i64 = worker.says().await?.parse()?;
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())?;
        assert!(
            (believed - now - wrong_by).abs() < 300,
            "the worker reads {believed} instead of {now}"
        );
    }
    Ok(())
}

/// While a worker is alive, no other worker gets its message. After the death of the worker and the
/// end of its lease, another worker gets the message. Wrong clocks of the workers do not change
/// this.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_has_the_same_length_with_a_wrong_clock() -> Result<()> {
    for wrong_by in [-HOUR, HOUR] {
        let database = Database::with_idem("clock").await?;
        let client = fixtures::set_up(&database, Role::Leased).await?;
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
        let mut successor = start(Role::Leased, &database, &wish, -wrong_by)?;
        assert_eq!(says(&mut successor).await?, "handled");
        let waited = attempt_after(&client, &due_at, 2).await?;
        assert!(
            (0.0..SOON).contains(&waited),
            "{wrong_by}: {waited} s after the end of the lease"
        );
        successor.end(&Fate::default()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempts_and_backoff_are_the_same_with_a_wrong_clock() -> Result<()> {
    for wrong_by in [-HOUR, HOUR] {
        let database = Database::with_idem("clock").await?;
        let client = fixtures::set_up(&database, Role::Leased).await?;
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
        // The set-up configures a back-off of 50 ms that doubles, so attempt 3 begins at least 150
        // ms after attempt 1.
        for (attempt, at_least) in [(2, 0.050), (3, 0.150)] {
            let waited = attempt_after(&client, &first, attempt).await?;
            assert!(
                (at_least..SOON).contains(&waited),
                "{wrong_by}: {waited} s before attempt {attempt}"
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_message_is_delivered_on_time_with_a_wrong_clock() -> Result<()> {
    for wrong_by in [-HOUR, HOUR] {
        let database = Database::with_idem("clock").await?;
        let client = fixtures::set_up(&database, Role::Durable).await?;
        let worker = start(Role::Durable, &database, &Wish::default(), wrong_by)?;
        let receive = format!(
            "SELECT idem_receive('{MESSAGE}', '{}', '{{\"fails\": 1}}'::jsonb, \
             deliver_after => clock_timestamp() + '1 s')",
            Role::Durable.destination()
        );
        assert_eq!(client.text(&receive).await?, "t");
        let due_at = due_at(&client).await?;
        until("the message is handled", async || {
            Ok(notes::read(&client, MESSAGE).await?.len() == 2
                && fixtures::unfinished(&client).await? == 0)
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
