//! Tests of `ALTER EXTENSION idem UPDATE` from the previous version. Until it runs, the new library
//! serves the previous version of the extension.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Result, ensure};
use idem_cluster::Cluster;
use idem_testkit::ring::{SEALED, make_due, rotate, rotations};
use idem_testkit::{Session, until};
use rand::RngExt as _;
use tokio::task::JoinSet;

use super::private_install::{PREVIOUS, PrivateInstall, create};
use super::{claim, connect};

const CLAIMERS: usize = 3;
/// The number of messages that each phase of the test claims at least.
const PHASE: u64 = 200;

/// What the claimers share.
struct Load {
    /// The messages with smaller numbers exist.
    messages: AtomicU64,
    claimed: AtomicU64,
    is_over: AtomicBool,
}

/// Claims messages, many of them repeatedly, until the load is over. Each new claim inserts a row.
async fn work(session: Session, load: Arc<Load>) -> Result<()> {
    while !load.is_over.load(Ordering::Relaxed) {
        let newest = load.messages.fetch_add(1, Ordering::Relaxed);
        let id = rand::rng().random_range(newest / 2..=newest);
        session.run("BEGIN").await?;
        if claim(&session, &format!("m{id}")).await? == "t" {
            session
                .run(&format!("INSERT INTO done VALUES ('m{id}')"))
                .await?;
            load.claimed.fetch_add(1, Ordering::Relaxed);
        }
        session.run("COMMIT").await?;
    }
    Ok(())
}

impl Load {
    /// Waits until the claimers have claimed this many messages. Returns the error of a claimer
    /// that has ended.
    async fn until_claimed(&self, count: u64, claimers: &mut Claimers) -> Result<()> {
        let before = self.claimed.load(Ordering::Relaxed);
        until("messages are claimed", async || {
            if let Some(ended) = claimers.try_join_next() {
                ended??;
            }
            Ok(self.claimed.load(Ordering::Relaxed) >= before + count)
        })
        .await
    }
}

type Claimers = JoinSet<Result<()>>;

/// Rotates the ring once, while transactions run.
async fn rotate_once(session: &Session) -> Result<()> {
    let before = rotations(session, "standard").await?;
    make_due(session, "standard").await?;
    until("the ring has rotated", async || {
        let step = rotate(session, "standard").await?;
        Ok(step == "emptied" && rotations(session, "standard").await? > before)
    })
    .await
}

async fn until_each_slice_has_a_filter(session: &Session) -> Result<()> {
    until("each slice has a filter", async || {
        session
            .run("SELECT idem.build_filters(r) FROM generate_series(0, 2) r")
            .await?;
        let missing = "SELECT count(*) FROM idem.filters WHERE status <> 'complete'";
        Ok(session.text(missing).await? == "0")
    })
    .await
}

async fn previous(cluster: &Cluster, database: &str) -> Result<Session> {
    create(cluster, database, PREVIOUS).await?;
    connect(cluster, database).await
}

/// I1, I6: messages that are claimed before, during and after the upgrade are claimed once, and
/// stay claimed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_upgrade_under_load_keeps_each_claim() -> Result<()> {
    let copy = PrivateInstall::with_previous()?;
    let cluster = copy.start()?;
    let session = previous(&cluster, "shop").await?;
    session.run("CREATE TABLE done (id text)").await?;
    let load = Arc::new(Load {
        messages: AtomicU64::new(0),
        claimed: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let mut claimers = Claimers::new();
    for _ in 0..CLAIMERS {
        claimers.spawn(work(connect(&cluster, "shop").await?, Arc::clone(&load)));
    }
    load.until_claimed(PHASE, &mut claimers).await?;
    rotate_once(&session).await?;
    load.until_claimed(PHASE, &mut claimers).await?;
    session.run("ALTER EXTENSION idem UPDATE").await?;
    load.until_claimed(PHASE, &mut claimers).await?;
    until_each_slice_has_a_filter(&session).await?;
    for _ in 0..SEALED - 1 {
        load.until_claimed(PHASE / 4, &mut claimers).await?;
        rotate_once(&session).await?;
    }
    until_each_slice_has_a_filter(&session).await?;
    load.until_claimed(PHASE, &mut claimers).await?;
    load.is_over.store(true, Ordering::Relaxed);
    while let Some(ended) = claimers.join_next().await {
        ended??;
    }
    let twice = "SELECT count(*) - count(DISTINCT id) FROM done";
    assert_eq!(session.text(twice).await?, "0", "a message was done twice");
    let lost = "SELECT count(*) FROM done WHERE idem_try_claim(id, 'orders')";
    session.run("BEGIN").await?;
    assert_eq!(session.text(lost).await?, "0", "a claim was lost");
    session.run("COMMIT").await
}

/// I1: the previous version has no constraint that invalidates a filter, so the library uses none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_previous_version_is_served_without_filters() -> Result<()> {
    let copy = PrivateInstall::with_previous()?;
    let cluster = copy.start()?;
    let session = previous(&cluster, "shop").await?;
    ensure!(claim(&session, "first").await? == "t");
    session.run("CALL idem_maintain()").await?;
    session
        .run(
            "INSERT INTO idem.inbox_standard_2 (key, claimed_at, destination, id)
                 SELECT idem.key_of('arrived'), now(), id, 'arrived' FROM idem.destination",
        )
        .await?;
    assert_eq!(claim(&session, "arrived").await?, "f");
    assert_eq!(claim(&session, "first").await?, "f");
    session.run("ALTER EXTENSION idem UPDATE").await?;
    until_each_slice_has_a_filter(&session).await?;
    for id in ["arrived", "first"] {
        assert_eq!(claim(&session, id).await?, "f", "{id}");
    }
    assert_eq!(claim(&session, "new").await?, "t");
    Ok(())
}

/// I6: a ring that has forgotten claims does not say after the upgrade that it knows all of them,
/// and its first rotations remove only the added slices.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_upgraded_ring_knows_since_when_it_remembers() -> Result<()> {
    let copy = PrivateInstall::with_previous()?;
    let cluster = copy.start()?;
    let session = previous(&cluster, "shop").await?;
    let remembers = "SELECT remembers_since FROM idem.ring WHERE name = 'standard'";
    for n in 0..3 {
        assert_eq!(claim(&session, &format!("m{n}")).await?, "t");
        rotate_once(&session).await?;
    }
    let before = session.text(remembers).await?;
    assert_ne!(before, "", "the third rotation has removed claims");
    session.run("ALTER EXTENSION idem UPDATE").await?;
    assert_eq!(session.text(remembers).await?, before);
    for rotation in 0..SEALED - 2 {
        for id in ["m1", "m2"] {
            assert_eq!(claim(&session, id).await?, "f", "{id} after {rotation}");
        }
        rotate_once(&session).await?;
        assert_eq!(session.text(remembers).await?, before, "after {rotation}");
    }
    rotate_once(&session).await?;
    assert_eq!(claim(&session, "m1").await?, "t", "its slice was removed");
    assert_eq!(claim(&session, "m2").await?, "f");
    assert_ne!(session.text(remembers).await?, before);
    Ok(())
}

/// I9: roles keep their kinds. They get the privileges that the new version adds when idem_grant is
/// called again; these privileges are dumped, and can be revoked before the role is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i9_roles_are_granted_again_after_an_upgrade() -> Result<()> {
    let copy = PrivateInstall::with_previous()?;
    let cluster = copy.start()?;
    let session = previous(&cluster, "shop").await?;
    session
        .run("CREATE ROLE watcher LOGIN; CREATE ROLE chief LOGIN; CREATE ROLE worker LOGIN")
        .await?;
    let grants = "SELECT idem_grant('watcher', 'monitor'), idem_grant('chief', 'admin'),
                         idem_grant('worker', 'consumer')";
    session.run(grants).await?;
    session.run("ALTER EXTENSION idem UPDATE").await?;
    session.run(grants).await?;
    let worker = Session::connect(&cluster, "shop", "worker").await?;
    assert_eq!(claim(&worker, "m1").await?, "t");
    for refused in [
        "SELECT * FROM idem.filters",
        "SELECT idem.invalidate_filter('idem.inbox_standard_0'::regclass)",
        "SELECT * FROM idem.inbox_standard_7",
    ] {
        assert_eq!(
            worker.refused(refused).await?.sqlstate,
            "42501",
            "{refused}"
        );
    }
    let dump = cluster.run("pg_dump", ["shop"], &[])?;
    connect(&cluster, "postgres")
        .await?
        .run("CREATE DATABASE restored TEMPLATE template0")
        .await?;
    cluster.psql("restored", &dump)?;
    for database in ["shop", "restored"] {
        for role in ["watcher", "chief"] {
            let reader = Session::connect(&cluster, database, role).await?;
            let filters = "SELECT count(*) > 0 FROM idem.filters";
            assert_eq!(reader.text(filters).await?, "t", "{role} in {database}");
        }
        let session = connect(&cluster, database).await?;
        session
            .run(
                "SELECT idem_revoke('watcher', 'monitor'), idem_revoke('chief', 'admin'),
                        idem_revoke('worker', 'consumer')",
            )
            .await?;
    }
    session
        .run("DROP ROLE watcher; DROP ROLE chief; DROP ROLE worker")
        .await?;
    let of_dropped_roles = "SELECT count(*) FROM pg_init_privs i, aclexplode(i.initprivs) a
                             WHERE a.grantee <> 0
                               AND NOT EXISTS (SELECT FROM pg_roles r WHERE r.oid = a.grantee)";
    assert_eq!(session.text(of_dropped_roles).await?, "0");
    Ok(())
}

/// I1, I6: an upgrade in the middle of a rotation. The rotation continues with its next step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_upgrade_during_a_rotation_keeps_each_claim() -> Result<()> {
    let copy = PrivateInstall::with_previous()?;
    let cluster = copy.start()?;
    for (steps, rest) in [
        (&["opened"][..], &["rotated", "emptied"][..]),
        (&["opened", "rotated"], &["emptied"]),
    ] {
        let last = steps[steps.len() - 1];
        let session = previous(&cluster, last).await?;
        assert_eq!(claim(&session, "first").await?, "t");
        make_due(&session, "standard").await?;
        for step in steps {
            assert_eq!(rotate(&session, "standard").await?, *step);
            assert_eq!(claim(&session, step).await?, "t");
        }
        session.run("ALTER EXTENSION idem UPDATE").await?;
        assert_eq!(claim(&session, "upgraded").await?, "t", "{last}");
        for step in rest {
            assert_eq!(rotate(&session, "standard").await?, *step);
        }
        until_each_slice_has_a_filter(&session).await?;
        for _ in 0..SEALED - 1 {
            rotate_once(&session).await?;
            for id in ["first", "upgraded"].iter().chain(steps) {
                assert_eq!(claim(&session, id).await?, "f", "{id}, {last}");
            }
        }
    }
    Ok(())
}

/// Clients of the previous version find their functions: each function that a role can be granted
/// has the same arguments and the same result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_of_the_previous_version_stay() -> Result<()> {
    let copy = PrivateInstall::with_previous()?;
    let cluster = copy.start()?;
    let session = previous(&cluster, "shop").await?;
    let functions = "SELECT f.oid::regprocedure || ' ' || pg_get_function_arguments(f.oid)
                            || coalesce(' ' || pg_get_function_result(f.oid), '')
                       FROM pg_proc f
                      WHERE f.proname IN (SELECT k.may_call FROM idem.kind_of_role k)
                      ORDER BY 1";
    let before = session.text(functions).await?;
    session.run("ALTER EXTENSION idem UPDATE").await?;
    let after = session.text(functions).await?;
    let after: Vec<_> = after.lines().collect();
    for function in before.lines() {
        ensure!(after.contains(&function), "{function} is missing");
    }
    ensure!(before.lines().count() > 60, "{before}");
    Ok(())
}

/// I6: a dump of the previous version is restored into this version with its claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i6_dump_of_the_previous_version_is_restored() -> Result<()> {
    let copy = PrivateInstall::with_previous()?;
    let cluster = copy.start()?;
    let session = previous(&cluster, "shop").await?;
    for n in 0..2 {
        assert_eq!(claim(&session, &format!("m{n}")).await?, "t");
        rotate_once(&session).await?;
    }
    let dump = cluster.run("pg_dump", ["shop"], &[])?;
    connect(&cluster, "postgres")
        .await?
        .run("CREATE DATABASE restored TEMPLATE template0")
        .await?;
    cluster.psql("restored", &dump)?;
    let restored = connect(&cluster, "restored").await?;
    let version = "SELECT extversion FROM pg_extension WHERE extname = 'idem'";
    assert_eq!(restored.text(version).await?, env!("CARGO_PKG_VERSION"));
    until_each_slice_has_a_filter(&restored).await?;
    for _ in 0..SEALED - 2 {
        rotate_once(&restored).await?;
        for id in ["m0", "m1"] {
            assert_eq!(claim(&restored, id).await?, "f", "{id}");
        }
    }
    Ok(())
}
