//! Tests of I5: a relay reads the true last number of the outbox and uses it as its floor. If the
//! floor were too high, the relay would never read the effects with numbers between the true last
//! number and the floor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use idem_testkit::{Database, Session, until};
use tokio::task::JoinHandle;

/// The statement with which a relay reads the last number.
const AS_A_RELAY: &str = "SELECT idem.last_outbox_seq() INTO now_read";

/// A statement that scans the sequence. It can return a number that is too high: see
/// `idem.last_outbox_seq`.
const BY_A_SCAN: &str = "SELECT s.last_value INTO now_read FROM idem.outbox_seq s";

/// The number of reads in one function call.
const READS: i32 = 50_000;

/// A session that takes numbers from the sequence until it is stopped.
struct Taker {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Result<()>>,
}

impl Taker {
    fn start(session: Session) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::SeqCst) {
                session
                    .run("SELECT count(nextval('idem.outbox_seq')) FROM generate_series(1, 20000)")
                    .await?;
            }
            Ok(())
        });
        Self { stop, task }
    }

    /// Fails when the session has ended before it was stopped.
    async fn check(&mut self) -> Result<()> {
        if self.task.is_finished() {
            (&mut self.task).await??;
            bail!("the session that takes numbers has ended");
        }
        Ok(())
    }

    async fn stop(self) -> Result<()> {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await?
    }
}

/// Creates an SQL function that reads the last number repeatedly. The function returns how many
/// times it read a number that was not taken yet.
async fn make_reader(session: &Session, name: &str, read: &str) -> Result<()> {
    session
        .run(&format!(
            "CREATE FUNCTION {name}(reads integer) RETURNS integer LANGUAGE plpgsql AS $$
             DECLARE
                 now_read bigint;
                 too_high integer := 0;
             BEGIN
                 FOR n IN 1 .. reads LOOP
                     {read};
                     IF now_read > pg_sequence_last_value('idem.outbox_seq') THEN
                         too_high := too_high + 1;
                     END IF;
                 END LOOP;
                 RETURN too_high;
             END
             $$"
        ))
        .await
}

async fn too_high(session: &Session, name: &str) -> Result<i32> {
    Ok(session
        .text(&format!("SELECT {name}({READS})"))
        .await?
        .parse()?)
}

/// I5: a relay never reads a last number that is not taken yet. A scan of the sequence reads such
/// numbers, so the test can detect them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i5_last_outbox_number_is_never_too_high() -> Result<()> {
    /// How many more times a relay reads than the scan that has read a wrong number.
    const MORE: i32 = 3;
    let db = Database::with_idem("floor").await?;
    let session = db.connect().await?;
    make_reader(&session, "by_a_scan", BY_A_SCAN).await?;
    make_reader(&session, "as_a_relay", AS_A_RELAY).await?;
    let mut taker = Taker::start(db.connect().await?);

    let mut scans = 0;
    until("a scan has read a number that was too high", async || {
        taker.check().await?;
        scans += 1;
        Ok(too_high(&session, "by_a_scan").await? > 0)
    })
    .await?;
    for _ in 0..MORE * scans {
        taker.check().await?;
        assert_eq!(too_high(&session, "as_a_relay").await?, 0);
    }
    taker.stop().await
}

/// I5: all SQL functions and views read the sequence with `idem.last_outbox_seq`, which reads it
/// under a lock. `idem.sequences_behind` reads all sequences in this way.
#[tokio::test]
async fn i5_one_sql_object_reads_the_outbox_sequence() -> Result<()> {
    let db = Database::with_idem("one_owner").await?;
    let session = db.connect().await?;
    let readers = "WITH object AS ( \
                       SELECT proname AS name, \
                              coalesce(pg_get_function_sqlbody(oid), prosrc) AS body \
                       FROM pg_proc \
                       UNION ALL \
                       SELECT relname, pg_get_viewdef(oid) FROM pg_class \
                       WHERE relkind IN ('v', 'm')) \
                   SELECT name FROM object \
                   WHERE replace(body, 'last_outbox_seq', '') ~ 'outbox_seq' ORDER BY name";
    assert_eq!(
        session.text(readers).await?,
        "last_outbox_seq\nsequences_behind"
    );
    Ok(())
}

#[tokio::test]
async fn new_outbox_has_last_number_0() -> Result<()> {
    let db = Database::with_idem("first_number").await?;
    let session = db.connect().await?;
    assert_eq!(session.text("SELECT idem.last_outbox_seq()").await?, "0");
    session.run("SELECT idem_send('topic', '{}')").await?;
    assert_eq!(session.text("SELECT idem.last_outbox_seq()").await?, "1");
    Ok(())
}
