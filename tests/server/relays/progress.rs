//! Tests of the tables of relay progress: their rotation loses no cursor and no lease (I4).

use anyhow::Result;
use idem_testkit::{Database, Session, until};

use super::reader::{Reader, send};
use super::rotation::maintain;

/// I4: the rotation of progress keeps cursors and leases while another session holds an old
/// snapshot.
#[tokio::test]
async fn i4_progress_rotation_keeps_cursors_and_leases() -> Result<()> {
    let db = Database::with_idem("progress").await?;
    let (session, maintainer, old) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    session
        .run("SELECT idem_create_relay('busy'); SELECT idem_create_relay('idle')")
        .await?;
    let (first, busy) = (
        Reader::of(&db, "default").await?,
        Reader::of(&db, "busy").await?.limit(1),
    );
    for says in ["a", "b", "c"] {
        send(&session, says).await?;
    }
    let leased = first.batch().await?;
    let half = busy.batch().await?;
    busy.ack(half.token).await?;

    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    old.run("SELECT pg_current_snapshot()").await?;

    for rotation in 1..=2 {
        // Append as many states as the busy relay appends in some hours.
        until("progress is large enough to rotate", async || {
            session
                .run(
                    "SELECT count(idem.append_progress(p)) \
                     FROM idem.relay r, idem.progress_of(r, 0) p, generate_series(1, 20000) \
                     WHERE r.name = 'busy'",
                )
                .await?;
            Ok(pages(&session).await? > 1024)
        })
        .await?;
        until("progress has rotated", async || {
            maintain(&maintainer).await?;
            Ok(pages(&session).await? < 8)
        })
        .await?;
        let current = format!("{}", rotation % 2);
        assert_eq!(
            session
                .text("SELECT current FROM idem.progress_rotation")
                .await?,
            current
        );
    }
    assert_eq!(
        session.text("SELECT count(*) FROM idem.progress_0").await?,
        "2",
        "one state for each partition that has made a step"
    );

    assert_eq!(first.next().await?, None, "the lease is still held");
    first.ack(leased.token).await?;
    assert_eq!(
        first.next().await?,
        None,
        "the acknowledged batch is not delivered again"
    );
    assert_eq!(
        busy.drained().await?,
        ["b", "c"],
        "the rotation does not move the cursor"
    );
    assert_eq!(
        Reader::of(&db, "idle").await?.drained().await?,
        ["a", "b", "c"]
    );
    old.run("COMMIT").await
}

/// Returns the number of pages of the current table of progress, to which relays append. The table
/// that is not current keeps the rows that older snapshots need, until the next rotation.
async fn pages(session: &Session) -> Result<i64> {
    let bytes = session
        .text(
            "SELECT pg_relation_size(format('idem.progress_%s', current)::regclass) \
             FROM idem.progress_rotation",
        )
        .await?;
    Ok(bytes.parse::<i64>()? / 8192)
}

/// I11: relays wait while their progress rotates, so the rotation must be short and must not read
/// the old progress.
#[tokio::test]
async fn i11_progress_rotation_reads_no_old_progress() -> Result<()> {
    let db = Database::with_idem("quick_turn").await?;
    let session = db.connect().await?;
    send(&session, "a").await?;
    assert_eq!(Reader::of(&db, "default").await?.drained().await?, ["a"]);
    let append = "SELECT count(idem.append_progress(p)) \
                  FROM idem.relay r, idem.progress_of(r, 0) p, generate_series(1, 20000)";
    session.run("BEGIN").await?;
    // The open transaction prevents the worker from rotating progress.
    until("progress is large enough to rotate", async || {
        session.run(append).await?;
        Ok(pages(&session).await? > 1024)
    })
    .await?;

    let before = rows_read(&session).await?;
    until("progress rotates", async || {
        Ok(session.text("SELECT idem.rotate_progress()").await? == "t")
    })
    .await?;
    let read = rows_read(&session).await? - before;
    assert!(read < 100, "the rotation has read {read} rows of progress");
    session.run("COMMIT").await?;
    assert_eq!(
        session.text("SELECT count(*) FROM idem.progress_1").await?,
        "1"
    );
    Ok(())
}

/// Returns the number of rows of progress that the transaction has read.
async fn rows_read(session: &Session) -> Result<i64> {
    let rows = session
        .text(
            "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_xact_all_tables \
             WHERE schemaname = 'idem' AND relname IN ('progress_0', 'progress_1')",
        )
        .await?;
    Ok(rows.parse()?)
}

/// A cluster with many transactions has large snapshots, which are stored in the TOAST table. The
/// size of these snapshots counts as size of progress.
#[tokio::test]
async fn progress_rotates_when_large_snapshots_fill_toast() -> Result<()> {
    let db = Database::with_idem("toast").await?;
    let (session, maintainer) = (db.connect().await?, db.connect().await?);
    let relay = Reader::of(&db, "default").await?;
    send(&session, "a").await?;
    assert_eq!(relay.drained().await?, ["a"]);
    append_large_snapshots(&session).await?;
    let sizes = "SELECT pg_relation_size('idem.progress_0') < 1024 * 1024, \
                 pg_table_size('idem.progress_0') > 8 * 1024 * 1024";
    assert_eq!(
        session.text(sizes).await?,
        "t|t",
        "the rows are small and their snapshots are large"
    );
    until("progress has rotated", async || {
        maintain(&maintainer).await?;
        Ok(session
            .text("SELECT current FROM idem.progress_rotation")
            .await?
            == "1")
    })
    .await?;
    assert_eq!(
        session.text("SELECT count(*) FROM idem.progress_1").await?,
        "1"
    );
    Ok(())
}

/// A relay that is created and dropped leaves no row. The relay `default` is an exception: its row
/// stays, so that a restore does not create the relay again.
#[tokio::test]
async fn dropped_relay_leaves_no_row() -> Result<()> {
    let db = Database::with_idem("dropped").await?;
    let session = db.connect().await?;
    for _ in 0..3 {
        session
            .run(
                "SELECT idem_create_relay('short_lived', 2, true); \
                 SELECT idem_drop_relay('short_lived')",
            )
            .await?;
    }
    session
        .run(
            "SELECT idem_drop_relay('default'); SELECT idem_create_relay('default'); \
             SELECT idem_drop_relay('default')",
        )
        .await?;
    assert_eq!(
        session
            .text("SELECT id, name, dropped_at IS NOT NULL FROM idem.relay")
            .await?,
        "1|default|t"
    );
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem.relay_partition")
            .await?,
        "0"
    );
    Ok(())
}

/// I11: a dump locks one table of progress after the other. A rotation that cannot lock the second
/// table at once releases the first table, so that relays do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i11_relay_never_waits_for_progress_rotation() -> Result<()> {
    const ATTEMPTS: usize = 20;
    let db = Database::with_idem("rotations").await?;
    let (session, maintainer, dump) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    let relay = Reader::of(&db, "default").await?;
    relay
        .session
        .run(
            "SET client_min_messages = log; SET log_lock_waits = on; SET deadlock_timeout = '50ms'",
        )
        .await?;
    send(&session, "a").await?;
    assert_eq!(relay.drained().await?, ["a"]);
    append_large_snapshots(&session).await?;
    dump.run("BEGIN; LOCK TABLE idem.progress_1 IN ACCESS SHARE MODE")
        .await?;

    let rotating = tokio::spawn(async move {
        for _ in 0..ATTEMPTS {
            assert_eq!(maintainer.text("SELECT idem.rotate_progress()").await?, "f");
        }
        anyhow::Ok(maintainer)
    });
    let mut steps = 0;
    while !rotating.is_finished() || steps < ATTEMPTS {
        send(&session, "b").await?;
        assert_eq!(relay.drained().await?, ["b"]);
        steps += 1;
    }
    let maintainer = rotating.await??;
    let waits: Vec<_> = relay
        .session
        .notices()
        .into_iter()
        .map(|notice| notice.message)
        .collect();
    assert_eq!(waits, [""; 0]);

    dump.run("COMMIT").await?;
    until("progress has rotated", async || {
        maintain(&maintainer).await?;
        Ok(session
            .text("SELECT current FROM idem.progress_rotation")
            .await?
            == "1")
    })
    .await
}

/// Appends 2,000 copies of the newest state of the relay. The older snapshot of each copy lists a
/// thousand transactions.
async fn append_large_snapshots(session: &Session) -> Result<()> {
    session
        .run(
            "SELECT count(idem.append_progress(p)) FROM generate_series(1, 2000), LATERAL (
                 SELECT r.pos, r.relay, r.partition, r.leased_until, r.written_at, r.seq_after,
                        r.seq_through, r.exhausted, r.deferring, r.from_delayed, r.floor_from,
                        r.floor_to, r.ceiling_to,
                        format('%s:%s:%s', pg_snapshot_xmax(r.snapshot_from),
                               pg_snapshot_xmax(r.snapshot_from)::text::bigint + 1000,
                               (SELECT string_agg(x::text, ',' ORDER BY x)
                                  FROM generate_series(
                                      pg_snapshot_xmax(r.snapshot_from)::text::bigint,
                                      pg_snapshot_xmax(r.snapshot_from)::text::bigint + 999) x)
                        )::pg_snapshot AS snapshot_from,
                        r.snapshot_to, r.waits_for
                   FROM idem.relay x, idem.progress_of(x, 0) r) p",
        )
        .await
}
