//! Segments: claims are inserted into the newest segment of a slice, and are found in all of them.

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install, Shutdown};
use idem_testkit::ring::{build_filters, make_due, make_segment_due, rotate};
use idem_testkit::{Database, Session, until};

async fn claim(session: &Session, id: &str) -> Result<bool> {
    let sql = format!("SELECT idem_try_claim('{id}', 'orders')");
    Ok(session.text(&sql).await? == "t")
}

/// Returns the segments of the rows of a message in a slice, in order.
async fn segments(session: &Session, slice: i32, id: &str) -> Result<String> {
    let sql = format!(
        "SELECT string_agg(segment::text, ',' ORDER BY segment) FROM idem.inbox_standard_{slice}
          WHERE key = idem.key_of('{id}')"
    );
    session.text(&sql).await
}

/// Ends the present segment. No transaction may be open.
async fn advance(session: &Session) -> Result<()> {
    make_segment_due(session, "standard").await?;
    for step in ["advancing", "advanced"] {
        assert_eq!(rotate(session, "standard").await?, step);
    }
    Ok(())
}

/// A database whose slices have filters.
async fn fixture(name: &str) -> Result<(Database, Session)> {
    let db = Database::without_worker(name).await?;
    let session = db.connect().await?;
    ensure!(claim(&session, "warm").await?);
    build_filters(&session).await?;
    Ok((db, session))
}

/// I1, I6: claims are found in each segment of the current slice and of a sealed slice, by every
/// function, with and without filters.
#[tokio::test]
async fn i1_claims_are_found_in_every_segment() -> Result<()> {
    let (_db, session) = fixture("every_segment").await?;
    let found = "SELECT string_agg(n::text, ',' ORDER BY n) FROM generate_series(0, 5) n
                  WHERE idem_is_claimed('m-' || n, 'orders')
                    AND (idem_acquire('m-' || n, 'orders', '1 minute')).outcome = 'duplicate'
                    AND NOT idem_receive('m-' || n, 'orders', '{}')
                    AND NOT idem_try_claim('m-' || n, 'orders')";
    let batch = "SELECT idem_try_claim_batch(ARRAY(SELECT 'm-' || n
                                                     FROM generate_series(0, 5) n), 'orders')";
    for segment in 0..6 {
        let id = format!("m-{segment}");
        ensure!(claim(&session, &id).await?, "{id}");
        assert_eq!(segments(&session, 0, &id).await?, segment.to_string());
        for earlier in 0..=segment {
            let id = format!("m-{earlier}");
            ensure!(!claim(&session, &id).await?, "{id} in segment {segment}");
        }
        if segment < 5 {
            advance(&session).await?;
        }
    }
    let is_found = async || {
        assert_eq!(session.text(found).await?, "0,1,2,3,4,5");
        assert_eq!(session.text(batch).await?, "{f,f,f,f,f,f}");
        anyhow::Ok(())
    };
    is_found().await?;
    let foreign = "INSERT INTO idem.inbox_standard_0 (key, claimed_at, destination)
                   VALUES (gen_random_uuid(), now(), 77);
                   SELECT idem_finish_restore()";
    session.run(foreign).await?;
    is_found().await?;
    make_due(&session, "standard").await?;
    for step in ["opened", "rotated", "emptied"] {
        assert_eq!(rotate(&session, "standard").await?, step);
    }
    is_found().await?;
    build_filters(&session).await?;
    is_found().await?;
    ensure!(claim(&session, "new").await?);
    assert_eq!(segments(&session, 1, "new").await?, "0");
    Ok(())
}

/// I1: while the segment advances, a claim is in both segments. `idem_forget` deletes both rows.
#[tokio::test]
async fn i1_claim_of_an_advancing_ring_is_in_two_segments() -> Result<()> {
    let (_db, session) = fixture("two_segments").await?;
    make_segment_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "advancing");
    for id in ["m", "forgotten"] {
        ensure!(claim(&session, id).await?);
        assert_eq!(segments(&session, 0, id).await?, "0,1");
    }
    let forget = "SELECT idem_forget('forgotten', 'orders')";
    assert_eq!(session.text(forget).await?, "t");
    assert_eq!(segments(&session, 0, "forgotten").await?, "NULL");
    assert_eq!(rotate(&session, "standard").await?, "advanced");
    ensure!(!claim(&session, "m").await?);
    ensure!(claim(&session, "forgotten").await?, "it was forgotten");
    assert_eq!(segments(&session, 0, "forgotten").await?, "1");
    // The journal has no segments.
    let call = "SELECT state FROM idem_begin_call('m', 'orders', 'pay')";
    make_segment_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "advancing");
    assert_eq!(session.text(call).await?, "new");
    assert_eq!(session.text(call).await?, "unknown");
    Ok(())
}

/// I1: each advance has its own fence. A transaction with a claim in the present segment only is
/// waited for, also if the fence of the advance before has passed.
#[tokio::test]
async fn i1_each_advance_waits_at_its_own_fence() -> Result<()> {
    let (db, session) = fixture("own_fence").await?;
    let open = db.connect().await?;
    for round in 0..3 {
        open.run("BEGIN").await?;
        ensure!(claim(&open, &format!("open-{round}")).await?);
        make_segment_due(&session, "standard").await?;
        assert_eq!(rotate(&session, "standard").await?, "advancing");
        assert_eq!(rotate(&session, "standard").await?, "waiting", "{round}");
        let blocks = "SELECT blocks FROM idem_rotation_blockers() WHERE ring = 'standard'";
        let fence = "the fence before the segment advances";
        assert_eq!(session.text(blocks).await?, fence);
        open.run("COMMIT").await?;
        assert_eq!(rotate(&session, "standard").await?, "advanced");
        ensure!(!claim(&session, &format!("open-{round}")).await?);
    }
    Ok(())
}

/// I6: a ring rotates when its period has passed, however many segments were used. A segment that
/// is advancing advances first, and the next slice begins with segment 0.
#[tokio::test]
async fn i6_ring_rotates_by_time_and_not_by_segments() -> Result<()> {
    let (_db, session) = fixture("by_time").await?;
    let state = "SELECT phase, segment, rotations FROM idem.ring WHERE name = 'standard'";
    for _ in 0..63 {
        advance(&session).await?;
    }
    assert_eq!(session.text(state).await?, "steady|63|0");
    make_segment_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "idle", "the last one");
    session
        .run("UPDATE idem.ring SET segment = 5 WHERE name = 'standard'")
        .await?;
    assert_eq!(rotate(&session, "standard").await?, "advancing");
    make_due(&session, "standard").await?;
    for step in ["advanced", "opened", "rotated"] {
        assert_eq!(rotate(&session, "standard").await?, step);
    }
    assert_eq!(session.text(state).await?, "emptying|0|1");
    make_segment_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "emptied");
    Ok(())
}

/// I1: rows that another command inserts can be in any segment, also in one above the present one.
#[tokio::test]
async fn i1_row_of_another_command_is_found_in_any_segment() -> Result<()> {
    let (_db, session) = fixture("any_segment").await?;
    for segment in [63, 7, 0] {
        let insert = format!(
            "INSERT INTO idem.inbox_standard_0 (key, claimed_at, destination, segment, id)
             SELECT idem.key_of('copied-{segment}'), now(), d.id, {segment}, 'copied-{segment}'
               FROM idem.destination d WHERE d.name = 'orders';
             SELECT idem_finish_restore()"
        );
        session.run(&insert).await?;
    }
    let all_are_found = async || {
        for segment in [0, 7, 63] {
            let id = format!("copied-{segment}");
            ensure!(!claim(&session, &id).await?, "{id}");
            let is_claimed = format!("SELECT idem_is_claimed('{id}', 'orders')");
            assert_eq!(session.text(&is_claimed).await?, "t", "{id}");
        }
        anyhow::Ok(())
    };
    all_are_found().await?;
    build_filters(&session).await?;
    all_are_found().await?;
    ensure!(claim(&session, "m").await?);
    let wrong = "INSERT INTO idem.inbox_standard_0 (key, claimed_at, destination, segment)
                 VALUES (gen_random_uuid(), now(), 1, 64)";
    let refusal = session.refused(wrong).await?;
    assert_eq!(refusal.sqlstate, "23514", "{refusal:?}");
    Ok(())
}

/// A segment ends only while every slice of its ring has a complete filter, and when ten times the
/// wait at the last fence has passed. Otherwise claims would read many segments, or be stored twice
/// most of the time.
#[tokio::test]
async fn segment_ends_only_with_filters_and_without_long_waits() -> Result<()> {
    let db = Database::without_worker("segment_conditions").await?;
    let session = db.connect().await?;
    ensure!(claim(&session, "warm").await?);
    make_segment_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "idle", "no filters");
    build_filters(&session).await?;
    let waited = "UPDATE idem.ring SET segment_started = segment_opened + retention * 2
                   WHERE name = 'standard'";
    session.run(waited).await?;
    assert_eq!(rotate(&session, "standard").await?, "idle", "a long wait");
    make_segment_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "advancing");
    Ok(())
}

/// A segment ends early when it has more than 250,000 claims.
#[tokio::test]
async fn segment_with_many_claims_ends_early() -> Result<()> {
    let (_db, session) = fixture("many_claims").await?;
    let fill = |claims: i32| {
        format!(
            "INSERT INTO idem.inbox_standard_0 (key, claimed_at, destination)
             SELECT gen_random_uuid(), now(), 77 FROM generate_series(1, {claims});
             SELECT idem_finish_restore()"
        )
    };
    session.run(&fill(150_000)).await?;
    build_filters(&session).await?;
    assert_eq!(rotate(&session, "standard").await?, "idle");
    session.run(&fill(150_000)).await?;
    build_filters(&session).await?;
    for step in ["advancing", "advanced", "idle"] {
        assert_eq!(rotate(&session, "standard").await?, step);
    }
    Ok(())
}

/// Health reports a transaction that keeps a segment from advancing, because each claim is stored
/// twice until it ends.
#[tokio::test]
async fn health_reports_a_segment_that_cannot_advance() -> Result<()> {
    let (db, session) = fixture("cannot_advance").await?;
    let open = db.connect().await?;
    let pid = open.pid().await?;
    open.run("BEGIN").await?;
    ensure!(claim(&open, "open").await?);
    make_segment_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "advancing");
    assert_eq!(rotate(&session, "standard").await?, "waiting");
    let health = "SELECT status, detail FROM idem_health() WHERE check_name = 'rotation standard'";
    let young = session.text(health).await?;
    ensure!(young.starts_with("ok|rotates every"), "{young}");
    let is_old = "UPDATE idem.ring SET segment_opened = segment_opened - '10 minutes'::interval
                   WHERE name = 'standard'";
    session.run(is_old).await?;
    assert_eq!(rotate(&session, "standard").await?, "waiting");
    let old = session.text(health).await?;
    let twice = "warning|each claim has been stored twice for 00:10:0";
    ensure!(old.starts_with(twice), "{old}");
    ensure!(old.contains(&format!("pid {pid}")), "{old}");
    open.run("COMMIT").await?;
    assert_eq!(rotate(&session, "standard").await?, "advanced");
    let ended = session.text(health).await?;
    ensure!(ended.starts_with("ok|"), "{ended}");
    Ok(())
}

/// I1: the present segment ends after a crash, and after a promotion, between its two steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_segment_ends_after_a_crash_and_a_promotion() -> Result<()> {
    let mut primary = Cluster::builder(&Install::from_env()?)
        .name("segment-crash")
        .setting("idem.databases", "none")
        .start()?;
    let session = Session::in_database_with_idem(&primary, "shop").await?;
    let standby = primary.standby().start()?;
    let publish = async |session: &Session| -> Result<()> {
        build_filters(session).await?;
        make_segment_due(session, "standard").await?;
        assert_eq!(rotate(session, "standard").await?, "advancing");
        Ok(())
    };
    let continues = async |session: &Session, ids: &[&str]| -> Result<()> {
        for step in ["advanced", "idle"] {
            assert_eq!(rotate(session, "standard").await?, step);
            for id in ids {
                ensure!(!claim(session, id).await?, "{id} after {step}");
            }
        }
        Ok(())
    };

    ensure!(claim(&session, "m0").await?);
    publish(&session).await?;
    ensure!(claim(&session, "m1").await?);
    assert_eq!(segments(&session, 0, "m1").await?, "0,1");
    primary.stop(Shutdown::Immediate)?;
    primary.start()?;
    let session = Session::superuser(&primary, "shop").await?;
    continues(&session, &["m0", "m1"]).await?;

    ensure!(claim(&session, "m2").await?);
    publish(&session).await?;
    ensure!(claim(&session, "m3").await?);
    assert_eq!(segments(&session, 0, "m3").await?, "1,2");
    let written = session.text("SELECT pg_current_wal_insert_lsn()").await?;
    let promoted = Session::superuser(&standby, "shop").await?;
    until("the standby has caught up", async || {
        let replayed = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        Ok(promoted.text(&replayed).await? == "t")
    })
    .await?;
    primary.kill()?;
    standby.promote()?;
    continues(&promoted, &["m0", "m1", "m2", "m3"]).await?;
    ensure!(claim(&promoted, "m4").await?);
    assert_eq!(segments(&promoted, 0, "m4").await?, "2");
    Ok(())
}
