//! Tests of the measurement of what protection costs, which the demo shows.

use anyhow::{Context, Result};
use idem_bench::protection::{self, Config, Contestant, Flaw, Report};
use idem_testkit::Database;

/// Returns the settings of a short measurement.
fn short() -> Config {
    Config {
        rounds: 2,
        round_ms: 100,
        clients: 3,
        retained: 1_000,
        outgoing: true,
        flaw: None,
    }
}

async fn measure(db: &Database, config: &Config) -> Result<Report> {
    let url = db.cluster().connection_string(db.name());
    protection::run(&url, config, |_| {}).await
}

/// Every contestant has a rate for every round. The rows that are left show that idem and the
/// hand-written side did the same work. A second run in the same database succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_contestant_does_the_same_work_in_every_round() -> Result<()> {
    let db = Database::with_idem("protection").await?;
    for _ in 0..2 {
        let report = measure(&db, &short()).await?;
        for contestant in Contestant::ALL {
            let rates = report.rates.of(contestant);
            assert_eq!(rates.len(), 2, "{contestant}: {rates:?}");
            assert!(
                rates.iter().all(|rate| *rate > 0.0),
                "{contestant}: {rates:?}"
            );
        }
        assert!(report.settings.server.contains("synchronous_commit=on"));
    }
    let rows = db
        .connect()
        .await?
        .text(
            "SELECT (SELECT sum(balance) FROM cost_by_hand.account) = b.messages
                AND (SELECT count(*) FROM cost_by_hand.outbox) = b.messages,
                    b.messages > 0,
                    (SELECT sum(balance) FROM cost_idem.account) = i.messages
                AND (SELECT count(*) FROM idem.outbox_row WHERE topic = i.destination
                        || '.reserved') = i.messages,
                    i.messages > 0
               FROM (SELECT count(*) AS messages FROM cost_by_hand.inbox
                      WHERE destination <> 'cost.retained') b,
                    (SELECT destination, count(*) AS messages, max(claimed_at) AS last
                       FROM idem.inbox GROUP BY destination ORDER BY last DESC LIMIT 1) i",
        )
        .await?;
    assert_eq!(rows, "t|t|t|t");
    Ok(())
}

/// Before the rounds both inboxes have the same number of claims, and the times of the hand-written
/// one are those of a week.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_inboxes_retain_claims_before_the_rounds() -> Result<()> {
    let db = Database::with_idem("retained").await?;
    let report = measure(&db, &short()).await?;
    assert_eq!(report.settings.retained, 1_000);
    let retained = db
        .connect()
        .await?
        .text(
            "SELECT count(*), now() - min(claimed_at) BETWEEN '6 days 23 hours' AND '8 days',
                    (SELECT count(*) FROM idem.inbox WHERE destination = 'cost.retained')
               FROM cost_by_hand.inbox WHERE destination = 'cost.retained'",
        )
        .await?;
    assert_eq!(retained, "1000|t|1000");
    Ok(())
}

/// Without outgoing messages both sides write none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_without_outgoing_messages_are_measured() -> Result<()> {
    let db = Database::with_idem("plain").await?;
    let config = Config {
        outgoing: false,
        ..short()
    };
    measure(&db, &config).await?;
    let outgoing = "SELECT (SELECT count(*) FROM cost_by_hand.outbox),
                           (SELECT count(*) FROM idem.outbox_row)";
    assert_eq!(db.connect().await?.text(outgoing).await?, "0|0");
    Ok(())
}

/// The progress names every contestant in every round, the warm-up included, and the order of the
/// contestants changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_of_the_contestants_changes_between_rounds() -> Result<()> {
    let db = Database::with_idem("protection").await?;
    let url = db.cluster().connection_string(db.name());
    let mut order = vec![Vec::new(); 3];
    protection::run(&url, &short(), |progress| {
        order[progress.round].push(progress.next.name());
    })
    .await?;
    assert_eq!(order[0], ["business alone", "by hand", "idem"]);
    assert_eq!(order[1], ["by hand", "idem", "business alone"]);
    assert_eq!(order[2], ["idem", "business alone", "by hand"]);
    Ok(())
}

/// A contestant that writes less than the others is faster. The check of the rows reports such a
/// contestant, whether it skips the outbox or the business update.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contestant_that_skips_a_write_is_found() -> Result<()> {
    let db = Database::with_idem("protection").await?;
    for contestant in [Contestant::ByHand, Contestant::Idem] {
        for (flaw, missing) in [
            (Flaw::SkippedOutbox(contestant), " and 0 outgoing messages"),
            (Flaw::SkippedUpdate(contestant), "wrote 0 updates"),
        ] {
            let config = Config {
                flaw: Some(flaw),
                ..short()
            };
            let error = measure(&db, &config)
                .await
                .err()
                .with_context(|| format!("{flaw:?} was not found"))?;
            let message = format!("{error:#}");
            assert!(
                message.starts_with(&format!("\"{contestant}\" processed"))
                    && message.contains(missing),
                "{flaw:?}: {message}"
            );
        }
    }
    Ok(())
}

/// The statements of the rounds are prepared on every side, also the business update in the handler
/// of idem: each of them is executed by its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_statement_of_the_rounds_is_prepared() -> Result<()> {
    let db = Database::with_idem("prepared").await?;
    let name = db.name();
    db.connect()
        .await?
        .run(&format!("ALTER DATABASE {name} SET log_statement = 'all'"))
        .await?;
    let url = db.cluster().connection_string(name) + " application_name=cost-prepared";
    protection::run(&url, &short(), |_| {}).await?;
    let log = db.cluster().log()?;
    let executed = |how: &str, statement: &str| {
        let text = format!("{how}: {statement}");
        log.lines()
            .filter(|line| line.contains("cost-prepared") && line.contains(&text))
            .count()
    };
    for statement in ["INSERT INTO inbox", "UPDATE account", "INSERT INTO outbox"] {
        assert_eq!(executed("execute <unnamed>", statement), 0, "{statement}");
        assert!(executed("", statement) > 0, "{statement}");
    }
    Ok(())
}
