//! The shooting range over real brokers: processes killed with SIGKILL again and again, the broker
//! and the database once.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::Result;
use idem_cluster::wait_for;
use idem_tests::harness::DEADLINE;
use idem_tests::range::live::{self, Kind, LiveConfig, LiveReport, LiveVerdict, Role, Server};
use tokio::sync::Mutex;

/// One at a time: each is eight processes and two servers.
static STAGE: Mutex<()> = Mutex::const_new(());

const WORKER: &str = env!("CARGO_BIN_EXE_range-worker");

async fn play(config: &LiveConfig) -> Result<LiveReport> {
    let _alone = STAGE.lock().await;
    let mut last = String::new();
    let report = live::run(config, Path::new(WORKER), |look| last = format!("{look:?}")).await;
    eprintln!("{last}");
    let report = report?;
    eprintln!("{report}");
    Ok(report)
}

/// 20,000 commands, 30 % of them sent twice.
async fn everything_takes_effect_once_over(broker: Kind) -> Result<()> {
    let mut config = LiveConfig::new(broker);
    config.field.messages = 20_000;
    config.deadline_s = 600;
    let report = play(&config).await?;

    // All this has happened...
    let again = u64::from(config.field.messages) * 3 / 10;
    assert!(
        report.sent >= u64::from(config.field.messages) + again,
        "{} sent",
        report.sent
    );
    assert!(
        report.given_again() >= again * 9 / 10,
        "{} given again",
        report.given_again()
    );
    assert_eq!(report.crashed, [Server::Broker, Server::Database]);
    for (role, at_least) in [
        (Role::Producer, 8),
        (Role::Targets, 16),
        (Role::Relay, 16),
        (Role::Board, 16),
        (Role::Observer, 8),
    ] {
        let kills = report.tally.kills_of(role);
        assert!(kills >= at_least, "{role}: {kills} killed");
    }
    assert_eq!(
        report.tally.ends, 0,
        "a client waits for a server that is away"
    );
    // ... and nothing has come of it.
    assert_eq!(report.verdict, LiveVerdict::default());
    assert_eq!(
        report.claimed["range.targets"],
        u64::from(config.field.messages)
    );
    assert_eq!(
        report.claimed["range.board"], report.attempts as u64,
        "one fact for each attempt"
    );
    assert_eq!(
        report.facts.len(),
        report.attempts,
        "and the observer heard of each"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_rabbitmq_every_attempt_has_one_fact_whoever_is_killed() -> Result<()> {
    everything_takes_effect_once_over(Kind::RabbitMq).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs with: cargo xtask test everything"]
async fn over_nats_every_attempt_has_one_fact_whoever_is_killed() -> Result<()> {
    everything_takes_effect_once_over(Kind::Nats).await
}

/// The same without idem in one place: the checker must see what comes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs with: cargo xtask test everything"]
async fn targets_without_idem_are_caught() -> Result<()> {
    let mut config = LiveConfig::new(Kind::Nats);
    config.field.messages = 1_500;
    config.unprotected = true;
    let verdict = play(&config).await?.verdict;
    assert!(
        verdict.range.contradictions > 0,
        "targets moved between a shot and its duplicate: {verdict:?}"
    );
    assert!(
        verdict.range.unequal_duplicates > 0,
        "facts were told again, under new ids: {verdict:?}"
    );
    assert!(
        verdict.range.hits_off_by > 0,
        "and counted again: {verdict:?}"
    );
    assert!(
        verdict.moves_not_once > 0,
        "moves were made again: {verdict:?}"
    );
    assert!(
        verdict.not_one_fact > 0,
        "nothing is on record: {verdict:?}"
    );
    Ok(())
}

/// Whoever starts them may be killed too.
#[test]
fn no_process_outlives_whoever_started_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // Nobody listens there, so it waits.
    let mut waiting = Command::new(WORKER)
        .args([
            "producer",
            "--broker=nats",
            "--broker-url=nats://127.0.0.1:1",
            "--per-second=1",
            "--database=",
        ])
        .arg(format!("--dir={}", dir.path().display()))
        .stdin(Stdio::piped())
        .spawn()?;
    wait_for("the process is at work", DEADLINE, || {
        Ok(dir.path().join("producer.sent").exists())
    })?;
    assert_eq!(waiting.try_wait()?, None);
    drop(waiting.stdin.take());
    let ended = wait_for("the process ends", DEADLINE, || {
        Ok(waiting.try_wait()?.is_some())
    });
    // Otherwise it would outlive us as well.
    waiting.kill()?;
    ended
}
