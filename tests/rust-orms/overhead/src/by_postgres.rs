//! `postgres`: by hand, and with idem-postgres.

use std::env;

use anyhow::{Result, ensure};
use idem_client::{Claim, Destination, Effect, MessageId, try_claim};
use idem_postgres::{PostgresTransaction, wait};
use postgres::types::{Json, ToSql, Type};
use postgres::{Client, Config, NoTls, Row, Statement, Transaction};
use serde_json::json;

use crate::{CLAIM, Process, RECORD, Settings, TO, UPDATE, Variant};

const DEFAULT: &str = "postgres by hand: query";
const TYPED: &str = "postgres by hand: query_typed";
const PREPARED: &str = "postgres by hand: prepared once";

type Parameters<'p> = [(&'p (dyn ToSql + Sync), Type)];

pub fn variants(settings: &Settings) -> Result<Vec<Variant>> {
    let variant = |name, baseline, process| Variant {
        name,
        baseline,
        process,
    };
    Ok(vec![
        variant(TYPED, TYPED, by_hand(settings, None)?),
        variant(DEFAULT, TYPED, by_default(settings)?),
        variant(PREPARED, TYPED, by_hand(settings, Some(prepare))?),
        variant(
            "idem-postgres, tx.commit()",
            TYPED,
            with_idem(settings, false)?,
        ),
        variant(
            "idem-postgres, idem_postgres::commit",
            TYPED,
            with_idem(settings, true)?,
        ),
    ])
}

fn connect(settings: &Settings) -> Result<Client> {
    let mut config = Config::new();
    config.host(&env::var("PGHOST")?).user(&env::var("PGUSER")?);
    config
        .port(env::var("PGPORT")?.parse()?)
        .dbname(&env::var("PGDATABASE")?);
    let mut client = config.connect(NoTls)?;
    client.batch_execute(&settings.sql())?;
    Ok(client)
}

type Prepare = fn(&mut Client) -> Result<[Statement; 3]>;

fn prepare(client: &mut Client) -> Result<[Statement; 3]> {
    Ok([
        client.prepare_typed(CLAIM, &[Type::TEXT, Type::TEXT])?,
        client.prepare(UPDATE)?,
        client.prepare_typed(RECORD, &[Type::TEXT, Type::TEXT, Type::JSONB])?,
    ])
}

fn query(
    tx: &mut Transaction<'_>,
    statement: Option<&Statement>,
    sql: &str,
    parameters: &Parameters<'_>,
) -> Result<Vec<Row>> {
    let Some(statement) = statement else {
        return Ok(tx.query_typed(sql, parameters)?);
    };
    let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
    Ok(tx.query(statement, &values)?)
}

fn by_hand(settings: &Settings, prepare: Option<Prepare>) -> Result<Process> {
    let mut client = connect(settings)?;
    let prepared = prepare.map(|prepare| prepare(&mut client)).transpose()?;
    Ok(Box::new(move |id| {
        let statement = |number: usize| prepared.as_ref().map(|prepared| &prepared[number]);
        let mut tx = client.transaction()?;
        let claim = [(&id as _, Type::TEXT), (&TO as _, Type::TEXT)];
        let claimed = query(&mut tx, statement(0), CLAIM, &claim)?;
        ensure!(claimed[0].get::<_, bool>(0), "a duplicate");
        query(&mut tx, statement(1), UPDATE, &[(&2_i32, Type::INT4)])?;
        let effects = Json([json!({"topic": "receipts", "payload": {"cents": 5}})]);
        let [id, to] = claim;
        query(
            &mut tx,
            statement(2),
            RECORD,
            &[id, to, (&effects, Type::JSONB)],
        )?;
        tx.commit()?;
        Ok(())
    }))
}

fn by_default(settings: &Settings) -> Result<Process> {
    let mut client = connect(settings)?;
    Ok(Box::new(move |id| {
        let mut tx = client.transaction()?;
        let claimed = tx.query_one(CLAIM, &[&id, &TO])?;
        ensure!(claimed.get::<_, bool>(0), "a duplicate");
        tx.execute(UPDATE, &[&2_i32])?;
        let effects = Json([json!({"topic": "receipts", "payload": {"cents": 5}})]);
        tx.query_one(RECORD, &[&id, &TO, &effects])?;
        tx.commit()?;
        Ok(())
    }))
}

fn with_idem(settings: &Settings, is_idem_commit: bool) -> Result<Process> {
    let mut client = connect(settings)?;
    let to = Destination::new(TO)?;
    Ok(Box::new(move |id| {
        let id = MessageId::text(id)?;
        let mut tx = client.transaction()?;
        let idem = PostgresTransaction::new(&mut tx);
        let Claim::New(claim) = wait(try_claim(&idem, &id, &to))? else {
            anyhow::bail!("a duplicate");
        };
        idem.transaction()?
            .query_typed(UPDATE, &[(&2_i32, Type::INT4)])?;
        wait(claim.record_effects(&[Effect::json("receipts", &json!({"cents": 5}))?]))?;
        match is_idem_commit {
            true => idem_postgres::commit(tx)?,
            false => tx.commit()?,
        }
        Ok(())
    }))
}
