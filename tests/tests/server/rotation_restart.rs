//! I1 and I6 across restarts: the state of a rotation is in `idem.ring`, so it goes on from
//! whatever step it was in.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use idem_cluster::{Cluster, Install, Shutdown};
use idem_tests::harness::{Session, until};

/// No worker: every step is a decision of the test.
fn server(name: &str) -> Result<Cluster> {
    Cluster::builder(&Install::from_env()?)
        .name(name)
        .setting("shared_buffers", "32MB")
        .setting("idem.databases", "nobody")
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

/// Where a rotation is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The transaction of the step has done its work, and is not committed.
    Opening,
    /// The step is committed, and a running claim pins the fence behind it.
    Opened,
    Turning,
    Turned,
    Emptying,
}

impl Moment {
    /// The steps that are committed before it, and the one that is not.
    fn steps(self, ring: &str) -> (&'static [&'static str], Option<&'static str>) {
        match (self, ring) {
            (Self::Opening, _) => (&[], Some("opened")),
            (Self::Opened, _) => (&["opened"], None),
            // The outbox does not open.
            (Self::Turning, "outbox") => (&[], Some("turned")),
            (Self::Turning, _) => (&["opened"], Some("turned")),
            (Self::Turned, "outbox") => (&["turned"], None),
            (Self::Turned, _) => (&["opened", "turned"], None),
            (Self::Emptying, "outbox") => (&["turned"], Some("emptied")),
            (Self::Emptying, _) => (&["opened", "turned"], Some("emptied")),
        }
    }
}

async fn make_due(session: &Session, ring: &str) -> Result<()> {
    session
        .run(&format!(
            "UPDATE idem.ring SET turned_at = turned_at - retention WHERE name = '{ring}'"
        ))
        .await
}

async fn rotate(session: &Session, ring: &str) -> Result<String> {
    session
        .text(&format!("SELECT idem.rotate('{ring}', false)"))
        .await
}

/// Steps until nothing is left to do; answers the steps.
async fn finish(session: &Session, ring: &str) -> Result<Vec<String>> {
    let mut steps = Vec::new();
    loop {
        let step = rotate(session, ring).await?;
        if step == "idle" {
            return Ok(steps);
        }
        ensure!(
            ["opened", "turned", "emptied"].contains(&step.as_str()),
            "{step}"
        );
        steps.push(step);
    }
}

async fn claim(session: &Session, id: &str) -> Result<bool> {
    let answer = session
        .text(&format!("SELECT idem_try_claim('{id}', 'orders')"))
        .await?;
    Ok(answer == "t")
}

/// Claims with an effect.
async fn record(session: &Session, id: &str) -> Result<bool> {
    let answer = session
        .text(&format!(
            r#"SELECT idem_try_record('{id}', 'orders', '[{{"topic": "shipped", "payload": {{"id": "{id}"}}}}]')"#
        ))
        .await?;
    Ok(answer == "t")
}

async fn effects(session: &Session, id: &str) -> Result<String> {
    session
        .text(&format!(
            "SELECT message_id, convert_from(payload, 'UTF8') FROM idem_effects('{id}', 'orders')"
        ))
        .await
}

/// One interrupted rotation, from a fresh database to a ring that has forgotten.
async fn interrupted(
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

    // A claim whose transaction runs: with a committed step before it, it freezes the rotation.
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
        &["turned", "emptied"]
    } else {
        &["opened", "turned", "emptied"]
    };
    assert_eq!(
        rest,
        all[committed.len()..],
        "it goes on with the step that was not committed"
    );
    for (id, recorded) in known.iter().zip(&recorded) {
        assert!(!claim(&maintainer, id).await?, "{id} is a duplicate");
        assert!(recorded.contains(id), "{recorded}");
        assert_eq!(effects(&maintainer, id).await?, *recorded, "the same facts");
    }
    ensure!(
        claim(&maintainer, "running").await?,
        "its transaction has ended without a commit"
    );
    let published = maintainer
        .text("SELECT string_agg(convert_from(payload, 'UTF8')::json ->> 'id', ',' ORDER BY seq) FROM idem_relay_next('default')")
        .await?;
    let mut in_order = known.clone();
    in_order.retain(|id| id != "last");
    in_order.push("last".to_owned());
    assert_eq!(published, in_order.join(","), "every effect, in order");

    if ring != "outbox" {
        // Two more turns and what was claimed before is forgotten: the ring does turn.
        for _ in 0..2 {
            make_due(&maintainer, ring).await?;
            assert_eq!(finish(&maintainer, ring).await?, all);
        }
        ensure!(
            claim(&maintainer, "before").await?,
            "forgotten after three turns"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_a_restart_in_the_middle_of_each_step_loses_and_doubles_nothing() -> Result<()> {
    use Moment::{Emptying, Opened, Opening, Turned, Turning};
    let mut cluster = server("restart")?;
    for how in [Shutdown::Fast, Shutdown::Immediate] {
        for (ring, moments) in [
            (
                "standard",
                &[Opening, Opened, Turning, Turned, Emptying][..],
            ),
            ("outbox", &[Turning, Turned, Emptying][..]),
        ] {
            for &moment in moments {
                let database = format!("{ring}_{moment:?}_{how:?}").to_lowercase();
                interrupted(&mut cluster, &database, ring, moment, how)
                    .await
                    .context(database)?;
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_a_prepared_claim_pins_the_fence_across_a_restart() -> Result<()> {
    let mut cluster = server("prepared")?;
    let consumer = new_database(&cluster, "prepared").await?;
    consumer.run("BEGIN").await?;
    ensure!(claim(&consumer, "prepared").await?);
    consumer.run("PREPARE TRANSACTION 'held'").await?;
    make_due(&consumer, "standard").await?;
    assert_eq!(rotate(&consumer, "standard").await?, "opened");
    assert_eq!(rotate(&consumer, "standard").await?, "waiting");

    cluster.stop(Shutdown::Immediate)?;
    cluster.start()?;
    let consumer = session(&cluster, "prepared").await?;
    assert_eq!(
        rotate(&consumer, "standard").await?,
        "waiting",
        "nobody remembers the transaction but the server"
    );
    consumer.run("COMMIT PREPARED 'held'").await?;
    assert_eq!(finish(&consumer, "standard").await?, ["turned", "emptied"]);
    make_due(&consumer, "standard").await?;
    assert_eq!(
        finish(&consumer, "standard").await?,
        ["opened", "turned", "emptied"]
    );
    ensure!(
        !claim(&consumer, "prepared").await?,
        "found until it falls off"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_a_claim_made_while_the_fence_waits_is_kept_for_its_whole_retention() -> Result<()> {
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

    // A maintainer waits at the fence, in a transaction that began long before the ring can turn.
    let maintainer = session(&cluster, "fence").await?;
    let pid = maintainer.pid().await?;
    let maintaining = tokio::spawn(async move {
        let done = maintainer.run("CALL idem_maintain()").await;
        (maintainer, done)
    });
    until("the maintainer has waited for longer than the retention", async || {
        let waited = observer
            .text(&format!(
                "SELECT wait_event = 'Extension' AND clock_timestamp() - xact_start > '1.2 seconds' FROM pg_stat_activity WHERE pid = {pid}"
            ))
            .await?;
        Ok(waited == "t")
    })
    .await?;

    let claimed_from = clock(&observer).await?;
    ensure!(claim(&consumer, "late").await?);
    consumer.run("COMMIT").await?;
    let (maintainer, done) = maintaining.await?;
    done?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut looks = 0;
    loop {
        maintainer.run("CALL idem_maintain()").await?;
        let found = observer
            .text("SELECT idem_is_claimed('late', 'orders')")
            .await?;
        if clock(&observer).await? >= claimed_from + RETENTION {
            break;
        }
        ensure!(Instant::now() < deadline);
        assert_eq!(found, "t", "forgotten before its time");
        looks += 1;
    }
    assert!(looks > 0, "the test was too slow to see anything");
    Ok(())
}
