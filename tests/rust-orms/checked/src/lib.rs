//! The functions of idem in the checked queries of sqlx. `DATABASE_URL` names a database with the
//! extension and with the tables of `schema.sql` while this crate is compiled.
//!
//! A function of PostgreSQL does not declare that its result is never NULL. So sqlx infers an
//! `Option` for each column, and `"name!"` says that the value is there.

use serde_json::Value;
use sqlx::postgres::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

pub type Result<T> = std::result::Result<T, sqlx::Error>;

/// Returns whether the message is new. Without `!` the type of the result is `Option<bool>`.
pub async fn try_claim(tx: &mut PgConnection, id: &str, destination: &str) -> Result<bool> {
    sqlx::query_scalar!(
        r#"SELECT idem_try_claim($1, $2) AS "is_new!""#,
        id,
        destination
    )
    .fetch_one(tx)
    .await
}

/// Without the cast the parameter is a text.
pub async fn try_claim_uuid(tx: &mut PgConnection, id: Uuid, destination: &str) -> Result<bool> {
    sqlx::query_scalar!(
        r#"SELECT idem_try_claim($1::uuid, $2) AS "is_new!""#,
        id,
        destination
    )
    .fetch_one(tx)
    .await
}

/// The outcome of `idem_claim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "idem_outcome", rename_all = "snake_case")]
pub enum Outcome {
    Claimed,
    Duplicate,
    InProgress,
    Mismatch,
    Expired,
}

/// Returns the outcome, and the time of the first claim, which is NULL if there is none.
///
/// sqlx has no type for `idem_outcome`, so the query names one.
pub async fn claim(
    tx: &mut PgConnection,
    id: &str,
    destination: &str,
    fingerprint: Option<&[u8]>,
) -> Result<(Outcome, Option<OffsetDateTime>)> {
    let row = sqlx::query!(
        r#"SELECT outcome AS "outcome!: Outcome", handled_at
           FROM idem_claim($1, $2, fingerprint => $3)"#,
        id,
        destination,
        fingerprint
    )
    .fetch_one(tx)
    .await?;
    Ok((row.outcome, row.handled_at))
}

/// Returns the message ids. `effects` is an array of objects.
pub async fn record_effects(
    tx: &mut PgConnection,
    id: &str,
    destination: &str,
    effects: &Value,
) -> Result<Vec<Uuid>> {
    sqlx::query_scalar!(
        r#"SELECT idem_record_effects($1, $2, $3) AS "ids!""#,
        id,
        destination,
        effects
    )
    .fetch_one(tx)
    .await
}

/// An effect. The columns without `!` can be NULL.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedEffect {
    pub message_id: Uuid,
    pub ordinal: i32,
    pub topic: String,
    pub key: Option<String>,
    pub payload: Vec<u8>,
    pub headers: Option<Value>,
    pub recorded_at: OffsetDateTime,
}

pub async fn effects(
    tx: &mut PgConnection,
    id: &str,
    destination: &str,
) -> Result<Vec<RecordedEffect>> {
    sqlx::query_as!(
        RecordedEffect,
        r#"SELECT message_id AS "message_id!", ordinal AS "ordinal!", topic AS "topic!", key,
                  payload AS "payload!", headers, recorded_at AS "recorded_at!"
           FROM idem_effects($1, $2)"#,
        id,
        destination
    )
    .fetch_all(tx)
    .await
}

/// What sqlx infers without `!`. This function compiles only with these types.
pub async fn inferred_types(tx: &mut PgConnection, id: &str, to: &str) -> Result<()> {
    let claimed = sqlx::query_scalar!("SELECT idem_try_claim($1, $2)", id, to);
    let _: Option<bool> = claimed.fetch_one(&mut *tx).await?;
    let none = serde_json::json!([]);
    let recorded = sqlx::query_scalar!("SELECT idem_record_effects($1, $2, $3)", id, to, none);
    let _: Option<Vec<Uuid>> = recorded.fetch_one(&mut *tx).await?;
    let effects = sqlx::query!(
        "SELECT message_id, ordinal FROM idem_effects($1, $2)",
        id,
        to
    );
    for row in effects.fetch_all(&mut *tx).await? {
        let _: (Option<Uuid>, Option<i32>) = (row.message_id, row.ordinal);
    }
    Ok(())
}

/// The broken variant, which must not compile: a number is not an id.
#[cfg(feature = "wrong-type")]
pub async fn wrong_type(tx: &mut PgConnection) -> Result<Option<bool>> {
    sqlx::query_scalar!("SELECT idem_try_claim($1, $2)", 4711_i32, "payments")
        .fetch_one(tx)
        .await
}
