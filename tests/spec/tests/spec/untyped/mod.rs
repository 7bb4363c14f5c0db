//! Tests of I10: a driver that sends parameters without a type can execute every function.
//!
//! Most drivers send text and leave the types to the server. **The rule:** the arguments are
//! literals or parameters of unknown type. A statement that passes all arguments, omits any suffix
//! of the optional arguments, or passes a single optional argument by name resolves to exactly one
//! function. It fails neither with 42725 (ambiguous) nor with 42883 (not found).
//!
//! The same rule holds for a driver that declares `text` for `id` and for each argument of type
//! text, and no type for the other arguments. A parameter declared `text` for a `jsonb` or
//! `interval` argument fails with 42883 in any PostgreSQL, because text has no implicit cast to
//! these types: such a driver writes `$1::jsonb`.

pub mod catalog;
mod checker;

use anyhow::Result;
use idem_testkit::Database;

use checker::misfits;

/// Every function of the API resolves with untyped arguments, in each form of [the rule](self).
#[tokio::test]
async fn i10_untyped_arguments_resolve_to_one_function() -> Result<()> {
    let db = Database::with_idem("untyped").await?;
    let misfits = misfits(&db.connect().await?).await?;
    assert!(
        misfits.is_empty(),
        "forms that do not resolve:\n{}",
        misfits.join("\n")
    );
    Ok(())
}

/// The checker reports an overload that makes a statement ambiguous.
#[tokio::test]
async fn i10_ambiguous_overload_is_reported() -> Result<()> {
    let db = Database::with_idem("untyped_ambiguous").await?;
    let session = db.connect().await?;
    session
        .run(
            "CREATE FUNCTION idem_relay_ack(relay text, partition bigint, token bigint)
             RETURNS void LANGUAGE sql AS ''",
        )
        .await?;
    let misfits = misfits(&session).await?;
    assert!(
        misfits
            .iter()
            .any(|line| line.starts_with("42725 ") && line.contains("idem_relay_ack($1, $2, $3)")),
        "{misfits:?}"
    );
    Ok(())
}

/// The checker reports a function that has no overload with an `id` of type text.
#[tokio::test]
async fn i10_missing_text_overload_is_reported() -> Result<()> {
    let db = Database::with_idem("untyped_missing").await?;
    let session = db.connect().await?;
    session
        .run(
            "ALTER EXTENSION idem DROP FUNCTION idem_is_claimed(text, text);
             DROP FUNCTION idem_is_claimed(text, text)",
        )
        .await?;
    let misfits = misfits(&session).await?;
    assert!(
        misfits
            .iter()
            .any(|line| line.starts_with("42883 ") && line.contains("idem_is_claimed($1, $2)")),
        "{misfits:?}"
    );
    Ok(())
}
