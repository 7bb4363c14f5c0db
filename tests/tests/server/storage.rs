//! I7: retention is free. Claims and effects are insert-only, old ones go by TRUNCATE, and a
//! transaction that stays open changes nothing of that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use idem_cluster::{Cluster, Install};
use idem_tests::harness::{Database, Session, until};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;

const RETENTION: Duration = Duration::from_secs(2);
const PERIODS: usize = 10;
const CLIENTS: i64 = 3;
/// One transaction of a client: so many claims, one of them with an effect.
const BATCH: i64 = 25;
/// What a client does in a second is bounded, so that a free machine does not fill the disk faster
/// at the end of the run.
const TRANSACTION_EVERY: Duration = Duration::from_millis(25);

/// Load on one database until it is stopped.
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

    /// Answers how many claims were committed and how many effects published.
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
    let sql =
        "WITH ids AS (SELECT array_agg('m-' || $1::bigint || '-' || n) AS ids FROM generate_series($2::bigint, $2 + $3 - 1) n),
                    claims AS MATERIALIZED (SELECT idem_try_claim_batch(ids, 'orders') AS answers FROM ids)
               SELECT (SELECT count(*) FROM claims, unnest(answers) a WHERE a)";
    let claim = session.prepare(sql).await?;
    let effect = session
        .prepare(
            "SELECT idem_record_effects('m-' || $1::bigint || '-' || $2::bigint, 'orders',
                jsonb_build_array(jsonb_build_object('topic', 'shipped', 'payload', repeat(md5($2::text), 48))))",
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
        ensure!(won == BATCH, "new ids are not duplicates");
        session.query_one(&effect, &[&client, &next]).await?;
        session.run("COMMIT").await?;
        claimed.fetch_add(won, Ordering::Relaxed);
        next += BATCH;
    }
    Ok(())
}

/// The relay: it acknowledges what it gets, until there is nothing left of all that was recorded.
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
        // Read before looking, so that an empty answer after it is the last word.
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

/// Bytes on disk of everything in schema idem.
async fn bytes(session: &Session) -> Result<i64> {
    let sql = "SELECT sum(pg_table_size(c.oid) + pg_indexes_size(c.oid))::bigint FROM pg_class c \
               WHERE c.relnamespace = 'idem'::regnamespace AND c.relkind IN ('r', 'S')";
    Ok(session.query_one(sql, &[]).await?.get(0))
}

/// The most bytes that each retention period has seen, beyond those of the empty tables.
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

/// Rows of all slices, as the statistics have them: inserted, updated, deleted, dead.
async fn rows(session: &Session, slices: &str) -> Result<(i64, i64, i64, i64)> {
    let row = session
        .query_one(
            "SELECT sum(n_tup_ins)::bigint, sum(n_tup_upd)::bigint, sum(n_tup_del)::bigint, sum(n_dead_tup)::bigint \
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

/// Ten retention periods of load on a database, and what they must leave behind.
async fn ten_periods(db: &Database) -> Result<()> {
    let observer = prepare(db).await?;
    let load = Load::start(db).await?;
    let most = watch(&observer).await?;
    let (claimed, published) = load.stop().await?;
    println!(
        "{}: {claimed} claims, {published} effects; bytes by period {most:?}",
        db.name()
    );

    // What it would be without TRUNCATE: more than three times as much. Within a period it goes up
    // and down by a slice.
    let (third, tenth) = (most[2], most[PERIODS - 1]);
    ensure!(third > 500_000, "too little load to say anything: {most:?}");
    ensure!(tenth * 2 <= third * 3, "storage grows: {most:?}");
    ensure!(
        published * BATCH == claimed,
        "every effect is published: {published} of {}",
        claimed / BATCH
    );

    // The statistics come when a session ends: they are there when they account for every claim.
    until("the statistics know every claim and effect", async || {
        Ok(rows(&observer, "^inbox_").await?.0 >= claimed
            && rows(&observer, "^outbox_[0-3]$").await?.0 >= published)
    })
    .await?;
    for slices in ["^inbox_", "^outbox_[0-3]$"] {
        let (inserted, updated, deleted, dead) = rows(&observer, slices).await?;
        assert_eq!(
            (updated, deleted, dead),
            (0, 0, 0),
            "{slices}: insert-only, {inserted} inserted"
        );
    }
    let turns = observer.text("SELECT min(turns) FROM idem.ring").await?;
    ensure!(
        turns.parse::<i64>()? >= 10,
        "the rings have turned {turns} times"
    );
    Ok(())
}

/// Autovacuum would tidy up what must not be there in the first place.
fn server() -> Result<Arc<Cluster>> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name("storage")
        .setting("shared_buffers", "64MB")
        .setting("autovacuum", "off")
        .setting("idem.naptime", "100ms")
        .start()?;
    Ok(Arc::new(cluster))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_ten_retention_periods_leave_bounded_storage_and_no_dead_rows_also_under_an_open_transaction()
-> Result<()> {
    let cluster = server()?;
    let free = Database::with_idem_in(Arc::clone(&cluster), "free").await?;
    let held = Database::with_idem_in(Arc::clone(&cluster), "held").await?;
    // The oldest snapshot is one of its own database: the other runs without.
    let holder = held.connect().await?;
    holder.run("CREATE TABLE held (n integer)").await?;
    holder
        .run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM held")
        .await?;

    let (without, with) = tokio::join!(ten_periods(&free), ten_periods(&held));
    without?;
    with?;
    let horizon = "SELECT backend_xmin IS NOT NULL AND clock_timestamp() - xact_start > '20 seconds' \
                   FROM pg_stat_activity WHERE pid = ";
    let observer = held.connect().await?;
    assert_eq!(
        observer
            .text(&format!("{horizon}{}", holder.pid().await?))
            .await?,
        "t",
        "it was open all the time, with its snapshot"
    );
    holder.run("COMMIT").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i7_progress_is_bounded_and_a_turn_of_its_tables_keeps_cursor_and_lease() -> Result<()> {
    let db = Database::with_idem("progress").await?;
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
    let payloads = "SELECT max(token), string_agg(convert_from(payload, 'UTF8'), ',' ORDER BY seq) FROM idem_relay_next('default', 0, 1)";
    let first = session.text(payloads).await?;
    let (token, _) = first.split_once('|').unwrap_or_default();
    session
        .run(&format!("SELECT idem_relay_ack('default', 0, {token})"))
        .await?;
    let leased = session.text(payloads).await?;
    let (token, payload) = leased.split_once('|').unwrap_or_default();
    assert_eq!(payload, "1");

    let size = async || -> Result<i64> {
        // The other keeps what older snapshots must find, until the next turn.
        let sql = "SELECT pg_total_relation_size(format('idem.progress_%s', current)::regclass) FROM idem.progress_turn";
        Ok(session.text(sql).await?.parse()?)
    };
    let state = "SELECT leased_until, seq_after, seq_through, floor_from, snapshot_from, snapshot_to FROM idem.progress ORDER BY pos DESC LIMIT 1";
    let before = session.text(state).await?;
    for _ in 0..3 {
        // Old progress, as a relay leaves it behind by the thousand, below what counts.
        session
            .run(
                "DO $$
                 DECLARE
                     p idem.progress;
                 BEGIN
                     SELECT * INTO p FROM idem.progress ORDER BY pos DESC LIMIT 1;
                     EXECUTE format('INSERT INTO idem.progress_%s SELECT (q).* FROM (SELECT json_populate_record($1, json_build_object(''pos'', -n)) AS q
                                       FROM generate_series(1, 60000) n) s', (SELECT current FROM idem.progress_turn)) USING p;
                 END $$",
            )
            .await?;
        ensure!(size().await? > 8 * 1024 * 1024, "enough to turn");
        until("the tables of progress have turned", async || {
            session.run("CALL idem_maintain()").await?;
            Ok(size().await? < 256 * 1024)
        })
        .await?;
        assert_eq!(
            session.text(state).await?,
            before,
            "the newest progress stays"
        );
        let both = session
            .text("SELECT pg_total_relation_size('idem.progress_0') + pg_total_relation_size('idem.progress_1')")
            .await?;
        ensure!(
            both.parse::<i64>()? < 32 * 1024 * 1024,
            "two tables at most: {both} bytes"
        );
    }

    session
        .run(&format!("SELECT idem_relay_ack('default', 0, {token})"))
        .await?;
    let last = session.text(payloads).await?;
    assert_eq!(
        last.split_once('|').unwrap_or_default().1,
        "2",
        "it goes on where it was"
    );
    holder.run("COMMIT").await?;
    Ok(())
}
