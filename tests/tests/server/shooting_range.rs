//! I2 and I3 where it hurts: a duplicate of a shot comes after the target has moved, and after the
//! server has been restarted.

use anyhow::{Context, Result};
use idem_cluster::{Cluster, Install};
use idem_tests::harness::{DEADLINE, Session, until};
use idem_tests::range::{Config, System, Trial, Until, Verdict};

fn server() -> Result<Cluster> {
    Cluster::builder(&Install::from_env()?)
        .name("range")
        .setting("shared_buffers", "64MB")
        .start()
}

/// The whole range, with the server restarted between two phases and killed within one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i2_i3_one_fact_per_attempt_and_the_same_for_every_duplicate_across_restarts() -> Result<()>
{
    let mut cluster = server()?;
    cluster.psql("postgres", "CREATE EXTENSION idem")?;
    let mut config = Config::new(cluster.connection_string("postgres"));
    config.shots = 1_000;
    config.seed = 7;

    let mut trial = Trial::prepare(&config, System::Idem).await?;
    trial.play(Until::Deliveries(900)).await?;
    let before = trial.recorded().await?;
    cluster.restart()?;
    assert_eq!(
        trial.recorded().await?,
        before,
        "every fact on record is what it was"
    );

    // Somewhere in the middle of the rest the server dies.
    let watch = trial.watch();
    let play = tokio::spawn(async move { trial.play(Until::Drained).await.map(|()| trial) });
    until("the rest is under way", async || {
        Ok(watch.counts().deliveries > 1_200)
    })
    .await?;
    let cluster = tokio::task::spawn_blocking(move || {
        cluster.kill()?;
        cluster.start()?;
        anyhow::Ok(cluster)
    })
    .await??;
    anyhow::ensure!(!play.is_finished(), "it died after the end");
    let trial = tokio::time::timeout(2 * DEADLINE, play)
        .await
        .context("the range goes on")???;

    let after = trial.recorded().await?;
    assert_eq!(after.len(), 1_000, "every attempt has its fact");
    assert!(after.values().all(|facts| facts.len() == 1), "and one only");
    for (attempt, facts) in &before {
        assert_eq!(
            after.get(attempt),
            Some(facts),
            "and the one that it had before"
        );
    }
    for (attempt, told) in trial.facts() {
        assert!(
            told.iter().all(|fact| *fact == after[&attempt][0]),
            "{attempt}: {told:?}"
        );
    }
    let idem = trial.report().await?;
    assert_eq!(idem.verdict, Verdict::default());
    assert!(
        !before.is_empty() && before.len() < 1_000,
        "the restart came in between"
    );
    assert!(idem.counts.duplicates > 200, "{:?}", idem.counts);
    assert!(
        idem.retold_facts() > 100,
        "facts were told again, and were the same"
    );

    // The same traffic, without all this trouble: whoever decides anew contradicts.
    for system in [System::Nothing, System::ById] {
        let mut trial = Trial::prepare(&config, system).await?;
        trial.play(Until::Drained).await?;
        let verdict = trial.report().await?.verdict;
        assert!(
            !verdict.is_right(),
            "{system:?} must be caught: {verdict:?}"
        );
        assert!(
            verdict.contradictions > 0,
            "targets moved between a shot and its duplicate: {verdict:?}"
        );
    }
    drop(cluster);
    Ok(())
}

/// The same story once and by hand.
#[tokio::test]
async fn i3_a_duplicate_after_a_move_and_a_restart_is_told_what_was_decided() -> Result<()> {
    let mut cluster = server()?;
    let session = connect(&cluster).await?;
    session
        .run("CREATE EXTENSION idem; CREATE TABLE target (position int); INSERT INTO target VALUES (1)")
        .await?;
    let first = fire(&session).await?;
    assert!(first.ends_with("|\"hit\""), "{first}");
    session.run("UPDATE target SET position = 2").await?;
    assert_eq!(
        fire(&session).await?,
        first,
        "the target has moved, the fact has not"
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
        "one fact"
    );
    Ok(())
}

/// Handles `FireAt` at position 1; answers id and bytes of the fact.
async fn fire(session: &Session) -> Result<String> {
    session
        .run(
            "DO $$ BEGIN \
             IF idem_try_claim('attempt', 'targets') THEN \
                 PERFORM idem_record_effects('attempt', 'targets', jsonb_build_array(jsonb_build_object( \
                     'topic', 'facts', 'payload', CASE position WHEN 1 THEN 'hit' ELSE 'missed' END))) FROM target; \
             END IF; END $$",
        )
        .await?;
    session
        .text("SELECT message_id, convert_from(payload, 'UTF8') FROM idem_effects('attempt', 'targets')")
        .await
}

async fn connect(cluster: &Cluster) -> Result<Session> {
    Session::connect(cluster, "postgres", "postgres").await
}
