//! Tests of I1 and I6 with restarts: the state of a rotation is in `idem.ring`, so the rotation
//! continues with the step that a restart interrupted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install, Shutdown};
use idem_testkit::ring::{SEALED, make_due, rotate};
use idem_testkit::{DEADLINE, Session, until};

/// Starts a server without a worker, so that only the test executes the steps of a rotation.
fn server(name: &str) -> Result<Cluster> {
    Cluster::builder(&Install::from_env()?)
        .name(name)
        .setting("shared_buffers", "32MB")
        .setting("idem.databases", "none")
        .start()
}

async fn session(cluster: &Cluster, database: &str) -> Result<Session> {
    Session::connect(cluster, database, "postgres").await
}

async fn new_database(cluster: &Cluster, name: &str) -> Result<Session> {
    session(cluster, "postgres")
        .await?
        .run(&format!("CREATE DATABASE {name} TEMPLATE template0"))
        .await?;
    let session = session(cluster, name).await?;
    session.run("CREATE EXTENSION idem").await?;
    Ok(session)
}

/// The moment at which a rotation is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The opening step has been executed, and its transaction is not committed.
    Opening,
    /// The opening step is committed, and the fence after this step waits for a running claim.
    Opened,
    Rotating,
    Rotated,
    Emptying,
}

impl Moment {
    /// Returns the steps that are committed at this moment, and the step that is not committed.
    fn steps(self, ring: &str) -> (&'static [&'static str], Option<&'static str>) {
        match (self, ring) {
            (Self::Opening, _) => (&[], Some("opened")),
            (Self::Opened, _) => (&["opened"], None),
            // The outbox has no opening step.
            (Self::Rotating, "outbox") => (&[], Some("rotated")),
            (Self::Rotating, _) => (&["opened"], Some("rotated")),
            (Self::Rotated, "outbox") => (&["rotated"], None),
            (Self::Rotated, _) => (&["opened", "rotated"], None),
            (Self::Emptying, "outbox") => (&["rotated"], Some("emptied")),
            (Self::Emptying, _) => (&["opened", "rotated"], Some("emptied")),
        }
    }
}

/// Executes steps until the rotation is idle. Returns the executed steps.
async fn finish(session: &Session, ring: &str) -> Result<Vec<String>> {
    let mut steps = Vec::new();
    loop {
        let step = rotate(session, ring).await?;
        if step == "idle" {
            return Ok(steps);
        }
        ensure!(
            ["opened", "rotated", "emptied"].contains(&step.as_str()),
            "{step}"
        );
        steps.push(step);
    }
}

/// Claims an id. Returns true if the id was not claimed before.
async fn claim(session: &Session, id: &str) -> Result<bool> {
    let result = session
        .text(&format!("SELECT idem_try_claim('{id}', 'orders')"))
        .await?;
    Ok(result == "t")
}

/// Claims an id with an effect. Returns true if the id was not claimed before.
async fn record(session: &Session, id: &str) -> Result<bool> {
    let result = session
        .text(&format!(
            r#"SELECT idem_try_record('{id}', 'orders',
                   '[{{"topic": "shipped", "payload": {{"id": "{id}"}}}}]')"#
        ))
        .await?;
    Ok(result == "t")
}

async fn effects(session: &Session, id: &str) -> Result<String> {
    session
        .text(&format!(
            "SELECT message_id, convert_from(payload, 'UTF8') FROM idem_effects('{id}', 'orders')"
        ))
        .await
}

/// Interrupts one rotation in a new database, finishes it and, for a ring of claims, rotates until
/// the first claim is removed. Asserts that no claim and no effect is lost or duplicated.
async fn assert_interruption_loses_nothing(
    cluster: &mut Cluster,
    database: &str,
    ring: &str,
    moment: Moment,
    how: Shutdown,
) -> Result<()> {
    let (committed, under_way) = moment.steps(ring);
    let maintainer = new_database(cluster, database).await?;
    ensure!(record(&maintainer, "before").await?);
    make_due(&maintainer, ring).await?;
    for step in committed {
        ensure!(record(&maintainer, &format!("before {step}")).await?);
        assert_eq!(rotate(&maintainer, ring).await?, *step);
    }
    let mut known = vec!["before".to_owned(), "last".to_owned()];
    known.extend(committed.iter().map(|step| format!("before {step}")));
    ensure!(record(&maintainer, "last").await?);
    let mut recorded = Vec::new();
    for id in &known {
        recorded.push(effects(&maintainer, id).await?);
    }

    // Make a claim in a transaction that stays open. After a committed step the rotation waits for
    // this transaction.
    let consumer = session(cluster, database).await?;
    consumer.run("BEGIN").await?;
    ensure!(record(&consumer, "running").await?);
    if under_way.is_none() {
        assert_eq!(rotate(&maintainer, ring).await?, "waiting");
    } else {
        consumer.run("ROLLBACK").await?;
        maintainer.run("BEGIN").await?;
        assert_eq!(
            rotate(&maintainer, ring).await?,
            under_way.unwrap_or_default()
        );
    }

    cluster.stop(how)?;
    cluster.start()?;

    let maintainer = session(cluster, database).await?;
    let rest = finish(&maintainer, ring).await?;
    let all: &[&str] = if ring == "outbox" {
        &["rotated", "emptied"]
    } else {
        &["opened", "rotated", "emptied"]
    };
    assert_eq!(
        rest,
        all[committed.len()..],
        "the rotation continues with the step that was not committed"
    );
    for (id, recorded) in known.iter().zip(&recorded) {
        assert!(!claim(&maintainer, id).await?, "{id} is a duplicate");
        assert!(recorded.contains(id), "{recorded}");
        assert_eq!(
            effects(&maintainer, id).await?,
            *recorded,
            "the effects are the same"
        );
    }
    ensure!(
        claim(&maintainer, "running").await?,
        "the transaction of the claim ended without a commit"
    );
    let published = maintainer
        .text(
            "SELECT string_agg(convert_from(payload, 'UTF8')::json ->> 'id', ',' ORDER BY seq)
               FROM idem_relay_next('default')",
        )
        .await?;
    let mut in_order = known.clone();
    in_order.retain(|id| id != "last");
    in_order.push("last".to_owned());
    assert_eq!(
        published,
        in_order.join(","),
        "every effect is published in order"
    );

    if ring != "outbox" {
        // These rotations remove the first claim.
        for _ in 0..SEALED {
            make_due(&maintainer, ring).await?;
            assert_eq!(finish(&maintainer, ring).await?, all);
        }
        ensure!(
            claim(&maintainer, "before").await?,
            "the slice of the claim is emptied"
        );
    }
    Ok(())
}

/// I1, I6: a fast or an immediate restart in the middle of each step loses and duplicates nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_restart_in_each_step_loses_and_duplicates_nothing() -> Result<()> {
    use Moment::{Emptying, Opened, Opening, Rotated, Rotating};
    let mut cluster = server("restart")?;
    for how in [Shutdown::Fast, Shutdown::Immediate] {
        for (ring, moments) in [
            (
                "standard",
                &[Opening, Opened, Rotating, Rotated, Emptying][..],
            ),
            ("outbox", &[Rotating, Rotated, Emptying][..]),
        ] {
            for &moment in moments {
                let database = format!("{ring}_{moment:?}_{how:?}").to_lowercase();
                assert_interruption_loses_nothing(&mut cluster, &database, ring, moment, how)
                    .await
                    .context(database)?;
            }
        }
    }
    Ok(())
}

/// I1: the fence waits for a claim in a prepared transaction, before and after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_prepared_claim_holds_back_the_fence_across_a_restart() -> Result<()> {
    let mut cluster = server("prepared")?;
    let consumer = new_database(&cluster, "prepared").await?;
    consumer.run("BEGIN").await?;
    ensure!(claim(&consumer, "prepared").await?);
    consumer.run("PREPARE TRANSACTION 'held'").await?;
    make_due(&consumer, "standard").await?;
    assert_eq!(rotate(&consumer, "standard").await?, "opened");
    assert_eq!(rotate(&consumer, "standard").await?, "waiting");

    // The time of the server's start is the same after a crash of a backend.
    cluster.crash_backend(consumer.pid().await?)?;
    cluster.wait_until_ready(DEADLINE)?;
    let crashed = session(&cluster, "prepared").await?;
    assert_eq!(
        rotate(&crashed, "standard").await?,
        "waiting",
        "the prepared transaction holds back the fence after a crash"
    );
    cluster.stop(Shutdown::Immediate)?;
    cluster.start()?;
    let consumer = session(&cluster, "prepared").await?;
    assert_eq!(
        rotate(&consumer, "standard").await?,
        "waiting",
        "the prepared transaction still holds back the fence"
    );
    consumer.run("COMMIT PREPARED 'held'").await?;
    assert_eq!(finish(&consumer, "standard").await?, ["rotated", "emptied"]);
    make_due(&consumer, "standard").await?;
    assert_eq!(
        finish(&consumer, "standard").await?,
        ["opened", "rotated", "emptied"]
    );
    ensure!(
        !claim(&consumer, "prepared").await?,
        "the claim is found until its slice is truncated"
    );
    Ok(())
}

/// I6: a claim that is made while a maintainer waits at the fence is kept for its whole retention.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_claim_made_during_a_fence_is_kept_for_its_retention() -> Result<()> {
    const RETENTION: f64 = 1.0;
    let cluster = server("fence")?;
    let observer = new_database(&cluster, "fence").await?;
    for ring in ["short", "standard"] {
        observer
            .run(&format!(
                "SELECT idem_set_retention('{ring}', '{RETENTION} seconds')"
            ))
            .await?;
    }
    let clock = async |session: &Session| -> Result<f64> {
        Ok(session
            .text("SELECT extract(epoch FROM clock_timestamp())")
            .await?
            .parse()?)
    };

    let consumer = session(&cluster, "fence").await?;
    consumer.run("BEGIN").await?;
    ensure!(claim(&consumer, "early").await?);
    make_due(&observer, "standard").await?;
    assert_eq!(rotate(&observer, "standard").await?, "opened");

    // A maintainer waits at the fence, in a transaction that began long before the ring can rotate.
    let maintainer = session(&cluster, "fence").await?;
    let pid = maintainer.pid().await?;
    let maintaining = tokio::spawn(async move {
        let done = maintainer.run("CALL idem_maintain()").await;
        (maintainer, done)
    });
    until(
        "the maintainer has waited for longer than the retention",
        async || {
            let waited = observer
                .text(&format!(
                    "SELECT wait_event = 'Extension' AND clock_timestamp() - xact_start >
                         '1.2 seconds' FROM pg_stat_activity WHERE pid = {pid}"
                ))
                .await?;
            Ok(waited == "t")
        },
    )
    .await?;

    let claimed_from = clock(&observer).await?;
    ensure!(claim(&consumer, "late").await?);
    consumer.run("COMMIT").await?;
    let (maintainer, done) = maintaining.await?;
    done?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut checks = 0;
    loop {
        maintainer.run("CALL idem_maintain()").await?;
        let found = observer
            .text("SELECT idem_is_claimed('late', 'orders')")
            .await?;
        if clock(&observer).await? >= claimed_from + RETENTION {
            break;
        }
        ensure!(Instant::now() < deadline);
        assert_eq!(
            found, "t",
            "the claim was removed before the end of its retention"
        );
        checks += 1;
    }
    assert!(checks > 0, "the test was too slow to check the claim");
    Ok(())
}
