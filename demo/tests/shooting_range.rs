//! Tests of I2 and I3 when the state changes between deliveries: a duplicate of a shot is delivered
//! after the target has moved and after the server has been restarted.

use anyhow::{Context, Result};
use idem_cluster::{Cluster, Install};
use idem_demo::range::{Config, System, Trial, Until, Verdict};
use idem_testkit::{DEADLINE, Session, until};

fn server() -> Result<Cluster> {
    Cluster::builder(&Install::from_env()?)
        .name("range")
        .setting("shared_buffers", "64MB")
        .start()
}

/// I2, I3: each attempt has one fact, and every duplicate gets the same fact. The server is
/// restarted after the first phase and killed during the second phase.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_i3_duplicates_get_the_same_fact_across_restarts() -> Result<()> {
    let mut cluster = server()?;
    cluster.psql("postgres", "CREATE EXTENSION idem")?;
    let mut config = Config::new(&cluster.connection_string("postgres"));
    config.shots = 1_000;
    config.seed = 7;

    let mut trial = Trial::prepare(&config, System::Idem).await?;
    trial.play(Until::Deliveries(900)).await?;
    let before = trial.recorded().await?;
    cluster.restart()?;
    assert_eq!(
        trial.recorded().await?,
        before,
        "the restart changes no recorded fact"
    );

    // The server is killed in the middle of the remaining deliveries.
    let watch = trial.watch();
    let play = tokio::spawn(async move { trial.play(Until::Drained).await.map(|()| trial) });
    until("the remaining deliveries have started", async || {
        Ok(watch.state.transport.counts().deliveries > 1_200)
    })
    .await?;
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.kill()?;
        cluster.start()?;
        anyhow::Ok(cluster)
    })
    .await??;
    anyhow::ensure!(
        !play.is_finished(),
        "the server was killed after the last delivery"
    );
    let trial = tokio::time::timeout(2 * DEADLINE, play)
        .await
        .context("the range did not end")???;

    let after = trial.recorded().await?;
    assert_eq!(after.len(), 1_000, "every attempt has its fact");
    assert!(
        after.values().all(|facts| facts.len() == 1),
        "an attempt has more than one fact"
    );
    for (attempt, facts) in &before {
        assert_eq!(
            after.get(attempt),
            Some(facts),
            "the fact is the one from before the restart"
        );
    }
    for (attempt, received) in trial.facts() {
        assert!(
            received.iter().all(|fact| *fact == after[&attempt][0]),
            "{attempt}: {received:?}"
        );
    }
    let idem = trial.report().await?;
    assert_eq!(idem.verdict, Verdict::default());
    assert!(
        !before.is_empty() && before.len() < 1_000,
        "the restart was not between the first and the last attempt"
    );
    assert!(idem.counts.duplicates > 200, "{:?}", idem.counts);
    assert!(
        idem.retold_facts() > 100,
        "too few facts were published again"
    );

    // Send the same traffic, without restarts, to systems that decide again for a duplicate. Such a
    // system publishes facts that contradict each other.
    for system in [System::Nothing, System::ById] {
        let mut trial = Trial::prepare(&config, system).await?;
        trial.play(Until::Drained).await?;
        let verdict = trial.report().await?.verdict;
        assert!(
            !verdict.is_right(),
            "the failures of {system:?} are not detected: {verdict:?}"
        );
        assert!(
            verdict.contradictions > 0,
            "no target has moved between a shot and its duplicate: {verdict:?}"
        );
    }
    drop(cluster);
    Ok(())
}

/// I3: one message, delivered again after a move of the target, a restart and a kill of the server,
/// gets the fact of its first delivery.
#[tokio::test]
async fn i3_duplicate_after_a_move_and_restart_gets_the_same_fact() -> Result<()> {
    let mut cluster = server()?;
    let session = connect(&cluster).await?;
    session
        .run(
            "CREATE EXTENSION idem; CREATE TABLE target (position int);
             INSERT INTO target VALUES (1)",
        )
        .await?;
    let first = fire(&session).await?;
    assert!(first.ends_with("|\"hit\""), "{first}");
    session.run("UPDATE target SET position = 2").await?;
    assert_eq!(
        fire(&session).await?,
        first,
        "the target has moved and the fact is the same"
    );
    drop(session);
    cluster.restart()?;
    assert_eq!(fire(&connect(&cluster).await?).await?, first);
    cluster.kill()?;
    cluster.start()?;
    let session = connect(&cluster).await?;
    assert_eq!(fire(&session).await?, first);
    assert_eq!(
        session.text("SELECT count(*) FROM idem.outbox_row").await?,
        "1",
        "there is one fact"
    );
    Ok(())
}

/// Processes `FireAt` for position 1. Returns the message id and the payload of the fact.
async fn fire(session: &Session) -> Result<String> {
    session
        .run(
            "DO $$ BEGIN \
             IF idem_try_claim('attempt', 'targets') THEN \
                 PERFORM idem_record_effects('attempt', 'targets',
                     jsonb_build_array(jsonb_build_object('topic', 'facts', 'payload', \
                         CASE position WHEN 1 THEN 'hit' ELSE 'missed' END))) FROM target; \
             END IF; END $$",
        )
        .await?;
    session
        .text(
            "SELECT message_id, convert_from(payload, 'UTF8')
               FROM idem_effects('attempt', 'targets')",
        )
        .await
}

async fn connect(cluster: &Cluster) -> Result<Session> {
    Session::connect(cluster, "postgres", "postgres").await
}
