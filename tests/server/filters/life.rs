//! Filters over restarts, crashes, promotions, restores, and a new installation.

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Shutdown};
use idem_testkit::replica::caught_up;
use idem_testkit::ring::build_filters;
use idem_testkit::{Session, until};

use super::{claim, cluster, seal, status};

/// The slice that takes claims in a ring that has not rotated.
const FIRST: i32 = 0;

/// I1: the filters end with the server. Claims of before are found at once and after the filters
/// are built again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_claims_are_found_after_restart_and_crash() -> Result<()> {
    let mut server = cluster("filters-restart")?.start()?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    build_filters(&session).await?;
    ensure!(claim(&session, "first").await?);
    seal(&session).await?;
    for (n, how) in [Shutdown::Fast, Shutdown::Immediate]
        .into_iter()
        .enumerate()
    {
        server.stop(how)?;
        server.start()?;
        let session = Session::superuser(&server, "shop").await?;
        // The cluster has no worker, so no filter is built before the test does it.
        assert_eq!(status(&session, FIRST).await?, "none");
        ensure!(!claim(&session, "first").await?);
        ensure!(claim(&session, &format!("before the build {n}")).await?);
        build_filters(&session).await?;
        seal(&session).await?;
        for id in ["first", &format!("before the build {n}")] {
            ensure!(!claim(&session, id).await?, "{id}");
        }
    }
    // A backend that crashes makes the server initialize its shared memory.
    let victim = Session::superuser(&server, "shop").await?;
    server.crash_backend(victim.pid().await?)?;
    let mut session = None;
    until("the server accepts connections", async || {
        session = Session::superuser(&server, "shop").await.ok();
        Ok(session.is_some())
    })
    .await?;
    let session = session.expect("a session");
    assert_eq!(status(&session, FIRST).await?, "none");
    build_filters(&session).await?;
    ensure!(!claim(&session, "first").await?);
    Ok(())
}

async fn until_promoted(session: &Session) -> Result<()> {
    until("the server is promoted", async || {
        Ok(session.text("SELECT pg_is_in_recovery()").await? == "f")
    })
    .await
}

/// I1: no filter is built on a standby, because replayed claims are not added to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_promoted_standby_finds_the_replayed_claims() -> Result<()> {
    let mut primary: Cluster = cluster("filters-primary")?.start()?;
    let on_primary = Session::in_database_with_idem(&primary, "shop").await?;
    build_filters(&on_primary).await?;
    let standby = primary.standby().start()?;
    let session = Session::superuser(&standby, "shop").await?;
    let step = "SELECT count(*) FROM generate_series(1, 9) WHERE idem.build_filters(1)";
    assert_eq!(session.text(step).await?, "0");
    let reason = "SELECT reason FROM idem.filters WHERE ring = 'standard' AND slice = 0";
    assert_eq!(
        session.text(reason).await?,
        "filters are built after the promotion of this standby"
    );
    ensure!(claim(&on_primary, "replayed").await?);
    seal(&on_primary).await?;
    caught_up(&on_primary, &session).await?;
    primary.kill()?;
    standby.promote()?;
    until_promoted(&session).await?;
    ensure!(!claim(&session, "replayed").await?);
    build_filters(&session).await?;
    ensure!(!claim(&session, "replayed").await?);
    ensure!(claim(&session, "new").await?);
    Ok(())
}

/// Health reports no slice of a standby, where no filter is built. After the promotion, a large
/// slice is reported until its filter is built.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_reports_missing_filters_only_after_the_promotion() -> Result<()> {
    /// A sealed slice of a ring that has not rotated.
    const LARGE: i32 = 2;
    const HEALTH: &str = "SELECT status, detail FROM idem_health() WHERE check_name = 'filters'";
    let with_filters = "ok|every large slice has a filter";
    let mut primary: Cluster = cluster("filters-health")?.start()?;
    let on_primary = Session::in_database_with_idem(&primary, "shop").await?;
    ensure!(claim(&on_primary, "m").await?);
    // Health reports slices with more than 8 MB.
    on_primary
        .run(&format!(
            "INSERT INTO idem.inbox_standard_{LARGE} (key, claimed_at, destination)
                 SELECT gen_random_uuid(), now(), 1 FROM generate_series(1, 200000);
             ANALYZE idem.inbox_standard_{LARGE};
             SELECT idem_finish_restore()"
        ))
        .await?;
    build_filters(&on_primary).await?;
    assert_eq!(on_primary.text(HEALTH).await?, with_filters);

    let standby = primary.standby().start()?;
    let session = Session::superuser(&standby, "shop").await?;
    caught_up(&on_primary, &session).await?;
    assert_eq!(status(&session, LARGE).await?, "none");
    let size = format!("SELECT pg_relation_size('idem.inbox_standard_{LARGE}') > 8 * 1024 * 1024");
    assert_eq!(session.text(&size).await?, "t");
    let without_filters = "ok|this server uses no filters";
    assert_eq!(session.text(HEALTH).await?, without_filters);

    primary.kill()?;
    standby.promote()?;
    until_promoted(&session).await?;
    let promoted = session.text(HEALTH).await?;
    ensure!(
        promoted.starts_with("warning|claims read large slices")
            && promoted.contains("1 slices of ring standard"),
        "{promoted}"
    );
    build_filters(&session).await?;
    assert_eq!(session.text(HEALTH).await?, with_filters);
    Ok(())
}

/// I1: after a recovery to an earlier moment, the claims of before are found, and those of later
/// are not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_recovery_to_a_moment_has_the_claims_of_before() -> Result<()> {
    let primary: Cluster = cluster("filters-recovery")?.start()?;
    let on_primary = Session::in_database_with_idem(&primary, "shop").await?;
    build_filters(&on_primary).await?;
    let mut recovered = primary
        .standby()
        .setting("recovery_target_name", "moment")
        .setting("recovery_target_action", "promote")
        .start()?;
    recovered.stop(Shutdown::Fast)?;
    ensure!(claim(&on_primary, "before").await?);
    seal(&on_primary).await?;
    on_primary
        .run("SELECT pg_create_restore_point('moment')")
        .await?;
    ensure!(claim(&on_primary, "later").await?);
    recovered.start()?;
    let session = Session::superuser(&recovered, "shop").await?;
    until_promoted(&session).await?;
    assert_eq!(status(&session, FIRST).await?, "none");
    build_filters(&session).await?;
    ensure!(!claim(&session, "before").await?);
    ensure!(claim(&session, "later").await?, "it is not in this history");
    seal(&session).await?;
    ensure!(!claim(&session, "later").await?);
    Ok(())
}

/// I1: an extension that is created again has other tables, and its slices do not have the filters
/// of the earlier ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_extension_created_again_has_its_own_filters() -> Result<()> {
    let server = cluster("filters-again")?.start()?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    for round in 0..3 {
        build_filters(&session).await?;
        ensure!(claim(&session, "m").await?, "round {round}");
        seal(&session).await?;
        ensure!(!claim(&session, "m").await?, "round {round}");
        session
            .run("DROP EXTENSION idem; CREATE EXTENSION idem")
            .await?;
        assert_eq!(status(&session, FIRST).await?, "none", "round {round}");
    }
    Ok(())
}

/// I1: a filter is not built from tables that are not committed, because it would outlive a
/// rollback.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_no_filter_is_built_in_a_transaction_that_published() -> Result<()> {
    let server = cluster("filters-published")?.start()?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    session.run("BEGIN").await?;
    session
        .run("SELECT idem.invalidate('idem.ring'::regclass)")
        .await?;
    let refusal = session.refused("SELECT idem.build_filters(1)").await?;
    assert_eq!(refusal.sqlstate, "25001");
    session.run("ROLLBACK").await
}

/// I1: a prepared transaction delays the filter of its slice, and its claim is found after COMMIT
/// PREPARED.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_filter_waits_for_a_prepared_claim() -> Result<()> {
    let server = cluster("filters-prepared")?.start()?;
    let session = Session::in_database_with_idem(&server, "shop").await?;
    ensure!(claim(&session, "first").await?);
    session.run("BEGIN").await?;
    session.run("SELECT idem_try_claim('held', 'd')").await?;
    session.run("PREPARE TRANSACTION 'held'").await?;
    let steps = "SELECT count(idem.build_filters(1)) FROM generate_series(1, 40)";
    session.run(steps).await?;
    assert_eq!(status(&session, FIRST).await?, "building");
    session.run("COMMIT PREPARED 'held'").await?;
    build_filters(&session).await?;
    seal(&session).await?;
    ensure!(!claim(&session, "held").await?);
    Ok(())
}
