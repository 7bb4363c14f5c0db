//! Filters while the ring rotates.

use anyhow::{Result, ensure};
use idem_testkit::Database;
use idem_testkit::ring::{SEALED, build_filters, make_due, rotate};

use super::{claim, seal, status};

/// I1: claims are found in each position of the ring, and a slice that is used again does not keep
/// the filter of its earlier rows.
#[tokio::test]
async fn i1_claims_are_found_through_rotations() -> Result<()> {
    let db = Database::without_worker("through_rotations").await?;
    let session = db.connect().await?;
    let slices = SEALED + 2;
    let numbers = "SELECT cardinality(idem.slice_numbers(1::int2))";
    assert_eq!(session.text(numbers).await?, slices.to_string());
    for round in 0..slices + 2 {
        let current = i32::try_from(round % slices)?;
        assert_ne!(
            status(&session, current).await?,
            "complete",
            "round {round}"
        );
        build_filters(&session).await?;
        ensure!(claim(&session, &format!("m-{round}")).await?);
        for earlier in (0..=round).rev().take(SEALED + 1) {
            let id = format!("m-{earlier}");
            ensure!(!claim(&session, &id).await?, "{id} in round {round}");
        }
        seal(&session).await?;
    }
    Ok(())
}

/// The filter of the next slice is prepared before a claimer can write to the slice, so it does not
/// wait for a long transaction.
#[tokio::test]
async fn next_slice_has_a_filter_before_its_first_claim() -> Result<()> {
    let db = Database::without_worker("next_filter").await?;
    let (session, claimer) = (db.connect().await?, db.connect().await?);
    ensure!(claim(&session, "before").await?);
    build_filters(&session).await?;
    make_due(&session, "standard").await?;
    assert_eq!(rotate(&session, "standard").await?, "opened");
    claimer
        .run("BEGIN; SELECT idem_try_claim('long', 'd')")
        .await?;
    build_filters(&session).await?;
    assert_eq!(status(&session, 1).await?, "complete");
    claimer.run("COMMIT").await?;
    for step in ["rotated", "emptied"] {
        assert_eq!(rotate(&session, "standard").await?, step);
    }
    ensure!(!claim(&session, "long").await?);
    seal(&session).await?;
    ensure!(!claim(&session, "long").await?);
    Ok(())
}

/// I1: a batch finds claims in slices with filters, also beyond the claims whose lines are fetched
/// together, and in a slice that it opens for a later claim of the batch.
#[tokio::test]
async fn i1_batch_finds_claims_behind_filters() -> Result<()> {
    let db = Database::without_worker("batch_filters").await?;
    let session = db.connect().await?;
    build_filters(&session).await?;
    let batch = |ids: &str| {
        format!(
            "BEGIN;
             SELECT string_agg(CASE WHEN c THEN 't' ELSE 'f' END, '' ORDER BY n)
               FROM unnest(idem_try_claim_uuid_batch(ARRAY(
                        SELECT lpad(to_hex(n), 32, '0')::uuid FROM generate_series({ids}) n
                         ORDER BY n), 'd')) WITH ORDINALITY AS b (c, n);
             COMMIT"
        )
    };
    // Each third id is claimed, in two slices.
    assert_eq!(session.text(&batch("3, 90, 6")).await?, "t".repeat(15));
    seal(&session).await?;
    build_filters(&session).await?;
    assert_eq!(session.text(&batch("6, 90, 6")).await?, "t".repeat(15));
    seal(&session).await?;
    build_filters(&session).await?;
    assert_eq!(session.text(&batch("1, 90")).await?, "ttf".repeat(30));
    assert_eq!(session.text(&batch("1, 90")).await?, "f".repeat(90));
    Ok(())
}

/// I1: the claims of a destination that has moved to another ring are found in its earlier ring:
/// in a sealed slice, and in the current slice, which other destinations still write.
#[tokio::test]
async fn i1_claims_are_found_in_a_ring_with_filters_that_was_left() -> Result<()> {
    let db = Database::without_worker("left_filters").await?;
    let session = db.connect().await?;
    ensure!(claim(&session, "sealed").await?);
    seal(&session).await?;
    ensure!(claim(&session, "current").await?);
    session.run("SELECT idem_configure('d', '30 days')").await?;
    build_filters(&session).await?;
    for id in ["sealed", "current"] {
        ensure!(!claim(&session, id).await?, "{id}");
    }
    ensure!(claim(&session, "new").await?);
    ensure!(!claim(&session, "new").await?);
    seal(&session).await?;
    build_filters(&session).await?;
    for id in ["sealed", "current", "new"] {
        ensure!(!claim(&session, id).await?, "{id} after a rotation");
    }
    Ok(())
}
