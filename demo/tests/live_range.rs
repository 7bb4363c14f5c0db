//! Runs the shooting range with real brokers. The processes are killed with SIGKILL many times, and
//! the broker and the database are killed once.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use anyhow::Result;
use idem_cluster::wait_for;
use idem_demo::range::live::{self, Kind, LiveConfig, LiveReport, LiveVerdict, Role, Server};
use idem_testkit::DEADLINE;
use tokio::sync::Mutex;

/// A lock that the running test holds. The tests run one after the other, because each test starts
/// eight processes and two servers.
static ALONE: Mutex<()> = Mutex::const_new(());

const WORKER: &str = env!("CARGO_BIN_EXE_range-worker");

async fn play(config: &LiveConfig) -> Result<LiveReport> {
    let _alone = ALONE.lock().await;
    let mut last = String::new();
    let report = live::run(config, Path::new(WORKER), |look| last = format!("{look:?}")).await;
    eprintln!("{last}");
    let report = report?;
    eprintln!("{report}");
    Ok(report)
}

/// Sends 20,000 commands, 30 % of them twice, and asserts that each command takes effect once.
async fn assert_each_command_takes_effect_once(broker: Kind) -> Result<()> {
    let mut config = LiveConfig::new(broker);
    config.field.messages = 20_000;
    let report = play(&config).await?;

    // Check that the faults have happened.
    let again = u64::from(config.field.messages) * 3 / 10;
    assert!(
        report.sent >= u64::from(config.field.messages) + again,
        "{} sent",
        report.sent
    );
    assert!(
        report.given_again() >= again * 9 / 10,
        "{} redelivered",
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
        assert!(
            kills >= at_least,
            "{role}: only {kills} processes were killed"
        );
    }
    assert_eq!(
        report.tally.ends, 0,
        "a process ended, although clients wait for a server that is down"
    );
    // Check that the faults have caused no error.
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
        "the observer has received one fact of each attempt"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_attempt_has_one_fact_over_rabbitmq_with_kills() -> Result<()> {
    assert_each_command_takes_effect_once(Kind::RabbitMq).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs with: cargo xtask test everything"]
async fn every_attempt_has_one_fact_over_nats_with_kills() -> Result<()> {
    assert_each_command_takes_effect_once(Kind::Nats).await
}

/// When the targets do not use idem, the same faults cause errors, and the checker reports these
/// errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "runs with: cargo xtask test everything"]
async fn errors_of_targets_without_idem_are_reported() -> Result<()> {
    let mut config = LiveConfig::new(Kind::Nats);
    config.field.messages = 1_500;
    config.unprotected = true;
    let verdict = play(&config).await?.verdict;
    assert!(
        verdict.range.contradictions > 0,
        "no target moved between a shot and its duplicate: {verdict:?}"
    );
    assert!(
        verdict.range.unequal_duplicates > 0,
        "no fact was published again under a new id: {verdict:?}"
    );
    assert!(
        verdict.range.hits_off_by > 0,
        "no fact was counted again: {verdict:?}"
    );
    assert!(
        verdict.moves_not_once > 0,
        "no move was made again: {verdict:?}"
    );
    assert!(
        verdict.not_one_fact > 0,
        "every attempt has one recorded fact: {verdict:?}"
    );
    Ok(())
}

/// When the process that started a worker is killed, the worker must end.
#[test]
fn no_worker_outlives_the_process_that_started_it() -> Result<()> {
    let dir = tempfile::tempdir()?;
    // No server listens at this address, so the worker waits.
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
    wait_for("the worker is running", DEADLINE, || {
        Ok(dir.path().join("producer.sent").exists())
    })?;
    assert_eq!(waiting.try_wait()?, None);
    drop(waiting.stdin.take());
    let ended = wait_for("the worker ends", DEADLINE, || {
        Ok(waiting.try_wait()?.is_some())
    });
    // If the check fails, the worker must not outlive the test.
    waiting.kill()?;
    ended
}
