//! Tests of I7: retention leaves no dead rows. Claims and effects are only inserted, TRUNCATE
//! removes old claims and effects, and a transaction that stays open does not change this.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};
use idem_testkit::{Database, Session, until};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;

const RETENTION: Duration = Duration::from_secs(2);
const PERIODS: usize = 10;
const CLIENTS: i64 = 3;
/// The number of claims in one transaction of a client. One of them has an effect.
const BATCH: i64 = 25;
/// The interval between the transactions of a client. It limits the rate, so that a client does not
/// fill the disk faster at the end of the run, when the machine is less busy.
const TRANSACTION_EVERY: Duration = Duration::from_millis(25);

/// The clients and the relay that put load on one database until they are stopped.
struct Load {
    open: Arc<AtomicBool>,
    claimed: Arc<AtomicI64>,
    consumers: JoinSet<Result<()>>,
    all_recorded: Arc<AtomicBool>,
    relay: JoinHandle<Result<i64>>,
}

impl Load {
    async fn start(db: &Database) -> Result<Self> {
        let all_recorded = Arc::new(AtomicBool::new(false));
        let mut load = Self {
            open: Arc::new(AtomicBool::new(true)),
            claimed: Arc::default(),
            consumers: JoinSet::new(),
            relay: tokio::spawn(publish(db.connect().await?, Arc::clone(&all_recorded))),
            all_recorded,
        };
        for client in 0..CLIENTS {
            let (open, claimed) = (Arc::clone(&load.open), Arc::clone(&load.claimed));
            load.consumers
                .spawn(consume(db.connect().await?, client, open, claimed));
        }
        Ok(load)
    }

    /// Stops the load and returns the numbers of committed claims and of published effects.
    async fn stop(self) -> Result<(i64, i64)> {
        self.open.store(false, Ordering::Relaxed);
        self.consumers
            .join_all()
            .await
            .into_iter()
            .collect::<Result<()>>()?;
        self.all_recorded.store(true, Ordering::Relaxed);
        let published = self.relay.await??;
        Ok((self.claimed.load(Ordering::Relaxed), published))
    }
}

async fn consume(
    session: Session,
    client: i64,
    open: Arc<AtomicBool>,
    claimed: Arc<AtomicI64>,
) -> Result<()> {
    let sql = "WITH ids AS (SELECT array_agg('m-' || $1::bigint || '-' || n) AS ids
                 FROM generate_series($2::bigint, $2 + $3 - 1) n),
                    claims AS MATERIALIZED (SELECT idem_try_claim_batch(ids, 'orders') AS claimed
                      FROM ids)
               SELECT (SELECT count(*) FROM claims, unnest(claimed) c WHERE c)";
    let claim = session.prepare(sql).await?;
    let effect = session
        .prepare(
            "SELECT idem_record_effects('m-' || $1::bigint || '-' || $2::bigint, 'orders',
                jsonb_build_array(jsonb_build_object('topic', 'shipped', 'payload',
                repeat(md5($2::text), 48))))",
        )
        .await?;
    let mut rhythm = tokio::time::interval(TRANSACTION_EVERY);
    rhythm.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut next = 0_i64;
    while open.load(Ordering::Relaxed) {
        rhythm.tick().await;
        session.run("BEGIN").await?;
        let won: i64 = session
            .query_one(&claim, &[&client, &next, &BATCH])
            .await?
            .get(0);
        ensure!(won == BATCH, "a new id is a duplicate");
        session.query_one(&effect, &[&client, &next]).await?;
        session.run("COMMIT").await?;
        claimed.fetch_add(won, Ordering::Relaxed);
        next += BATCH;
    }
    Ok(())
}

/// Runs a relay that acknowledges every batch until all recorded effects are published. Returns the
/// number of published effects.
async fn publish(session: Session, all_recorded: Arc<AtomicBool>) -> Result<i64> {
    let mut published = 0;
    let next = session
        .prepare("SELECT count(*), max(token) FROM idem_relay_next('default', 0, 500)")
        .await?;
    let ack = session
        .prepare("SELECT idem_relay_ack('default', 0, $1)")
        .await?;
    let wait = session.prepare("SELECT idem_relay_wait(200)").await?;
    loop {
        // Read the flag before the batch is leased: if the flag is set, an empty batch means that
        // no effect is left.
        let last_look = all_recorded.load(Ordering::Relaxed);
        let row = session.query_one(&next, &[]).await?;
        let (count, token): (i64, Option<i64>) = (row.get(0), row.get(1));
        match token {
            Some(token) => {
                session.query_one(&ack, &[&token]).await?;
                published += count;
            }
            None if last_look => return Ok(published),
            None => {
                session.query_one(&wait, &[]).await?;
            }
        }
    }
}

/// Returns the size on disk, in bytes, of the tables, indexes and sequences in schema idem, without
/// the state of the rings. Each step of a rotation leaves a dead version of that state while a
/// transaction is open. The test rotates a thousand times more often than a ring of some days.
async fn bytes(session: &Session) -> Result<i64> {
    let sql = "SELECT sum(pg_table_size(c.oid) + pg_indexes_size(c.oid))::bigint FROM pg_class c \
               WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind IN ('r', 'S') \
               AND c.relname NOT IN ('ring', 'clock')";
    Ok(session.query_one(sql, &[]).await?.get(0))
}

/// Returns, for each retention period, the largest size in bytes minus the size of the empty
/// tables.
async fn watch(session: &Session) -> Result<Vec<i64>> {
    let empty = bytes(session).await?;
    let began = Instant::now();
    let mut most = vec![0; PERIODS];
    loop {
        let period = (began.elapsed().as_secs_f64() / RETENTION.as_secs_f64()) as usize;
        let Some(most) = most.get_mut(period) else {
            break;
        };
        *most = (*most).max(bytes(session).await? - empty);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(most)
}

/// Returns the numbers of inserted, updated, deleted and dead rows of the tables that match
/// `slices`, from the statistics.
async fn rows(session: &Session, slices: &str) -> Result<(i64, i64, i64, i64)> {
    let row = session
        .query_one(
            "SELECT sum(n_tup_ins)::bigint, sum(n_tup_upd)::bigint, sum(n_tup_del)::bigint,
                    sum(n_dead_tup)::bigint \
             FROM pg_stat_all_tables WHERE schemaname = 'idem' AND relname ~ $1",
            &[&slices],
        )
        .await?;
    Ok((row.get(0), row.get(1), row.get(2), row.get(3)))
}

async fn prepare(db: &Database) -> Result<Session> {
    let session = db.connect().await?;
    for ring in ["short", "standard", "long"] {
        session
            .run(&format!(
                "SELECT idem_set_retention('{ring}', '{} milliseconds')",
                RETENTION.as_millis()
            ))
            .await?;
    }
    session
        .run("CREATE TABLE business (n integer); INSERT INTO business VALUES (1)")
        .await?;
    Ok(session)
}

/// Runs the load on a database for ten retention periods and checks its storage afterwards.
async fn ten_periods(db: &Database) -> Result<()> {
    let observer = prepare(db).await?;
    let load = Load::start(db).await?;
    let most = watch(&observer).await?;
    let (claimed, published) = load.stop().await?;
    println!(
        "{}: {claimed} claims, {published} effects; bytes by period {most:?}",
        db.name()
    );

    // Without TRUNCATE the size in the tenth period would be more than three times the size in the
    // third period. With TRUNCATE the size changes by one slice, a seventh, and by a slice
    // whose TRUNCATE is late, so a factor of 1.5 is allowed.
    let (third, tenth) = (most[2], most[PERIODS - 1]);
    ensure!(
        third > 500_000,
        "the load is too low for a result: {most:?}"
    );
    ensure!(tenth * 2 <= third * 3, "storage grows: {most:?}");
    ensure!(
        published * BATCH == claimed,
        "every effect is published: {published} of {}",
        claimed / BATCH
    );

    // A session reports its statistics when it ends. The statistics are complete when they include
    // every claim and effect.
    until(
        "the statistics include every claim and effect",
        async || {
            Ok(rows(&observer, "^inbox_").await?.0 >= claimed
                && rows(&observer, "^outbox_[0-3]$").await?.0 >= published)
        },
    )
    .await?;
    for slices in ["^inbox_", "^outbox_[0-3]$"] {
        let (inserted, updated, deleted, dead) = rows(&observer, slices).await?;
        assert_eq!(
            (updated, deleted, dead),
            (0, 0, 0),
            "{slices} is insert-only; {inserted} rows were inserted"
        );
    }
    let rotations = "SELECT min(rotations) FILTER (WHERE name = 'outbox') >= 10,
                            min(rotations) FILTER (WHERE name <> 'outbox') >= 30 FROM idem.ring";
    assert_eq!(observer.text(rotations).await?, "t|t", "rotations");
    Ok(())
}

/// Starts a server without autovacuum, because autovacuum would remove the dead rows that the test
/// must find.
fn server() -> Result<Arc<Cluster>> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("storage")
        .setting("shared_buffers", "64MB")
        .setting("autovacuum", "off")
        .setting("idem.naptime", "100ms")
        .start()?;
    Ok(Arc::new(cluster))
}

/// I7: after ten retention periods the storage is bounded and has no dead rows, with and without a
/// transaction that stays open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_storage_is_bounded_and_has_no_dead_rows() -> Result<()> {
    let cluster = server()?;
    let free = Database::with_idem_in(Arc::clone(&cluster), "free").await?;
    let held = Database::with_idem_in(Arc::clone(&cluster), "held").await?;
    // The snapshot of an open transaction keeps dead rows only in its own database. In the database
    // `free` no transaction stays open.
    let holder = held.connect().await?;
    holder.run("CREATE TABLE held (n integer)").await?;
    holder
        .run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM held")
        .await?;

    let (without, with) = tokio::join!(ten_periods(&free), ten_periods(&held));
    without?;
    with?;
    let horizon =
        "SELECT backend_xmin IS NOT NULL AND clock_timestamp() - xact_start > '20 seconds'
                       \
                   FROM pg_stat_activity WHERE pid = ";
    let observer = held.connect().await?;
    assert_eq!(
        observer
            .text(&format!("{horizon}{}", holder.pid().await?))
            .await?,
        "t",
        "the transaction was open with its snapshot during the whole load"
    );
    holder.run("COMMIT").await?;
    Ok(())
}

/// I7: the tables of progress stay small under an open snapshot, and their rotation keeps the
/// cursor and the lease of a relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_progress_is_bounded_and_rotation_keeps_cursor_and_lease() -> Result<()> {
    // Without a worker, which would rotate before the size of the table is measured.
    let db = Database::without_worker("progress").await?;
    let session = db.connect().await?;
    let holder = db.connect().await?;
    holder
        .run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
        .await?;
    for n in 0..3 {
        session
            .run(&format!("SELECT idem_send('t', '{n}'::jsonb)"))
            .await?;
    }
    let payloads = "SELECT max(token), string_agg(convert_from(payload, 'UTF8'), ',' ORDER BY seq)
                      FROM idem_relay_next('default', 0, 1)";
    let first = session.text(payloads).await?;
    let (token, _) = first.split_once('|').unwrap_or_default();
    session
        .run(&format!("SELECT idem_relay_ack('default', 0, {token})"))
        .await?;
    let leased = session.text(payloads).await?;
    let (token, payload) = leased.split_once('|').unwrap_or_default();
    assert_eq!(payload, "1");

    let size = async || -> Result<i64> {
        // Measure only the current table. The second table keeps the rows that older snapshots must
        // find, until the next rotation.
        let sql = "SELECT pg_total_relation_size(format('idem.progress_%s', current)::regclass)
                     FROM idem.progress_rotation";
        Ok(session.text(sql).await?.parse()?)
    };
    let state =
        "SELECT leased_until, seq_after, seq_through, floor_from, snapshot_from, snapshot_to
           FROM idem.progress ORDER BY pos DESC LIMIT 1";
    let before = session.text(state).await?;
    for _ in 0..3 {
        // Insert thousands of old rows of progress below the newest row, as a relay does in the
        // course of time.
        session
            .run(
                "ALTER TABLE idem.progress_0 DISABLE TRIGGER note_load;
                 ALTER TABLE idem.progress_1 DISABLE TRIGGER note_load;
                 DO $$
                 DECLARE
                     p idem.progress;
                 BEGIN
                     SELECT * INTO p FROM idem.progress ORDER BY pos DESC LIMIT 1;
                     EXECUTE format(
                         'INSERT INTO idem.progress_%s
                          SELECT (q).*
                            FROM (SELECT json_populate_record($1, json_build_object(''pos'', -n)) q
                                    FROM generate_series(1, 60000) n) s',
                         (SELECT current FROM idem.progress_rotation)) USING p;
                 END $$",
            )
            .await?;
        ensure!(
            size().await? > 8 * 1024 * 1024,
            "the table is too small to rotate"
        );
        until("the tables of progress have rotated", async || {
            session.run("CALL idem_maintain()").await?;
            Ok(size().await? < 256 * 1024)
        })
        .await?;
        assert_eq!(
            session.text(state).await?,
            before,
            "the newest row of progress is kept"
        );
        let both = session
            .text(
                "SELECT pg_total_relation_size('idem.progress_0') +
                     pg_total_relation_size('idem.progress_1')",
            )
            .await?;
        ensure!(
            both.parse::<i64>()? < 32 * 1024 * 1024,
            "the two tables have {both} bytes"
        );
    }

    session
        .run(&format!("SELECT idem_relay_ack('default', 0, {token})"))
        .await?;
    let last = session.text(payloads).await?;
    assert_eq!(
        last.split_once('|').unwrap_or_default().1,
        "2",
        "the relay continues at its cursor"
    );
    holder.run("COMMIT").await?;
    Ok(())
}
