//! What the tests of several programs do with a ring.

use crate::Session;
use anyhow::Result;

/// The number of sealed slices of a ring of the inbox. A claim is found until its ring has rotated
/// more often than this.
pub const SEALED: usize = 6;

/// Makes the next rotation of a ring due, as if its period had passed.
///
/// # Errors
/// Fails when the server returns an error.
pub async fn make_due(session: &Session, ring: &str) -> Result<()> {
    session
        .run(&format!(
            "UPDATE idem.ring SET rotated_at = rotated_at - retention WHERE name = '{ring}'"
        ))
        .await
}

/// Tries the next step of a rotation, without waiting at the fence. Returns the executed step.
///
/// # Errors
/// Fails when the server returns an error.
pub async fn rotate(session: &Session, ring: &str) -> Result<String> {
    session
        .text(&format!("SELECT idem.rotate('{ring}', false)"))
        .await
}

/// Returns how often a ring has rotated.
///
/// # Errors
/// Fails when the server returns an error.
pub async fn rotations(session: &Session, ring: &str) -> Result<i64> {
    let rotations = session
        .text(&format!(
            "SELECT rotations FROM idem.ring WHERE name = '{ring}'"
        ))
        .await?;
    Ok(rotations.parse()?)
}
