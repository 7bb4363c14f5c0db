//! Tests with poison and good messages together. Each poison message is dead after exactly its
//! allowed attempts, good messages are handled once and in order, and requeued messages are
//! redelivered once.

use std::sync::Arc;

use anyhow::{Context, Result};
use idem_testkit::{DEADLINE, Database};
use tokio::task::JoinSet;

use super::{fail, next, without_back_off};

const MESSAGES: usize = 2_000;
const ATTEMPTS: i32 = 3;

/// Handles all messages with eight consumers. Every hundredth message fails while `broken` is true.
async fn consume(db: &Arc<Database>, broken: bool) -> Result<()> {
    let mut consumers = JoinSet::new();
    for _ in 0..8 {
        let session = db.connect().await?;
        consumers.spawn(async move {
            loop {
                let batch = next(&session, 10).await?;
                if batch.is_empty()
                    && session
                        .text("SELECT count(*) FROM idem.pending WHERE due_at < 'infinity'")
                        .await?
                        == "0"
                {
                    return anyhow::Ok(());
                }
                for message in batch {
                    let id = &message.id;
                    if broken && id.ends_with("00") {
                        session
                            .run(&format!("INSERT INTO tried (id) VALUES ('{id}')"))
                            .await?;
                        fail(&session, &message, "poison").await?;
                    } else {
                        session
                            .run(&format!(
                                "BEGIN; INSERT INTO handled (id) SELECT '{id}' \
                                 WHERE idem_try_claim('{id}', 'mail'); COMMIT"
                            ))
                            .await?;
                    }
                }
            }
        });
    }
    let all = async {
        while let Some(consumer) = consumers.join_next().await {
            consumer??;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(3 * DEADLINE, all)
        .await
        .context("the consumers do not finish in time")?
}

/// Each poison message is dead after exactly its allowed attempts, and every good message is
/// handled once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_dies_after_its_attempts_others_are_handled_once() -> Result<()> {
    let db = Arc::new(Database::with_idem("poison").await?);
    let session = db.connect().await?;
    without_back_off(&session, ATTEMPTS).await?;
    session
        .run(
            "CREATE TABLE handled (seq bigint GENERATED ALWAYS AS IDENTITY, id text); \
             CREATE TABLE tried (id text)",
        )
        .await?;
    session
        .run(&format!(
            "SELECT idem_receive('m' || n, 'mail', to_jsonb('m' || n), \
             key => CASE WHEN n % 3 > 0 THEN 'k' || n % 40 END) \
             FROM generate_series(1, {MESSAGES}) n"
        ))
        .await?;
    consume(&db, true).await?;
    let poison = MESSAGES / 100;
    let good = MESSAGES - poison;
    let handled = "SELECT count(*), count(DISTINCT id) FROM handled";
    assert_eq!(session.text(handled).await?, format!("{good}|{good}"));
    assert_eq!(
        session
            .text(
                "SELECT count(DISTINCT id), min(n), max(n) \
                 FROM (SELECT id, count(*) AS n FROM tried GROUP BY id) t"
            )
            .await?,
        format!("{poison}|{ATTEMPTS}|{ATTEMPTS}"),
        "every poison message is tried as often as its attempts"
    );
    assert_eq!(
        session
            .text(
                "SELECT count(*), min(attempt), max(attempt), min(jsonb_array_length(errors)) \
                 FROM idem.dead_letters"
            )
            .await?,
        format!("{poison}|{ATTEMPTS}|{ATTEMPTS}|{ATTEMPTS}")
    );
    let disordered = "SELECT count(*) FROM (SELECT substr(id, 2)::int AS n, \
                      lag(substr(id, 2)::int) OVER (PARTITION BY substr(id, 2)::int % 40 \
                      ORDER BY seq) AS before \
                      FROM handled WHERE substr(id, 2)::int % 3 > 0) o WHERE before > n";
    assert_eq!(
        session.text(disordered).await?,
        "0",
        "the messages of every key are handled in order"
    );

    // The cause of the failures is removed. Each requeued dead letter is then redelivered once.
    assert_eq!(
        session
            .text("SELECT idem_requeue_all('mail', 'poison')")
            .await?,
        poison.to_string()
    );
    consume(&db, false).await?;
    assert_eq!(
        session.text(handled).await?,
        format!("{MESSAGES}|{MESSAGES}")
    );
    assert_eq!(
        session.text("SELECT count(*) FROM idem.pending").await?,
        "0"
    );
    assert_eq!(
        session
            .text("SELECT count(*) FROM idem.dead_letter")
            .await?,
        "0"
    );
    Ok(())
}
