//! Tests of `ALTER EXTENSION idem UPDATE` from the previous version. Until it runs, the new library
//! serves the previous version of the extension.

use anyhow::{Result, ensure};
use idem_cluster::Cluster;
use idem_testkit::Session;
use idem_testkit::claimers::Claimers;
use idem_testkit::private_install::{PREVIOUS, PrivateInstall, create};
use idem_testkit::ring::{SEALED, build_filters, make_due, rotate, rotate_once};

use super::claim;

/// The number of messages that each phase of the test claims at least.
const PHASE: u64 = 200;

async fn previous(cluster: &Cluster, database: &str) -> Result<Session> {
    create(cluster, database, PREVIOUS).await
}

/// I1, I6: messages that are claimed before, during and after the upgrade are claimed once, and
/// stay claimed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_i6_upgrade_under_load_keeps_each_claim() -> Result<()> {
    let copy = PrivateInstall::with_previous()?;
    let cluster = copy.start()?;
    let session = previous(&cluster, "shop").await?;
    let mut claimers = Claimers::start(&cluster, &session).await?;
    claimers.until_claimed(PHASE).await?;
    rotate_once(&session, "standard").await?;
    claimers.until_claimed(PHASE).await?;
    session.run("ALTER EXTENSION idem UPDATE").await?;
    claimers.until_claimed(PHASE).await?;
    build_filters(&session).await?;
    for _ in 0..SEALED - 1 {
        claimers.until_claimed(PHASE / 4).await?;
        rotate_once(&session, "standard").await?;
    }
    build_filters(&session).await?;
    claimers.until_claimed(PHASE).await?;
    claimers.end(&session).await
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
    build_filters(&session).await?;
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
        rotate_once(&session, "standard").await?;
    }
    let before = session.text(remembers).await?;
    assert_ne!(before, "", "the third rotation has removed claims");
    session.run("ALTER EXTENSION idem UPDATE").await?;
    assert_eq!(session.text(remembers).await?, before);
    for rotation in 0..SEALED - 2 {
        for id in ["m1", "m2"] {
            assert_eq!(claim(&session, id).await?, "f", "{id} after {rotation}");
        }
        rotate_once(&session, "standard").await?;
        assert_eq!(session.text(remembers).await?, before, "after {rotation}");
    }
    rotate_once(&session, "standard").await?;
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
    Session::superuser(&cluster, "postgres")
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
        let session = Session::superuser(&cluster, database).await?;
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
        build_filters(&session).await?;
        for _ in 0..SEALED - 1 {
            rotate_once(&session, "standard").await?;
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
        rotate_once(&session, "standard").await?;
    }
    let dump = cluster.run("pg_dump", ["shop"], &[])?;
    Session::superuser(&cluster, "postgres")
        .await?
        .run("CREATE DATABASE restored TEMPLATE template0")
        .await?;
    cluster.psql("restored", &dump)?;
    let restored = Session::superuser(&cluster, "restored").await?;
    let version = "SELECT extversion FROM pg_extension WHERE extname = 'idem'";
    assert_eq!(restored.text(version).await?, env!("CARGO_PKG_VERSION"));
    build_filters(&restored).await?;
    for _ in 0..SEALED - 2 {
        rotate_once(&restored, "standard").await?;
        for id in ["m0", "m1"] {
            assert_eq!(claim(&restored, id).await?, "f", "{id}");
        }
    }
    Ok(())
}
