//! Tests of functions in transactions that began before a step of a rotation. The test executes the
//! steps, and the fence protects the state that these transactions use.

use std::sync::Arc;

use anyhow::Result;
use idem_cluster::{Cluster, Install};
use idem_testkit::{Database, Session};

/// Starts a cluster without a worker, so that only the test executes the steps of a rotation.
async fn database(name: &str) -> Result<Database> {
    let cluster = Cluster::builder(&Install::from_env()?)
        .name(&name.replace('_', "-"))
        .setting("shared_buffers", "32MB")
        .setting("idem.databases", "none")
        .start()?;
    Database::with_idem_in(Arc::new(cluster), name).await
}

async fn make_due(session: &Session, ring: &str) -> Result<()> {
    session
        .run(&format!(
            "UPDATE idem.ring SET rotated_at = rotated_at - retention WHERE name = '{ring}'"
        ))
        .await
}

async fn rotate(session: &Session, ring: &str) -> Result<String> {
    session
        .text(&format!("SELECT idem.rotate('{ring}', false)"))
        .await
}

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

/// I1: a transaction has entered the rings before the step `opened`. A newer claim is then in the
/// current slice and in the next slice, and `idem_forget` deletes it from both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i1_forget_deletes_a_claim_made_while_opening() -> Result<()> {
    let db = database("forget_opening").await?;
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
