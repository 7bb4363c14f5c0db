//! sqlx: by hand, and with idem-sqlx.

use std::rc::Rc;

use anyhow::{Result, ensure};
use idem_client::{Claim, Destination, Effect, MessageId, try_claim};
use idem_sqlx::SqlxTransaction;
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection, Postgres, Transaction};
use tokio::runtime::{Builder, Runtime};

use crate::{CLAIM, RECORD, Settings, TO, UPDATE, Variant};

const PREPARED: &str = "sqlx by hand";
const UNPREPARED: &str = "sqlx by hand, unprepared";

/// The function that commits.
#[derive(Clone, Copy)]
enum Commit {
    Driver,
    Idem,
}

pub fn variants(settings: &Settings) -> Result<Vec<Variant>> {
    let runtime = Rc::new(Builder::new_current_thread().enable_all().build()?);
    let mut variants = Vec::new();
    for (name, is_prepared) in [(PREPARED, true), (UNPREPARED, false)] {
        let (runtime, mut connection) = connect(&runtime, settings)?;
        variants.push(Variant {
            name,
            baseline: name,
            process: Box::new(move |id| {
                runtime.block_on(by_hand(&mut connection, id, is_prepared))
            }),
        });
    }
    for (name, baseline, is_prepared, commit) in [
        ("idem-sqlx, tx.commit()", PREPARED, true, Commit::Driver),
        ("idem-sqlx, idem_sqlx::commit", PREPARED, true, Commit::Idem),
        (
            "idem-sqlx, unprepared, tx.commit()",
            UNPREPARED,
            false,
            Commit::Driver,
        ),
        (
            "idem-sqlx, unprepared, commit",
            UNPREPARED,
            false,
            Commit::Idem,
        ),
    ] {
        let (runtime, mut connection) = connect(&runtime, settings)?;
        variants.push(Variant {
            name,
            baseline,
            process: Box::new(move |id| {
                runtime.block_on(with_idem(&mut connection, id, is_prepared, commit))
            }),
        });
    }
    Ok(variants)
}

fn connect(runtime: &Rc<Runtime>, settings: &Settings) -> Result<(Rc<Runtime>, PgConnection)> {
    let connection = runtime.block_on(async {
        let mut connection = PgConnection::connect_with(&Default::default()).await?;
        connection
            .execute(sqlx::AssertSqlSafe(settings.sql()))
            .await?;
        anyhow::Ok(connection)
    })?;
    Ok((Rc::clone(runtime), connection))
}

async fn by_hand(connection: &mut PgConnection, id: &str, is_prepared: bool) -> Result<()> {
    let mut tx = connection.begin().await?;
    let claim = sqlx::query_scalar(CLAIM).bind(id).bind(TO);
    let is_new: bool = claim.persistent(is_prepared).fetch_one(&mut *tx).await?;
    ensure!(is_new, "a duplicate");
    update(&mut tx, is_prepared).await?;
    let effects = sqlx::types::Json([json!({"topic": "receipts", "payload": {"cents": 5}})]);
    let record = sqlx::query_scalar(RECORD).bind(id).bind(TO).bind(effects);
    let _: Vec<sqlx::types::Uuid> = record.persistent(is_prepared).fetch_one(&mut *tx).await?;
    tx.commit().await?;
    Ok(())
}

async fn update(tx: &mut Transaction<'_, Postgres>, is_prepared: bool) -> Result<()> {
    let update = sqlx::query(UPDATE).bind(1_i32).persistent(is_prepared);
    update.execute(&mut **tx).await?;
    Ok(())
}

async fn with_idem(
    connection: &mut PgConnection,
    id: &str,
    is_prepared: bool,
    commit: Commit,
) -> Result<()> {
    let (id, to) = (MessageId::text(id)?, Destination::new(TO)?);
    let mut tx = connection.begin().await?;
    let idem = SqlxTransaction::new(&mut tx);
    let idem = if is_prepared { idem } else { idem.unprepared() };
    let Claim::New(claim) = try_claim(&idem, &id, &to).await? else {
        anyhow::bail!("a duplicate");
    };
    update(&mut *idem.transaction()?, is_prepared).await?;
    claim
        .record_effects(&[Effect::json("receipts", &json!({"cents": 5}))?])
        .await?;
    match commit {
        Commit::Driver => tx.commit().await?,
        Commit::Idem => idem_sqlx::commit(tx).await?,
    }
    Ok(())
}
