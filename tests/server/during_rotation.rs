//! Tests of functions in transactions that began before a step of a rotation. The test executes the
//! steps, and the fence protects the state that these transactions use.

use anyhow::Result;
use idem_testkit::ring::{SEALED, make_due, rotate};
use idem_testkit::{Database, Session};

async fn claim(session: &Session, id: &str) -> Result<String> {
    session
        .text(&format!("SELECT idem_try_claim('{id}', 'orders')"))
        .await
}

async fn forget(session: &Session, id: &str) -> Result<String> {
    session
        .text(&format!("SELECT idem_forget('{id}', 'orders')"))
        .await
}

/// I1: a transaction enters the rings before the step `opened`, and another session claims messages
/// after this step. These claims are in the current slice and in the next slice, and `idem_forget`
/// of the older transaction deletes them from both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_forget_deletes_a_claim_made_while_opening() -> Result<()> {
    let db = Database::without_worker("forget_opening").await?;
    let (forgets, maintainer, claims) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    assert_eq!(claim(&claims, "warm").await?, "t");
    forgets.run("BEGIN").await?;
    assert_eq!(forget(&forgets, "nothing").await?, "f");
    make_due(&maintainer, "standard").await?;
    assert_eq!(rotate(&maintainer, "standard").await?, "opened");
    assert_eq!(claim(&claims, "m").await?, "t");
    assert_eq!(claim(&claims, "again").await?, "t");

    assert_eq!(forget(&forgets, "m").await?, "t");
    let again = "SELECT idem_forget('again', 'orders'), idem_try_claim('again', 'orders')";
    assert_eq!(forgets.text(again).await?, "t|t");
    forgets.run("COMMIT").await?;
    assert_eq!(
        claims.text("SELECT idem_is_claimed('m', 'orders')").await?,
        "f",
        "no slice has the claim"
    );
    assert_eq!(claim(&claims, "m").await?, "t");
    Ok(())
}

/// I3: a transaction finds a duplicate before the slice with the claim leaves the ring. The fence
/// keeps this slice and its effects, so the transaction can read the effects until it ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_duplicate_finds_its_effects_after_the_slices_rotate() -> Result<()> {
    let db = Database::without_worker("old_effects").await?;
    let (session, duplicate, other) = (
        db.connect().await?,
        db.connect().await?,
        db.connect().await?,
    );
    session
        .run(r#"SELECT idem_try_record('m', 'orders', '[{"topic": "t", "payload": "fact"}]')"#)
        .await?;
    // The claim is in the oldest sealed slice after these rotations.
    for _ in 0..SEALED {
        make_due(&session, "standard").await?;
        for step in ["opened", "rotated", "emptied"] {
            assert_eq!(rotate(&session, "standard").await?, step);
        }
    }
    make_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "opened");
    // The first try of this step makes the list of the fence, which contains only the transaction
    // of `other`. The transaction of `duplicate` begins later, so the step does not wait for it.
    other.run("BEGIN").await?;
    assert_eq!(claim(&other, "old").await?, "t");
    assert_eq!(rotate(&session, "standard").await?, "waiting");
    duplicate.run("BEGIN").await?;
    assert_eq!(claim(&duplicate, "m").await?, "f");
    let effects = "SELECT convert_from(payload, 'UTF8') FROM idem_effects('m', 'orders')";
    assert_eq!(duplicate.text(effects).await?, "\"fact\"");
    duplicate.run("SAVEPOINT s").await?;
    other.run("COMMIT").await?;
    assert_eq!(rotate(&session, "standard").await?, "rotated");
    assert_eq!(rotate(&session, "standard").await?, "waiting");

    assert_eq!(duplicate.text(effects).await?, "\"fact\"");
    let claimed = "SELECT idem_is_claimed('m', 'orders')";
    assert_eq!(duplicate.text(claimed).await?, "t");
    assert_eq!(
        duplicate
            .text("SELECT idem_replay_effects('m', 'orders')")
            .await?,
        "1"
    );
    duplicate.run("ROLLBACK TO s").await?;
    assert_eq!(duplicate.text(effects).await?, "\"fact\"");
    // A transaction that began after the step does not find the claim.
    assert_eq!(other.text(claimed).await?, "f");
    duplicate.run("COMMIT").await?;
    assert_eq!(duplicate.text(claimed).await?, "f");
    assert_eq!(rotate(&session, "standard").await?, "emptied");
    Ok(())
}

/// I3: the transaction entered the rings in a savepoint and rolled it back, which released the
/// lock. The rotation does not wait for the transaction, which then finds no claim and no effects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i3_rolled_back_savepoint_protects_no_slice() -> Result<()> {
    let db = Database::without_worker("left_in_savepoint").await?;
    let (session, duplicate) = (db.connect().await?, db.connect().await?);
    let record = r#"SELECT idem_try_record('m', 'orders', '[{"topic": "t", "payload": "fact"}]')"#;
    assert_eq!(session.text(record).await?, "t");
    duplicate.run("BEGIN; SAVEPOINT s").await?;
    assert_eq!(claim(&duplicate, "m").await?, "f");
    duplicate.run("ROLLBACK TO s").await?;
    // After one more rotation the slice with the claim is emptied.
    for _ in 0..=SEALED {
        make_due(&session, "standard").await?;
        for step in ["opened", "rotated", "emptied"] {
            assert_eq!(rotate(&session, "standard").await?, step);
        }
    }
    let found = "SELECT idem_is_claimed('m', 'orders'), \
                 (SELECT count(*) FROM idem_effects('m', 'orders'))";
    assert_eq!(duplicate.text(found).await?, "f|0");
    // The next execution, in the slice that was emptied, has its own effects.
    assert_eq!(
        session.text(&record.replace("fact", "new")).await?,
        "t",
        "the claim is forgotten"
    );
    let effects = "SELECT convert_from(payload, 'UTF8') FROM idem_effects('m', 'orders')";
    assert_eq!(duplicate.text(effects).await?, "\"new\"");
    assert_eq!(claim(&duplicate, "m").await?, "f");
    assert_eq!(duplicate.text(effects).await?, "\"new\"");
    duplicate.run("COMMIT").await?;
    Ok(())
}
