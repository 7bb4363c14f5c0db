//! Filters: a claim does not read a slice whose filter excludes the claim. A complete filter has
//! each row of its slice, whatever inserted it, and is used only for its own slice.
//!
//! While a slice takes claims, its unique index decides. So the tests look claims up in sealed
//! slices, where a filter that misses a row lets a message be claimed twice.

mod arrivals;
mod inserts;
mod life;
mod memory;
mod reasons;
mod rotations;

use anyhow::Result;
use idem_cluster::{Builder, Cluster, Install};
use idem_testkit::Session;
use idem_testkit::ring::{make_due, rotate};

async fn status(session: &Session, slice: i32) -> Result<String> {
    let sql =
        format!("SELECT status FROM idem.filters WHERE ring = 'standard' AND slice = {slice}");
    session.text(&sql).await
}

async fn claim(session: &Session, id: &str) -> Result<bool> {
    let sql = format!("BEGIN; SELECT idem_try_claim('{id}', 'd'); COMMIT");
    Ok(session.text(&sql).await? == "t")
}

/// Rotates the ring once, so that its current slice becomes sealed.
async fn seal(session: &Session) -> Result<()> {
    make_due(session, "standard").await?;
    for step in ["opened", "rotated", "emptied"] {
        assert_eq!(rotate(session, "standard").await?, step);
    }
    Ok(())
}

/// Returns the builder of a cluster for one test. It has no worker, so only the test builds
/// filters.
fn cluster(name: &str) -> Result<Builder> {
    Ok(Cluster::builder(&Install::from_env()?)
        .name(name)
        .setting("shared_buffers", "32MB")
        .setting("idem.databases", "none"))
}
